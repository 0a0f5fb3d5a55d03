"""LTX-Video, and LTX 2 with sound."""

from __future__ import annotations

from typing import Any

import torch
from diffusers import (
    AutoencoderKLLTX2Audio,
    AutoencoderKLLTX2Video,
    AutoencoderKLLTXVideo,
    LTX2ConditionPipeline,
    LTX2HDRPipeline,
    LTX2ImageToVideoPipeline,
    LTX2InContextPipeline,
    LTX2Pipeline,
    LTX2VideoTransformer3DModel,
    LTXConditionPipeline,
    LTXImageToVideoPipeline,
    LTXPipeline,
    LTXVideoTransformer3DModel,
)
from diffusers.pipelines.ltx.pipeline_ltx_condition import LTXVideoCondition
from diffusers.pipelines.ltx2 import LTX2TextConnectors
from diffusers.pipelines.ltx2.pipeline_ltx2_condition import LTX2VideoCondition
from diffusers.pipelines.ltx2.pipeline_ltx2_hdr_lora import LTX2HDRReferenceCondition
from diffusers.pipelines.ltx2.pipeline_ltx2_ic_lora import LTX2ReferenceCondition
from diffusers.pipelines.ltx2.vocoder import LTX2Vocoder

from ... import tiny
from .. import video_parts as parts
from . import Case

SIZE = {"height": 32, "width": 32, "num_frames": 9, "max_sequence_length": 16}
GUIDANCE = {
    "off": {"guidance_scale": 1.0},
    "on": {"guidance_scale": 4.0, "negative_prompt": "a blue circle"},
    "rescaled": {"guidance_scale": 4.0, "guidance_rescale": 0.5},
}


def _vae(**settings: Any) -> AutoencoderKLLTXVideo:
    known: dict[str, Any] = {
        "latent_channels": 8,
        "block_out_channels": (8, 8, 8),
        "decoder_block_out_channels": (8, 8, 8),
        "layers_per_block": (1, 1, 1, 1),
        "decoder_layers_per_block": (1, 1, 1, 1),
        "spatio_temporal_scaling": (True, True, True),
        "decoder_spatio_temporal_scaling": (True, True, True),
        "decoder_inject_noise": (False,) * 4,
        "upsample_residual": (False,) * 3,
        "upsample_factor": (1, 1, 1),
        "patch_size": 1,
        "patch_size_t": 1,
    }
    return AutoencoderKLLTXVideo(**{**known, **settings}).eval()


def _common(**settings: Any) -> dict[str, Any]:
    transformer = LTXVideoTransformer3DModel(
        in_channels=8,
        out_channels=8,
        patch_size=1,
        patch_size_t=1,
        num_attention_heads=2,
        attention_head_dim=8,
        cross_attention_dim=16,
        num_layers=2,
        caption_channels=16,
    ).eval()
    return {
        "scheduler": parts.flow_euler(**settings),
        "vae": _vae(),
        "text_encoder": parts.t5(),
        "tokenizer": tiny.tokenizer(),
        "transformer": transformer,
    }


def text_to_video() -> LTXPipeline:
    """Packed latents; a shift that depends on their number."""
    torch.manual_seed(0)
    return LTXPipeline(**_common(use_dynamic_shifting=True))


def image_to_video() -> LTXImageToVideoPipeline:
    """The first frame is given; the others alone are stepped."""
    torch.manual_seed(0)
    return LTXImageToVideoPipeline(**_common(use_dynamic_shifting=True))


def condition() -> LTXConditionPipeline:
    """Given frames anywhere, each token with a timestep of its own."""
    torch.manual_seed(0)
    return LTXConditionPipeline(**_common(shift=1.0))


def _prompts(count: int) -> dict[str, Any]:
    return dict(SIZE)


def _pictures(count: int) -> dict[str, Any]:
    return {**SIZE, "image": [parts.picture(seed=seed) for seed in range(count)]}


def _conditions(count: int) -> dict[str, Any]:
    picture = LTXVideoCondition(image=parts.picture(seed=1), frame_index=0, strength=0.9)
    return {**SIZE, "conditions": [picture]}


