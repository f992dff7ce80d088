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

# By family, sizes that do not follow from the names.
OVERRIDES: dict[str, dict[str, Any]] = {}


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

    for name, ours in names.items():
        value = getattr(default, name, None)
        if isinstance(value, PretrainedConfig):
            part = small(type(value), overrides.get(name, {}))
            settings[name] = part.to_dict()
            continue
        if name in overrides:
            continue
        if ours in SIZES and (value is not None or ours in NOT_OPTIONAL):
            wanted = SIZES[ours]
            if isinstance(value, list | tuple) and not isinstance(wanted, list):
                continue
            if isinstance(value, bool | dict):
                continue
            settings[name] = wanted
        elif _are_sizes(value) and (shrunk := _shrunk(name, list(value))) is not None:
            settings[name] = shrunk
    settings |= overrides
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
