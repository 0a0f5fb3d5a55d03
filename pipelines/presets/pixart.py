"""PixArt-alpha and PixArt-Sigma."""

from ...preset import Preset, cited

PIPELINE = cited(
    "diffusers, defaults of PixArtSigmaPipeline: https://huggingface.co/docs/diffusers/api/pipelines/pixart_sigma"
)

PRESETS = (
    Preset(
        family="pixart",
        classes=("PixArtSigmaPipeline", "PixArtAlphaPipeline", "PixArtSigmaPAGPipeline"),
        task="text to image",
        trainable=("transformer",),
        steps=PIPELINE(20),
        guidance=PIPELINE(("guidance_scale", 4.5)),
        notes="The numbers of inference: no RL recipe is published. A transformer of DDPM type: a "
        "step is DDIM's. diffusers has no LoRA loader for these pipelines: PEFT loads the adapter.",
    ),
)
