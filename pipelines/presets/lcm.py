"""Latent consistency models."""

from dataclasses import replace

from ...preset import Preset, cited

RLCM = cited(
    "RLCM, conf/task/aesthetic.yaml and conf/config.yaml: "
    "https://github.com/Owen-Oertell/rlcm/tree/b8330ed/lcm_rl_pytorch/conf"
)

TEXT = Preset(
    family="lcm",
    classes=("LatentConsistencyModelPipeline",),
    task="text to image",
    trainable=("unet",),
    steps=RLCM(8),
    guidance=RLCM(("guidance_scale", 8.0)),
    kernel=RLCM("consistency"),
    noise_level=RLCM(1.0),
    notes="Guidance is distilled into the model. Each step draws new noise around the predicted clean latents. RLCM "
    "takes 16 steps for prompt alignment.",
)
PRESETS = (TEXT, replace(TEXT, classes=("LatentConsistencyModelImg2ImgPipeline",), task="image to image"))
