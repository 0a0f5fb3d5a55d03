"""Lumina-Image 2."""

from ...preset import Preset, cited

PIPELINE = cited("diffusers, defaults of Lumina2Pipeline: https://huggingface.co/docs/diffusers/api/pipelines/lumina2")

PRESETS = (
    Preset(
        family="lumina2",
        classes=("Lumina2Pipeline",),
        task="text to image",
        trainable=("transformer",),
        steps=PIPELINE(30),
        guidance=PIPELINE(("guidance_scale", 4.0)),
        notes="The numbers of inference: no RL recipe is published. The result of guidance is "
        "rescaled (cfg_normalization).",
    ),
)
