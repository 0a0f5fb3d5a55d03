"""FLUX.2: dev, klein base, and the distilled klein."""

from dataclasses import replace

from ...preset import Condition, Preset, cited

FACTORY = "https://github.com/X-GenGroup/Flow-Factory/blob/a0b2bc5"
DEV = cited(f"Flow-Factory, grpo/lora/flux2/t2i: {FACTORY}/examples/grpo/lora/flux2/t2i.yaml")
BASE = cited(f"Flow-Factory, grpo/lora/flux2_klein_base: {FACTORY}/examples/grpo/lora/flux2_klein_base/default.yaml")
KLEIN = cited(f"Flow-Factory, grpo/lora/flux2_klein: {FACTORY}/examples/grpo/lora/flux2_klein/default.yaml")
LAYERS = cited(f"Flow-Factory, models/flux/flux2.py: {FACTORY}/src/flow_factory/models/flux/flux2.py")

DOUBLE = ("to_q", "to_k", "to_v", "to_out.0", "add_q_proj", "add_k_proj", "add_v_proj", "to_add_out")
FEED_FORWARD = ("ff.linear_in", "ff.linear_out", "ff_context.linear_in", "ff_context.linear_out")
SINGLE = ("attn.to_qkv_mlp_proj",)

FLUX2 = Preset(
    family="flux2",
    variant="dev",
    classes=("Flux2Pipeline",),
    task="text to image",
    trainable=("transformer",),
    targets=LAYERS((*DOUBLE, *FEED_FORWARD, *SINGLE)),
    steps=DEV(8),
    guidance=DEV(("guidance_scale", 4.0)),
    resolution=DEV((512, 512)),
    kernel=DEV("flow_sde"),
    noise_level=DEV(1.0),
    notes="Guidance is distilled into the model. The single-stream blocks have one fused projection for attention and "
    "feed-forward, which the usual names of attention layers miss.",
)
PRESETS = (
    FLUX2,
    replace(
        FLUX2,
        variant="klein base",
        classes=("Flux2KleinPipeline",),
        guidance=BASE(("guidance_scale", 4.0)),
        resolution=BASE((384, 384)),
        steps=BASE(8),
        noise_level=BASE(0.7),
        notes="Classifier-free guidance, two passes. The single-stream blocks have one fused projection.",
    ),
    replace(
        FLUX2,
        variant="klein",
        classes=("Flux2KleinPipeline",),
        when=Condition(
            "model_index.json has is_distilled true",
            lambda files: files.json("model_index.json").get("is_distilled") is True,
        ),
        steps=KLEIN(4),
        guidance=KLEIN(("guidance_scale", 1.0)),
        resolution=KLEIN((384, 384)),
        noise_level=KLEIN(0.5),
        notes="Distilled to four steps, without guidance.",
    ),
)
