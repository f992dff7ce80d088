"""What some models of transformers take beside, or instead of, the words, pictures or sounds of their task."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

B, LENGTH = 3, 8
Fields = Mapping[str, Any]  # of all examples, with one row for each; None takes a field away


def part(config: Any, *names: str) -> Any:
    """The first of these parts that a configuration has, else the configuration itself."""
    return next((found for name in names if (found := getattr(config, name, None)) is not None), config)


def words(length: int = LENGTH, most: int = 40) -> Tensor:
    return torch.randint(5, most, (B, length))


def ones(*shape: int) -> Tensor:
    return torch.ones(B, *shape).long()


def pictures(config: Any) -> Tensor:
    vision = part(config, "vision_config")
    size = getattr(vision, "image_size", None) or 32
    height, width = size if isinstance(size, list | tuple) else (size, size)
    return torch.randn(B, getattr(vision, "num_channels", None) or 3, height, width)


def frames(config: Any) -> Tensor:
    return torch.stack([pictures(config)] * (getattr(part(config, "vision_config"), "num_frames", None) or 2), 1)


def with_picture(config: Any) -> Fields:
    return {"input_ids": words(), "attention_mask": ones(LENGTH), "pixel_values": pictures(config)}


def _large(config: Any) -> Fields:
    """Pictures of 64 x 64, with words where the model takes them."""
    with_words = {"input_ids": words(), "attention_mask": ones(LENGTH)} if hasattr(config, "text_config") else {}
    return {"pixel_values": torch.randn(B, 3, 64, 64), **with_words}


def with_video(config: Any) -> Fields:
    return {**with_picture(config), "pixel_values": frames(config)}


def series(config: Any) -> Fields:
    """Past and future of a series with one known feature of time."""
    past, future = config.context_length + max(config.lags_sequence), config.prediction_length
    return {
        "past_values": torch.randn(B, past),
        "past_time_features": torch.randn(B, past, 1),
        "past_observed_mask": torch.ones(B, past),
        "future_values": torch.randn(B, future),
        "future_time_features": torch.randn(B, future, 1),
    }


def patches(config: Any) -> Tensor:
    """Pictures of 4 x 4 patches each, one row per patch."""
    channels = getattr(config, "in_channels", None) or getattr(config, "num_channels", None) or 3
    in_time = getattr(config, "temporal_patch_size", None) or getattr(config, "patch_temporal", None) or 1
    return torch.randn(B, 16, channels * in_time * config.patch_size**2)


def sound(config: Any) -> Fields:
    """Waves of one channel."""
    return {"input_values": torch.randn(B, 1, 800), "attention_mask": None, "padding_mask": None}


def with_placeholders(config: Any) -> Fields:
    """Words, of which the first four stand for a picture."""
    ids = torch.cat([torch.full((B, 4), 44), words()], 1)
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "pixel_values": pictures(config)}


def _mel(config: Any) -> Tensor:
    names = ("num_mel_bins", "feature_size", "input_feat_size", "input_dim")
    bins = next((n for name in names if (n := getattr(config, name, None))), 8)
    return torch.randn(B, 2 * (getattr(config, "max_source_positions", None) or 32), bins)


def _many(names: str, made: Callable[[Any], Fields]) -> dict[str, Callable[[Any], Fields]]:
    return dict.fromkeys(names.split(), made)


# Vision encoders that take the patches of all pictures behind one another, and the grid of each picture.
OF_HIDDEN = """CohereCompassVisionModel Exaone4_5_VisionModel Glm4vMoeVisionModel Glm4vVisionModel Glm5NextVisionModel
GlmOcrVisionModel Qwen2_5_VisionTransformerPretrainedModel Qwen3VLMoeVisionModel Qwen3VLVisionModel
Qwen3_5MoeVisionModel Qwen3_5VisionModel Qwen4ExpVisionModel"""
OF_PIXELS = """Cosmos3EdgeVisionModel GlmImageVisionModel HunYuanVLVisionTransformer Inkling2VisionModel
Kimi_K25VisionModel Lfm3VlVisionModel MuseGlimmerVisionModel MuseSparkVisionModel HYV4VLVisionModel
VideoLlama3VisionModel"""

# By class: more fields of each example.
INPUTS: dict[str, Callable[[Any], Fields]] = {
    **_many(OF_HIDDEN, lambda c: {"hidden_states": patches(c), "pixel_values": None}),
    **_many(OF_PIXELS, lambda c: {"pixel_values": patches(c)}),
    **_many(
        """Aimv2Model AlignModel AltCLIPModel CLIPSegModel ChineseCLIPModel GitForCausalLM GroundingDinoModel
        GroupViTModel MMGroundingDinoModel OwlViTModel Owlv2Model Sam3LiteTextModel Sam3Model ViltModel BridgeTowerModel
        VisionTextDualEncoderModel""",
        with_picture,
    ),
    **_many("XCLIPModel", with_video),
    **_many("TvpModel", lambda c: {**with_video(c), "pixel_values": torch.randn(B, 2, 3, 64, 64)}),
    **_many("VideoPrismClipModel", lambda c: {"input_ids": words(), "pixel_values_videos": frames(c)}),
    **_many("Sam3LiteTextTextModel", lambda _: {"input_ids": words(), "pixel_values": None}),
    **_many(
        "GraniteDoclingVisionModel Idefics3VisionTransformer SmolVLMVisionTransformer VisionEncoderDecoderModel",
        lambda c: {"pixel_values": pictures(c)},
    ),
    **_many(
        """DetrModel ConditionalDetrModel DeformableDetrModel TableTransformerModel DabDetrModel DFineModel Deimv2Model
        RTDetrModel RTDetrV2Model MaskFormerModel Mask2FormerModel HGNetV2ForImageClassification PPDocLayoutV3Model
        PPOCRV6MediumDetModel PPOCRV6SmallDetModel UVDocModel""",
        lambda _: {"pixel_values": torch.randn(B, 3, 64, 64)},
    ),
    **_many("AutoformerModel InformerModel TimeSeriesTransformerModel", series),
    **_many(
        "DacModel EncodecModel MimiModel MimiEncoderModel PocketTTSAudioTokenizerModel XcodecModel PeAudioEncoder"
        " PocketTTSAudioTokenizerEncoderModel VibeVoiceAcousticTokenizerModel",
        sound,
    ),
    **_many(
        "MimiDecoderModel PocketTTSAudioTokenizerDecoderModel",
        lambda c: {"latents": torch.randn(B, c.hidden_size, 8), "input_values": None},
    ),
    **_many(
        "GlmAsrEncoder MossTranscribeDiarizeAudioModel VoxtralRealtimeEncoder Qwen2AudioEncoder VoxtralEncoder"
        " WhisperForAudioClassification",
        lambda c: {"input_features": _mel(c).transpose(1, 2)},
    ),
    **_many("ASTForAudioClassification", lambda _: {"attention_mask": None}),
    **_many(
        "AudioFlamingo3Encoder",
        lambda c: {"input_features": (mel := _mel(c)).transpose(1, 2), "input_features_mask": ones(mel.shape[1])},
    ),
    **_many(
        "LasrForCTC ParakeetForCTC",
        lambda c: {"input_features": _mel(part(c, "encoder_config")), "attention_mask": ones(64)},
    ),
    **_many(
        "ParakeetForRNNT ParakeetForTDT NemotronAsrStreamingForRNNT Nemotron3_5AsrForRNNT",
        lambda c: {
            "input_features": _mel(part(c, "encoder_config")),
            "attention_mask": ones(64),
            "decoder_input_ids": words(5),
            "labels": None,
        },
    ),
    **_many(
        "Gemma3nAudioEncoder",
        lambda c: {"audio_mel": torch.randn(B, 64, c.input_feat_size), "audio_mel_mask": ones(64) == 0},
    ),
    **_many(
        "CanineForSequenceClassification LEDForConditionalGeneration LongformerForMaskedLM",
        lambda _: {"input_ids": words(), "attention_mask": ones(LENGTH)},
    ),
    **_many(
        "ProphetNetForCausalLM ProphetNetForConditionalGeneration",
        lambda _: {"input_ids": words(), "attention_mask": torch.ones(B, LENGTH)},
    ),
    **_many("FSMTForConditionalGeneration", lambda _: {"decoder_input_ids": words(5)}),
    **_many(
        "DiaForConditionalGeneration", lambda _: {"decoder_input_ids": torch.randint(5, 40, (B, 5, 2)), "labels": None}
    ),
    **_many(
        "MusicgenForCausalLM MusicgenMelodyForCausalLM",
        lambda _: {"input_ids": torch.randint(5, 40, (B, 4, LENGTH)), "labels": None, "attention_mask": None},
    ),
    **_many("Blip2ForConditionalGeneration", with_placeholders),
    **_many(
        "InstructBlipForConditionalGeneration InstructBlipVideoForConditionalGeneration",
        lambda c: {**with_placeholders(c), "qformer_input_ids": words()},
    ),
    **_many(
        "Blip2QFormerModel",
        lambda c: {
            "query_embeds": torch.randn(B, 4, c.hidden_size),
            "encoder_hidden_states": torch.randn(B, 6, c.encoder_hidden_size),
            "input_ids": None,
            "attention_mask": None,
        },
    ),
    **_many(
        "Gemma4VisionModel",
        lambda c: {"pixel_values": patches(c), "pixel_position_ids": torch.randint(0, 4, (B, 16, 2))},
    ),
    **_many(
        "Siglip2VisionModel Siglip2ForImageClassification",
        lambda c: {"pixel_values": patches(part(c, "vision_config")), "pixel_attention_mask": ones(16)},
    ),
    **_many(
        "PatchTSTModel PatchTSMixerModel",
        lambda c: {"past_values": torch.randn(B, c.context_length, c.num_input_channels)},
    ),
    **_many(
        "Pix2StructForConditionalGeneration",
        lambda c: {
            "flattened_patches": torch.rand(B, 10, c.vision_config.patch_embed_hidden_size + 2),
            "labels": words(5),
        },
    ),
    **_many(
        "LxmertModel",
        lambda c: {"visual_feats": torch.randn(B, 4, c.visual_feat_dim), "visual_pos": torch.rand(B, 4, 4)},
    ),
    **_many(
        "OneFormerModel", lambda c: {"pixel_values": torch.randn(B, 3, 64, 64), "task_inputs": words(c.task_seq_len)}
    ),
    **_many(
        "SegGptModel",
        lambda _: {name: torch.randn(B, 3, 32, 32) for name in ("pixel_values", "prompt_pixel_values", "prompt_masks")},
    ),
    **_many(
        "IdeficsForVisionText2Text",
        lambda c: {"pixel_values": pictures(c)[:, None], "image_attention_mask": ones(LENGTH, 1)},
    ),
    **_many(
        "DecisionTransformerModel",
        lambda c: {
            "states": torch.randn(B, 4, c.state_dim),
            "actions": torch.randn(B, 4, c.act_dim),
            "rewards": torch.randn(B, 4, 1),
            "returns_to_go": torch.randn(B, 4, 1),
            "timesteps": torch.arange(4).expand(B, 4).contiguous(),
            "attention_mask": ones(4),
        },
    ),
    **_many(
        "FastSpeech2ConformerModel FastSpeech2ConformerWithHifiGan",
        lambda c: {
            "input_ids": words(),
            "attention_mask": ones(LENGTH),
            "spectrogram_labels": torch.randn(B, 2 * LENGTH, part(c, "model_config").num_mel_bins),
            "duration_labels": 2 * ones(LENGTH),
            "pitch_labels": torch.randn(B, LENGTH, 1),
            "energy_labels": torch.randn(B, LENGTH, 1),
        },
    ),
    **_many("PerceiverForMaskedLM", lambda _: {"input_ids": words(64), "attention_mask": ones(64)}),
    **_many("PerceiverForSequenceClassification", lambda _: {"inputs": words(64), "input_ids": None}),
    **_many(
        "PerceiverForImageClassificationLearned",
        lambda c: {"inputs": torch.randn(B, 3, c.image_size, c.image_size), "pixel_values": None},
    ),
    **_many(
        "PPOCRV5MobileRecModel PPOCRV5ServerRecModel PPOCRV6SmallRecModel PPOCRV6TinyRecModel",
        lambda _: {"pixel_values": torch.randn(B, 3, 96, 320)},
    ),
    **_many(
        "TimesFmModel",
        lambda c: {
            "past_values": torch.randn(B, c.context_length),
            "past_values_padding": torch.zeros(B, c.context_length),
            "freq": ones(1) * 0,
        },
    ),
    **_many("TimesFm2_5Model", lambda c: {"past_values": torch.randn(B, c.context_length)}),
    **_many("MoonshineForConditionalGeneration", lambda _: {"input_values": torch.randn(B, 3000)}),
    **_many("SpeechEncoderDecoderModel", lambda _: {"input_values": torch.randn(B, 800)}),
    **_many("ShieldGemma2ForImageClassification", lambda _: {"labels": None}),
    **_many("PeAudioModel", lambda c: {**sound(c), "input_ids": words()}),
    **_many("PeVideoEncoder", lambda c: {"pixel_values_videos": frames(c)}),
    **_many("PeVideoModel", lambda c: {"pixel_values_videos": frames(c), "input_ids": words()}),
    **_many(
        "SamModel SamHQModel Sam2Model Sam3TrackerModel",
        lambda _: {"input_points": 20 * torch.rand(B, 1, 1, 2), "input_labels": ones(1, 1)},
    ),
    **_many(
        "KyutaiSpeechToTextForConditionalGeneration",
        lambda _: {"input_ids": torch.randint(5, 40, (B, LENGTH, 3)), "labels": None},
    ),
    **_many(
        "Kosmos2ForConditionalGeneration",
        lambda c: {**with_placeholders(c), "image_embeds_position_mask": torch.cat([ones(4), ones(LENGTH) * 0], 1)},
    ),
    **_many(
        "MuseGlimmerAssistantModel",
        lambda c: {
            "noise_embeds": torch.randn(B, 4, c.hidden_size),
            "context_hidden_states": torch.randn(B, LENGTH, 5 * c.hidden_size),
            "input_ids": None,
            "attention_mask": ones(4 + LENGTH),
        },
    ),
    **_many("UdopForConditionalGeneration", lambda _: {"labels": words(5), "bbox": torch.rand(B, LENGTH, 4)}),
    **_many(
        "UnivNetModel",
        lambda c: {
            "input_features": torch.randn(B, 16, c.num_mel_bins),
            "noise_sequence": torch.randn(B, 16, c.model_in_channels),
        },
    ),
    **_many("FunAsrNanoEncoder", lambda _: {"input_features": torch.randn(B, 20, 56), "input_features_mask": ones(20)}),
    **_many("DepthProModel", lambda _: {"pixel_values": torch.randn(B, 3, 128, 128)}),
    **_many("ClapModel", lambda _: {"input_ids": words(), "input_features": torch.randn(B, 1, 256, 16)}),
    **_many(
        "ClvpModelForConditionalGeneration",
        lambda c: {"input_ids": words(), "input_features": torch.randn(B, c.decoder_config.feature_size, 32)},
    ),
    **_many("Gemma4AudioModel", lambda _: {"input_features": torch.randn(B, 64, 128)}),
    **_many(
        "Sam2Model Sam2VisionModel Sam2HieraDetModel EdgeTamModel",
        lambda _: {"pixel_values": torch.randn(B, 3, 64, 64)},
    ),
    **_many("GraniteSpeech5ForCTC", lambda _: {"input_features": torch.randn(B, 64, 32), "attention_mask": ones(64)}),
    **_many("GraniteSpeech5Encoder", lambda _: {"input_features": torch.randn(B, 64, 32)}),
    **_many("Kimi_K25VisionModel", lambda _: {"pixel_values": torch.randn(B, 16, 3, 8, 8)}),
    **_many("Llama4ForConditionalGeneration", with_placeholders),
    **_many(
        "InstructBlipVideoForConditionalGeneration",
        lambda c: {**with_placeholders(c), "pixel_values": frames(c), "qformer_input_ids": words()},
    ),
    **_many(
        "Qwen3ASREncoder",
        lambda c: {"input_features": torch.randn(B, c.num_mel_bins, 100), "input_features_mask": ones(100)},
    ),
    **_many(
        "PeAudioVideoModel PeAudioVideoEncoder",
        lambda c: {**sound(c), "pixel_values_videos": torch.randn(B, 2, 3, 32, 32)},
    ),
    **_many(
        "Nemotron3_5TranscribeWordTimestampModel",
        lambda c: {"inputs_embeds": torch.randn(B, LENGTH, c.hidden_size), "input_ids": None},
    ),
    **_many("VisionEncoderDecoderModel", lambda c: {"pixel_values": pictures(c), "decoder_input_ids": words(5)}),
    **_many("DiffusionGemmaForBlockDiffusion", lambda _: {"decoder_input_ids": words(5)}),
    **_many(
        "VibeVoiceAcousticTokenizerEncoderModel",
        lambda _: {"hidden_states": torch.randn(B, 1, 800), "input_values": None},
    ),
    **_many(
        "VibeVoiceAcousticTokenizerDecoderModel",
        lambda c: {"hidden_states": torch.randn(B, c.hidden_size, 10), "input_values": None},
    ),
    **_many("WavTokenizerModel", sound),
    **_many("OmniASRAudioModel", sound),
    **_many("OmniASRForCTC", lambda c: {**sound(c), "padding_mask": ones(800)}),
    **_many("NeuCodecModel Xcodec2Model", lambda c: {**sound(c), "input_features": torch.randn(B, 25, 160)}),
    **_many("HiggsAudioV2TokenizerModel", lambda c: {**sound(c), "input_values": torch.randn(B, 1, 912)}),
    **_many(
        "VoxtralRealtimeForConditionalGeneration",
        lambda c: {
            **{"input_ids": words(), "attention_mask": ones(LENGTH), "labels": words()},
            "input_features": torch.randn(B, c.audio_config.num_mel_bins, 64),
        },
    ),
    **_many(
        "EfficientLoFTRModel LightGlueForKeypointMatching", lambda _: {"pixel_values": torch.randn(B, 2, 3, 64, 64)}
    ),
    **_many("Inkling2VisionModel", lambda _: {"pixel_values": torch.randn(B, 16, 16, 16, 3)}),
    **_many(
        "PI0ForConditionalGeneration",
        lambda c: {
            "input_ids": torch.cat([torch.full((B, 16), 44), words()], 1),
            "attention_mask": ones(16 + LENGTH),
            "pixel_values": pictures(c.vlm_config)[:, None],
            "pixel_attention_mask": ones(1) == 1,
            "state": torch.randn(B, c.max_state_dim),
            "noise": torch.randn(B, c.chunk_size, c.max_action_dim),
            "actions": torch.randn(B, c.chunk_size, c.max_action_dim),
            "timestep": torch.rand(B),
        },
    ),
    **_many("Molmo2ForConditionalGeneration", lambda _: {"mm_token_type_ids": ones(LENGTH) * 0}),
    **_many("LwDetrModel GroundingDinoModel MMGroundingDinoModel", _large),
}

# By class: what all examples share, made anew in each call.
CONSTANTS: dict[str, Callable[[Any], Fields]] = {
    **_many(OF_HIDDEN + " " + OF_PIXELS, lambda _: {"grid_thw": torch.tensor([[1, 4, 4]])}),
    **_many("Inkling2VisionModel", lambda _: {"image_grid_thw": torch.tensor([[1, 4, 4]])}),
    **_many("Siglip2VisionModel Siglip2ForImageClassification", lambda _: {"spatial_shapes": torch.tensor([[4, 4]])}),
}
CONSTANTS |= _many("MiniCPMOcrVisionModel MiniCPMV4_7VisionModel", lambda _: {"target_sizes": torch.tensor([[4, 4]])})
CONSTANTS["VideoLlama3VisionModel"] = lambda _: {
    "grid_thw": torch.tensor([[1, 4, 4]]),
    "merge_sizes": torch.tensor([2]),
}

# By class: fields whose examples lie behind one another on the first axis, as patches of pictures do.
JOINED: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(OF_HIDDEN.split(), ("hidden_states",)),
    **dict.fromkeys(OF_PIXELS.split(), ("pixel_values",)),
    **dict.fromkeys(("MusicgenForCausalLM", "MusicgenMelodyForCausalLM"), ("input_ids",)),
}
