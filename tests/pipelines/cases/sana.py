"""Sana: linear attention on the latents of a deep-compression autoencoder; its video models and its control net."""

from __future__ import annotations

from typing import Any

import torch
from diffusers import (
    AutoencoderDC,
    DPMSolverMultistepScheduler,
    FlowMatchEulerDiscreteScheduler,
    SanaControlNetModel,
    SanaControlNetPipeline,
    SanaImageToVideoPipeline,
    SanaPAGPipeline,
    SanaPipeline,
    SanaSprintImg2ImgPipeline,
    SanaSprintPipeline,
    SanaTransformer2DModel,
    SanaVideoPipeline,
    SanaVideoTransformer3DModel,
    SCMScheduler,
)

from ..parts_images import fill, mask, pictures, rows, wan_vae
from . import Arguments, Case

WIDTH = 12
GUIDANCE = {"off": {"guidance_scale": 1.0}, "on": {"guidance_scale": 4.5}}
PAG = {"off": {"guidance_scale": 1.0, "pag_scale": 0.0}, "perturbed": {"guidance_scale": 1.0, "pag_scale": 2.0}}
SPRINT = {"weak": {"guidance_scale": 1.0}, "on": {"guidance_scale": 4.5}}
MODEL: dict[str, Any] = {
    "in_channels": 4,
    "out_channels": 4,
    "num_attention_heads": 2,
    "attention_head_dim": 8,
    "num_cross_attention_heads": 2,
    "cross_attention_head_dim": 8,
    "cross_attention_dim": 16,
    "caption_channels": WIDTH,
    "mlp_ratio": 2.0,
    "sample_size": 8,
}


def _autoencoder() -> AutoencoderDC:
    """Pictures become 4 times smaller."""
    made = AutoencoderDC(
        latent_channels=4,
        attention_head_dim=4,
        encoder_block_types=("ResBlock", "ResBlock", "EfficientViTBlock"),
        decoder_block_types=("ResBlock", "ResBlock", "EfficientViTBlock"),
        encoder_block_out_channels=(8, 8, 8),
        decoder_block_out_channels=(8, 8, 8),
        encoder_qkv_multiscales=((), (), (5,)),
        decoder_qkv_multiscales=((), (), (5,)),
        encoder_layers_per_block=(1, 1, 1),
        decoder_layers_per_block=(1, 1, 1),
        downsample_block_type="conv",
        upsample_block_type="interpolate",
        scaling_factor=0.4,
    )
    return made.eval()


def _parts(**settings: Any) -> dict[str, Any]:
    torch.manual_seed(0)
    return {
        "transformer": SanaTransformer2DModel(**{**MODEL, "num_layers": 2, **settings}).eval(),
        "vae": _autoencoder(),
        "scheduler": DPMSolverMultistepScheduler(
            prediction_type="flow_prediction", use_flow_sigmas=True, flow_shift=3.0
        ),
        "text_encoder": None,
        "tokenizer": None,
    }


def _sprint(kind: type) -> Any:
    """Two or four steps of a consistency model that is told the guidance."""
    parts = _parts(guidance_embeds=True, qk_norm="rms_norm_across_heads")
    return kind(**{**parts, "scheduler": SCMScheduler(sigma_data=0.5)})


def _controlnet() -> SanaControlNetPipeline:
    parts = _parts()
    controlnet = SanaControlNetModel(**MODEL, num_layers=1)
    fill(controlnet, 0.03)
    return SanaControlNetPipeline(**parts, controlnet=controlnet.eval())


def _video(kind: type) -> Any:
    """Videos of 5 frames become 2 latent frames."""
    torch.manual_seed(0)
    transformer = SanaVideoTransformer3DModel(
        **{**MODEL, "attention_head_dim": 12, "cross_attention_head_dim": 12, "cross_attention_dim": 24},
        num_layers=2,
        patch_size=(1, 2, 2),
        rope_max_seq_len=32,
    )
    return kind(
        transformer=transformer.eval(),
        vae=wan_vae(),
        scheduler=FlowMatchEulerDiscreteScheduler(shift=8.0),
        text_encoder=None,
        tokenizer=None,
    )


def _text(count: int) -> Arguments:
    return {
        "prompt_embeds": rows(count, 6, WIDTH),
        "prompt_attention_mask": mask(count, 6),
        "negative_prompt": None,
        "negative_prompt_embeds": rows(count, 6, WIDTH, seed=1),
        "negative_prompt_attention_mask": mask(count, 6),
        "use_resolution_binning": False,
    }


def _sized(count: int) -> Arguments:
    return {**_text(count), "height": 32, "width": 32}


def _control(count: int) -> Arguments:
    return {**_sized(count), "control_image": pictures(count, 32), "controlnet_conditioning_scale": 0.8}


def _sprint_call(count: int) -> Arguments:
    positive = {name: value for name, value in _sized(count).items() if not name.startswith("negative")}
    return {**positive, "intermediate_timesteps": None}  # of two steps, the default, the second is at 1.3


def _sprint_picture(count: int) -> Arguments:
    return {**_sprint_call(count), "image": pictures(count, 32), "strength": 0.6}


def _frames(count: int) -> Arguments:
    return {**_sized(count), "frames": 5}


def _first_frame(count: int) -> Arguments:
    """The samples share their first frame: the class takes one picture."""
    return {**_frames(count), "image": pictures(1, 32)}


CASES = [
    Case("SanaPipeline", "text to image", lambda: SanaPipeline(**_parts()), _sized, GUIDANCE),
    Case(
        "SanaPAGPipeline",
        "text to image",
        lambda: SanaPAGPipeline(**_parts(), pag_applied_layers=["blocks.1"]),
        _sized,
        {**PAG, "on": {"guidance_scale": 4.5, "pag_scale": 2.0}},
        skip={"lora": "diffusers has no LoRA loader for this class"},
    ),
    Case("SanaControlNetPipeline", "control", _controlnet, _control, GUIDANCE),
    Case(
        "SanaSprintPipeline",
        "text to image",
        lambda: _sprint(SanaSprintPipeline),
        _sprint_call,
        SPRINT,
        kernel="consistency",
    ),
    Case(
        "SanaSprintImg2ImgPipeline",
        "image to image",
        lambda: _sprint(SanaSprintImg2ImgPipeline),
        _sprint_picture,
        SPRINT,
        kernel="consistency",
    ),
    Case("SanaVideoPipeline", "text to video", lambda: _video(SanaVideoPipeline), _frames, GUIDANCE),
    Case(
        "SanaImageToVideoPipeline", "image to video", lambda: _video(SanaImageToVideoPipeline), _first_frame, GUIDANCE
    ),
]
