"""Trains the bundled ``assets/shapes-sd3`` from scratch: a genuine, tiny ``StableDiffusion3Pipeline``.

    python -m flowrl.pipelines.shapes.train --out assets/shapes-sd3

Two stages on a CPU with two cores, about 75 minutes in all: an ``AutoencoderKL`` (pixel loss on freshly rendered
pictures), then the SD3 transformer with its two CLIP text encoders (rectified-flow matching on encoded pictures;
"Scaling Rectified Flow Transformers", Esser et al., https://arxiv.org/abs/2403.03206). Each stage is seeded and logs
its loss to ``training_log.csv`` beside the weights. Training stops early on purpose: reward tuning needs a model that
is believable and imperfect.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from diffusers import AutoencoderKL, FlowMatchEulerDiscreteScheduler, SD3Transformer2DModel, StableDiffusion3Pipeline
from diffusers.training_utils import EMAModel
from torch.nn import functional as F
from transformers import (
    CLIPTextConfig,
    CLIPTextModelWithProjection,
    CLIPTokenizer,
    T5Config,
    T5EncoderModel,
    T5TokenizerFast,
)

from . import world

MAX_TOKENS = 12
SILENT_TOKENS = 2
LATENT_CHANNELS = 4
WIDTH = 64
"""Width of each text encoder; the two together make the transformer's 128."""


@dataclass(frozen=True)
class Schedule:
    """How long a stage is trained.

    Attributes:
        steps: of AdamW, over which the learning rate falls.
        rate: the highest learning rate.
        minutes: a safety net: after so many it ends, whatever the step; the log shows it.
        stop: steps after which it ends, of a schedule that goes on; None is its end.
        log_every: steps between two rows of the log.
    """

    steps: int
    rate: float
    minutes: float
    stop: int | None = None
    log_every: int = 100


@dataclass(frozen=True)
class World:
    """What a model is trained on.

    Attributes:
        name: of the bundled model.
        size: side of a picture in pixels, a multiple of 8.
        words: those that are one token each; all others are spelt.
        sample: draws a scene.
        render: draws its picture, uint8 `[size, size, 3]`.
        caption: writes its caption, of at most ``MAX_TOKENS - 2`` tokens.
    """

    name: str
    size: int
    words: tuple[str, ...]
    sample: Callable[[np.random.Generator], Any]
    render: Callable[[Any, np.random.Generator], np.ndarray]
    caption: Callable[[Any], str]


def _words() -> Iterator[str]:
    yield from ("a", "an", *world.PALETTE, *world.COUNTS, *" ".join(world.RELATIONS).split())
    yield from (world.caption(scene).split()[-1] for scene in world.all_scenes() if scene.kind == "count")
    yield from world.SHAPES


SHAPES = World("shapes-sd3", world.SIZE, tuple(_words()), world.sample_scene, world.render, world.caption)


class Log:
    """Appends rows (stage, step, seconds, loss) to a CSV file and prints them."""

    def __init__(self, path: Path) -> None:
        """Append to ``path``; a new file gets the header."""
        path.parent.mkdir(parents=True, exist_ok=True)
        self._path, self._start = path, time.monotonic()
        if not path.exists():
            self._append(["stage", "step", "seconds", "loss"])

    def _append(self, row: list[object]) -> None:
        with self._path.open("a", newline="") as file:
            csv.writer(file).writerow(row)

    def row(self, stage: str, step: int, loss: float) -> None:
        """Write one row."""
        seconds = round(time.monotonic() - self._start, 1)
        self._append([stage, step, seconds, f"{loss:.6f}"])
        print(f"{stage} step {step} {seconds}s loss {loss:.5f}", flush=True)


def to_tensor(pictures: list[np.ndarray]) -> torch.Tensor:
    """uint8 pictures `[H, W, 3]` to float `[B, 3, H, W]` in [-1, 1], as an ``AutoencoderKL`` wants them."""
    return torch.from_numpy(np.stack(pictures)).permute(0, 3, 1, 2).float() / 127.5 - 1


def cosine(step: int, steps: int, warmup: int) -> float:
    """Learning-rate factor: linear warm-up, then half a cosine down to 2 %."""
    if step < warmup:
        return (step + 1) / warmup
    return 0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * (step - warmup) / max(1, steps - warmup)))


