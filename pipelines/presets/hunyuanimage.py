"""HunyuanImage 2.1 and its distilled variant."""

from ...preset import Condition, Preset, cited

DOCS = cited("diffusers, HunyuanImage-2.1: https://huggingface.co/docs/diffusers/api/pipelines/hunyuanimage21")

PRESETS = (
    Preset(
        family="hunyuanimage",
        classes=("HunyuanImagePipeline",),
        task="text to image",
        trainable=("transformer",),
        steps=DOCS(50),
        resolution=DOCS((2048, 2048)),
        notes="The numbers of inference: no RL recipe is published. Guidance is a component, the "
        "guider (adaptive projected guidance at 3.5), not an argument of the call.",
    ),
    Preset(
        family="hunyuanimage",
        variant="distilled",
        classes=("HunyuanImagePipeline",),
        task="text to image",
        when=Condition(
            "transformer/config.json has guidance_embeds true",
            lambda files: files.json("transformer/config.json").get("guidance_embeds") is True,
        ),
        trainable=("transformer",),
        steps=DOCS(8),
        guidance=DOCS(("distilled_guidance_scale", 3.25)),
        resolution=DOCS((2048, 2048)),
        notes="Distilled to eight steps; guidance is an input of the model.",
    ),
)
