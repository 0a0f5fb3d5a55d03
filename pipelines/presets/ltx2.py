"""LTX-2: videos with sound."""

from dataclasses import replace

from ...preset import Preset, cited

FACTORY = "https://github.com/X-GenGroup/Flow-Factory/blob/a0b2bc5/examples/grpo/lora/ltx2"
TEXT = cited(f"Flow-Factory, grpo/lora/ltx2/t2av: {FACTORY}/t2av.yaml")
IMAGE = cited(f"Flow-Factory, grpo/lora/ltx2/i2av: {FACTORY}/i2av.yaml")

T2V = Preset(
    family="ltx2",
    classes=("LTX2Pipeline",),
    task="text to video",
    trainable=("transformer",),
    steps=TEXT(24),
    guidance=TEXT(("guidance_scale", 1.0)),
    resolution=TEXT((512, 768)),
    frames=TEXT(121),
    kernel=TEXT("flow_cps"),
    noise_level=TEXT(0.8),
    call={
        "guidance_rescale": TEXT(0.0),
        "stg_scale": TEXT(0.0),
        "audio_guidance_scale": TEXT(None),
        "audio_guidance_rescale": TEXT(None),
        "audio_stg_scale": TEXT(None),
    },
    notes="Trained without guidance (null: the sound's follows the picture's). Flow-Factory trains three of the "
    "steps 0 to 9, drawn anew each time, and evaluates with 50 steps and guidance_scale 4.",
)
PRESETS = (
    T2V,
    replace(
        T2V,
        variant="image to video",
        classes=("LTX2ImageToVideoPipeline",),
        task="image to video",
        steps=IMAGE(30),
        guidance=IMAGE(("guidance_scale", 1.0)),
        resolution=IMAGE((512, 768)),
        frames=IMAGE(121),
        kernel=IMAGE("flow_sde"),
        noise_level=IMAGE(0.7),
    ),
)
