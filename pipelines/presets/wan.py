"""Wan 2.1, and 2.2 with its two experts."""

from dataclasses import replace

from ...preset import Condition, Preset, cited

GENRL = cited("GenRL, config/default.yaml: https://github.com/ModelTC/GenRL/blob/82a867e/config/default.yaml")
PREF_GRPO = cited(
    "Pref-GRPO, lora_ur_flex_prefgrpo_wan22.sh: "
    "https://github.com/CodeGoat24/Pref-GRPO/blob/3e787f6/scripts/lora/lora_ur_flex_prefgrpo_wan22.sh"
)
FACTORY = "https://github.com/X-GenGroup/Flow-Factory/blob/a0b2bc5/examples/grpo/lora"
I2V21 = cited(f"Flow-Factory, grpo/lora/wan21/i2v: {FACTORY}/wan21/i2v.yaml")
I2V22 = cited(f"Flow-Factory, grpo/lora/wan22/i2v: {FACTORY}/wan22/i2v.yaml")
DOCS = cited("diffusers, Wan: https://huggingface.co/docs/diffusers/api/pipelines/wan")

TWO_EXPERTS = Condition(
    "model_index.json names a transformer_2",
    lambda files: bool((files.json("model_index.json").get("transformer_2") or [None])[0]),
)

T2V = Preset(
    family="wan",
    variant="2.1",
    classes=("WanPipeline",),
    task="text to video",
    trainable=("transformer",),
    steps=GENRL(20),
    guidance=GENRL(("guidance_scale", 4.5)),
    resolution=GENRL((240, 416)),
    frames=GENRL(33),
    kernel=GENRL("flow_sde"),
    noise_level=GENRL(0.7),
    vae_dtype=DOCS("float32"),
    notes="GenRL evaluates with 50 steps; its longer recipe has 480 x 832 x 81 and one noisy step of the first six.",
)
T2V_TWO = replace(
    T2V,
    variant="2.2",
    when=TWO_EXPERTS,
    trainable=("transformer", "transformer_2"),
    steps=PREF_GRPO(20),
    guidance=PREF_GRPO(("guidance_scale", 4.0)),
    resolution=PREF_GRPO((240, 416)),
    frames=PREF_GRPO(33),
    kernel=PREF_GRPO("flow_sde"),
    noise_level=PREF_GRPO(0.7),
    call={"guidance_scale_2": PREF_GRPO(3.0)},
    notes="Two experts: each is trained on the steps of its own range of noise (boundary_ratio of the pipeline).",
)
I2V = replace(
    T2V,
    variant="2.1 image to video",
    classes=("WanImageToVideoPipeline",),
    task="image to video",
    steps=I2V21(10),
    guidance=I2V21(("guidance_scale", 5.0)),
    resolution=None,
    frames=None,
    kernel=I2V21("flow_sde"),
    noise_level=I2V21(0.9),
    notes="Flow-Factory trains one of the steps 1 to 3, drawn anew each time, on clips of 5 frames.",
)
PRESETS = (
    T2V,
    T2V_TWO,
    I2V,
    replace(
        I2V,
        variant="2.2 image to video",
        when=TWO_EXPERTS,
        trainable=("transformer", "transformer_2"),
        steps=I2V22(8),
        guidance=I2V22(("guidance_scale", 3.5)),
        kernel=I2V22("flow_sde"),
        noise_level=I2V22(0.9),
        notes="Two experts: each is trained on the steps of its own range of noise (boundary_ratio of the pipeline).",
    ),
)
