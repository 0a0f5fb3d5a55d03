"""Mochi 1."""

from ...preset import Preset, cited

DOCS = cited("diffusers, Mochi, the authors' settings: https://huggingface.co/docs/diffusers/api/pipelines/mochi")

PRESETS = (
    Preset(
        family="mochi",
        classes=("MochiPipeline",),
        task="text to video",
        trainable=("transformer",),
        steps=DOCS(64),
        guidance=DOCS(("guidance_scale", 4.5)),
        resolution=DOCS((480, 848)),
        frames=DOCS(163),
        notes="The numbers of inference: no RL recipe is published. 19 frames are the pipeline's "
        "default, and cost a tenth.",
    ),
)
