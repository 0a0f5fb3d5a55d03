"""NVIDIA's Cosmos."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from diffusers import (
    ConfigMixin,
    Cosmos2_5_PredictBasePipeline,
    Cosmos2TextToImagePipeline,
    Cosmos2VideoToWorldPipeline,
    CosmosTransformer3DModel,
    FlowMatchEulerDiscreteScheduler,
    ModelMixin,
)

from ... import tiny
from .. import video_parts as parts
from . import Case

WORDS = 6
SIZE = {"height": 16, "width": 16, "max_sequence_length": 16}
GUIDANCE = {
    "off": {"guidance_scale": 1.0},
    "on": {"guidance_scale": 3.0, "negative_prompt": "a blue circle"},
}


class LetsPass(ModelMixin, ConfigMixin):
    """In place of the guardrail, which is a package and models of its own."""

    def __init__(self) -> None:
        """With a weight, as pipelines ask every part for its device."""
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(1))

    def check_text_safety(self, prompt: str) -> bool:
        """Every prompt passes."""
        return True

    def check_video_safety(self, frames: np.ndarray) -> np.ndarray:
        """Every video passes as it is."""
        return frames


def _transformer(channels: int, **settings: Any) -> CosmosTransformer3DModel:
    known: dict[str, Any] = {
        "in_channels": channels,
        "out_channels": 4,
        "num_attention_heads": 2,
        "attention_head_dim": 16,
        "num_layers": 2,
        "mlp_ratio": 2,
        "text_embed_dim": 16,
        "adaln_lora_dim": 4,
        "max_size": (4, 16, 16),
        "patch_size": (1, 2, 2),
        "rope_scale": (2.0, 1.0, 1.0),
        "concat_padding_mask": True,
        "extra_pos_embed_type": "learnable",
    }
    return CosmosTransformer3DModel(**{**known, **settings}).eval()


def _common(channels: int) -> dict[str, Any]:
    return {
        "text_encoder": parts.t5(),
        "tokenizer": tiny.tokenizer(),
        "transformer": _transformer(channels),
        "vae": parts.wan_vae(),
        # EDM's sigmas, from 80 on, in the flow scheduler.
        "scheduler": FlowMatchEulerDiscreteScheduler(use_karras_sigmas=True),
        "safety_checker": LetsPass(),
    }


def text_to_image_2() -> Cosmos2TextToImagePipeline:
    """Cosmos Predict 2: a picture."""
    torch.manual_seed(0)
    return Cosmos2TextToImagePipeline(**_common(4))


def video_to_world_2() -> Cosmos2VideoToWorldPipeline:
    """Cosmos Predict 2: goes on from given frames."""
    torch.manual_seed(0)
    return Cosmos2VideoToWorldPipeline(**_common(5))


def predict_2_5() -> Cosmos2_5_PredictBasePipeline:
    """Cosmos Predict 2.5: UniPC on flow sigmas that lie as Karras' do."""
    torch.manual_seed(0)
    return Cosmos2_5_PredictBasePipeline(
        **{
            **_common(5),
            "text_encoder": None,
            "tokenizer": None,
            "scheduler": parts.flow_unipc(
                flow_shift=1.0, use_karras_sigmas=True, sigma_max=200.0, sigma_min=0.01, timestep_spacing="linspace"
            ),
        }
    )


def _prompts(count: int) -> dict[str, Any]:
    return dict(SIZE)


def _frames(count: int) -> dict[str, Any]:
    videos = [parts.film(1, seed=seed) for seed in range(count)]
    return {**SIZE, "num_frames": 5, "video": videos}


def _embeddings(count: int) -> dict[str, Any]:
    return {
        "height": 16,
        "width": 16,
        "num_frames": 5,
        "prompt_embeds": parts.numbers(count, WORDS, 16),
        "negative_prompt_embeds": parts.numbers(count, WORDS, 16, seed=1),
    }


def _picture(count: int) -> dict[str, Any]:
    return {**_embeddings(count), "image": parts.picture(seed=1)}


# What the pipeline predicts is not the denoiser's output alone: it puts the given frames in.
GIVEN = {"off, given frames": GUIDANCE["off"], "on": GUIDANCE["on"]}
SCALE_GIVEN = {"off, given frames": {"guidance_scale": 1.0}, "on": {"guidance_scale": 3.0}}
SCALE = {"off": {"guidance_scale": 1.0}, "on": {"guidance_scale": 3.0}}
CHECKED = {
    "lora": "diffusers has no LoRA loader for this class",
    "pictures": "its safety checker is given, and gives back, pictures of 8 bits, which have no gradient",
}

CASES = [
    Case("Cosmos2TextToImagePipeline", "text to image", text_to_image_2, _prompts, GUIDANCE, skip=CHECKED),
    Case("Cosmos2VideoToWorldPipeline", "video to video", video_to_world_2, _frames, GIVEN, skip=CHECKED),
    Case("Cosmos2_5_PredictBasePipeline", "text to video", predict_2_5, _embeddings, SCALE),
    Case("Cosmos2_5_PredictBasePipeline[from a picture]", "image to video", predict_2_5, _picture, SCALE_GIVEN, samples=1),
]
