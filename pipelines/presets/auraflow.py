"""AuraFlow."""

from ...preset import Preset, cited

PIPELINE = cited(
    "diffusers, defaults of AuraFlowPipeline: https://huggingface.co/docs/diffusers/api/pipelines/aura_flow"
)

PRESETS = (
    Preset(
        family="auraflow",
        classes=("AuraFlowPipeline",),
        task="text to image",
        trainable=("transformer",),
        steps=PIPELINE(50),
        guidance=PIPELINE(("guidance_scale", 3.5)),
        resolution=PIPELINE((1024, 1024)),
        notes="The numbers of inference: no RL recipe is published.",
    ),
)
