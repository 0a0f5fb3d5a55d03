"""Trains the bundled ``assets/shapes-sd`` from scratch: a genuine, tiny ``StableDiffusionPipeline``.

    python -m flowrl.pipelines.shapes.train_sd --out assets/shapes-sd

The world and the autoencoder are those of ``assets/shapes-sd3``. A UNet and its CLIP text encoder learn to predict the
noise in encoded pictures ("Denoising Diffusion Probabilistic Models", Ho et al., https://arxiv.org/abs/2006.11239) on
Stable Diffusion's schedule, in half an hour of one core. Seeded, with its loss in ``training_log.csv`` beside the
weights. Training stops early on purpose: reward tuning needs a model that is believable and imperfect.
"""

from __future__ import annotations

import argparse
from importlib.resources import as_file, files
from pathlib import Path

import torch
from diffusers import AutoencoderKL, DDIMScheduler, StableDiffusionPipeline, UNet2DConditionModel
from torch.nn import functional as F
from transformers import CLIPTextConfig, CLIPTextModel, CLIPTokenizer

from . import world
from .train import MAX_TOKENS, Log, Schedule, build_tokenizer, encode_pictures, optimise

WIDTH = 128
"""Width of the text encoder, which the UNet attends to."""


def build_unet() -> UNet2DConditionModel:
    """The policy: resolutions of 12 and 6 pixels, with attention to the caption at the lower."""
    return UNet2DConditionModel(
        sample_size=world.SIZE // 4,
        in_channels=4,
        out_channels=4,
        block_out_channels=(48, 96),
        layers_per_block=1,
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
        cross_attention_dim=WIDTH,
        attention_head_dim=4,  # of Stable Diffusion's first version: the number of heads
        norm_num_groups=16,
    )


def build_text_encoder(tokenizer: CLIPTokenizer) -> CLIPTextModel:
    """A two-layer CLIP text model."""
    return CLIPTextModel(
        CLIPTextConfig(
            vocab_size=len(tokenizer),
            hidden_size=WIDTH,
            intermediate_size=2 * WIDTH,
            num_hidden_layers=2,
            num_attention_heads=4,
            max_position_embeddings=MAX_TOKENS,
            bos_token_id=tokenizer.bos_token_id,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
        )
    )


def build_scheduler() -> DDIMScheduler:
    """Stable Diffusion's betas; the steps are counted from the noisiest, so that ten of them start at pure noise."""
    return DDIMScheduler(
        beta_start=0.00085,
        beta_end=0.012,
        beta_schedule="scaled_linear",
        clip_sample=False,
        set_alpha_to_one=False,
        timestep_spacing="trailing",
        steps_offset=1,  # as the pipeline wants it; it has no part in this spacing
    )


def load_vae() -> AutoencoderKL:
    """The autoencoder of ``shapes-sd3``; Stable Diffusion knows no shift of the latents, and theirs is 0.02."""
    with as_file(files("flowrl.assets") / "shapes-sd3") as folder:
        vae = AutoencoderKL.from_pretrained(folder / "vae").eval()
    vae.register_to_config(shift_factor=None, _name_or_path="shapes-sd")
    return vae


def train(out: Path, log: Log, schedule: Schedule, *, pictures: int, seed: int, batch: int = 64) -> None:
    """Train UNet and text encoder together on encoded pictures, and save the pipeline from their averaged weights."""
    torch.manual_seed(seed)
    vae, scheduler, tokenizer = load_vae(), build_scheduler(), build_tokenizer(out / "tokenizer")
    text_encoder, unet = build_text_encoder(tokenizer), build_unet()
    modules = torch.nn.ModuleList([unet, text_encoder]).train()
    latents, captions = encode_pictures(vae, pictures, seed + 1)
    tokens = tokenizer([*captions, ""], padding="max_length", max_length=MAX_TOKENS, return_tensors="pt").input_ids

    def loss(_: int) -> torch.Tensor:
        rows = torch.randint(len(latents), (batch,))
        words = torch.where(torch.rand(batch) < 0.1, len(captions), rows)  # a tenth without caption, for guidance
        eps = torch.randn(batch, *latents.shape[1:])
        timesteps = torch.randint(scheduler.config.num_train_timesteps, (batch,))
        x_t = scheduler.add_noise(latents[rows], eps, timesteps)
        return F.mse_loss(unet(x_t, timesteps, text_encoder(tokens[words])[0], return_dict=False)[0], eps)

    optimise(
        modules,
        loss,
        lambda: save(out, vae, tokenizer, text_encoder, unet, scheduler),
        log=log,
        stage="unet",
        schedule=schedule,
    )


def save(
    out: Path,
    vae: AutoencoderKL,
    tokenizer: CLIPTokenizer,
    text_encoder: CLIPTextModel,
    unet: UNet2DConditionModel,
    scheduler: DDIMScheduler,
) -> None:
    """Write the pipeline folder that ``StableDiffusionPipeline.from_pretrained`` reads."""
    StableDiffusionPipeline(
        vae=vae,
        text_encoder=text_encoder,
        tokenizer=tokenizer,
        unet=unet,
        scheduler=scheduler,
        safety_checker=None,
        feature_extractor=None,
        requires_safety_checker=False,
    ).save_pretrained(out)


def main() -> None:
    """Train with what the command line says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("assets/shapes-sd"))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--stop", type=int, default=3000, help="steps")
    parser.add_argument("--pictures", type=int, default=40000)
    parser.add_argument("--minutes", type=float, default=90.0, help="upper bound")
    arguments = parser.parse_args()
    log = Log(arguments.out / "training_log.csv")
    schedule = Schedule(7000, rate=1e-3, minutes=arguments.minutes, stop=arguments.stop)
    train(arguments.out, log, schedule, pictures=arguments.pictures, seed=arguments.seed)


if __name__ == "__main__":
    main()