WORDS = 8  # a multiple of the number of registers of the connectors
SOUND_2 = {"audio_guidance_scale": 1.0, "audio_stg_scale": 0.0, "audio_modality_scale": 1.0}
OFF_2 = {"guidance_scale": 1.0, "stg_scale": 0.0, "modality_scale": 1.0, "guidance_rescale": 0.0}
GUIDANCE_2 = {
    "off": {**OFF_2, **SOUND_2, "audio_guidance_rescale": 0.0},
    "on": {**OFF_2, **SOUND_2, "guidance_scale": 3.0, "audio_guidance_scale": 4.0},
    "of all kinds": {
        "guidance_scale": 3.0,
        "stg_scale": 1.0,
        "modality_scale": 2.0,
        "guidance_rescale": 0.5,
        "spatio_temporal_guidance_blocks": [0],
    },
}


def _vae_2() -> AutoencoderKLLTX2Video:
    vae = AutoencoderKLLTX2Video(
        latent_channels=4,
        block_out_channels=(8, 8, 8),
        decoder_block_out_channels=(8, 8, 8),
        layers_per_block=(1, 1, 1),
        decoder_layers_per_block=(1, 1, 1, 1),
        spatio_temporal_scaling=(True, True, True),
        decoder_spatio_temporal_scaling=(True, True, True),
        decoder_inject_noise=(False,) * 4,
        downsample_type=("spatiotemporal",) * 3,
        upsample_residual=(False,) * 3,
        upsample_factor=(1, 1, 1),
        patch_size=1,
        patch_size_t=1,
        encoder_causal=True,
        decoder_causal=False,
    ).eval()
    vae.use_framewise_encoding = vae.use_framewise_decoding = False
    return vae


def _sound_2() -> dict[str, Any]:
    audio_vae = AutoencoderKLLTX2Audio(
        base_channels=4,
        output_channels=2,
        ch_mult=(1,),
        num_res_blocks=1,
        attn_resolutions=None,
        in_channels=2,
        resolution=32,
        latent_channels=2,
        norm_type="pixel",
        causality_axis="height",
        mid_block_add_attention=False,
        mel_bins=8,
    ).eval()
    vocoder = LTX2Vocoder(
        in_channels=2 * 8,
        hidden_channels=16,
        out_channels=2,
        upsample_kernel_sizes=[4, 4],
        upsample_factors=[2, 2],
        resnet_kernel_sizes=[3],
        resnet_dilations=[[1, 3, 5]],
    ).eval()
    return {"audio_vae": audio_vae, "vocoder": vocoder}


def _common_2() -> dict[str, Any]:
    transformer = LTX2VideoTransformer3DModel(
        in_channels=4,
        out_channels=4,
        patch_size=1,
        patch_size_t=1,
        num_attention_heads=2,
        attention_head_dim=8,
        cross_attention_dim=16,
        audio_in_channels=4,
        audio_out_channels=4,
        audio_num_attention_heads=2,
        audio_attention_head_dim=4,
        audio_cross_attention_dim=8,
        num_layers=2,
        caption_channels=8,
        rope_double_precision=False,
        rope_type="split",
    ).eval()
    connectors = LTX2TextConnectors(
        caption_channels=8,
        text_proj_in_factor=2,
        video_connector_num_attention_heads=2,
        video_connector_attention_head_dim=4,
        video_connector_num_layers=1,
        video_connector_num_learnable_registers=None,
        audio_connector_num_attention_heads=2,
        audio_connector_attention_head_dim=4,
        audio_connector_num_layers=1,
        audio_connector_num_learnable_registers=None,
        connector_rope_base_seq_len=32,
        rope_double_precision=False,
        rope_type="split",
    ).eval()
    return {
        "scheduler": parts.flow_euler(shift=1.0, use_dynamic_shifting=True, shift_terminal=0.1),
        "vae": _vae_2(),
        **_sound_2(),
        "text_encoder": None,
        "tokenizer": None,
        "connectors": connectors,
        "transformer": transformer,
    }


def sound() -> LTX2Pipeline:
    """Video and sound, each with latents of its own: a copy of the scheduler steps the sound."""
    torch.manual_seed(0)
    return LTX2Pipeline(**_common_2())


def image_to_sound() -> LTX2ImageToVideoPipeline:
    """The first frame is given."""
    torch.manual_seed(0)
    return LTX2ImageToVideoPipeline(**_common_2())


