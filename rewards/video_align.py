"""How good a video is, how good its motion, and how well it shows its prompt: VideoReward of VideoAlign.

See "Improving Video Generation with Human Feedback", Liu et al., https://arxiv.org/abs/2501.13918.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from .. import plugins
from ..errors import UserError
from ..reward import Reward, RewardBatch
from ._clip import state_of, weights_file
from ._instruction import instruction as text_of
from ._qwen import QwenJudge, fitted, renamed

REPOSITORY, FILE = "KwaiVGI/VideoReward", "checkpoint-11352/model.pth"
MODEL, REVISION = "Qwen/Qwen2-VL-2B-Instruct", "895c3a49bc3fa70a340399125c650a463535e71c"
INSTRUCTION = ("DETAILED_PROMPT_WITH_SPECIAL_TOKEN",)
INSTRUCTION_SHA256 = "fdb6309bac618dd0c8b1b589d3a0970a974f7856eecbb355a190b2dce54af700"
TOKENS = ("<|VQ_reward|>", "<|MQ_reward|>", "<|TA_reward|>")
MEAN, STD = (3.6757, 1.1646, 2.8105), (2.2476, 1.3811, 2.5121)
"""Of the three raw scores on the authors' videos, as published."""
LOW, HIGH = 128 * 28 * 28, 256 * 28 * 28
"""Least and largest area of a frame, in pixels."""
LORA_SCALE = 128 / 64
"""alpha / rank, of the LoRA in the published file."""
PARTS = ("overall", "visual", "motion", "text")
_FPS, _LEAST, _MOST = 2.0, 4, 768


class VideoAlignReward(Reward):
    """VideoReward: ``(raw - mean) / std`` of visual quality, motion quality and text alignment, or their sum.

    A Qwen2-VL sees two frames a second; one linear layer reads each raw score at a token of its own.
    """

    name = "video_align"
    media = "video"
    differentiable = True
    license = "MIT AND Apache-2.0"

    def __init__(
        self,
        instruction: str = "",
        *,
        part: str = "overall",
        instruction_sha256: str = INSTRUCTION_SHA256,
        weights: str = f"{REPOSITORY}:{FILE}",
        sha256: str = "",
        model: str = MODEL,
        device: str = "cpu",
        dtype: str = "bfloat16",
    ) -> None:
        """Load the model.

        Args:
            instruction: the path of your copy of VideoAlign's ``prompt_template.py``, which is read and not run, or of
                a text file; ``{text_prompt}`` stands for the prompt.
            part: ``overall``, the sum of the three; ``visual``, ``motion`` or ``text``.
            instruction_sha256: what the text must have; empty for any.
            weights: a path, or ``owner/repository:file`` on the hub; by default the published file.
            sha256: what the file must have, in hexadecimal digits; empty for any.
            model: the Qwen2-VL that was tuned, a hub id or a folder; its config and its tokenizer are read. The default
                is pinned, another id is taken at ``main``.
            device: where it runs.
            dtype: ``float32``, ``bfloat16`` or ``float16``; the head is float32 always.

        Raises:
            UserError: an option is wrong, or a file is missing or of another kind.
        """
        label = f"reward {self.name!r}"
        if part not in PARTS:
            raise UserError(
                f"{label}: part: unknown {part!r}.{plugins.nearest(part, PARTS)} Known: {', '.join(PARTS)}."
            )
        self._part, self._label = part, label
        self._instruction = _instruction(instruction, instruction_sha256, label)
        path, digest = weights_file(weights, None, label, wanted=f"{FILE} of {REPOSITORY}", sha256=sha256)
        state = merged(renamed(state_of(path, label)), LORA_SCALE, label)
        head = _head(state, label)
        revision = REVISION if model == MODEL else None
        self._judge = QwenJudge(state, label, base=(model, revision), tokens=TOKENS, device=device, dtype=dtype)
        self._head = head.to(self._judge.device)
        self.source = f"{path.name} sha256 {digest}; {model}@{revision or 'main'}; {_FPS:g} fps, {HIGH} pixels, bicubic"

    def __call__(self, batch: RewardBatch) -> Tensor:
        """The scores, `[B]`; one video at a time."""
        if batch.fps is None:
            raise UserError(
                f"{self._label}: it shows two frames a second, and nothing says the videos' own: set policy.fps."
            )
        chosen = torch.tensor(frames_of(batch.images.shape[1], batch.fps, self._label))
        texts = self._judge.filled(self._instruction, batch.prompts)
        return torch.cat([self._score(video[chosen], text) for video, text in zip(batch.images, texts, strict=True)])

    def _score(self, video: Tensor, text: str) -> Tensor:
        frames = fitted(video.to(self._judge.device), LOW, HIGH, self._judge.cell)[None]
        raw = (self._judge.hidden(frames, [text], "video") * self._head).sum(dim=-1)
        parts = (raw - raw.new_tensor(MEAN)) / raw.new_tensor(STD)
        return parts.sum(dim=1) if self._part == "overall" else parts[:, PARTS.index(self._part) - 1]


