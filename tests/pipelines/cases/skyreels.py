"""SkyReels V2."""

from __future__ import annotations

from typing import Any

import torch
from diffusers import SkyReelsV2ImageToVideoPipeline, SkyReelsV2Pipeline, SkyReelsV2Transformer3DModel

from ... import tiny
from .. import video_parts as parts
from . import Case

# With fewer than 512 tokens of text, the transformer would take none of its context for the picture.
SIZE = {"height": 16, "width": 16, "num_frames": 5, "max_sequence_length": 512}
GUIDANCE = {
    "off": {"guidance_scale": 1.0},
    "on": {"guidance_scale": 5.0, "negative_prompt": "a blue circle"},
}


def _transformer(**settings: Any) -> SkyReelsV2Transformer3DModel:
    known: dict[str, Any] = {
        "patch_size": (1, 2, 2),
        "num_attention_heads": 2,
        "attention_head_dim": 12,
        "in_channels": 4,
        "out_channels": 4,
        "text_dim": 16,
        "freq_dim": 32,
        "ffn_dim": 32,
        "num_layers": 2,
        "rope_max_seq_len": 32,
    }
    return SkyReelsV2Transformer3DModel(**{**known, **settings}).eval()


def _common() -> dict[str, Any]:
    return {
        "tokenizer": tiny.tokenizer(),
        "text_encoder": parts.t5(),
        "vae": parts.wan_vae(),
        "scheduler": parts.flow_unipc(flow_shift=8.0),
    }


def text_to_video() -> SkyReelsV2Pipeline:
    """Scheduled by UniPC on flow sigmas."""
    torch.manual_seed(0)
    return SkyReelsV2Pipeline(**_common(), transformer=_transformer())


def image_to_video() -> SkyReelsV2ImageToVideoPipeline:
    """A CLIP image encoder, and the picture's latents as channels."""
    torch.manual_seed(0)
    return SkyReelsV2ImageToVideoPipeline(
        **_common(),
        transformer=_transformer(in_channels=12, image_dim=8, added_kv_proj_dim=24),
        image_encoder=parts.clip_vision(),
        image_processor=parts.clip_pictures(),
    )


def _frames(count: int) -> dict[str, Any]:
    return dict(SIZE)


def _picture(count: int) -> dict[str, Any]:
    return {**SIZE, "image": parts.picture(seed=1)}


CASES = [
    Case("SkyReelsV2Pipeline", "text to video", text_to_video, _frames, GUIDANCE),
    Case("SkyReelsV2ImageToVideoPipeline", "image to video", image_to_video, _picture, GUIDANCE),
]

_FORCING = (
    "it steps each block of frames with a copy of the scheduler of its own: one step of it has no one noise level"
)
REFUSED = {
    "SkyReelsV2DiffusionForcingPipeline": _FORCING,
    "SkyReelsV2DiffusionForcingImageToVideoPipeline": _FORCING,
    "SkyReelsV2DiffusionForcingVideoToVideoPipeline": _FORCING,
}
