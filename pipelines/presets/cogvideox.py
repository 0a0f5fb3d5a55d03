"""CogVideoX: videos from a model of DDPM type that predicts the velocity."""

from dataclasses import replace

from ...preset import Preset, cited

DOCS = cited("diffusers, CogVideoX: https://huggingface.co/docs/diffusers/api/pipelines/cogvideox")

T2V = Preset(
    family="cogvideox",
    classes=("CogVideoXPipeline",),
    task="text to video",
    trainable=("transformer",),
    steps=DOCS(50),
    guidance=DOCS(("guidance_scale", 6.0)),
    notes="The numbers of inference; no online RL recipe is published.",
)
PRESETS = (
    T2V,
    replace(T2V, variant="image to video", classes=("CogVideoXImageToVideoPipeline",), task="image to video"),
    replace(T2V, variant="video to video", classes=("CogVideoXVideoToVideoPipeline",), task="video to video"),
)
