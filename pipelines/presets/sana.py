"""Sana, its video model, and the few-step Sana Sprint."""

from dataclasses import replace

from ...preset import Preset, cited

COSMOS_RL = "https://github.com/nvidia-cosmos/cosmos-rl/blob/89f2e5b/configs/sana"
IMAGE = cited(f"cosmos-rl, sana-image-nft.toml: {COSMOS_RL}/sana-image-nft.toml")
VIDEO = cited(f"cosmos-rl, sana-video-nft.toml: {COSMOS_RL}/sana-video-nft.toml")
DOCS = cited("diffusers, SanaVideoPipeline: https://huggingface.co/docs/diffusers/api/pipelines/sana_video")
SPRINT = cited("diffusers, SanaSprintPipeline: https://huggingface.co/docs/diffusers/api/pipelines/sana_sprint")

SANA = Preset(
    family="sana",
    classes=("SanaPipeline", "SanaPAGPipeline"),
    task="text to image",
    trainable=("transformer",),
    steps=IMAGE(10),
    guidance=IMAGE(("guidance_scale", 1.0)),
    resolution=IMAGE((1024, 1024)),
    notes="cosmos-rl's DiffusionNFT: rollouts without guidance by Euler steps of the ODE (policy.kernel: ode); it "
    "evaluates with 40 steps. No recipe with stochastic steps is published.",
)
PRESETS = (
    SANA,
    replace(
        SANA,
        variant="video",
        classes=("SanaVideoPipeline",),
        task="text to video",
        steps=VIDEO(10),
        guidance=VIDEO(("guidance_scale", 1.0)),
        resolution=VIDEO((480, 832)),
        vae_dtype=DOCS("float32"),
    ),
    Preset(
        family="sana",
        variant="sprint",
        classes=("SanaSprintPipeline",),
        task="text to image",
        trainable=("transformer",),
        steps=SPRINT(2),
        guidance=SPRINT(("guidance_scale", 4.5)),
        notes="A consistency model with guidance as an input: each step draws new noise.",
    ),
)
