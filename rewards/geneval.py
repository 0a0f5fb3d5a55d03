"""Whether a picture holds the objects that were asked for: how many, in which colour, standing how to each other.

The rules are those of "GenEval: An Object-Focused Framework for Evaluating Text-to-Image Alignment", Ghosh et al.,
https://arxiv.org/abs/2310.11513. The objects are found by any detector of transformers instead of the paper's, so the
numbers compare runs with one detector, and not with the paper's table.

A prompt's row has the metadata of GenEval's own file::

    {
        "tag": "position",
        "include": [{"class": "dog", "count": 1}, {"class": "cup", "count": 1, "position": ["left of", 0]}],
    }

Beside ``position`` (a relation, and the number of the entry that it is to) an entry may have a ``color``; ``exclude``
lists classes with a ``count`` that must not be reached.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .. import plugins
from ..data import PromptRow
from ..errors import UserError
from ..reward import Reward, RewardBatch

RELATIONS = ("left of", "right of", "above", "below")
_MODES = ("strict", "partial")
_OBJECTS = 16
"""Objects of a class that count at most, as in GenEval."""

Colours = Callable[[Tensor, str], str]
"""Names the colour of a crop `[3, h, w]` in [0, 1] that shows an object of a class."""


@dataclass(frozen=True)
class Found:
    """An object in a picture."""

    box: tuple[float, float, float, float]
    """Left, top, right, bottom, in pixels."""
    score: float
    """In [0, 1]."""
    colour: str | None = None
    """Its name, where it was asked for."""


Objects = Mapping[str, Sequence[Found]]
"""The objects of each class, the surest first."""


def relations(a: Found, b: Found, margin: float = 0.1) -> set[str]:
    """How ``a`` stands to ``b``: the directions in which their centres differ clearly.

    The difference of the centres, less ``margin`` times the sum of both sizes, is divided by its length; a part of more
    than a half is a relation.

    >>> relations(Found((0, 0, 10, 10), 1.0), Found((30, 0, 40, 10), 1.0))
    {'left of'}
    """
    offsets = []
    for low, high in ((0, 2), (1, 3)):
        offset = (a.box[low] + a.box[high] - b.box[low] - b.box[high]) / 2
        slack = margin * (a.box[high] - a.box[low] + b.box[high] - b.box[low])
        offsets.append(math.copysign(max(abs(offset) - slack, 0.0), offset))
    length = math.hypot(*offsets)
    if length < 1e-3:
        return set()
    dx, dy = (offset / length for offset in offsets)
    holds = {"left of": dx < -0.5, "right of": dx > 0.5, "above": dy < -0.5, "below": dy > 0.5}
    return {relation for relation, true in holds.items() if true}


def verdict(
    objects: Objects, include: Sequence[Mapping[str, Any]], exclude: Sequence[Mapping[str, Any]] = ()
) -> list[float]:
    """How far each thing that was asked for is there, in [0, 1]; the picture is right if all are 1.

    For each entry of ``include``: the count, 1 from ``count`` objects on; the share of the ``count`` objects that have
    the ``color``; the share of pairs with the entry's target that stand in the ``position``. For each of ``exclude``: 1
    under ``count`` objects, less by ``1 / count`` for each from there on.

    Args:
        objects: what was found.
        include: entries with ``class``, ``count`` and, if it matters, ``color`` and ``position``.
        exclude: entries with ``class`` and ``count``.

    >>> dog = Found((0, 0, 9, 9), 0.9, "red")
    >>> verdict({"dog": [dog]}, [{"class": "dog", "count": 2, "color": "red"}], [{"class": "cat", "count": 1}])
    [0.5, 0.5, 1.0]
    """
    groups = [list(objects.get(entry["class"], ()))[: entry["count"]] for entry in include]
    terms = []
    for entry, group in zip(include, groups, strict=True):
        terms.append(len(group) / entry["count"])
        if "color" in entry:
            terms.append(sum(found.colour == entry["color"] for found in group) / entry["count"])
        if "position" in entry:
            relation, target = entry["position"]
            pairs = [relation in relations(a, b) for a in group for b in groups[target]]
            terms.append(sum(pairs) / len(pairs) if pairs else 0.0)
    for entry in exclude:
        surplus = len(objects.get(entry["class"], ())) - entry["count"] + 1
        terms.append(max(0.0, 1 - max(0, surplus) / entry["count"]))
    return terms


class GenEvalReward(Reward):
    """Whether the objects asked for are there, by a detector of transformers: :func:`verdict`, in [0, 1].

    >>> GenEvalReward.needs
    frozenset({'include'})
    """

    name = "geneval"
    range = (0.0, 1.0)
    needs = frozenset({"include"})

    def __init__(
        self,
        model: str,
        *,
        mode: str = "strict",
        colours: str | Colours | None = None,
        threshold: float = 0.3,
        counting_threshold: float = 0.9,
        device: str = "cpu",
    ) -> None:
        """Load a detector.

        Args:
            model: a folder or a hub id that ``AutoModelForObjectDetection`` reads, such as a DETR on COCO.
            mode: ``strict`` gives 1 if all of :func:`verdict` is 1, else 0; ``partial`` the mean of it.
            colours: a plug-in name (``module:object``) or a function, see :data:`Colours`; without it, prompts that ask
                for a colour are refused.
            threshold: detections that are less sure do not count.
            counting_threshold: the same for rows whose ``tag`` is ``counting``, as in GenEval.
            device: of the detector.

        Raises:
            UserError: an option is wrong, or there is no such model.
        """
        if mode not in _MODES:
            raise UserError(f"reward {self.name!r}: mode: wanted one of {', '.join(_MODES)}, got {mode!r}.")
        for option, value in (("threshold", threshold), ("counting_threshold", counting_threshold)):
            if not 0 <= value <= 1:
                raise UserError(f"reward {self.name!r}: {option}: wanted a number from 0 to 1, got {value!r}.")
        self.mode, self.threshold, self.counting_threshold = mode, threshold, counting_threshold
        self._colours: Colours | None = plugins.load("rewards", colours) if isinstance(colours, str) else colours
        self._processor, self._model = _load(model, device, self.name)
        self.classes = tuple(self._model.config.id2label.values())
        self.source = f"{model}, thresholds {threshold} and {counting_threshold}"

    @torch.no_grad()
    def __call__(self, batch: RewardBatch) -> Tensor:
        """The score of each picture, `[B]`."""
        found = self._detect(batch.images)
        rows = zip(batch.images, found, batch.metadata, strict=True)
        return torch.tensor([self._score(*row) for row in rows], dtype=torch.float32)

    def check(self, rows: Sequence[PromptRow]) -> None:
        """Make sure that every row asks for what the detector can find.

        Raises:
            UserError: an entry lacks a part, or asks for a class, a relation or a colour that is not known.
        """
        super().check(rows)
        for row in rows:
            entries = [(key, entry) for key in ("include", "exclude") for entry in row.metadata.get(key, ())]
            if not entries:
                raise UserError(f"{row.where}: metadata.include: wanted at least one object, got none.")
            for key, entry in entries:
                problem = self._problem(entry, len(row.metadata["include"]))
                if problem:
                    raise UserError(f"{row.where}: metadata.{key}: {entry!r}: {problem}")

    def _problem(self, entry: Any, count: int) -> str | None:
        """What is wrong with an entry of a row, if anything."""
        if not isinstance(entry, Mapping) or not isinstance(entry.get("count"), int) or entry["count"] < 1:
            return 'wanted an entry such as {"class": "dog", "count": 2}.'
        if entry.get("class") not in self.classes:
            near = plugins.nearest(str(entry.get("class")), self.classes)
            return f"the detector knows no class {entry.get('class')!r}.{near} Known: {', '.join(self.classes)}."
        if "color" in entry and self._colours is None:
            return "a colour is asked for, and the option `colours` names nothing that tells colours."
        position = entry.get("position", ("left of", 0))
        if len(position) != 2 or position[0] not in RELATIONS or position[1] not in range(count):
            return f"position: wanted one of {', '.join(RELATIONS)} and the number of an entry, got {position!r}."
        return None

    def _detect(self, images: Tensor) -> list[list[tuple[str, Found]]]:
        """Class and object of every detection of each picture, the surest first."""
        inputs = self._processor(images=list(images.cpu()), do_rescale=False, return_tensors="pt")
        outputs = self._model(**{key: value.to(self._model.device) for key, value in inputs.items()})
        sizes = [tuple(images.shape[-2:])] * len(images)
        results = self._processor.post_process_object_detection(outputs, threshold=0.0, target_sizes=sizes)
        return [self._sorted(result) for result in results]

    def _sorted(self, result: Mapping[str, Tensor]) -> list[tuple[str, Found]]:
        parts = zip(result["labels"].tolist(), result["boxes"].tolist(), result["scores"].tolist(), strict=True)
        names = self._model.config.id2label
        found = [(names[label], Found(tuple(box), score)) for label, box, score in parts if label in names]
        return sorted(found, key=lambda pair: -pair[1].score)

    def _score(self, image: Tensor, found: list[tuple[str, Found]], row: Mapping[str, Any]) -> float:
        threshold = self.counting_threshold if row.get("tag") == "counting" else self.threshold
        asked = {entry["class"] for entry in row["include"] if "color" in entry}
        objects: dict[str, list[Found]] = {}
        for name, item in found:
            group = objects.setdefault(name, [])
            if item.score >= threshold and len(group) < _OBJECTS:
                group.append(self._coloured(image, name, item) if name in asked else item)
        terms = verdict(objects, row["include"], row.get("exclude", ()))
        return float(all(term == 1 for term in terms)) if self.mode == "strict" else sum(terms) / len(terms)

    def _coloured(self, image: Tensor, name: str, item: Found) -> Found:
        height, width = image.shape[-2:]
        left, top = (max(0, math.floor(edge)) for edge in item.box[:2])
        right, bottom = min(width, math.ceil(item.box[2])), min(height, math.ceil(item.box[3]))
        if self._colours is None or right <= left or bottom <= top:
            return item
        return Found(item.box, item.score, self._colours(image[:, top:bottom, left:right], name))


def _load(model: str, device: str, name: str) -> tuple[Any, Any]:
    """The image processor and the detector."""
    from transformers import AutoImageProcessor, AutoModelForObjectDetection

    try:
        processor = AutoImageProcessor.from_pretrained(model)
        detector = AutoModelForObjectDetection.from_pretrained(model)
    except (OSError, ValueError) as error:
        raise UserError(
            f"reward {name!r}: model: wanted a folder or a hub id with an object detector and its image processor, "
            f"got {model!r}: {error}"
        ) from error
    return processor, detector.to(device).eval()
