"""CogView4."""

from ...preset import Preset, cited

PIPELINE = cited(
    "diffusers, defaults of CogView4Pipeline: https://huggingface.co/docs/diffusers/api/pipelines/cogview4"
)

PRESETS = (
    Preset(
        family="cogview4",
        classes=("CogView4Pipeline",),
        task="text to image",
        trainable=("transformer",),
        steps=PIPELINE(50),
        guidance=PIPELINE(("guidance_scale", 5.0)),
        notes="The numbers of inference: no RL recipe is published.",
    ),
)
