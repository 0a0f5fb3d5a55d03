"""Chroma: FLUX.1-schnell's relative with true classifier-free guidance."""

from dataclasses import replace

from ...preset import Preset, cited

DOCS = cited("diffusers, Chroma: https://huggingface.co/docs/diffusers/api/pipelines/chroma")

CHROMA = Preset(
    family="chroma",
    classes=("ChromaPipeline",),
    task="text to image",
    trainable=("transformer",),
    steps=DOCS(40),
    guidance=DOCS(("guidance_scale", 3.0)),
    notes="The numbers of inference with Chroma1-HD; no RL recipe is published.",
)
PRESETS = (CHROMA, replace(CHROMA, classes=("ChromaImg2ImgPipeline",), task="image to image"))
