"""NVIDIA Cosmos: Predict 1, 2 and 2.5."""

from dataclasses import replace

from ...preset import Preset, cited

NFT = cited(
    "cosmos-rl, cosmos-predict2-5-2b-720-nft.toml: "
    "https://github.com/nvidia-cosmos/cosmos-rl/blob/89f2e5b/configs/cosmos-predict2-5/cosmos-predict2-5-2b-720-nft.toml"
)
PIPELINE = cited(
    "diffusers, defaults of the Cosmos pipelines: https://huggingface.co/docs/diffusers/api/pipelines/cosmos"
)

COSMOS1 = Preset(
    family="cosmos",
    variant="predict 1",
    classes=("CosmosTextToWorldPipeline",),
    task="text to video",
    trainable=("transformer",),
    steps=PIPELINE(36),
    guidance=PIPELINE(("guidance_scale", 7.0)),
    resolution=PIPELINE((704, 1280)),
    frames=PIPELINE(121),
    notes="The numbers of inference: no RL recipe is published.",
)
COSMOS2 = replace(COSMOS1, variant="predict 2", steps=PIPELINE(35))
PRESETS = (
    COSMOS1,
    replace(COSMOS1, classes=("CosmosVideoToWorldPipeline",), task="video to video"),
    replace(
        COSMOS2,
        classes=("Cosmos2TextToImagePipeline",),
        task="text to image",
        resolution=PIPELINE((768, 1360)),
        frames=None,
    ),
    replace(COSMOS2, classes=("Cosmos2VideoToWorldPipeline",), task="image to video", frames=PIPELINE(93)),
    replace(
        COSMOS1,
        variant="predict 2.5",
        classes=("Cosmos2_5_PredictBasePipeline",),
        steps=NFT(10),
        guidance=NFT(("guidance_scale", 1.0)),
        resolution=NFT((512, 512)),
        frames=NFT(93),
        notes="cosmos-rl's DiffusionNFT: rollouts without guidance by an ODE solver (policy.kernel: ode); it evaluates "
        "with 40 steps.",
    ),
)
