"""How likely a recogniser of text finds the line that was asked for: a reward with gradients.

The recogniser names, for each column of a line, the probability of every letter and of a blank; "Connectionist Temporal
Classification", Graves et al., ICML 2006 (https://www.cs.toronto.edu/~graves/icml_2006.pdf), sums it over all ways of
writing the text into the columns. The score is that sum's logarithm a letter. Its gradient reaches the pixels, so
objectives such as ``draft`` can climb it, and find pictures that this network alone can read: watch ``ocr_judge``.
"""

from __future__ import annotations

import hashlib
import importlib.util
import math
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F

from ..data import PromptRow
from ..errors import UserError
from ..reward import Reward, RewardBatch
from ._onnx import OnnxGraph
from .ocr import _sign, quoted

HEIGHT = 48
"""Of a line in pixels, as the recogniser was trained."""
_FILE = "PP-OCRv6_rec_small.onnx"


def log_likelihood(logits: Tensor, targets: Sequence[Sequence[int]]) -> Tensor:
    """The logarithm of the CTC probability of each text, `[B]`; -inf for one that does not fit into the columns.

    Args:
        logits: of each column, `[B, T, classes]`; class 0 is the blank.
        targets: the classes of each text's letters, none of them 0.

    Over two columns, the text "1" is "1-", "-1" or "11": .6 * .5 + .4 * .5 + .6 * .5 = .8.

    >>> log_likelihood(torch.tensor([[[0.4, 0.6], [0.5, 0.5]]]).log(), [[1]]).exp()
    tensor([0.8000])
    """
    rows, columns, _ = logits.shape
    letters = torch.tensor([letter for target in targets for letter in target], device=logits.device)
    lengths = [len(target) for target in targets]
    logarithms = logits.float().log_softmax(-1).transpose(0, 1)
    return -F.ctc_loss(logarithms, letters, (columns,) * rows, lengths, blank=0, reduction="none")


def least_columns(target: Sequence[int]) -> int:
    """How many columns a text needs: one a letter, and a blank between two that are equal.

    >>> least_columns([1, 2, 2, 3]), least_columns([])
    (5, 0)
    """
    return len(target) + sum(left == right for left, right in pairwise(target))


class OcrCtcReward(Reward):
    """The CTC log-likelihood of the text asked for, a letter, in nats: 0 is certainty.

    The picture is taken as one line of text, so nothing has to be found first. Case matters, white space does not. The
    network is the recogniser of ``ocr``'s default engine, in torch.
    """

    name = "ocr_ctc"
    range = (-math.inf, 0.0)
    license = "Apache-2.0"
    extra = "ocr"
    differentiable = True

    def __init__(self) -> None:
        """Load the recogniser.

        Raises:
            UserError: a package is missing.
        """
        file = _file(self.name)
        self._network = OnnxGraph(file, logits=True).eval()
        # The class after the last letter is a space, which the file does not list.
        letters = self._network.metadata["character"].split("\n")
        self._classes = {letter: number for number, letter in enumerate(letters, start=1) if letter}
        self.source = f"{file.name} sha256 {hashlib.sha256(file.read_bytes()).hexdigest()}"

    def __call__(self, batch: RewardBatch) -> Tensor:
        """The score of each picture, `[B]`, with gradients; NaN where no text is asked for, or too long a one."""
        targets = [self._target(prompt) for prompt in batch.prompts]
        columns = self._width(batch.images) // 8
        # A text that does not fit has the likelihood 0, whose gradient is NaN; its picture must not reach the loss.
        rows = [row for row, target in enumerate(targets) if 0 < least_columns(target) <= columns]
        scores = batch.images.new_full((len(batch),), math.nan, dtype=torch.float32)
        if not rows:
            return scores
        logits = self._network(self._lines(batch.images[rows]))
        lengths = torch.tensor([len(targets[row]) for row in rows], device=logits.device)
        found = log_likelihood(logits, [targets[row] for row in rows]) / lengths
        return scores.index_put((torch.tensor(rows, device=scores.device),), found)

    @staticmethod
    def _width(images: Tensor) -> int:
        return max(8, round(images.shape[-1] * HEIGHT / images.shape[-2]))

    def _lines(self, images: Tensor) -> Tensor:
        """The pictures as the network takes them: `[B, 3, 48, W]`, BGR, in [-1, 1]."""
        lines = images[:, [2, 1, 0]].float() * 2 - 1
        return F.interpolate(lines, (HEIGHT, self._width(images)), mode="bilinear", align_corners=False)

    def _target(self, prompt: str) -> list[int]:
        letters = "".join((quoted(prompt) or "").split())
        return [self._classes[letter] for letter in letters] if set(letters) <= self._classes.keys() else []

    def check(self, rows: Sequence[PromptRow]) -> None:
        """Make sure that every prompt asks for a text that the network can name.

        Raises:
            UserError: one does not; the message names file and line.
        """
        super().check(rows)
        for row in rows:
            if not self._target(row.prompt):
                raise UserError(
                    f"{row.where}: {row.prompt!r}: the reward {self.name!r} wants a part in double quotes of letters "
                    'that its network knows, such as: the word "OPEN"'
                )

    def examples(self) -> tuple[RewardBatch, RewardBatch]:
        """Two lines of text, and the same pictures where other words are asked for."""
        lines = torch.stack([_sign(word)[:, 104:152] for word in ("garden", "LIGHT42")])  # the sign's middle
        right, wrong = (
            [f'a sign that says "{word}"' for word in words] for words in (["garden", "LIGHT 42"], ["winter", "house"])
        )
        return RewardBatch(lines, right, [{}, {}]), RewardBatch(lines, wrong, [{}, {}])


def _file(name: str) -> Path:
    """The recogniser's weights, which come inside a package."""
    spec = importlib.util.find_spec("rapidocr")
    if spec is None or spec.origin is None:
        raise UserError(f"reward {name!r}: needs rapidocr, not installed: pip install 'flowrl[ocr]'.")
    file = Path(spec.origin).parent / "models" / _FILE
    if not file.is_file():
        raise UserError(f"reward {name!r}: this version of rapidocr has no {file.name}: {file}.")
    return file
