"""Tiny random pipelines of the real classes, for tests: no weights from anywhere, a second to build."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from diffusers import (
    AutoencoderKL,
    DDIMScheduler,
    FlowMatchEulerDiscreteScheduler,
    FluxPipeline,
    FluxTransformer2DModel,
    SD3Transformer2DModel,
    StableDiffusion3Pipeline,
    StableDiffusionPipeline,
    UNet2DConditionModel,
)
from transformers import (
    CLIPTextConfig,
    CLIPTextModel,
    CLIPTextModelWithProjection,
    CLIPTokenizer,
    T5Config,
    T5EncoderModel,
)

from flowrl import kernels
from flowrl.adapters import LoRA
from flowrl.pipelines.shapes.train import build_tokenizer
from flowrl.policy import Policy

STEPS = 5
PROMPTS = ("a red circle", "two blue squares", "a green triangle", "three red stars", "a yellow circle")


@lru_cache(maxsize=1)
def tokenizer() -> CLIPTokenizer:
    """The tokenizer of the shapes world."""
    return build_tokenizer(Path(tempfile.mkdtemp()))


def _vae(channels: int, **kwargs: Any) -> AutoencoderKL:
    return AutoencoderKL(
        block_out_channels=(8,), norm_num_groups=4, latent_channels=channels, sample_size=16, shift_factor=0.1, **kwargs
    ).eval()


def _text(kind: type) -> Any:
    words = tokenizer()
    config = CLIPTextConfig(
        vocab_size=len(words),
        hidden_size=16,
        intermediate_size=32,
        projection_dim=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=16,
        bos_token_id=words.bos_token_id,
        eos_token_id=words.eos_token_id,
        pad_token_id=words.pad_token_id,
    )
    return kind(config).eval()


def sd3() -> StableDiffusion3Pipeline:
    """StableDiffusion3Pipeline, 8 x 8 latents, two CLIP text encoders."""
    torch.manual_seed(0)
    transformer = SD3Transformer2DModel(
        sample_size=8,
        patch_size=2,
        in_channels=4,
        out_channels=4,
        num_layers=2,
        attention_head_dim=8,
        num_attention_heads=2,
        joint_attention_dim=32,
        caption_projection_dim=16,
        pooled_projection_dim=32,
        pos_embed_max_size=4,
    ).eval()
    return StableDiffusion3Pipeline(
        transformer=transformer,
        scheduler=FlowMatchEulerDiscreteScheduler(shift=3.0),
        vae=_vae(4),
        text_encoder=_text(CLIPTextModelWithProjection),
        tokenizer=tokenizer(),
        text_encoder_2=_text(CLIPTextModelWithProjection),
        tokenizer_2=tokenizer(),
        text_encoder_3=None,  # saved as null, which diffusers alone would not load again
        tokenizer_3=None,
    )


def flux() -> FluxPipeline:
    """FluxPipeline with embedded guidance, CLIP and T5."""
    torch.manual_seed(0)
    transformer = FluxTransformer2DModel(
        patch_size=1,
        in_channels=16,
        num_layers=1,
        num_single_layers=1,
        attention_head_dim=16,
        num_attention_heads=2,
        joint_attention_dim=16,
        pooled_projection_dim=16,
        guidance_embeds=True,
        axes_dims_rope=(4, 4, 8),
    ).eval()
    t5 = T5Config(vocab_size=len(tokenizer()), d_model=16, d_kv=8, d_ff=32, num_layers=1, num_heads=2)
    return FluxPipeline(
        transformer=transformer,
        scheduler=FlowMatchEulerDiscreteScheduler(use_dynamic_shifting=True),
        vae=_vae(4),
        text_encoder=_text(CLIPTextModel),
        tokenizer=tokenizer(),
        text_encoder_2=T5EncoderModel(t5).eval(),
        tokenizer_2=tokenizer(),
    )


def sd15() -> StableDiffusionPipeline:
    """StableDiffusionPipeline with a UNet that predicts epsilon, scheduled by DDIM."""
    torch.manual_seed(0)
    unet = UNet2DConditionModel(
        sample_size=8,
        block_out_channels=(8, 16),
        layers_per_block=1,
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
        cross_attention_dim=16,
        attention_head_dim=8,
        norm_num_groups=4,
    ).eval()
    scheduler = DDIMScheduler(
        beta_start=0.00085,
        beta_end=0.012,
        beta_schedule="scaled_linear",
        clip_sample=False,
        set_alpha_to_one=False,
        steps_offset=1,
    )
    return StableDiffusionPipeline(
        unet=unet,
        scheduler=scheduler,
        vae=_vae(4),
        text_encoder=_text(CLIPTextModel),
        tokenizer=tokenizer(),
        safety_checker=None,
        feature_extractor=None,
        requires_safety_checker=False,
    )


PIPELINES: dict[str, Callable[[], Any]] = {"sd3": sd3, "flux": flux, "sd15": sd15}
"""Every tiny pipeline by name."""

CALLS: dict[str, dict[str, Any]] = {
    "sd3": {},
    "flux": {"height": 8, "width": 8, "max_sequence_length": 16},
    "sd15": {},
}
"""Further arguments of each pipeline's call."""

