"""HunyuanVideo and HunyuanVideo 1.5."""

from dataclasses import replace

from ...preset import Preset, cited

DANCE = cited(
    "DanceGRPO, finetune_hunyuan_grpo.sh: "
    "https://github.com/XueZeyue/DanceGRPO/blob/15cc71d/scripts/finetune/finetune_hunyuan_grpo.sh"
)
IN_CODE = cited(
    "DanceGRPO, fastvideo/train_grpo_hunyuan.py (6018 / 1000): "
    "https://github.com/XueZeyue/DanceGRPO/blob/15cc71d/fastvideo/train_grpo_hunyuan.py"
)
DOCS = cited(
    "diffusers, defaults of HunyuanVideo15Pipeline: https://huggingface.co/docs/diffusers/api/pipelines/hunyuan_video15"
)

T2V = Preset(
    family="hunyuanvideo",
    classes=("HunyuanVideoPipeline",),
    task="text to video",
    trainable=("transformer",),
    steps=DANCE(16),
    guidance=IN_CODE(("guidance_scale", 6.018)),
    resolution=DANCE((480, 480)),
    frames=DANCE(53),
    kernel=DANCE("dance_sde"),
    noise_level=DANCE(0.25),
    notes="Guidance is distilled into the model; true_cfg_scale with a negative prompt is classifier-free guidance. "
    "DanceGRPO trains a random 60 % of the steps.",
)
PRESETS = (
    T2V,
    replace(
        T2V,
        variant="1.5",
        classes=("HunyuanVideo15Pipeline",),
        steps=DOCS(50),
        guidance=None,
        resolution=None,
        frames=DOCS(121),
        kernel=None,
        noise_level=None,
        notes="The numbers of inference: no RL recipe is published. Guidance is a component, the "
        "guider, not an argument of the call.",
    ),
)
