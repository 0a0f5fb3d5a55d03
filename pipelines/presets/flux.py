"""FLUX.1: dev, schnell, Kontext, and the control and fill models."""

from dataclasses import replace

from ...preset import Condition, Preset, cited

FAST = cited(
    "Flow-GRPO-Fast, pickscore_flux_fast in config/grpo.py: "
    "https://github.com/yifan123/flow_grpo/blob/31c71b9/config/grpo.py"
)
FACTORY = "https://github.com/X-GenGroup/Flow-Factory/blob/a0b2bc5"
LAYERS = cited(f"Flow-Factory, models/flux/flux1.py: {FACTORY}/src/flow_factory/models/flux/flux1.py")
KONTEXT = cited(f"Flow-Factory, grpo/lora/flux1_kontext: {FACTORY}/examples/grpo/lora/flux1_kontext/default.yaml")
DOCS = cited("diffusers, FLUX: https://huggingface.co/docs/diffusers/api/pipelines/flux")

ATTENTION = ("to_q", "to_k", "to_v", "to_out.0", "add_q_proj", "add_k_proj", "add_v_proj", "to_add_out")
FEED_FORWARD = ("ff.net.0.proj", "ff.net.2", "ff_context.net.0.proj", "ff_context.net.2")

DEV = Preset(
    family="flux",
    variant="dev",
    classes=("FluxPipeline",),
    task="text to image",
    trainable=("transformer",),
    targets=LAYERS((*ATTENTION, *FEED_FORWARD)),
    steps=FAST(6),
    guidance=FAST(("guidance_scale", 3.5)),
    resolution=FAST((512, 512)),
    kernel=FAST("flow_cps"),
    noise_level=FAST(0.8),
    notes="Guidance is distilled into the model: guidance_scale is an input, and there is no second pass. Train the "
    "early steps: policy.train_steps [0, 1, 2], as Flow-GRPO-Fast does. It evaluates with 28 steps.",
)
SCHNELL = replace(
    DEV,
    variant="schnell",
    when=Condition(
        "transformer/config.json has guidance_embeds false",
        lambda files: files.json("transformer/config.json").get("guidance_embeds") is False,
    ),
    steps=DOCS(4),
    guidance=DOCS(("guidance_scale", 0.0)),
    resolution=None,
    kernel=None,
    noise_level=None,
    notes="Distilled to few steps and without guidance; no RL recipe is published.",
)
PRESETS = (
    DEV,
    SCHNELL,
    replace(DEV, variant="img2img", classes=("FluxImg2ImgPipeline",), task="image to image", resolution=None),
    replace(DEV, variant="inpaint", classes=("FluxInpaintPipeline",), task="inpainting", resolution=None),
    replace(
        DEV,
        variant="kontext",
        classes=("FluxKontextPipeline",),
        task="image editing",
        steps=KONTEXT(10),
        guidance=KONTEXT(("guidance_scale", 2.5)),
        resolution=KONTEXT((384, 384)),
        kernel=KONTEXT("flow_sde"),
        noise_level=KONTEXT(0.9),
        notes="Guidance is distilled into the model. Flow-Factory trains one of the steps 1 to 3, drawn anew.",
    ),
    replace(
        SCHNELL,
        variant="control",
        classes=("FluxControlPipeline",),
        task="control",
        when=None,
        steps=DOCS(50),
        guidance=DOCS(("guidance_scale", 30.0)),
        notes="The numbers of inference with the Canny model; 10 is the guidance of the depth model.",
    ),
    replace(
        SCHNELL,
        variant="fill",
        classes=("FluxFillPipeline",),
        task="inpainting",
        when=None,
        steps=DOCS(50),
        guidance=DOCS(("guidance_scale", 30.0)),
        notes="The numbers of inference: no RL recipe is published.",
    ),
)
