"""HunyuanVideo, HunyuanVideo 1.5, and SkyReels' image-to-video of the first."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from diffusers import (
    AutoencoderKLHunyuanVideo,
    AutoencoderKLHunyuanVideo15,
    ClassifierFreeGuidance,
    HunyuanSkyreelsImageToVideoPipeline,
    HunyuanVideo15ImageToVideoPipeline,
    HunyuanVideo15Pipeline,
    HunyuanVideo15Transformer3DModel,
    HunyuanVideoFramepackPipeline,
    HunyuanVideoFramepackTransformer3DModel,
    HunyuanVideoImageToVideoPipeline,
    HunyuanVideoPipeline,
    HunyuanVideoTransformer3DModel,
)
from transformers import SiglipImageProcessor, SiglipVisionConfig, SiglipVisionModel

from ... import tiny
from .. import video_parts as parts
from . import Case

WORDS = 6
SIZE = {"height": 16, "width": 16, "num_frames": 5}


def _vae() -> AutoencoderKLHunyuanVideo:
    return AutoencoderKLHunyuanVideo(
        latent_channels=4,
        down_block_types=("HunyuanVideoDownBlock3D",) * 3,
        up_block_types=("HunyuanVideoUpBlock3D",) * 3,
        block_out_channels=(8, 8, 8),
        layers_per_block=1,
        norm_num_groups=4,
        spatial_compression_ratio=4,
        temporal_compression_ratio=4,
    ).eval()


def _settings(**settings: Any) -> dict[str, Any]:
    return {
        "in_channels": 4,
        "out_channels": 4,
        "num_attention_heads": 2,
        "attention_head_dim": 10,
        "num_layers": 1,
        "num_single_layers": 1,
        "num_refiner_layers": 1,
        "patch_size": 2,
        "patch_size_t": 1,
        "guidance_embeds": True,
        "text_embed_dim": 16,
        "pooled_projection_dim": 8,
        "rope_axes_dim": (2, 4, 4),
        **settings,
    }


def _transformer(**settings: Any) -> HunyuanVideoTransformer3DModel:
    return HunyuanVideoTransformer3DModel(**_settings(**settings)).eval()


def text_to_video() -> HunyuanVideoPipeline:
    """Embedded guidance; Llama and CLIP as text encoders."""
    torch.manual_seed(0)
    return HunyuanVideoPipeline(
        text_encoder=parts.llama(),
        tokenizer=tiny.tokenizer(),
        transformer=_transformer(),
        vae=_vae(),
        scheduler=parts.flow_euler(shift=7.0),
        text_encoder_2=parts.clip_text(8),
        tokenizer_2=tiny.tokenizer(),
    )


def image_to_video(**settings: Any) -> HunyuanVideoImageToVideoPipeline:
    """The picture stands beside the latents, as channels."""
    torch.manual_seed(0)
    return HunyuanVideoImageToVideoPipeline(
        text_encoder=None,
        tokenizer=None,
        transformer=_transformer(**settings),
        vae=_vae(),
        scheduler=parts.flow_euler(shift=7.0),
        text_encoder_2=None,
        tokenizer_2=None,
        image_processor=parts.clip_pictures(),
    )


def skyreels_image_to_video() -> HunyuanSkyreelsImageToVideoPipeline:
    """A sampled latent of the picture stands beside the latents."""
    torch.manual_seed(0)
    return HunyuanSkyreelsImageToVideoPipeline(
        text_encoder=None,
        tokenizer=None,
        transformer=_transformer(in_channels=8),
        vae=_vae(),
        scheduler=parts.flow_euler(shift=7.0),
        text_encoder_2=None,
        tokenizer_2=None,
    )


def _siglip() -> dict[str, Any]:
    config = SiglipVisionConfig(
        hidden_size=8, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2, image_size=8, patch_size=4
    )
    return {
        "image_encoder": SiglipVisionModel(config).eval(),
        "feature_extractor": SiglipImageProcessor(size={"height": 8, "width": 8}),
    }


def framepack() -> HunyuanVideoFramepackPipeline:
    """A section of a video after what was drawn before, which it sees the coarser the older it is."""
    torch.manual_seed(0)
    transformer = HunyuanVideoFramepackTransformer3DModel(
        **_settings(), has_image_proj=True, image_proj_dim=8, has_clean_x_embedder=True
    ).eval()
    return HunyuanVideoFramepackPipeline(
        text_encoder=None,
        tokenizer=None,
        transformer=transformer,
        vae=_vae(),
        scheduler=parts.flow_euler(shift=7.0),
        text_encoder_2=None,
        tokenizer_2=None,
        **_siglip(),
    )


def _embeddings(count: int, seed: int = 0, prefix: str = "") -> dict[str, Any]:
    mask = torch.ones(count, WORDS)
    mask[0, -2:] = 0
    return {
        f"{prefix}prompt_embeds": parts.numbers(count, WORDS, 16, seed=seed),
        f"{prefix}pooled_prompt_embeds": parts.numbers(count, 8, seed=seed + 1),
        f"{prefix}prompt_attention_mask": mask,
    }


def _pictures(count: int, frames: int = 5) -> dict[str, Any]:
    return {
        **SIZE,
        "num_frames": frames,
        "image": [parts.picture(seed=seed) for seed in range(count)],
        **_embeddings(count),
        **_embeddings(count, seed=7, prefix="negative_"),
    }


def _section(count: int) -> dict[str, Any]:
    return {**_pictures(count), "height": 32, "width": 32, "latent_window_size": 2}


def _prompts(count: int) -> dict[str, Any]:
    return {**SIZE, "max_sequence_length": 16, "prompt_template": {"template": "{}", "crop_start": 0}}


def _vae_15() -> AutoencoderKLHunyuanVideo15:
    vae = AutoencoderKLHunyuanVideo15(
        latent_channels=4,
        block_out_channels=(16, 16),
        layers_per_block=1,
        spatial_compression_ratio=4,
        temporal_compression_ratio=2,
        downsample_match_channel=False,
        upsample_match_channel=False,
    ).eval()
    vae.enable_slicing()  # the mask of its attention fits one sample only
    return vae


def _parts_15(scale: float, task: str) -> dict[str, Any]:
    transformer = HunyuanVideo15Transformer3DModel(
        in_channels=9,
        out_channels=4,
        num_attention_heads=2,
        attention_head_dim=8,
        num_layers=1,
        num_refiner_layers=1,
        mlp_ratio=2.0,
        patch_size=1,
        patch_size_t=1,
        text_embed_dim=16,
        text_embed_2_dim=12,
        image_embed_dim=8,
        rope_axes_dim=(2, 2, 4),
        target_size=16,
        task_type=task,
    ).eval()
    return {
        "text_encoder": None,
        "tokenizer": None,
        "transformer": transformer,
        "vae": _vae_15(),
        "scheduler": parts.flow_euler(shift=7.0),
        "text_encoder_2": None,
        "tokenizer_2": None,
        "guider": ClassifierFreeGuidance(guidance_scale=scale),
    }


def text_to_video_15(scale: float) -> HunyuanVideo15Pipeline:
    """A guider object instead of a scale."""
    torch.manual_seed(0)
    pipe = HunyuanVideo15Pipeline(**_parts_15(scale, "t2v"))
    pipe.vision_num_semantic_tokens = 4  # of zeros: 729 are the most of this pipeline's work
    return pipe


def image_to_video_15(scale: float) -> HunyuanVideo15ImageToVideoPipeline:
    """A guider, and a SigLIP image encoder."""
    torch.manual_seed(0)
    return HunyuanVideo15ImageToVideoPipeline(**_parts_15(scale, "i2v"), **_siglip())


def _embeddings_15(count: int) -> dict[str, Any]:
    found: dict[str, Any] = {"num_frames": 5}
    for seed, prefix in enumerate(("", "negative_")):
        for width, suffix in ((16, ""), (12, "_2")):
            mask = torch.ones(count, WORDS)
            mask[0, -2:] = 0
            found[f"{prefix}prompt_embeds{suffix}"] = parts.numbers(count, WORDS, width, seed=seed)
            found[f"{prefix}prompt_embeds_mask{suffix}"] = mask
    return found


def _sized_15(count: int) -> dict[str, Any]:
    return {**_embeddings_15(count), **SIZE}


def _picture_15(count: int) -> dict[str, Any]:
    return {**_embeddings_15(count), "image": parts.picture(seed=1)}


EMBEDDED = {"off": {"guidance_scale": 1.0}, "embedded": {"guidance_scale": 6.0}}
TRUE = {"off": {"true_cfg_scale": 1.0}, "on": {"true_cfg_scale": 4.0}}


def _guided(name: str, task: str, build: Callable[[float], Any], call: Callable[[int], Any]) -> list[Case]:
    """A guider belongs to the pipeline and not to its call: two cases."""
    no_loader = {"lora": "diffusers has no LoRA loader for this class"}
    return [
        Case(name, task, partial(build, 4.0), call, {"on": {}}, skip=no_loader),
        Case(f"{name}[no guidance]", task, partial(build, 1.0), call, {"off": {}}, skip=no_loader),
    ]


CASES = [
    Case(
        "HunyuanVideoPipeline",
        "text to video",
        text_to_video,
        _prompts,
        {**EMBEDDED, "on": {"true_cfg_scale": 4.0, "negative_prompt": ["a blue circle"] * 2}},
    ),
    Case(
        "HunyuanVideoImageToVideoPipeline",
        "image to video",
        partial(image_to_video, in_channels=9, guidance_embeds=False, image_condition_type="latent_concat"),
        partial(_pictures, frames=9),
        TRUE,
    ),
    Case(
        "HunyuanVideoImageToVideoPipeline[first frame given]",
        "image to video",
        partial(image_to_video, image_condition_type="token_replace"),
        _pictures,
        TRUE,
    ),
    Case("HunyuanSkyreelsImageToVideoPipeline", "image to video", skyreels_image_to_video, _pictures, TRUE),
    *_guided("HunyuanVideo15Pipeline", "text to video", text_to_video_15, _sized_15),
    *_guided("HunyuanVideo15ImageToVideoPipeline", "image to video", image_to_video_15, _picture_15),
    Case(
        "HunyuanVideoFramepackPipeline",
        "image to video",
        framepack,
        _section,
        {**TRUE, "embedded": {"guidance_scale": 6.0}},
    ),
]
