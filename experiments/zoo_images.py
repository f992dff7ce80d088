"""Image models of torchvision and timm; their batch norm has fixed statistics."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from experiments.zoo_check import Batch, Entry


def _import_torchvision() -> Any:
    """Its Python part, also where its compiled operations fit another build of torch."""
    register = torch.library.register_fake
    torch.library.register_fake = lambda name, *rest, **options: (
        (lambda f: f) if isinstance(name, str) and name.startswith("torchvision") else register(name, *rest, **options)
    )
    try:
        import torchvision
        import torchvision.models
    finally:
        torch.library.register_fake = register
    return torchvision


torchvision = _import_torchvision()
import timm  # noqa: E402

TORCHVISION = {
    **dict.fromkeys(("alexnet", "vgg11", "vgg11_bn", "squeezenet1_1"), 64),
    **dict.fromkeys(("resnet18", "resnet50", "resnext50_32x4d", "wide_resnet50_2", "densenet121"), 32),
    **dict.fromkeys(("mobilenet_v2", "mobilenet_v3_small", "mnasnet0_5", "shufflenet_v2_x0_5", "efficientnet_b0"), 32),
    **dict.fromkeys(
        ("efficientnet_v2_s", "regnet_y_400mf", "regnet_x_400mf", "convnext_tiny", "swin_t", "swin_v2_t"), 32
    ),
    **{"googlenet": 64, "inception_v3": 96, "vit_b_16": 32, "maxvit_t": 64},
}
SMALL_VIT = {"patch_size": 16, "num_layers": 2, "num_heads": 2, "hidden_dim": 32, "mlp_dim": 48}
FIXED = {"bat_resnext26ts": 256, "crossvit_tiny_240": 240, "efficientformer_l1": 224, "halonet26t": 256}
TIMM = [
    "bat_resnext26ts",
    "beit_base_patch16_224",
    "botnet26t_256",
    "cait_xxs24_224",
    "coat_lite_tiny",
    "coatnet_nano_rw_224",
    "convit_tiny",
    "convmixer_768_32",
    "convnext_atto",
    "convnextv2_atto",
    "crossvit_tiny_240",
    "cspresnet50",
    "davit_tiny",
    "deit_tiny_patch16_224",
    "densenet121",
    "dla34",
    "dm_nfnet_f0",
    "dpn48b",
    "ecaresnet26t",
    "edgenext_xx_small",
    "efficientformer_l1",
    "efficientformerv2_s0",
    "efficientnet_lite0",
    "efficientvit_b0",
    "efficientvit_m0",
    "eva02_tiny_patch14_224",
    "fastvit_t8",
    "fbnetc_100",
    "focalnet_tiny_srf",
    "gcvit_xxtiny",
    "gernet_s",
    "ghostnet_050",
    "gmixer_12_224",
    "gmlp_ti16_224",
    "halonet26t",
    "hardcorenas_a",
    "hgnet_tiny",
    "hiera_tiny_224",
    "hrnet_w18_small",
    "inception_next_atto",
    "inception_v4",
    "lambda_resnet26t",
    "lcnet_035",
    "legacy_seresnet18",
    "levit_128s",
    "maxvit_pico_rw_256",
    "mambaout_femto",
    "mixer_s32_224",
    "mixnet_s",
    "mobilenetv1_100",
    "mobilenetv2_035",
    "mobilenetv3_small_050",
    "mobilenetv4_conv_small",
    "mobileone_s0",
    "mobilevit_xxs",
    "mobilevitv2_050",
    "mvitv2_tiny",
    "naflexvit_base_patch16_gap",
    "nest_tiny",
    "nf_resnet26",
    "nextvit_small",
    "nfnet_l0",
    "pit_ti_224",
    "poolformer_s12",
    "pvt_v2_b0",
    "regnetx_002",
    "regnety_002",
    "repghostnet_050",
    "repvgg_a0",
    "repvit_m0_9",
    "res2net50_14w_8s",
    "resmlp_12_224",
    "resnest14d",
    "resnet10t",
    "resnet18",
    "resnetv2_50",
    "rexnet_100",
    "samvit_base_patch16_224",
    "sebotnet33ts_256",
    "selecsls42",
    "semnasnet_050",
    "sequencer2d_s",
    "shvit_s1",
    "skresnet18",
    "starnet_s1",
    "swiftformer_xs",
    "swin_tiny_patch4_window7_224",
    "swinv2_tiny_window8_256",
    "swinv2_cr_tiny_224",
    "tf_efficientnet_b0",
    "tiny_vit_5m_224",
    "tinynet_e",
    "tnt_s_patch16_224",
    "tresnet_m",
    "twins_pcpvt_small",
    "twins_svt_small",
    "vgg11",
    "visformer_tiny",
    "vit_tiny_patch16_224",
    "vit_relpos_small_patch16_224",
    "vitamin_small_224",
    "volo_d1_224",
    "wide_resnet50_2",
    "xception41",
    "xcit_nano_12_p16_224",
]


LEFT_OUT: dict[str, str] = {}


def entries() -> list[Entry]:
    found = [
        Entry(f"torchvision/{name}", "torchvision", partial(of_torchvision, name), partial(images, size), loss)
        for name, size in TORCHVISION.items()
    ]
    known = set(timm.list_models())
    return found + [
        Entry(f"timm/{name}", "timm", partial(of_timm, name), _images_of, loss) for name in TIMM if name in known
    ]


def of_torchvision(name: str, dropout: bool) -> nn.Module:
    torch.manual_seed(0)
    if name == "vit_b_16":
        model: nn.Module = torchvision.models.VisionTransformer(32, num_classes=4, **SMALL_VIT)
    elif name == "maxvit_t":
        model = torchvision.models.MaxVit((64, 64), 8, 2, [8, 8], [1, 1], 8, 0.2, num_classes=4)
    elif name in ("googlenet", "inception_v3"):
        model = getattr(torchvision.models, name)(num_classes=4, init_weights=False, aux_logits=False)
    else:
        model = getattr(torchvision.models, name)(num_classes=4)
    return _prepared(model, dropout)


def of_timm(name: str, dropout: bool) -> nn.Module:
    torch.manual_seed(0)
    options: dict[str, Any] = {"num_classes": 4}
    if name in FIXED:
        model = timm.create_model(name, **options)
        model.zoo_size = FIXED[name]
        return _prepared(model, dropout)
    for size in (64, 128, 224, 256):
        for settings in ({"img_size": size}, {}):
            try:
                model = timm.create_model(name, **options, **settings)
            except Exception:
                continue
            model.zoo_size = size if settings else model.default_cfg["input_size"][-1]
            if not settings:
                model.zoo_size = 96 if not model.default_cfg.get("fixed_input_size") else model.zoo_size
            return _prepared(model, dropout)
    return _prepared(timm.create_model(name, **options), dropout)


def _prepared(model: nn.Module, dropout: bool) -> nn.Module:
    model.train()
    for module in model.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            module.eval()
            nn.init.normal_(module.running_mean, std=0.1) if module.running_mean is not None else None
        if not dropout:
            if isinstance(module, nn.modules.dropout._DropoutNd):
                module.p = 0.0
            for attribute in ("drop_prob", "p", "drop", "attn_drop"):
                if isinstance(getattr(module, attribute, None), float) and (
                    "rop" in type(module).__name__ or "Stochastic" in type(module).__name__
                ):
                    setattr(module, attribute, 0.0)
    return model


def images(size: int, model: nn.Module) -> dict[str, Tensor]:
    torch.manual_seed(1)
    return {"x": torch.randn(2, 3, size, size), "y": torch.arange(2)}


def _images_of(model: nn.Module) -> dict[str, Tensor]:
    return images(model.zoo_size, model)  # pyright: ignore[reportArgumentType]


def loss(model: nn.Module, given: Batch) -> Tensor:
    scores = model(given["x"])
    if isinstance(scores, tuple | list):
        scores = torch.stack(list(scores)).sum(0)
    return nn.functional.cross_entropy(scores, given["y"])
