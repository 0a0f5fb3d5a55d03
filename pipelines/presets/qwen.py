"""Qwen-Image and its editing models."""

from dataclasses import replace

from ...preset import Preset, cited

FACTORY = "https://github.com/X-GenGroup/Flow-Factory/blob/a0b2bc5/examples/grpo/lora"
IMAGE = cited(f"Flow-Factory, grpo/lora/qwen_image: {FACTORY}/qwen_image/default.yaml")
EDIT = cited(f"Flow-Factory, grpo/lora/qwen_image_edit_plus: {FACTORY}/qwen_image_edit_plus/default.yaml")
DOCS = cited("diffusers, QwenImage: https://huggingface.co/docs/diffusers/api/pipelines/qwenimage")

QWEN = Preset(
    family="qwen",
    classes=("QwenImagePipeline",),
    task="text to image",
    trainable=("transformer",),
    steps=IMAGE(10),
    guidance=IMAGE(("true_cfg_scale", 4.0)),
    resolution=IMAGE((512, 512)),
    kernel=IMAGE("flow_sde"),
    noise_level=IMAGE(1.0),
    call={"negative_prompt": DOCS(" ")},
    notes="Guidance is true_cfg_scale and needs a negative prompt, be it a blank; its result is rescaled to the "
    "norm of the conditional prediction. guidance_scale has no effect. Flow-Factory adapts feed-forward layers too.",
)
PRESETS = (
    QWEN,
    replace(QWEN, classes=("QwenImageImg2ImgPipeline",), task="image to image", resolution=None),
    replace(QWEN, classes=("QwenImageInpaintPipeline",), task="inpainting", resolution=None),
    replace(
        QWEN,
        variant="edit",
        classes=("QwenImageEditPipeline", "QwenImageEditPlusPipeline"),
        task="image editing",
        steps=EDIT(10),
        guidance=EDIT(("true_cfg_scale", 4.0)),
        resolution=EDIT((384, 384)),
        kernel=EDIT("flow_sde"),
        noise_level=EDIT(1.0),
    ),
)