def build_tokenizer(folder: Path, words: tuple[str, ...] = SHAPES.words) -> CLIPTokenizer:
    """A CLIP byte-pair tokenizer whose merges make one token of each of a world's words.

    Any other text still tokenises, letter by letter, so a user's prompt is never an unknown token.
    """
    letters = sorted(_byte_letters())
    vocabulary = letters + [letter + "</w>" for letter in letters]
    merges: list[tuple[str, str]] = []
    for word in dict.fromkeys(words):
        parts = _apply([*word[:-1], word[-1] + "</w>"], merges)
        while len(parts) > 1:
            merges.append((parts[0], parts[1]))
            vocabulary.append(parts[0] + parts[1])
            parts = _apply(parts, merges)
    vocabulary = [*dict.fromkeys(vocabulary), "<|startoftext|>", "<|endoftext|>"]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "vocab.json").write_text(json.dumps({token: i for i, token in enumerate(vocabulary)}, ensure_ascii=False))
    (folder / "merges.txt").write_text("#version: 0.2\n" + "\n".join(" ".join(m) for m in merges) + "\n")
    end = "<|endoftext|>"
    return CLIPTokenizer.from_pretrained(
        folder, model_max_length=MAX_TOKENS, bos_token="<|startoftext|>", eos_token=end, pad_token=end, unk_token=end
    )


