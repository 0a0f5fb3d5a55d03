"""Stable Diffusion 3 and 3.5."""

from dataclasses import replace

from ...preset import Preset, cited

FLOW_GRPO = cited(
    "Flow-GRPO, geneval_sd3 in config/grpo.py: https://github.com/yifan123/flow_grpo/blob/ac4c86e/config/grpo.py"
)
PAPER = cited("Flow-GRPO, noise level a = 0.7: https://arxiv.org/abs/2505.05470")

TEXT = Preset(
    family="sd3",
    classes=("StableDiffusion3Pipeline", "StableDiffusion3PAGPipeline"),
    task="text to image",
    trainable=("transformer",),
    steps=FLOW_GRPO(10),
    guidance=FLOW_GRPO(("guidance_scale", 4.5)),
    resolution=FLOW_GRPO((512, 512)),
    kernel=PAPER("flow_sde"),
    noise_level=PAPER(0.7),
    notes="Flow-GRPO evaluates with 40 steps: eval.steps. DiffusionNFT and AWM train without guidance.",
)
PRESETS = (
    TEXT,
    replace(
        TEXT,
        classes=("StableDiffusion3Img2ImgPipeline", "StableDiffusion3PAGImg2ImgPipeline"),
        task="image to image",
        resolution=None,
    ),
    replace(TEXT, classes=("StableDiffusion3InpaintPipeline",), task="inpainting", resolution=None),
    replace(TEXT, classes=("StableDiffusion3ControlNetPipeline",), task="control", resolution=None),
)
