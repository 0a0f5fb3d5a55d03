"""Z-Image and Z-Image-Turbo."""

from dataclasses import replace

from ...preset import Condition, Preset, cited

FACTORY = "https://github.com/X-GenGroup/Flow-Factory/blob/a0b2bc5"
BASE = cited(f"Flow-Factory, grpo/lora/z_image: {FACTORY}/examples/grpo/lora/z_image/default.yaml")
FAST = cited(f"Flow-Factory, grpo/lora/z_image_turbo: {FACTORY}/examples/grpo/lora/z_image_turbo/default.yaml")
LAYERS = cited(f"Flow-Factory, models/z_image/z_image.py: {FACTORY}/src/flow_factory/models/z_image/z_image.py")

IMAGE = Preset(
    family="zimage",
    classes=("ZImagePipeline",),
    task="text to image",
    trainable=("transformer",),
    targets=LAYERS(("to_q", "to_k", "to_v", "to_out.0", "feed_forward.w1", "feed_forward.w2", "feed_forward.w3")),
    steps=BASE(10),
    guidance=BASE(("guidance_scale", 4.0)),
    resolution=BASE((512, 512)),
    kernel=BASE("flow_sde"),
    noise_level=BASE(0.7),
    notes="Flow-Factory trains one of the steps 1 to 3, drawn anew each time, and evaluates with 40 steps.",
)
TURBO = replace(
    IMAGE,
    variant="turbo",
    when=Condition("the model's name has 'turbo' in it", lambda files: "turbo" in files.place.lower()),
    steps=FAST(6),
    guidance=FAST(("guidance_scale", 0.0)),
    resolution=FAST((512, 512)),
    kernel=FAST("flow_sde"),
    noise_level=FAST(0.7),
    notes="Distilled to few steps, without guidance. Its files do not tell it from Z-Image: it is known by its name.",
)
PRESETS = (
    IMAGE,
    TURBO,
    replace(IMAGE, classes=("ZImageImg2ImgPipeline",), task="image to image", resolution=None),
    replace(TURBO, classes=("ZImageImg2ImgPipeline",), task="image to image", resolution=None),
)
