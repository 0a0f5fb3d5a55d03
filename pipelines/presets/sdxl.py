"""Stable Diffusion XL."""

from dataclasses import replace

from ...preset import Preset, cited

SPO = cited(
    "SPO, configs/basic_config.py and spo_sdxl: "
    "https://github.com/RockeyCoss/SPO/tree/27a8642/spo_training_and_inference/configs"
)

TEXT = Preset(
    family="sdxl",
    classes=("StableDiffusionXLPipeline", "StableDiffusionXLPAGPipeline"),
    task="text to image",
    trainable=("unet",),
    steps=SPO(20),
    guidance=SPO(("guidance_scale", 5.0)),
    kernel=SPO("ddim"),
    noise_level=SPO(1.0),
    notes="SPO is a preference method on DDIM steps with eta 1; no policy-gradient recipe for SDXL is published. In "
    "float16 the VAE overflows and the pipeline itself takes float32 for it; bfloat16 does not overflow.",
)
PRESETS = (
    TEXT,
    replace(
        TEXT,
        classes=("StableDiffusionXLImg2ImgPipeline", "StableDiffusionXLPAGImg2ImgPipeline"),
        task="image to image",
    ),
    replace(
        TEXT, classes=("StableDiffusionXLInpaintPipeline", "StableDiffusionXLPAGInpaintPipeline"), task="inpainting"
    ),
    replace(TEXT, classes=("StableDiffusionXLControlNetPipeline",), task="control"),
)
