"""Trains the bundled ``assets/shapes-wan`` from scratch: a genuine, tiny ``WanPipeline`` that draws clips.

    python -m flowrl.pipelines.shapes.train_wan --out assets/shapes-wan

Two stages on one core of a CPU, about 40 minutes in all: an ``AutoencoderKLWan`` (pixel loss on freshly rendered clips
of :mod:`.clips`), then the Wan transformer with its UMT5 text encoder (rectified-flow matching on encoded clips; "Wan:
Open and Advanced Large-Scale Video Generative Models", https://arxiv.org/abs/2503.20314). Each stage is seeded and logs
its loss to ``training_log.csv`` beside the weights. Training stops early on purpose: reward tuning needs a model that
is believable and imperfect.
"""

from __future__ import annotations

import argparse
import string
from pathlib import Path

import numpy as np
import torch
from diffusers import AutoencoderKLWan, FlowMatchEulerDiscreteScheduler, WanPipeline, WanTransformer3DModel
from torch.nn import functional as F
from transformers import T5TokenizerFast, UMT5Config, UMT5EncoderModel

from . import clips, world
from .train import Log, Schedule, cosine, optimise

MAX_TOKENS = 12
"""Holds any caption: seven words and the end."""
LATENT_CHANNELS = 8
WIDTH = 128
"""Width of the text encoder and of the transformer."""


def to_video(rendered: list[np.ndarray]) -> torch.Tensor:
    """uint8 clips `[F, H, W, 3]` to float `[B, 3, F, H, W]` in [-1, 1], as an ``AutoencoderKLWan`` wants them."""
    return torch.from_numpy(np.stack(rendered)).permute(0, 4, 1, 2, 3).float() / 127.5 - 1