def condition_to_sound() -> LTX2ConditionPipeline:
    """Frames are given anywhere."""
    torch.manual_seed(0)
    return LTX2ConditionPipeline(**_common_2())


def in_context() -> LTX2InContextPipeline:
    """A reference video as further tokens."""
    torch.manual_seed(0)
    return LTX2InContextPipeline(**_common_2())


def hdr() -> LTX2HDRPipeline:
    """A video in a higher dynamic range; the sound is not read."""
    torch.manual_seed(0)
    return LTX2HDRPipeline(**_common_2())


def _sounds(count: int) -> dict[str, Any]:
    return {
        "height": 32,
        "width": 32,
        "num_frames": 9,
        "prompt_embeds": parts.numbers(count, WORDS, 16),
        "negative_prompt_embeds": parts.numbers(count, WORDS, 16, seed=1),
        "prompt_attention_mask": torch.ones(count, WORDS),
        "negative_prompt_attention_mask": torch.ones(count, WORDS),
    }


def _pictures_2(count: int) -> dict[str, Any]:
    return {**_sounds(count), "image": [parts.picture(seed=seed) for seed in range(count)], "image_crf": 0}


def _conditions_2(count: int) -> dict[str, Any]:
    picture = LTX2VideoCondition(frames=parts.picture(seed=1), index=0, strength=0.9, crf=0)
    return {**_sounds(count), "conditions": [picture]}


def _references(count: int) -> dict[str, Any]:
    video = LTX2ReferenceCondition(frames=parts.film(9, size=32, seed=1), strength=0.9)
    return {**_sounds(count), "reference_conditions": [video]}


def _hdr(count: int) -> dict[str, Any]:
    video = LTX2HDRReferenceCondition(frames=parts.numbers(1, 9, 3, 32, 32).sigmoid(), strength=1.0)
    return {**_sounds(count), "reference_conditions": [video]}


# The projections of the sound: what the video does not see of them has no effect on its trajectory.
VIDEO_2 = ("attn1.to_q", "attn1.to_v", "attn2.to_q", "attn2.to_v", "audio_to_video_attn.to_q")
GUIDANCE_HDR = {"off": {}, "on": {"guidance_scale": 3.0}}
BESIDE = {"predict": "the sound has no latents at a level of the caller's choice"}

BRIGHT = {"lora": "values of its pictures go far beyond 1, and roundings with them; the loader is LTX2Pipeline's"}

CASES = [
    Case("LTXPipeline", "text to video", text_to_video, _prompts, GUIDANCE),
    Case("LTXImageToVideoPipeline", "image to video", image_to_video, _pictures, GUIDANCE),
    Case("LTXConditionPipeline", "image to video", condition, _conditions, GUIDANCE),
    Case("LTX2Pipeline", "text to video", sound, _sounds, GUIDANCE_2, targets=VIDEO_2, skip=BESIDE),
    Case(
        "LTX2ImageToVideoPipeline",
        "image to video",
        image_to_sound,
        _pictures_2,
        GUIDANCE_2,
        targets=VIDEO_2,
        skip=BESIDE,
    ),
    Case(
        "LTX2ConditionPipeline",
        "image to video",
        condition_to_sound,
        _conditions_2,
        GUIDANCE_2,
        targets=VIDEO_2,
        skip=BESIDE,
    ),
    Case("LTX2InContextPipeline", "video to video", in_context, _references, GUIDANCE_2, targets=VIDEO_2, skip=BESIDE),
    Case("LTX2HDRPipeline", "video to video", hdr, _hdr, GUIDANCE_HDR, targets=VIDEO_2, skip={**BESIDE, **BRIGHT}),
]

REFUSED = {
    "LTXLatentUpsamplePipeline": "it enlarges latents in one pass and has no scheduler",
    "LTX2LatentUpsamplePipeline": "it enlarges latents in one pass and has no scheduler",
    "LTX2VideoDiffusionDecodePipeline": "it decodes latents that are given to it; it knows no prompt",
    "LTXI2VLongMultiPromptPipeline": "it draws a video in windows, each with a schedule of its own",
    "LTX2DFRPipeline": "distilled: it takes a list of sigmas and no number of steps",
    "LTX2DFRTemporalRefinePipeline": "distilled: it takes a list of sigmas and no number of steps",
}
