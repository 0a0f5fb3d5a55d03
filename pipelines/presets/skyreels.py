"""SkyReels: V1 on HunyuanVideo, V2 on Wan."""

from ...preset import Preset, cited

DANCE = cited(
    "DanceGRPO, finetune_skyreels_i2v.sh: "
    "https://github.com/XueZeyue/DanceGRPO/blob/15cc71d/scripts/finetune/finetune_skyreels_i2v.sh"
)
DOCS = cited("diffusers, SkyReels-V2: https://huggingface.co/docs/diffusers/api/pipelines/skyreels_v2")

PRESETS = (
    Preset(
        family="skyreels",
        variant="v1 image to video",
        classes=("HunyuanSkyreelsImageToVideoPipeline",),
        task="image to video",
        trainable=("transformer",),
        steps=DANCE(16),
        guidance=DANCE(("true_cfg_scale", 5.0)),
        resolution=DANCE((400, 640)),
        frames=DANCE(53),
        kernel=DANCE("dance_sde"),
        noise_level=DANCE(0.3),
        call={"guidance_scale": DANCE(1.0)},
        notes="Classifier-free guidance is true_cfg_scale; the embedded guidance_scale stays at 1.",
    ),
    Preset(
        family="skyreels",
        variant="v2",
        classes=("SkyReelsV2Pipeline",),
        task="text to video",
        trainable=("transformer",),
        steps=DOCS(50),
        guidance=DOCS(("guidance_scale", 6.0)),
        resolution=DOCS((544, 960)),
        frames=DOCS(97),
        vae_dtype=DOCS("float32"),
        notes="The numbers of inference: no RL recipe is published.",
    ),
    Preset(
        family="skyreels",
        variant="v2 image to video",
        classes=("SkyReelsV2ImageToVideoPipeline",),
        task="image to video",
        trainable=("transformer",),
        steps=DOCS(50),
        guidance=DOCS(("guidance_scale", 5.0)),
        resolution=DOCS((544, 960)),
        frames=DOCS(97),
        vae_dtype=DOCS("float32"),
        notes="The numbers of inference: no RL recipe is published.",
    ),
)