GUIDANCE: dict[str, tuple[float, float]] = {"sd3": (1.0, 4.5), "flux": (1.0, 3.5), "sd15": (1.0, 7.5)}
"""A guidance scale that is off (or neutral) and one that is on."""

STOCHASTIC = tuple(
    (pipeline, kernel)
    for pipeline in PIPELINES
    for kernel in kernels.KERNELS
    if kernel not in ("ode", "consistency") and (kernel == "ddim") == (pipeline == "sd15")
)
"""Every pair of a tiny pipeline and a stochastic kernel that fits it."""


def base(pipeline: str, dtype: torch.dtype = torch.float32) -> Any:
    """A tiny pipeline in a dtype."""
    pipe = PIPELINES[pipeline]()
    return pipe if dtype == torch.float32 else pipe.to(dtype)


def policy(
    pipeline: str, kernel: str, *, noise_level: float | None = None, b: float = 0.1, dtype: torch.dtype = torch.float32
) -> Policy:
    """A tiny pipeline as a policy, with a LoRA whose alpha is not its rank and whose B has the spread ``b``."""
    level = {} if noise_level is None else {"noise_level": noise_level}
    made = Policy(base(pipeline, dtype), kernel=kernels.KERNELS[kernel](**level), lora=LoRA(rank=4, alpha=12.0))
    set_b(made, b)
    return made


@torch.no_grad()
def set_b(made: Policy, spread: float) -> None:
    """Draw the B matrices of a policy's LoRA, which start at 0, from a normal distribution."""
    generator = torch.Generator().manual_seed(1)
    for name, parameter in made.parameters.items():
        if "lora_B" in name:
            parameter.normal_(0, spread, generator=generator)


def arguments(pipeline: str, *, guided: bool = True, count: int = 2, seeds: Sequence[int] = ()) -> dict[str, Any]:
    """Arguments of `Policy.rollout` and `Policy.sample` for a few prompts."""
    call = {**CALLS[pipeline], "guidance_scale": GUIDANCE[pipeline][guided]}
    if pipeline == "flux" and guided:  # its guidance_scale is an input of the model; this is the guidance of two passes
        call |= {"true_cfg_scale": 3.0, "negative_prompt": ["a blue circle"] * count}
    return {"prompts": PROMPTS[:count], "seeds": seeds or range(10, 10 + count), "steps": STEPS, **call}


def stock(
    pipeline: str,
    *,
    pipe: Any = None,
    output_type: str = "latent",
    dtype: torch.dtype = torch.float32,
    **call: Any,
) -> torch.Tensor:
    """What an untouched pipeline (or the one given) gives for the `arguments` of a rollout."""
    pipe = pipe or base(pipeline, dtype)
    pipe.set_progress_bar_config(disable=True)
    pipe.vae.requires_grad_(False)  # oneDNN has another convolution, 1e-7 off, for weights that ask for gradients
    generators = [torch.Generator().manual_seed(seed) for seed in call.pop("seeds")]
    prompts, steps = list(call.pop("prompts")), call.pop("steps")
    return pipe(prompt=prompts, num_inference_steps=steps, generator=generators, output_type=output_type, **call).images
