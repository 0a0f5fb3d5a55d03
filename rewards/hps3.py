"""Which picture people prefer for a prompt: HPS v3, a Qwen2-VL 7B that was tuned on their choices.

See "HPSv3: Towards Wide-Spectrum Human Preference Score", Ma et al., https://arxiv.org/abs/2508.03789.
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor
from torch.nn import functional as F

from ..errors import UserError
from ..reward import Reward, RewardBatch
from ._clip import state_of, weights_file
from ._instruction import instruction as text_of
from ._qwen import QwenJudge, fitted, renamed

REPOSITORY, FILE = "MizzenAI/HPSv3", "HPSv3.safetensors"
MODEL, REVISION = "Qwen/Qwen2-VL-7B-Instruct", "eed13092ef92e448dd6875b2a00151bd3f7db0ac"
INSTRUCTION = ("INSTRUCTION", "prompt_with_special_token")
INSTRUCTION_SHA256 = "f6ee57479d4e9eee76b49c00dc962e1e696a5a2b3cc32cebd9b1fa76fe27502c"
"""Of both texts of hpsv3 1.0.0, joined."""
TOKEN, AREA = "<|Reward|>", 256 * 28 * 28
"""A square picture has 448 by 448 pixels."""


class Hps3Reward(Reward):
    """HPS v3: the mean mu of the model's distribution of scores; good pictures have about 8 to 12, poor ones below 5.

    Three linear layers with ReLU between turn what the model holds at the reward token into mu and sigma; only mu is
    the score, as published.
    """

    name = "hps3"
    differentiable = True
    license = "MIT AND Apache-2.0"

    def __init__(
        self,
        instruction: str = "",
        *,
        instruction_sha256: str = INSTRUCTION_SHA256,
        weights: str = f"{REPOSITORY}:{FILE}",
        sha256: str = "",
        model: str = MODEL,
        revision: str | None = None,
        device: str = "cpu",
        dtype: str = "bfloat16",
    ) -> None:
        """Load the model.

        Args:
            instruction: the path of your copy of ``data_collator_qwen.py`` of the package hpsv3, which is read and not
                run, or of a text file; ``{text_prompt}`` stands for the prompt.
            instruction_sha256: what the text must have; empty for any.
            weights: a path, or ``owner/repository:file`` on the hub; by default the published file.
            sha256: what the file must have, in hexadecimal digits; empty for any.
            model: the Qwen2-VL that was tuned, a hub id or a folder; its config and its tokenizer are read.
            revision: of the model on the hub; the default model is pinned.
            device: where it runs.
            dtype: ``float32``, ``bfloat16`` or ``float16``; the head is float32 always.

        Raises:
            UserError: an option is wrong, or a file is missing or of another kind.
        """
        label = f"reward {self.name!r}"
        self._instruction = _instruction(instruction, instruction_sha256, label)
        path, digest = weights_file(weights, None, label, wanted=f"{FILE} of {REPOSITORY}", sha256=sha256)
        state = renamed(state_of(path, label))
        self._head = _layers(state, label)
        revision = revision or (REVISION if model == MODEL else None)
        self._judge = QwenJudge(state, label, base=(model, revision), tokens=[TOKEN], device=device, dtype=dtype)
        self._head = [(weight.to(self._judge.device), bias.to(self._judge.device)) for weight, bias in self._head]
        self.source = f"{path.name} sha256 {digest}; {model}@{revision or 'main'}; {AREA} pixels, bicubic; mu"

    def __call__(self, batch: RewardBatch) -> Tensor:
        """The scores, `[B]`."""
        frames = fitted(batch.images.to(self._judge.device), AREA, AREA, self._judge.cell)[:, None]
        held = self._judge.hidden(frames, self._judge.filled(self._instruction, batch.prompts), "image")[:, 0]
        for weight, bias in self._head[:-1]:
            held = F.linear(held, weight, bias).relu()
        return F.linear(held, *self._head[-1])[:, 0]


def _instruction(place: str, sha256: str, label: str) -> str:
    text = text_of(place, INSTRUCTION, sha256, label)
    if text.count(TOKEN) != 1:
        raise UserError(f"{label}: instruction: wanted {TOKEN} in it once, got it {text.count(TOKEN)} times.")
    return text


def _layers(state: Mapping[str, Tensor], label: str) -> list[tuple[Tensor, Tensor]]:
    """Weights and biases of the head, in float32, the last of which gives mu and sigma."""
    try:
        layers = [(state[f"rm_head.{i}.weight"].float(), state[f"rm_head.{i}.bias"].float()) for i in (0, 3, 5)]
    except KeyError as error:
        raise UserError(f"{label}: the checkpoint has no {error}: it is not HPS v3.") from error
    if len(layers[-1][1]) != 2:
        raise UserError(f"{label}: wanted a head that gives mu and sigma, got {len(layers[-1][1])} numbers.")
    return layers
