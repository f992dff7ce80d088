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
_RESNET: dict[str, Any] = {
    "model_type": "resnet",
    "hidden_sizes": [8, 8, 16, 16],
    "depths": [1, 1, 1, 1],
    "embedding_size": 8,
    "layer_type": "basic",
    "out_features": ["stage4"],
}
_LAST_THREE = ["stage2", "stage3", "stage4"]
_HGNET: dict[str, Any] = {
    "hidden_sizes": [8, 16, 24, 32],
    "depths": [1, 1, 1, 1],
    "stem_channels": [3, 8, 8],
    "stage_in_channels": [8, 8, 16, 24],
    "stage_mid_channels": [8, 8, 8, 8],
    "stage_out_channels": [8, 16, 24, 32],
    "stage_num_blocks": [1, 1, 1, 1],
    "stage_numb_of_layers": [1, 1, 1, 1],
    "out_features": _LAST_THREE,
}
_DETR_ENCODER: dict[str, Any] = {
    "encoder_in_channels": [16, 24, 32],
    "encoder_hidden_dim": 16,
    "decoder_in_channels": [16, 16, 16],
    "hidden_dim": 16,
    "num_denoising": 0,
    "num_queries": 4,
}


def _two_ropes(part: float) -> dict[str, Any]:
    """Positions of two kinds of attention, on a part of each head."""
    rope = {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": part}
    return {"rope_parameters": {"full_attention": rope, "sliding_attention": rope}}


_TWO_ROPES = _two_ropes(1.0)
_TRANSCRIBE = {"head_config": {"audio_hidden_size": 16}}
_SEGMENTS = {"num_hidden_layers": 4, "out_indices": [1, 2, 3, 4], "image_size": 64, "auxiliary_channels": 8}
_FLOW = {"flow_head_config": {"condition_dim": 16}}
_RT_RESNET = {
    "embedding_size": 8,
    "hidden_sizes": [8, 16, 24, 32],
    "depths": [1, 1, 1, 1],
    "layer_type": "basic",
    "out_features": _LAST_THREE,
}
_SAM: dict[str, Any] = {
    "vision_config": {"output_channels": 16, "num_pos_feats": 8, "window_size": 2, "global_attn_indexes": [1]},
    "mask_decoder_config": {"iou_head_hidden_dim": 16, "vit_dim": 16},
}
_GEMMA_PER_LAYER = {"vocab_size_per_layer_input": 48, "hidden_size_per_layer_input": 8}
_GLM_LINEAR = {
    **{"qk_rope_head_dim": 0, "linear_head_dim": 8, "linear_num_heads": 2, "index_head_dim": 8, "index_n_heads": 2},
    "layer_types": ["linear_attention", "indexed_attention"],
}
_HIERA = {
    **{"hidden_size": 8, "embed_dim_per_stage": [8, 16, 32, 64], "num_attention_heads_per_stage": [1, 2, 2, 2]},
    **{"blocks_per_stage": [1, 1, 2, 1], "window_size_per_stage": [4, 2, 2, 2], "global_attention_blocks": [3]},
    "image_size": [64, 64],
}
_HIERA_NECK = {
    **{"backbone_config": _HIERA, "backbone_channel_list": [64, 32, 16, 8], "fpn_hidden_size": 16},
    "backbone_feature_sizes": [[16, 16], [8, 8], [4, 4]],
}
_VOICE = {"num_filters": 4, "downsampling_ratios": [2, 2], "depths": [1, 1, 1], "hidden_size": 16}
_WAVES = {"num_hidden_layers": 4, "patch_sizes": [4, 2, 2, 2], "hidden_sizes": [8, 16, 24, 32], "out_hidden_size": 16}
_INDEXER = {
    **{"indexer_n_heads": 2, "indexer_kv_heads": 1, "indexer_head_dim": 8},
    **{"indexer_budget": 4, "indexer_compress_ratio": 2},
}
_CODES = {
    "acoustic_model_config": {
        **{"downsampling_ratios": [4, 4], "upsampling_ratios": [4, 4], "encoder_hidden_size": 8},
        **{"decoder_hidden_size": 32, "hidden_size": 32},
    },
    **{"target_bandwidths": [8.0], "codebook_size": 16},
}
_LCNET = {
    "stem_channels": [3, 8, 8],
    "block_configs": [[[3, 8, 8, 1, True]], [[3, 8, 16, 2, False]], [[3, 16, 24, 2, False]], [[3, 24, 32, 2, True]]],
    "out_features": ["stage1", *_LAST_THREE],
}
_RATIOS = {"long": 7, "mid": 5, "short": 3}
_GEMMA_EXPERTS = {"num_experts": 4, "top_k_experts": 2, "moe_intermediate_size": 24}
_REPVIT = {
    "architecture": "repvit_m0_9",
    "model_args": {"features_only": True, "in_chans": 3, "out_indices": [0, 1, 2, 3]},
}
_SERIES = {
    "prediction_length": 4,
    "context_length": 8,
    "lags_sequence": [1, 2],
    "num_time_features": 1,
    "label_length": 4,
}


def _rope(*sections: int) -> dict[str, Any]:
    """Positions of three axes, each with a part of a head."""
    return {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": list(sections)}}


def _each(families: str, settings: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return dict.fromkeys(families.split(), settings)


# By family, sizes that do not follow from the names.
OVERRIDES: dict[str, dict[str, Any]] = {
    **_each("autoformer informer time_series_transformer", _SERIES),
    **_each("beit data2vec-vision", _SEGMENTS),
    **_each("conditional_detr detr table-transformer", {"backbone_config": _RESNET}),
    "dpt": {"num_hidden_layers": 4, "backbone_out_indices": [0, 1, 2, 3]},
    "tipsv2_dpt": {
        "backbone_config": {
            **{"num_hidden_layers": 4, "out_features": ["stage1", *_LAST_THREE], "reshape_hidden_states": False}
        },
        "neck_hidden_sizes": [8, 8, 8, 8],
    },
    **_each("d_fine deimv2", {"backbone_config": _HGNET, **_DETR_ENCODER}),
    **_each(
        "grounding-dino mm-grounding-dino",
        {
            "d_model": 64,
            "query_dim": 4,
            "max_text_len": 16,
            "backbone_config": {**_FOUR_STAGES, "out_features": _LAST_THREE},
        },
    ),
    **_each("gradium_phonon_tts pocket_tts", _FLOW),
    **_each(
        "mask2former maskformer oneformer",
        {"backbone_config": {**_FOUR_STAGES, "out_features": ["stage1", *_LAST_THREE]}},
    ),
    **_each("mimi mimi_decoder pocket_tts_audio_tokenizer pocket_tts_audio_tokenizer_decoder", {"upsample_groups": 16}),
    "ministral": {"head_dim": 8},
    "hunyuan_vl_text": {"head_dim": 8, **_rope(1, 1, 1, 1)},
    "nemotron3_diarization": _TRANSCRIBE,
    "nemotron3_5_transcribe_audio": {"diarization_config": _TRANSCRIBE},
    "nemo_speechlm": {
        "audio_config": {"diarization_config": _TRANSCRIBE},
        "word_timestamp_config": {"blank_token_id": 0},
    },
    "pp_doclayout_v3": {
        "x4_feat_dim": 8,
        "backbone_config": {**_HGNET, "out_features": ["stage1", *_LAST_THREE]},
        **_DETR_ENCODER,
    },
    "pp_doclayout_v4": {"backbone_config": _HGNET, **_DETR_ENCODER},
    "qwen2_5_omni_thinker": {"vision_start_token_id": 43, "text_config": _rope(1, 1, 2)},
    "qwen3_omni_moe_thinker": {"vision_start_token_id": 43},
    **_each("rt_detr rt_detr_v2", {"backbone_config": _RT_RESNET, **_DETR_ENCODER}),
    **_each("sam sam_hq", _SAM),
    "align": {
        "vision_config": {"width_coefficient": 0.1, "depth_coefficient": 0.1, "hidden_dim": 16},
        "projection_dim": 32,
    },
    "granite_speech5_ctc": {"encoder_config": {"context_size": 8}},
    "granite_speech5_encoder": {"context_size": 8},
    "inkling2_loop": {"vision_config": {"text_hidden_size": 16}},
    "kosmos-2": {"latent_query_num": 4},
    "kyutai_speech_to_text": {
        "codec_config": {"upsample_groups": 16},
        "num_codebooks": 2,
        "codebook_vocab_size": 49,
        "audio_pad_token_id": 5,
    },
    "nemotron_h_omni": {"vision_config": {"video_temporal_patch_size": 2}},
    "qwen4_exp": {"text_config": {"layer_types": _TWO_KINDS, **_INDEXER}},
    "step3p7": {"text_config": {"sliding_window": 4}},
    "textnet": {"stem_out_channels": 8},
    "timm_backbone": {"backbone": "resnet10t"},
    "timm_wrapper": {"architecture": "resnet10t"},
    "upernet": {
        "backbone_config": {**_RESNET, "out_features": ["stage1", *_LAST_THREE]},
        "auxiliary_in_channels": 16,
        "auxiliary_channels": 8,
    },
    "blip-2": {"image_token_index": 44},
    "blt": {name: {"hidden_size_global": 16, "cross_attn_k": 2} for name in ("encoder_config", "decoder_config")}
    | {"cross_attn_k": 2},
    **_each("led longformer", {"attention_window": [4, 4]}),
    "gemma3n": {
        "text_config": {"num_kv_shared_layers": 0, **_GEMMA_PER_LAYER},
        "vision_config": {"architecture": "mobilenetv4_conv_small"},
    },
    "instructblip": {"image_token_index": 44},
    "instructblipvideo": {"video_token_index": 44},
    "granite4_vision": {
        **{"vision_config": {"hidden_size": 64}, "downsample_rate": "1/2"},
        **{"deepstack_layer_map": [[0, 0], [1, 1]], "spatial_target_layers": [0, 1, 0, 1]},
    },
    "lw_detr": {
        "projector_scale_factors": [1.0],
        "backbone_config": {
            **{"image_size": 64, "num_windows": 4, "window_block_indices": [0], "out_features": ["stage1", "stage2"]}
        },
    },
    **_each(
        "neucodec xcodec2",
        {
            **{"hidden_size": 32, "decoder_hidden_size": 32, "encoder_hidden_size": 8, "quantization_dim": 48},
            "downsampling_ratios": [2, 2, 2, 4],
        },
    ),
    **_each("sam3 sam3_lite_text", {"vision_config": {"fpn_hidden_size": 16}}),
    "sam3_tracker": {
        "vision_config": {"fpn_hidden_size": 16, "backbone_feature_sizes": [[16, 16], [8, 8], [4, 4]]},
        "mask_decoder_config": {"iou_head_hidden_dim": 16},
    },
    "seggpt": {"image_size": [64, 32]},
    "shieldgemma2": {"yes_token_index": 10, "no_token_index": 11},
    "speech-encoder-decoder": {"pad_token_id": 1, "decoder_start_token_id": 2},
    "tvp": {"max_img_size": 64, "visual_prompt_size": 8},
    "xclip": {
        "vision_config": {"mit_hidden_size": 16, "mit_intermediate_size": 24, "mit_num_attention_heads": 2},
        "prompt_num_attention_heads": 2,
    },
    "perceiver": {
        **{"num_latents": 4, "d_latents": 16, "num_blocks": 1, "num_self_attends_per_block": 1, "image_size": 16},
        **{"num_self_attention_heads": 2, "num_cross_attention_heads": 2},
    },
    **_each(
        "vibevoice_acoustic_tokenizer vibevoice_acoustic_tokenizer_encoder vibevoice_acoustic_tokenizer_decoder", _VOICE
    ),
    "vibevoice": {"audio_config": _VOICE, "semantic_model_config": _VOICE},
    "vibevoice_asr": {
        f"{kind}_tokenizer_encoder_config": {**_VOICE, "hidden_size": 16} for kind in ("acoustic", "semantic")
    },
    **_each("wavtokenizer wavtokenizer_encoder", {"codebook_dim": 16, "decoder_hidden_size": 32}),
    "zaya": {"num_experts_per_tok": 1},
    "apertus1p5": {
        "audio_config": {"codebook_dim": 16, "decoder_hidden_size": 32, "codebook_size": 4},
        "vision_config": {"base_channels": 32, "codebook_size": 4},
        **{"image_token_offset": 38, "audio_token_offset": 42, "image_token_id": 46, "audio_token_id": 47},
    },
    "clvp": {name: {"hidden_size": 64} for name in ("text_config", "speech_config")}
    | {"decoder_config": {"decoder_fixing_codes": [8, 4, 4, 24]}},
    "efficientloftr": {
        **{"stage_num_blocks": [1, 1, 1, 1], "out_features": [8, 8, 16, 32], "hidden_size": 32},
        "num_attention_heads": 8,
    },
    "fast_vlm": {"vision_config": {"model_type": "timm_wrapper", "architecture": "fastvit_t8", "hidden_size": 768}},
    "higgs_audio_v2_tokenizer": _CODES,
    "lightglue": {
        "descriptor_dim": 16,
        "keypoint_detector_config": {
            **{"encoder_hidden_sizes": [8, 8, 8, 8], "decoder_hidden_size": 8, "keypoint_decoder_dim": 65},
            **{"descriptor_decoder_dim": 16, "max_keypoints": 8},
        },
    },
    "llama4": {
        "vision_config": {
            **{"intermediate_size": 64, "projector_input_dim": 16, "projector_output_dim": 16, "vision_output_dim": 16}
        }
    },
    "moonshine_streaming": {"num_key_value_heads": 2},
    "perception_lm": {
        "vision_config": {
            **{"model_type": "timm_wrapper", "architecture": "vit_tiny_patch16_224"},
            "model_args": {"img_size": 32, "patch_size": 8, "embed_dim": 16, "depth": 2, "num_heads": 2},
        }
    },
    "pi0": {"chunk_size": 4},
    "pp_ocrv6_medium_det": {
        **{
            "backbone_config": _LCNET,
            "neck_out_channels": 32,
            "scale_factor_list": [1, 2, 4, 8],
            "kernel_list": [3, 2, 2],
        },
        "intraclass_block_config": {
            **{f"{name}_channel": [1, 1, 0] for name in ("reduce", "return")},
            **{f"vertical_long_to_small_conv_{name}ratio": [[n, 1], 1, [n // 2, 0]] for name, n in _RATIOS.items()},
            **{f"horizontal_small_to_long_conv_{name}ratio": [[1, n], 1, [0, n // 2]] for name, n in _RATIOS.items()},
            **{f"symmetric_conv_long_{name}ratio": [n, 1, n // 2] for name, n in _RATIOS.items()},
        },
    },
    "pp_ocrv6_small_det": {
        "backbone_config": _LCNET,
        **{"layer_list_out_channels": [8, 16, 24, 32], "neck_out_channels": 16},
    },
    "sapiens2": {"head_config": {"upsample_out_channels": [16, 16], "conv_out_channels": [16]}},
    "t5gemma2_encoder": {"text_config": {"dropout_rate": 0.0}},
    "uvdoc": {
        "backbone_config": {
            **{"resnet_head": [[3, 8], [8, 8]], "out_features": [f"stage{i}" for i in range(1, 7)]},
            "resnet_configs": [[[8, 8, 1, False]], [[8, 16, 1, True]], [[16, 16, 1, True]]],
            "stage_configs": [[[16, 1]], [[16, 2]], [[16, 1]], [[16, 2]], [[16, 1]], [[16, 2]]],
        },
        **{"bridge_connector": [16, 16], "out_point_positions2D": [[16, 8], [8, 2]]},
    },
    "xcodec": _CODES,
    "mimo_v2_flash": {"num_key_value_heads": 1, **_two_ropes(1.0)},
    "vits": {
        **{"upsample_initial_channel": 16, "flow_size": 16, "spectrogram_bins": 17},
        **{"upsample_rates": [2, 2], "upsample_kernel_sizes": [4, 4]},
    },
    "neomme": _two_ropes(0.5),
    "bridgetower": {name: {"hidden_size": 64} for name in ("text_config", "vision_config")} | {"hidden_size": 64},
    "bros": {"hidden_size": 64},
    "chameleon": {"vocabulary_map": {"<image>": 44}, "vq_config": {"base_channels": 32}},
    "clap": {
        "audio_config": {
            **{"num_mel_bins": 16, "spec_size": 64, "patch_size": 4, "patch_stride": [4, 4], "window_size": 2},
            **{"depths": [1, 1], "num_attention_heads": [2, 2], "patch_embeds_hidden_size": 8, "hidden_size": 16},
        }
    },
    "cohere_compass": {"text_config": _TWO_ROPES},
    "cohere_compass_text": _TWO_ROPES,
    "csm": {
        "num_codebooks": 4,
        "codec_config": {"upsample_groups": 16},
        "depth_decoder_config": {"num_codebooks": 4, "backbone_hidden_size": 16},
    },
    "cvt": {"depth": [1, 2, 3], "drop_path_rate": [0.0, 0.0, 0.0]},
    "dab-detr": {"query_dim": 4, "backbone_config": _RESNET},
    "dac": {
        "downsampling_ratios": [2, 2],
        "decoder_hidden_size": 32,
        "encoder_hidden_size": 8,
        "hidden_size": 32,
        "n_codebooks": 2,
    },
    "dbrx": {"attn_config": {"rope_theta": 10000.0, "clip_qkv": 8.0}},
    "deepseek_ocr2": {
        "text_config": {"mlp_layer_types": ["dense", "sparse"], "num_experts_per_tok": 2, "n_group": 1, "topk_group": 1}
    },
    "deformable_detr": {
        "d_model": 32,
        "num_feature_levels": 2,
        "backbone_config": {**_RESNET, "out_features": ["stage3", "stage4"]},
    },
    "depth_pro": {
        "patch_size": 32,
        "intermediate_hook_ids": [1, 0],
        "intermediate_feature_dims": [16, 16],
        "scaled_images_feature_dims": [16, 16, 16],
        "fusion_hidden_size": 16,
    },
    "diffusion_gemma": {"text_config": _GEMMA_EXPERTS},
    "dots3_note": {
        "vision_config": {"per_layer_config": {}, "adapter_in_dim": 16, "adapter_out_dim": 16},
        "audio_config": {"adapter_input_size": 16, "adapter_out_dim": 16},
    },
    "edgetam": {
        "vision_config": {
            **{"backbone_config": _REPVIT, "fpn_hidden_size": 16},
            "backbone_feature_sizes": [[16, 16], [8, 8], [4, 4]],
        },
        "prompt_encoder_config": {"image_size": 64, "patch_size": 16},
        "mask_decoder_config": {"iou_head_hidden_dim": 16},
    },
    "sam2": {
        "vision_config": _HIERA_NECK,
        "prompt_encoder_config": {"image_size": 64, "patch_size": 16},
        "mask_decoder_config": {"iou_head_hidden_dim": 16},
    },
    "sam2_vision_model": _HIERA_NECK,
    "sam2_hiera_det_model": _HIERA,
    "edgetam_vision_model": {"backbone_config": _REPVIT},
    "emu3": {
        "vq_config": {"base_channels": 32, "codebook_size": 48},
        "vocabulary_map": {"<image>": 44, "<|extra_200|>": 43},
    },
    "ernie4_5_vl_moe": {"text_config": _rope(1, 1, 2)},
    "fastspeech2_conformer_with_hifigan": {"vocoder_config": {"model_in_dim": 8}},
    "dia": {
        "delay_pattern": [0, 1],
        "decoder_config": {
            "num_channels": 2,
            "cross_hidden_size": 16,
            "cross_head_dim": 8,
            "cross_num_attention_heads": 2,
            "cross_num_key_value_heads": 2,
        },
    },
    "encodec": {"sampling_rate": 800, "codebook_dim": 16, "upsampling_ratios": [4, 2], "num_filters": 4},
    "fun_asr_nano": {"adaptor_config": {"intermediate_size": 4}},
    "gemma4_assistant": {"text_config": {"hidden_size_per_layer_input": 0}},
    "gemma4": {"text_config": _GEMMA_PER_LAYER},
    "gemma4_text": _GEMMA_PER_LAYER,
    **_each(
        "glm4v_vision glm4v_moe_vision glm5_next_vision glm_image_vision glm_ocr_vision",
        {"depth": 2, "out_hidden_size": 16},
    ),
    "glm5_next": {"text_config": _GLM_LINEAR, "vision_config": {"depth": 2, "projection_intermediate_size": 24}},
    "glm5_next_text": _GLM_LINEAR,
    "granite_docling": {"vision_config": {"out_hidden_size": 16}},
    "hgnet_v2": _HGNET,
    "hunyuan_vl": {
        "text_config": {"head_dim": 8, **_rope(1, 1, 1, 1)},
        "vision_config": {"text_hidden_size": 16, "out_hidden_size": 16},
    },
    "inkling2": {"vision_config": {"text_hidden_size": 16}},
    "laguna": {"num_attention_heads_per_layer": [2, 2]},
    "layoutlmv3": {"hidden_size": 24, "coordinate_size": 4, "shape_size": 4},
    "levit": {"key_dim": [8, 8, 8], "image_size": 64, "patch_size": 16},
    "lilt": {"hidden_size": 24},
    "mamba2": {"n_groups": 1, "num_heads": 4, "head_dim": 8},
    "molmo2": {"adapter_config": {"vision_feature_layer": [1, 0]}},
    "muse_spark": {"audio_config": _WAVES, "out_hidden_size": 16, "projector_hidden_size": 24},
    "muse_spark_audio": _WAVES,
    "nemotron3_5_transcribe_word_timestamp": {"blank_token_id": 0},
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
    "granitemoehybrid": {"mamba_n_heads": 4, "mamba_d_head": 8, "layer_types": ["mamba", "attention"]},
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
    "zamba": {
        "attention_hidden_size": 32,
        "attention_head_dim": 16,
        "num_hidden_layers": 4,
        "layer_types": ["mamba", "hybrid", "mamba", "hybrid"],
    },
    "zamba2": {
        "hybrid_layer_ids": [1, 3],
        "num_hidden_layers": 4,
        "layer_types": ["mamba", "hybrid", "mamba", "hybrid"],
        "num_mem_blocks": 1,
    },
}


def small(config_class: Any, overrides: dict[str, Any]) -> Any:
    """A small configuration of this class, with small ones of its parts."""
    settings: dict[str, Any] = {}
    fields = {field.name: field for field in dataclasses.fields(config_class)}
    default = config_class()
    default.allow_global_per_layer_attribute_access = True
    names = {name: name for name in fields} | {
        theirs: ours
        for ours, theirs in getattr(config_class, "attribute_map", {}).items()
        if theirs in fields and theirs not in SIZES
    }
    from transformers import CONFIG_MAPPING, PretrainedConfig

    parts: set[str] = set()
    for name, ours in names.items():
        value = getattr(default, name, None)
        if "model_type" in (other := overrides.get(name, {}) if isinstance(overrides.get(name), dict) else {}):
            settings[name] = {**small(CONFIG_MAPPING[other["model_type"]], other).to_dict()}
            parts.add(name)
            continue
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
