"""Wan: text, pictures and videos to video, with one expert (2.1) and with two (2.2)."""

from __future__ import annotations

from typing import Any

import torch
from diffusers import (
    WanAnimatePipeline,
    WanAnimateTransformer3DModel,
    WanImageToVideoPipeline,
    WanPipeline,
    WanTransformer3DModel,
    WanVACEPipeline,
    WanVACETransformer3DModel,
    WanVideoToVideoPipeline,
)
from PIL import Image

from ... import tiny
from .. import video_parts as parts
from . import Case

# With fewer than 512 tokens of text, the transformer would take none of its context for the picture.
SIZE = {"height": 16, "width": 16, "max_sequence_length": 512}
GUIDANCE = {
    "off": {"guidance_scale": 1.0},
    "on": {"guidance_scale": 5.0, "negative_prompt": "a blue circle"},
}
TWO_GUIDANCES = {**GUIDANCE, "one for each expert": {"guidance_scale": 4.0, "guidance_scale_2": 3.0}}
BOUNDARY = 0.875
"""With 4 steps and a shift of 3, two steps for each expert."""


def _settings(**settings: Any) -> dict[str, Any]:
    return {
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
        **settings,
    }


def _transformer(**settings: Any) -> WanTransformer3DModel:
    return WanTransformer3DModel(**_settings(**settings)).eval()


def _common(**settings: Any) -> dict[str, Any]:
    vae = parts.wan_vae(**settings)
    return {"tokenizer": tiny.tokenizer(), "text_encoder": parts.t5(), "vae": vae, "scheduler": parts.flow_unipc()}


def text_to_video() -> WanPipeline:
    """Wan 2.1, scheduled by UniPC on flow sigmas."""
    torch.manual_seed(0)
    return WanPipeline(**_common(), transformer=_transformer())


def two_experts() -> WanPipeline:
    """Wan 2.2: one transformer for the noisy steps, one for the others."""
    torch.manual_seed(0)
    return WanPipeline(**_common(), transformer=_transformer(), transformer_2=_transformer(), boundary_ratio=BOUNDARY)


def expanded_timesteps() -> WanPipeline:
    """Wan 2.2 with 5 billion parameters: a timestep for each token."""
    torch.manual_seed(0)
    return WanPipeline(**_common(), transformer=_transformer(), expand_timesteps=True)


def image_to_video() -> WanImageToVideoPipeline:
    """Wan 2.1 with a CLIP image encoder."""
    torch.manual_seed(0)
    return WanImageToVideoPipeline(
        **_common(),
        transformer=_transformer(in_channels=12, image_dim=8, added_kv_proj_dim=24),
        image_encoder=parts.clip_vision(),
        image_processor=parts.clip_pictures(),
    )


def image_to_video_two_experts() -> WanImageToVideoPipeline:
    """Wan 2.2 with two experts, which see the picture as latents only."""
    torch.manual_seed(0)
    experts = [_transformer(in_channels=12) for _ in range(2)]
    return WanImageToVideoPipeline(
        **_common(), transformer=experts[0], transformer_2=experts[1], boundary_ratio=BOUNDARY
    )


def image_to_video_expanded_timesteps() -> WanImageToVideoPipeline:
    """Wan 2.2 with 5 billion parameters: the first frame is given, at timestep 0."""
    torch.manual_seed(0)
    return WanImageToVideoPipeline(**_common(), transformer=_transformer(), expand_timesteps=True)


def video_to_video() -> WanVideoToVideoPipeline:
    """Starts from a noised video, in the middle of the schedule."""
    torch.manual_seed(0)
    return WanVideoToVideoPipeline(**_common(), transformer=_transformer())


def _vace_transformer() -> WanVACETransformer3DModel:
    return WanVACETransformer3DModel(**_settings(vace_layers=[0, 1], vace_in_channels=2 * 4 + 4 * 4)).eval()


def vace() -> WanVACEPipeline:
    """Control blocks beside the transformer's own."""
    torch.manual_seed(0)
    return WanVACEPipeline(**_common(), transformer=_vace_transformer())


def animate() -> WanAnimatePipeline:
    """Moves the person in a picture as a pose video and a face video say."""
    torch.manual_seed(0)
    transformer = WanAnimateTransformer3DModel(
        **_settings(in_channels=12, image_dim=8, added_kv_proj_dim=24),
        latent_channels=4,
        motion_encoder_channel_sizes={"4": 8, "8": 8},
        motion_encoder_size=8,
        motion_style_dim=8,
        motion_dim=4,
        motion_encoder_dim=8,
        face_encoder_hidden_dim=8,
        face_encoder_num_heads=2,
        inject_face_latents_blocks=2,
    ).eval()
    return WanAnimatePipeline(
        **_common(),
        transformer=transformer,
        image_encoder=parts.clip_vision(),
        image_processor=parts.clip_pictures(),
    )


def _moves(count: int) -> dict[str, Any]:
    return {
        **SIZE,
        "image": parts.picture(seed=1),
        "pose_video": parts.film(5, seed=2),
        "face_video": parts.film(5, size=8, seed=3),
        "segment_frame_length": 5,
    }


def _frames(count: int) -> dict[str, Any]:
    return {**SIZE, "num_frames": 5}


def _picture(count: int) -> dict[str, Any]:
    return {**_frames(count), "image": parts.picture(seed=1)}


def _videos(count: int) -> dict[str, Any]:
    return {**SIZE, "video": [parts.film(5, seed=seed) for seed in range(count)], "strength": 0.8}


def _control(count: int) -> dict[str, Any]:
    half = Image.new("L", (16, 16))
    half.paste(255, (8, 0, 16, 16))
    return {
        **_frames(count),
        "video": parts.film(5, seed=2),
        "mask": [half] * 5,
        "reference_images": [parts.picture(seed=3)],
    }


ONE_EXPERT_A_CALL = {"lora": "load_lora_weights loads one expert a call: see test_experts.py"}

CASES = [
    Case("WanPipeline", "text to video", text_to_video, _frames, GUIDANCE, fast=True),
    Case(
        "WanPipeline[two experts]",
        "text to video",
        two_experts,
        _frames,
        TWO_GUIDANCES,
        fast=True,
        skip=ONE_EXPERT_A_CALL,
    ),
    Case("WanPipeline[timestep a token]", "text to video", expanded_timesteps, _frames, GUIDANCE),
    Case("WanImageToVideoPipeline", "image to video", image_to_video, _picture, GUIDANCE),
    Case(
        "WanImageToVideoPipeline[two experts]",
        "image to video",
        image_to_video_two_experts,
        _picture,
        TWO_GUIDANCES,
        skip=ONE_EXPERT_A_CALL,
    ),
    Case(
        "WanImageToVideoPipeline[timestep a token]",
        "image to video",
        image_to_video_expanded_timesteps,
        _picture,
        GUIDANCE,
    ),
    Case("WanVideoToVideoPipeline", "video to video", video_to_video, _videos, GUIDANCE),
    Case("WanVACEPipeline", "control", vace, _control, GUIDANCE, samples=1),
    Case("WanAnimatePipeline", "image to video", animate, _moves, GUIDANCE),
]