def build_tokenizer() -> T5TokenizerFast:
    """A unigram tokenizer with a piece for each word of the world, and one for each letter of any other text."""
    words = ["a", "an", *world.PALETTE, *world.SHAPES, *clips.DIRECTIONS, *clips.PACES[1:], "moves"]
    special = [("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0)]
    pieces = [*((f"\u2581{word}", -1.0) for word in words), ("\u2581", -5.0)]
    letters = [(letter, -10.0) for letter in string.ascii_letters + string.digits + string.punctuation]
    return T5TokenizerFast(vocab=special + pieces + letters, extra_ids=0, model_max_length=512)


def build_text_encoder(tokenizer: T5TokenizerFast) -> UMT5EncoderModel:
    """A two-layer UMT5 encoder."""
    return UMT5EncoderModel(
        UMT5Config(
            vocab_size=len(tokenizer),
            d_model=WIDTH,
            d_kv=32,
            d_ff=2 * WIDTH,
            num_layers=2,
            num_heads=4,
            dropout_rate=0.0,
            pad_token_id=tokenizer.pad_token_id,
            eos_token_id=tokenizer.eos_token_id,
        )
    )


def build_vae() -> AutoencoderKLWan:
    """A small causal video autoencoder that turns 9 frames of 32 px into 3 latent frames of 8 x 8."""
    return AutoencoderKLWan(
        base_dim=8,
        z_dim=LATENT_CHANNELS,
        dim_mult=[1, 2, 4],
        num_res_blocks=1,
        temperal_downsample=[True, True],
        latents_mean=[0.0] * LATENT_CHANNELS,
        latents_std=[1.0] * LATENT_CHANNELS,
        scale_factor_spatial=4,
        scale_factor_temporal=4,
    )


def build_transformer() -> WanTransformer3DModel:
    """The policy: four blocks of width 128 over 3 x 4 x 4 patches."""
    return WanTransformer3DModel(
        patch_size=(1, 2, 2),
        num_attention_heads=4,
        attention_head_dim=WIDTH // 4,
        in_channels=LATENT_CHANNELS,
        out_channels=LATENT_CHANNELS,
        text_dim=WIDTH,
        freq_dim=64,
        ffn_dim=2 * WIDTH,
        num_layers=4,
        rope_max_seq_len=32,
    )


def render(count: int, rng: np.random.Generator) -> tuple[torch.Tensor, list[str]]:
    """Clips `[count, 3, F, H, W]` in [-1, 1], and their captions."""
    motions = [clips.sample_motion(rng) for _ in range(count)]
    return to_video([clips.render(motion, rng) for motion in motions]), [clips.caption(motion) for motion in motions]


def train_vae(out: Path, log: Log, *, steps: int, cycles: int = 1, batch: int = 8, seed: int = 0) -> None:
    """Train the autoencoder on freshly rendered clips and save it with the mean and the spread of its latents.

    The learning rate falls in each of the cycles anew ("SGDR", Loshchilov and Hutter, https://arxiv.org/abs/1608.03983);
    a cycle depends on the weights of the one before and on nothing else of it.
    """
    torch.manual_seed(seed)
    vae = build_vae()
    for cycle in range(cycles):
        train_cycle(vae, log, cycle, steps=steps, batch=batch, seed=seed)
        save_vae(vae, out, seed)


def train_cycle(vae: AutoencoderKLWan, log: Log, cycle: int, *, steps: int, batch: int, seed: int) -> None:
    """Minimise the error of what the autoencoder restores; the log counts the steps of all cycles."""
    torch.manual_seed(seed + 1000 * cycle)
    rng = np.random.default_rng(seed + 1000 * cycle)
    optimizer = torch.optim.AdamW(vae.train().parameters(), lr=3e-3, weight_decay=1e-4)
    rates = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: cosine(step, steps, 50))
    for step in range(steps):
        videos, _ = render(batch, rng)
        posterior = vae.encode(videos).latent_dist
        error = vae.decode(posterior.sample()).sample - videos
        loss = error.abs().mean() + 2 * error.square().mean()
        (loss + 1e-5 * posterior.kl().mean()).backward()
        torch.nn.utils.clip_grad_norm_(vae.parameters(), 1.0)
        optimizer.step()
        rates.step()
        optimizer.zero_grad()
        if step % 50 == 0 or step == steps - 1:
            log.row("vae", cycle * steps + step, loss.item())


def save_vae(vae: AutoencoderKLWan, out: Path, seed: int) -> None:
    """Write the autoencoder, with the mean and the spread of its latents on clips of its own seed."""
    videos, _ = render(256, np.random.default_rng(seed + 500))
    with torch.no_grad():
        latents = vae.eval().encode(videos).latent_dist.mean
    mean, std = latents.mean(dim=(0, 2, 3, 4)), latents.std(dim=(0, 2, 3, 4))
    vae.register_to_config(latents_mean=mean.tolist(), latents_std=std.tolist())
    vae.save_pretrained(out / "vae")


def encode_clips(vae: AutoencoderKLWan, count: int, seed: int) -> tuple[torch.Tensor, list[str]]:
    """Render ``count`` clips and encode them: normalised latents `[count, C, f, h, w]` and captions."""
    rng = np.random.default_rng(seed)
    mean, std = (
        torch.tensor(values).view(1, -1, 1, 1, 1) for values in (vae.config.latents_mean, vae.config.latents_std)
    )
    latents, captions = [], []
    for start in range(0, count, 100):
        videos, texts = render(min(100, count - start), rng)
        with torch.no_grad():
            latents.append((vae.encode(videos).latent_dist.mean - mean) / std)
        captions += texts
    return torch.cat(latents), captions


def encode_text(encoder: UMT5EncoderModel, tokens: torch.Tensor, mask: torch.Tensor, length: int) -> torch.Tensor:
    """What ``WanPipeline.encode_prompt`` makes of tokens `[B, L]`: zeros in place of padding, ``length`` in all."""
    states = encoder(tokens, mask).last_hidden_state * mask[..., None]
    return F.pad(states, (0, 0, 0, length - tokens.shape[1]))


def train_flow(out: Path, log: Log, schedule: Schedule, *, count: int, seed: int, batch: int = 32) -> None:
    """Train transformer and text encoder together on encoded clips, and save the pipeline from their EMA."""
    torch.manual_seed(seed)
    vae = AutoencoderKLWan.from_pretrained(out / "vae").eval()
    vae.register_to_config(_name_or_path="shapes-wan")  # not the folder where it was trained
    tokenizer = build_tokenizer()
    encoder, transformer = build_text_encoder(tokenizer), build_transformer()
    modules = torch.nn.ModuleList([transformer, encoder]).train()
    latents, captions = encode_clips(vae, count, seed + 1)
    texts = tokenizer([*captions, ""], padding="max_length", max_length=MAX_TOKENS, return_tensors="pt")

    def loss(step: int) -> torch.Tensor:
        # Padding takes part in attention: now and then as much of it as a call with the pipeline's default has.
        length, size = (512, batch // 4) if step % 10 == 9 else (MAX_TOKENS, batch)
        rows = torch.randint(len(latents), (size,))
        words = torch.where(torch.rand(size) < 0.1, len(captions), rows)  # a tenth without caption, for guidance
        text = encode_text(encoder, texts.input_ids[words], texts.attention_mask[words], length)
        x_0, eps = latents[rows], torch.randn(size, *latents.shape[1:])
        sigma = torch.sigmoid(0.4 + 1.1 * torch.randn(size))
        x_t = torch.lerp(x_0, eps, sigma.view(-1, 1, 1, 1, 1))
        velocity = transformer(x_t, 1000 * sigma, text, return_dict=False)[0]
        return F.mse_loss(velocity, eps - x_0)

    optimise(
        modules,
        loss,
        lambda: save(out, vae, tokenizer, encoder, transformer),
        log=log,
        stage="flow",
        schedule=schedule,
    )


def save(
    out: Path,
    vae: AutoencoderKLWan,
    tokenizer: T5TokenizerFast,
    encoder: UMT5EncoderModel,
    transformer: WanTransformer3DModel,
) -> None:
    """Write the pipeline folder that ``WanPipeline.from_pretrained`` reads.

    The scheduler is Euler's on Wan's shift for small videos, in place of UniPC on the same sigmas: with ten steps the
    stock sampler of ``flowrl sample`` then draws what a policy without noise draws.
    """
    WanPipeline(
        transformer=transformer,
        scheduler=FlowMatchEulerDiscreteScheduler(shift=3.0),
        vae=vae,
        text_encoder=encoder,
        tokenizer=tokenizer,
    ).save_pretrained(out)


def main() -> None:
    """Run the stages that the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("assets/shapes-wan"))
    parser.add_argument("--stage", choices=["all", "vae", "flow"], default="all")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--vae-steps", type=int, default=1500, help="of each cycle")
    parser.add_argument("--vae-cycles", type=int, default=2)
    parser.add_argument("--flow-steps", type=int, default=4000)
    parser.add_argument("--clips", type=int, default=8000)
    parser.add_argument("--minutes", type=float, default=90.0, help="upper bound for the flow stage")
    arguments = parser.parse_args()
    log = Log(arguments.out / "training_log.csv")
    if arguments.stage != "flow":
        train_vae(arguments.out, log, steps=arguments.vae_steps, cycles=arguments.vae_cycles, seed=arguments.seed)
    if arguments.stage != "vae":
        schedule = Schedule(arguments.flow_steps, rate=1.5e-3, minutes=arguments.minutes)
        train_flow(arguments.out, log, schedule, count=arguments.clips, seed=arguments.seed)


if __name__ == "__main__":
    main()
