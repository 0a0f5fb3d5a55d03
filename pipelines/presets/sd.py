"""Stable Diffusion 1 and 2: a UNet that predicts noise, or the velocity (2.1 at 768 px)."""

from dataclasses import replace

from ...preset import Preset, cited

DDPO = cited("DDPO, config/base.py: https://github.com/kvablack/ddpo-pytorch/blob/1958463/config/base.py")

TEXT = Preset(
    family="sd",
    classes=("StableDiffusionPipeline", "StableDiffusionPAGPipeline"),
    task="text to image",
    trainable=("unet",),
    steps=DDPO(50),
    guidance=DDPO(("guidance_scale", 5.0)),
    kernel=DDPO("ddim"),
    noise_level=DDPO(1.0),
    notes="DDPO's numbers for Stable Diffusion 1.5; DanceGRPO takes the same for 1.4 (fastvideo/config_sd/base.py). "
    "Whatever the stock scheduler is, a step is DDIM's.",
)
PRESETS = (
    TEXT,
    replace(
        TEXT, classes=("StableDiffusionImg2ImgPipeline", "StableDiffusionPAGImg2ImgPipeline"), task="image to image"
    ),
    replace(TEXT, classes=("StableDiffusionInpaintPipeline", "StableDiffusionPAGInpaintPipeline"), task="inpainting"),
    replace(TEXT, classes=("StableDiffusionControlNetPipeline",), task="control"),
)
