"""HiDream-I1."""

from ...preset import Preset, cited

EXAMPLE = cited(
    "diffusers, example of HiDreamImagePipeline: https://huggingface.co/docs/diffusers/api/pipelines/hidream"
)

PRESETS = (
    Preset(
        family="hidream",
        classes=("HiDreamImagePipeline",),
        task="text to image",
        trainable=("transformer",),
        steps=EXAMPLE(50),
        guidance=EXAMPLE(("guidance_scale", 5.0)),
        resolution=EXAMPLE((1024, 1024)),
        notes="The numbers of inference with the full model; no RL recipe is published. A "
        "transformer with mixtures of experts, and four text encoders.",
    ),
)
