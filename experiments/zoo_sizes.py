"""Small sizes for any configuration of Hugging Face's transformers."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, TypeGuard

SIZES: dict[str, Any] = {
    **dict.fromkeys(("hidden_size", "d_model", "n_embd", "dim", "embed_dim", "embedding_size", "emb_dim"), 16),
    **dict.fromkeys(
        ("d_embed", "encoder_hidden_size", "decoder_hidden_size", "projection_dim", "output_hidden_size"), 16
    ),
    **dict.fromkeys(
        ("text_embed_dim", "encoder_embed_dim", "decoder_embed_dim", "d_inner_dim", "attention_hidden_size"), 16
    ),
    **dict.fromkeys(("word_embed_proj_dim", "query_dim", "dim_model", "model_dim", "lru_width", "w_lora_dim"), 16),
    **dict.fromkeys(("intermediate_size", "ffn_dim", "d_ff", "n_inner", "d_inner", "hidden_dim", "inner_dim"), 24),
    **dict.fromkeys(
        ("encoder_ffn_dim", "decoder_ffn_dim", "moe_intermediate_size", "shared_expert_intermediate_size"), 24
    ),
    **dict.fromkeys(
        ("ffn_hidden_size", "dim_ff", "feed_forward_size", "expert_ffn_hidden_size", "intermediate_size_mlp"), 24
    ),
    **dict.fromkeys(("num_hidden_layers", "n_layer", "n_layers", "num_layers", "encoder_layers", "decoder_layers"), 2),
    **dict.fromkeys(("num_decoder_layers", "num_encoder_layers", "num_attention_layers"), 2),
    **dict.fromkeys(("encoder_num_hidden_layers", "decoder_num_hidden_layers", "conformer_layers"), 1),
    **dict.fromkeys(("num_attention_heads", "n_head", "n_heads", "num_heads", "encoder_attention_heads"), 2),
    **dict.fromkeys(("decoder_attention_heads", "num_key_value_heads", "num_kv_heads"), 2),
    **dict.fromkeys(("encoder_num_attention_heads", "decoder_num_attention_heads", "num_attention_groups"), 2),
    **dict.fromkeys(("head_dim", "d_kv", "d_head", "kv_channels", "attention_head_size"), 8),
    **dict.fromkeys(("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim", "q_lora_rank", "kv_lora_rank"), 8),
    **dict.fromkeys(
        ("max_position_embeddings", "n_positions", "n_ctx", "max_source_positions", "max_target_positions"), 64
    ),
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"), 4),
    **dict.fromkeys(("num_experts_per_tok", "num_experts_per_token", "moe_topk", "moe_k"), 2),
    **dict.fromkeys(("n_group", "topk_group", "n_shared_experts"), 1),
    "vocab_size": 48,
    "first_k_dense_replace": 1,
    "image_size": 32,
    "patch_size": 8,
    "num_frames": 2,
    "tubelet_size": 1,
    "num_mel_bins": 8,
    "n_mels": 8,
    "max_length": 64,
    "state_size": 4,
    "mamba_d_state": 8,
    "mamba_expand": 2,
    "time_step_rank": 4,
    "bos_token_id": 2,
    "eos_token_id": 3,
    "pad_token_id": 1,
    "decoder_start_token_id": 2,
    "forced_eos_token_id": 3,
    "image_token_id": 44,
    "image_token_index": 44,
    "video_token_id": 45,
    "audio_token_id": 46,
    "audio_token_index": 46,
    "image_start_token_id": 43,
    "image_end_token_id": 42,
    "sliding_window": 4,
    "num_conv_pos_embeddings": 8,
    "num_conv_pos_embedding_groups": 2,
    "classifier_proj_size": 8,
    "conv_dim": [8, 8],
    "conv_stride": [4, 4],
    "conv_kernel": [8, 4],
    "num_feat_extract_layers": 2,
    "tdnn_dim": [8, 8],
    "tdnn_kernel": [3, 3],
    "tdnn_dilation": [1, 1],
    "type_vocab_size": 2,
    "num_query_tokens": 4,
    "num_queries": 4,
    "mlp_dim": 24,
}
NOT_OPTIONAL = {"pad_token_id", "bos_token_id", "eos_token_id"}  # set although the default is None
IMAGE_TOKENS = 48

_FOUR_STAGES: dict[str, Any] = {
    "num_heads": [2, 2, 2, 2],
    "depths": [1, 1, 1, 1],
    "window_size": 2,
    "patch_size": 4,
    "image_size": 64,
}
_TWO_KINDS = ["linear_attention", "full_attention"]


def _rope(*sections: int) -> dict[str, Any]:
    """Positions of three axes, each with a part of a head."""
    return {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": list(sections)}}


# By family, sizes that do not follow from the names.
OVERRIDES: dict[str, dict[str, Any]] = {
    "bamba": {"mamba_n_heads": 4, "mamba_d_head": 8},
    "bit": {"num_groups": 2},
    "codegen": {"rotary_dim": 4, "n_head": 4},
    "convnext": {"num_stages": 4, "hidden_sizes": [8, 8, 16, 16], "depths": [1, 1, 1, 1], "patch_size": 2},
    "convnextv2": {"num_stages": 4, "hidden_sizes": [8, 8, 16, 16], "depths": [1, 1, 1, 1], "patch_size": 2},
    "deepseek_v2": {"num_experts_per_tok": 2},
    "donut-swin": _FOUR_STAGES,
    "dots1": {"n_routed_experts": 4, "num_experts_per_tok": 2, "n_shared_experts": 1},
    "efficientnet": {"width_coefficient": 0.1, "depth_coefficient": 0.1, "hidden_dim": 128},
    "esm": {"vocab_size": 48, "pad_token_id": 1, "mask_token_id": 4},
    "gemma3n_text": {"num_kv_shared_layers": 0},
    "glpn": {"num_attention_heads": [2, 2, 2, 2], "depths": [1, 1, 1, 1], "image_size": 64},
    **{
        name: _rope(1, 1, 2)
        for name in ("glm4v_text", "glm_image_text", "glm_ocr_text", "qwen2_vl_text", "qwen2_5_vl_text")
    },
    **{
        name: {"text_config": _rope(1, 1, 2)}
        for name in ("glm4v", "glm46v", "glm_image", "glm_ocr", "qwen2_vl", "qwen2_5_vl", "paddleocr_vl")
    },
    "glm4v_moe": {"text_config": _rope(1, 1, 0)},
    "glm4v_moe_text": _rope(1, 1, 0),
    "gpt_neo": {"attention_types": [[["global", "local"], 1]], "window_size": 4},
    "gptj": {"rotary_dim": 4},
    "granitemoehybrid": {"mamba_n_heads": 4, "mamba_d_head": 8},
    "hunyuan_v1_dense": {"head_dim": 8},
    "hunyuan_v1_moe": {"head_dim": 8},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"]},
    "maskformer-swin": _FOUR_STAGES,
    "mobilevitv2": {"patch_size": 2, "image_size": 64},
    "nemotron": {"num_key_value_heads": 2},
    "pvt": {"num_attention_heads": [2, 2, 2, 2], "depths": [1, 1, 1, 1], "image_size": 64},
    "pvt_v2": {"num_attention_heads": [2, 2, 2, 2], "depths": [1, 1, 1, 1], "image_size": 64},
    "qwen3_5": {"text_config": {"layer_types": _TWO_KINDS}},
    "qwen3_5_text": {"layer_types": _TWO_KINDS},
    "qwen3_5_moe": {"text_config": {"layer_types": _TWO_KINDS}},
    "qwen3_5_moe_text": {"layer_types": _TWO_KINDS},
    "reformer": {"axial_pos_embds": False},
    "swin": _FOUR_STAGES,
    "swin2sr": {"num_heads": [2, 2], "depths": [1, 1], "window_size": 2, "patch_size": 1},
    "swinv2": _FOUR_STAGES,
    "wav2vec2-bert": {"vocab_size": 48},
    "wav2vec2-conformer": {"vocab_size": 48},
    "whisper": {"max_source_positions": 16},
    "xmod": {"languages": ("en_XX",), "default_language": "en_XX"},
    "zamba": {"layer_types": ["mamba", "hybrid"]},
    "zamba2": {"layer_types": ["mamba", "hybrid"]},
}


def small(config_class: Any, overrides: dict[str, Any]) -> Any:
    """A small configuration of this class, with small ones of its parts."""
    settings: dict[str, Any] = {}
    fields = {field.name: field for field in dataclasses.fields(config_class)}
    default = config_class()
    names = {name: name for name in fields} | {
        theirs: ours
        for ours, theirs in getattr(config_class, "attribute_map", {}).items()
        if theirs in fields and theirs not in SIZES
    }
    from transformers import PretrainedConfig

    parts: set[str] = set()
    for name, ours in names.items():
        value = getattr(default, name, None)
        if isinstance(value, PretrainedConfig):
            part = small(type(value), overrides.get(name, {}))
            settings[name] = part.to_dict()
            parts.add(name)
            continue
        if name in overrides:
            continue
        if isinstance(value, dict) and "mrope_section" in value:
            settings[name] = {**value, "mrope_section": [1, 1, 2]}
            continue
        if ours in SIZES and (value is not None or ours in NOT_OPTIONAL):
            wanted = SIZES[ours]
            if isinstance(value, list | tuple) != isinstance(wanted, list):
                continue
            if isinstance(value, bool | dict):
                continue
            settings[name] = wanted
        elif _are_sizes(value) and (shrunk := _shrunk(name, list(value))) is not None:
            settings[name] = shrunk
    settings |= {name: value for name, value in overrides.items() if name not in parts}
    return config_class(**settings)


def _are_sizes(value: object) -> TypeGuard[Sequence[int]]:
    return isinstance(value, list | tuple) and len(value) > 0 and all(type(item) is int for item in value)


def _shrunk(name: str, values: list[int]) -> list[int] | None:
    """A list of sizes, one for each stage."""
    if "depth" in name or name in ("num_blocks", "layers"):
        return [min(value, 2) for value in values]
    if "head" in name and "dim" not in name:
        return [2] * len(values)
    if name in (
        "hidden_sizes",
        "embed_dims",
        "encoder_hidden_sizes",
        "embed_dim",
        "neck_hidden_sizes",
        "channels",
        "dims",
        "widths",
    ):
        return [8 * (1 + i) for i in range(len(values))]
    return None
