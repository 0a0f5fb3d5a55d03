"""NVIDIA's Cosmos."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import torch
from diffusers import (
    ConfigMixin,
    Cosmos2_5_PredictBasePipeline,
    Cosmos2_5_TransferPipeline,
    Cosmos2TextToImagePipeline,
    Cosmos2VideoToWorldPipeline,
    Cosmos3OmniPipeline,
    Cosmos3OmniTransformer,
    CosmosControlNetModel,
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


def _karras_unipc() -> Any:
    return parts.flow_unipc(flow_shift=1.0, use_karras_sigmas=True, sigma_max=200.0, sigma_min=0.01)


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
            "scheduler": _karras_unipc(),
        }
    )


def transfer_2_5() -> Cosmos2_5_TransferPipeline:
    """Cosmos Transfer 2.5: a control net of its own, chunk by chunk; a trajectory is one chunk."""
    torch.manual_seed(0)
    pictures = {"img_context_dim_in": 8, "img_context_dim_out": 32, "text_embed_dim": 32}
    controlnet = CosmosControlNetModel(
        n_controlnet_blocks=2,
        in_channels=4 + 2,
        latent_channels=4 + 2,
        model_channels=32,
        num_attention_heads=2,
        attention_head_dim=16,
        mlp_ratio=2,
        adaln_lora_dim=4,
        patch_size=(1, 2, 2),
        max_size=(4, 16, 16),
        rope_scale=(2.0, 1.0, 1.0),
        extra_pos_embed_type="learnable",
        use_crossattn_projection=False,
        **pictures,
    ).eval()
    return Cosmos2_5_TransferPipeline(
        **{
            **_common(5),
            "text_encoder": None,
            "tokenizer": None,
            "scheduler": _karras_unipc(),
            "transformer": _transformer(5, controlnet_block_every_n=1, img_context_num_tokens=4, **pictures),
            "controlnet": controlnet,
        }
    )


def _prompts(count: int) -> dict[str, Any]:
    return dict(SIZE)


def _frames(count: int) -> dict[str, Any]:
    videos = [parts.film(1, seed=seed) for seed in range(count)]
    return {**SIZE, "num_frames": 5, "video": videos}


def _embeddings(count: int, width: int = 16) -> dict[str, Any]:
    return {
        "height": 16,
        "width": 16,
        "num_frames": 5,
        "prompt_embeds": parts.numbers(count, WORDS, width),
        "negative_prompt_embeds": parts.numbers(count, WORDS, width, seed=1),
    }


def _controls(count: int) -> dict[str, Any]:
    videos = [parts.film(5, seed=seed) for seed in range(count)]
    return {**_embeddings(count, 32), "controls": videos, "num_frames_per_chunk": 5}


def _picture(count: int) -> dict[str, Any]:
    return {**_embeddings(count), "image": parts.picture(seed=1)}


TRANSFORMER_3 = {
    "head_dim": 6,
    "hidden_act": "relu2",
    "hidden_size": 12,
    "intermediate_size": 12,
    "latent_channel": 4,
    "latent_patch_size": 1,
    "num_attention_heads": 2,
    "num_hidden_layers": 2,
    "num_key_value_heads": 2,
    "patch_latent_dim": 4,
    "qk_norm_for_text": False,
    "rms_norm_eps": 1e-5,
    "rope_axes_dim": [1, 1, 1],
}


def omni_3() -> Cosmos3OmniPipeline:
    """Cosmos 3: text and video in one sequence, a prompt at a time."""
    torch.manual_seed(0)
    words = copy.deepcopy(tiny.tokenizer())
    words.chat_template = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
    return Cosmos3OmniPipeline(
        transformer=Cosmos3OmniTransformer(vocab_size=len(words), **TRANSFORMER_3).eval(),
        text_tokenizer=words,
        vae=parts.wan_vae(),
        scheduler=_karras_unipc(),
        enable_safety_checker=False,
    )


def _omni(count: int) -> dict[str, Any]:
    return {
        "height": 16,
        "width": 16,
        "num_frames": 5,
        "use_system_prompt": False,
        "add_resolution_template": False,
        "add_duration_template": False,
    }


# What the pipeline predicts is not the denoiser's output alone: it puts the given frames in.
GIVEN = {"off, given frames": GUIDANCE["off"], "on": GUIDANCE["on"]}
SCALE_GIVEN = {"off, given frames": {"guidance_scale": 1.0}, "on": {"guidance_scale": 3.0}}
SCALE = {"off": {"guidance_scale": 1.0}, "on": {"guidance_scale": 3.0}}
# Of the text's pathway its keys and values: the video sees no more of it in the last layer.
TARGETS_3 = ("add_q_proj", "add_k_proj", "add_v_proj", "to_add_out", "to_k", "to_v")
GUIDANCE_3 = {"off": {"guidance_scale": 1.0}, "on": {"guidance_scale": 6.0, "negative_prompt": "a blue circle"}}
NO_LOADER = {"lora": "diffusers has no LoRA loader for this class"}
CHECKED = {
    "lora": "diffusers has no LoRA loader for this class",
    "pictures": "its safety checker is given, and gives back, pictures of 8 bits, which have no gradient",
}

# The velocity of its EDM-type latents is worked out from what it predicts: not the denoiser's to the last digits.
WORKED_OUT = {"off, worked out": GUIDANCE["off"], "on": GUIDANCE["on"]}

CASES = [
    Case("Cosmos2TextToImagePipeline", "text to image", text_to_image_2, _prompts, WORKED_OUT, skip=CHECKED),
    Case("Cosmos2VideoToWorldPipeline", "video to video", video_to_world_2, _frames, GIVEN, skip=CHECKED),
    Case("Cosmos2_5_PredictBasePipeline", "text to video", predict_2_5, _embeddings, SCALE),
    Case(
        "Cosmos3OmniPipeline", "text to video", omni_3, _omni, GUIDANCE_3, samples=1, targets=TARGETS_3, skip=NO_LOADER
    ),
    Case("Cosmos2_5_TransferPipeline", "control", transfer_2_5, _controls, SCALE, skip=CHECKED),
    Case(
        "Cosmos2_5_PredictBasePipeline[from a picture]", "image to video", predict_2_5, _picture, SCALE_GIVEN, samples=1
    ),
]

_TWICE = "its guidance asks the scheduler (EDM's) for the denoised latents before each step: it calls it twice a step"
REFUSED = {"CosmosTextToWorldPipeline": _TWICE, "CosmosVideoToWorldPipeline": _TWICE}
