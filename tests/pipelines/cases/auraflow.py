"""AuraFlow."""

from __future__ import annotations

import torch
from diffusers import AuraFlowPipeline, AuraFlowTransformer2DModel, FlowMatchEulerDiscreteScheduler

from ..parts_images import fill, mask, rows, vae
from . import Arguments, Case

WIDTH = 12
GUIDANCE = {"off": {"guidance_scale": 1.0}, "on": {"guidance_scale": 3.5}}


def _build() -> AuraFlowPipeline:
    torch.manual_seed(0)
    transformer = AuraFlowTransformer2DModel(
        sample_size=8,
        patch_size=2,
        in_channels=4,
        num_mmdit_layers=1,
        num_single_dit_layers=1,
        attention_head_dim=8,
        num_attention_heads=2,
        joint_attention_dim=WIDTH,
        caption_projection_dim=16,
        out_channels=4,
        pos_embed_max_size=16,
    )
    fill(transformer)
    return AuraFlowPipeline(
        transformer=transformer.eval(),
        vae=vae(4),
        scheduler=FlowMatchEulerDiscreteScheduler(shift=1.73),
        text_encoder=None,
        tokenizer=None,
    )


def _call(count: int) -> Arguments:
    return {
        "prompt_embeds": rows(count, 6, WIDTH),
        "prompt_attention_mask": mask(count, 6),
        "negative_prompt_embeds": rows(count, 6, WIDTH, seed=1),
        "negative_prompt_attention_mask": mask(count, 6),
        "height": 16,
        "width": 16,
    }


CASES = [Case("AuraFlowPipeline", "text to image", _build, _call, GUIDANCE)]
