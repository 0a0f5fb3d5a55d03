"""Kandinsky 5: pictures and videos."""

from dataclasses import replace

from ...preset import Preset, cited

IMAGE = cited("diffusers, Kandinsky 5.0 Image: https://huggingface.co/docs/diffusers/api/pipelines/kandinsky5_image")
VIDEO = cited("diffusers, Kandinsky 5.0 Video: https://huggingface.co/docs/diffusers/api/pipelines/kandinsky5_video")

T2I = Preset(
    family="kandinsky5",
    variant="image",
    classes=("Kandinsky5T2IPipeline",),
    task="text to image",
    trainable=("transformer",),
    steps=IMAGE(50),
    guidance=IMAGE(("guidance_scale", 3.5)),
    resolution=IMAGE((1024, 1024)),
    notes="The numbers of inference with the sft models: no RL recipe is published.",
)
T2V = replace(
    T2I,
    variant="video",
    classes=("Kandinsky5T2VPipeline",),
    task="text to video",
    steps=VIDEO(50),
    guidance=VIDEO(("guidance_scale", 5.0)),
    resolution=VIDEO((512, 768)),
    frames=VIDEO(121),
    notes="The numbers of inference with the Lite sft model, 5 s; the nocfg and distilled ones take guidance_scale 1.",
)
PRESETS = (
    T2I,
    replace(T2I, variant="edit", classes=("Kandinsky5I2IPipeline",), task="image editing", resolution=None),
    T2V,
    replace(T2V, variant="image to video", classes=("Kandinsky5I2VPipeline",), task="image to video"),
)