def frames_of(count: int, fps: float, label: str) -> list[int]:
    """Which frames of a video are shown: two a second and an even number, 4 to 768 if there are so many, evenly spread.

    Args:
        count: frames of the video.
        fps: its frames a second.
        label: opens the message of an error.

    Raises:
        UserError: there are fewer than two frames.

    >>> frames_of(33, 16.0, "toy"), frames_of(3, 16.0, "toy")
    ([0, 11, 21, 32], [0, 2])
    """
    if count < 2:
        raise UserError(f"{label}: wanted videos of two frames or more, got {count}.")
    wanted = min(max(count / fps * _FPS, _LEAST), min(_MOST, count) // 2 * 2)
    return [int(place) for place in torch.linspace(0, count - 1, round(wanted / 2) * 2).round().tolist()]


def merged(state: Mapping[str, Tensor], scale: float, label: str) -> dict[str, Tensor]:
    """The tensors of a checkpoint with PEFT's LoRA added in: ``W + scale B A``; others are as they were.

    Args:
        state: its tensors, ``NAME.base_layer.weight``, ``NAME.lora_A.default.weight`` and so on.
        scale: alpha / rank.
        label: opens the message of an error.

    Raises:
        UserError: a matrix of a pair, or the layer that it belongs to, is missing, or it is no plain LoRA of layers.

    >>> lora = {"a.lora_A.default.weight": torch.ones(1, 2), "a.lora_B.default.weight": torch.ones(1, 1)}
    >>> merged({"a.base_layer.weight": torch.tensor([[1.0, 2.0]])} | lora, 2.0, "toy")
    {'a.weight': tensor([[3., 4.]])}
    """
    other = [name for name in state if ".lora_" in name and ".lora_A." not in name and ".lora_B." not in name]
    if other:
        raise UserError(f"{label}: wanted a LoRA of lora_A and lora_B alone, got {other[0]} too.")
    out = {name.replace(".base_layer.", "."): value for name, value in state.items() if ".lora_" not in name}
    try:
        for name in (name for name in state if ".lora_A." in name):
            layer = name.split(".lora_A.")[0] + ".weight"
            change = state[name.replace(".lora_A.", ".lora_B.")].float() @ state[name].float()
            out[layer] = (out[layer].float() + scale * change).to(out[layer].dtype)
    except (KeyError, RuntimeError) as error:
        raise UserError(f"{label}: the checkpoint's LoRA does not fit its layers: {error}.") from error
    return out


def _instruction(place: str, sha256: str, label: str) -> str:
    text = text_of(place, INSTRUCTION, sha256, label)
    if any(text.count(token) != 1 for token in TOKENS):
        raise UserError(f"{label}: instruction: wanted {', '.join(TOKENS)} in it, each once.")
    return text


def _head(state: Mapping[str, Tensor], label: str) -> Tensor:
    """A row for each of the three tokens, `[3, D]` float32, of a head of three rows, or of one for all."""
    weight = state.get("rm_head.weight")
    if weight is None or weight.ndim != 2 or len(weight) not in (1, 3):
        shape = "none" if weight is None else list(weight.shape)
        raise UserError(f"{label}: wanted rm_head.weight of one row or three, got {shape}: it is not VideoReward.")
    return weight.float().expand(3, -1)