def _byte_letters() -> list[str]:
    """The 256 printable stand-ins that byte-level BPE uses for bytes."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    return [chr(b) for b in plain] + [chr(256 + n) for n in range(256 - len(plain))]


def _apply(parts: list[str], merges: list[tuple[str, str]]) -> list[str]:
    for left, right in merges:
        i = 0
        while i < len(parts) - 1:
            if (parts[i], parts[i + 1]) == (left, right):
                parts = [*parts[:i], left + right, *parts[i + 2 :]]
            i += 1
    return parts


def build_text_encoder(tokenizer: CLIPTokenizer) -> CLIPTextModelWithProjection:
    """A two-layer CLIP text model; SD3 reads the output of its first layer and the pooled output of its last."""
    return CLIPTextModelWithProjection(
        CLIPTextConfig(
            vocab_size=len(tokenizer),
            hidden_size=WIDTH,
            intermediate_size=2 * WIDTH,
            projection_dim=WIDTH,
            num_hidden_layers=2,
            num_attention_heads=2,
            max_position_embeddings=MAX_TOKENS,
            bos_token_id=tokenizer.bos_token_id,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
        )
    )


def build_t5() -> tuple[T5EncoderModel, T5TokenizerFast]:
    """A silent T5: SD3's loader insists on one, but the caption comes from the CLIP encoders.

    The weight of its last norm is 0, so its output is exactly 0, as with ``text_encoder_3=None``. Its tokens take part
    in attention all the same: ``max_sequence_length=10`` holds any caption, and spares most of the default's 256.
    """
    pieces = ["<pad>", "</s>", "<unk>"]  # it knows no word
    tokenizer = T5TokenizerFast(vocab=[(piece, -2.0) for piece in pieces], extra_ids=0, model_max_length=512)
    encoder = T5EncoderModel(
        T5Config(vocab_size=len(pieces), d_model=2 * WIDTH, d_kv=8, d_ff=8, num_layers=1, num_heads=1)
    )
    torch.nn.init.zeros_(encoder.encoder.final_layer_norm.weight)
    return encoder, tokenizer


def build_vae(size: int = SHAPES.size) -> AutoencoderKL:
    """A small ``AutoencoderKL`` that turns four pixels into one latent each way: 48 px into 12 x 12."""
    return AutoencoderKL(
        down_block_types=("DownEncoderBlock2D",) * 3,
        up_block_types=("UpDecoderBlock2D",) * 3,
        block_out_channels=(16, 32, 64),
        layers_per_block=1,
        latent_channels=LATENT_CHANNELS,
        norm_num_groups=8,
        sample_size=size,
        use_quant_conv=False,
        use_post_quant_conv=False,
        mid_block_add_attention=False,
    )


def build_transformer(size: int = SHAPES.size) -> SD3Transformer2DModel:
    """The policy: four joint blocks of width 128 over patches of 8 pixels, 6 x 6 of them in 48 px."""
    return SD3Transformer2DModel(
        sample_size=size // 4,
        patch_size=2,
        in_channels=LATENT_CHANNELS,
        out_channels=LATENT_CHANNELS,
        num_layers=4,
        attention_head_dim=32,
        num_attention_heads=4,
        joint_attention_dim=2 * WIDTH,
        caption_projection_dim=2 * WIDTH,
        pooled_projection_dim=2 * WIDTH,
        pos_embed_max_size=size // 8,
        qk_norm="rms_norm",
    )


def train_vae(out: Path, log: Log, *, steps: int, batch: int = 32, seed: int = 0, subject: World = SHAPES) -> None:
    """Train the autoencoder on freshly rendered pictures and save it with its latent scale and shift."""
    torch.manual_seed(seed)
    rng = np.random.default_rng(seed)
    vae = build_vae(subject.size).train()
    optimizer = torch.optim.AdamW(vae.parameters(), lr=2e-3, weight_decay=1e-4)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: cosine(step, steps, 100))
    for step in range(steps):
        pictures = to_tensor([subject.render(subject.sample(rng), rng) for _ in range(batch)])
        posterior = vae.encode(pictures).latent_dist
        restored = vae.decode(posterior.sample()).sample
        error = restored - pictures
        loss = error.abs().mean() + 2 * error.square().mean()
        (loss + 1e-5 * posterior.kl().mean()).backward()
        torch.nn.utils.clip_grad_norm_(vae.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        if step % 100 == 0 or step == steps - 1:
            log.row("vae", step, loss.item())
    with torch.no_grad():
        pictures = to_tensor([subject.render(subject.sample(rng), rng) for _ in range(512)])
        latents = vae.eval().encode(pictures).latent_dist.mean
    vae.register_to_config(scaling_factor=float(1 / latents.std()), shift_factor=float(latents.mean()))
    vae.save_pretrained(out / "vae")


def encode_pictures(
    vae: AutoencoderKL, count: int, seed: int, subject: World = SHAPES
) -> tuple[torch.Tensor, list[str]]:
    """Render ``count`` scenes and encode them: scaled latents `[count, C, h, w]` and captions."""
    rng = np.random.default_rng(seed)
    latents, captions = [], []
    for start in range(0, count, 500):
        scenes = [subject.sample(rng) for _ in range(min(500, count - start))]
        with torch.no_grad():
            mean = vae.encode(to_tensor([subject.render(scene, rng) for scene in scenes])).latent_dist.mean
        latents.append((mean - (vae.config.shift_factor or 0.0)) * vae.config.scaling_factor)
        captions += [subject.caption(scene) for scene in scenes]
    return torch.cat(latents), captions


def encode_text(
    encoders: list[CLIPTextModelWithProjection], tokens: torch.Tensor, silent: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """What ``StableDiffusion3Pipeline.encode_prompt`` makes of tokens: joint and pooled, with ``silent`` T5 tokens."""
    outputs = [encoder(tokens, output_hidden_states=True) for encoder in encoders]
    joint = torch.cat([output.hidden_states[-2] for output in outputs], dim=-1)
    joint = torch.cat([joint, joint.new_zeros(len(tokens), silent, joint.shape[-1])], dim=1)
    return joint, torch.cat([output.text_embeds for output in outputs], dim=-1)


def train_flow(
    out: Path,
    log: Log,
    schedule: Schedule,
    *,
    pictures: int,
    batch: int = 128,
    seed: int = 0,
    subject: World = SHAPES,
) -> None:
    """Train transformer and text encoders together on encoded pictures, and save the whole pipeline from their EMA."""
    torch.manual_seed(seed)
    vae = AutoencoderKL.from_pretrained(out / "vae").eval()
    vae.register_to_config(_name_or_path=subject.name)  # not the folder where it was trained
    tokenizer = build_tokenizer(out / "tokenizer", subject.words)
    encoders = [build_text_encoder(tokenizer), build_text_encoder(tokenizer)]
    transformer = build_transformer(subject.size)
    modules = torch.nn.ModuleList([transformer, *encoders]).train()
    latents, captions = encode_pictures(vae, pictures, seed + 1, subject)
    tokens = tokenizer([*captions, ""], padding="max_length", max_length=MAX_TOKENS, return_tensors="pt").input_ids

    def loss(step: int) -> torch.Tensor:
        # T5 is silent but takes part in attention: now and then as often as a call with the pipeline's defaults has it.
        silent, size = (256, batch // 4) if step % 10 == 9 else (SILENT_TOKENS, batch)
        rows = torch.randint(len(latents), (size,))
        words = torch.where(torch.rand(size) < 0.1, len(captions), rows)  # a tenth without caption, for guidance
        joint, pooled = encode_text(encoders, tokens[words], silent)
        x_0, eps = latents[rows], torch.randn(size, *latents.shape[1:])
        sigma = torch.sigmoid(0.4 + 1.1 * torch.randn(size))
        x_t = (1 - sigma.view(-1, 1, 1, 1)) * x_0 + sigma.view(-1, 1, 1, 1) * eps
        velocity = transformer(x_t, joint, pooled, 1000 * sigma, return_dict=False)[0]
        return F.mse_loss(velocity, eps - x_0)

    optimise(
        modules,
        loss,
        lambda: save(out, vae, tokenizer, encoders, transformer),
        log=log,
        stage="flow",
        schedule=schedule,
    )


def optimise(
    modules: torch.nn.Module,
    loss: Callable[[int], torch.Tensor],
    write: Callable[[], None],
    *,
    log: Log,
    stage: str,
    schedule: Schedule,
) -> None:
    """Minimise a loss, and write the result from the averaged weights: every 1000 steps and at the end.

    Args:
        modules: what is trained.
        loss: of a step, by its number.
        write: writes the modules as they are.
        log: gets the running loss.
        stage: its name there.
        schedule: how long.
    """
    steps = schedule.steps
    optimizer = torch.optim.AdamW(modules.parameters(), lr=schedule.rate, weight_decay=0.01, betas=(0.9, 0.98))
    rates = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: cosine(step, steps, 300))
    ema = EMAModel(modules.parameters(), decay=0.999)
    start, running = time.monotonic(), 0.0
    for step in range(steps):
        value = loss(step)
        value.backward()
        torch.nn.utils.clip_grad_norm_(modules.parameters(), 1.0)
        optimizer.step()
        rates.step()
        optimizer.zero_grad()
        ema.step(modules.parameters())
        running = value.item() if step == 0 else 0.98 * running + 0.02 * value.item()
        last = step == (schedule.stop or steps) - 1 or time.monotonic() - start > 60 * schedule.minutes
        if step % schedule.log_every == 0 or last:
            log.row(stage, step, running)
        if last or step % 1000 == 999:
            ema.store(modules.parameters())
            ema.copy_to(modules.parameters())
            write()
            ema.restore(modules.parameters())
        if last:
            break


def save(
    out: Path, vae: AutoencoderKL, tokenizer: CLIPTokenizer, encoders: list, transformer: SD3Transformer2DModel
) -> None:
    """Write the pipeline folder that ``StableDiffusion3Pipeline.from_pretrained`` reads."""
    t5, t5_tokenizer = build_t5()
    StableDiffusion3Pipeline(
        transformer=transformer,
        scheduler=FlowMatchEulerDiscreteScheduler(shift=3.0),
        vae=vae,
        text_encoder=encoders[0],
        tokenizer=tokenizer,
        text_encoder_2=encoders[1],
        tokenizer_2=tokenizer,
        text_encoder_3=t5,
        tokenizer_3=t5_tokenizer,
    ).save_pretrained(out)


def main() -> None:
    """Run the stages that the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("assets/shapes-sd3"))
    parser.add_argument("--stage", choices=["all", "vae", "flow"], default="all")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--vae-steps", type=int, default=3000)
    parser.add_argument("--flow-steps", type=int, default=6000)
    parser.add_argument("--pictures", type=int, default=40000)
    parser.add_argument("--minutes", type=float, default=90.0, help="upper bound for the flow stage")
    arguments = parser.parse_args()
    log = Log(arguments.out / "training_log.csv")
    if arguments.stage != "flow":
        train_vae(arguments.out, log, steps=arguments.vae_steps, seed=arguments.seed)
    if arguments.stage != "vae":
        schedule = Schedule(arguments.flow_steps, rate=1.5e-3, minutes=arguments.minutes)
        train_flow(arguments.out, log, schedule, pictures=arguments.pictures, seed=arguments.seed)


if __name__ == "__main__":
    main()
