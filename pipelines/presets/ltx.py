"""LTX-Video."""

from dataclasses import replace

from ...preset import Preset, cited

DOCS = cited("diffusers, LTX-Video: https://huggingface.co/docs/diffusers/api/pipelines/ltx_video")

T2V = Preset(
    family="ltx",
    classes=("LTXPipeline",),
    task="text to video",
    trainable=("transformer",),
    steps=DOCS(50),
    guidance=DOCS(("guidance_scale", 5.0)),
    resolution=DOCS((512, 768)),
    frames=DOCS(161),
    notes="The numbers of inference: no RL recipe is published. Distilled variants take "
    "guidance_scale 1; from 0.9.1 on the VAE takes decode_timestep 0.05 and decode_noise_scale 0.025.",
)
PRESETS = (
    T2V,
    replace(
        T2V,
        variant="image to video",
        classes=("LTXImageToVideoPipeline", "LTXConditionPipeline"),
        task="image to video",
    ),
)
