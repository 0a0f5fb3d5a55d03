"""Guards against a run that cheats its reward: what evaluations show before anyone looks at the pictures.

Each guard compares an evaluation with the base model's: rewards that nothing is trained on, how different the pictures
of a prompt are, and statistics of pixels. A guard that is up is an alarm; a run can stop after some in a row, and keep
what it had when a held-out reward was highest.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from .checkpoint import Counters
from .config import GuardConfig
from .errors import UserError
from .files import whole_folder, write_json
from .plugins import nearest
from .reward import RewardSet

BEST = "best"
"""The folder in a run's folder of the best weights by a held-out measure."""

_CERTAIN = 2.0
"""Standard errors that a mean must have moved by."""
_SET_SHARE = 0.1
"""Share of its first value that the number of a set must have moved by."""


@dataclass(frozen=True)
class Watch:
    """The rewards that evaluations measure: 1 or -1 by name, as higher or lower is wanted.

    Attributes:
        trained: those that the run is trained on.
        held_out: the others.
        samples: pictures of an evaluation.
    """

    trained: Mapping[str, float]
    held_out: Mapping[str, float]
    samples: int

    @staticmethod
    def of(rewards: RewardSet, measured: RewardSet, samples: int) -> Watch:
        """Sort the rewards that evaluations measure.

        Args:
            rewards: of the training; a reward of weight 0 is held out, too.
            measured: of the evaluations.
            samples: pictures of an evaluation.
        """
        weights = dict(zip(rewards.names, rewards.weights.tolist(), strict=True))
        signs = {
            name: 1.0 if reward.higher_is_better else -1.0
            for name, reward in zip(measured.names, measured.rewards, strict=True)
        }
        trained = {name: sign * math.copysign(1.0, weights[name]) for name, sign in signs.items() if weights.get(name)}
        return Watch(trained, {name: sign for name, sign in signs.items() if name not in trained}, samples)


def moved(first: Mapping[str, float], now: Mapping[str, float], name: str, sign: float, samples: int) -> float:
    """By how many standard errors a reward's mean is better (or, below 0, worse) than it was.

    The pictures of two evaluations share their seeds, so this is on the careful side. 0 where a mean is unknown, and
    where nothing varies and nothing moved. The number of a whole set of pictures has no spread: there it is infinite
    where that has moved by more than a tenth, and 0 otherwise.

    >>> first, now = {"eval/a/mean": 0.5, "eval/a/std": 0.3}, {"eval/a/mean": 0.4, "eval/a/std": 0.4}
    >>> round(moved(first, now, "a", 1.0, samples=100), 6)  # -.1 over sqrt(.09 / 100 + .16 / 100) = .05
    -2.0
    """
    before, after = (row.get(f"eval/{name}/mean", math.nan) for row in (first, now))
    if not (math.isfinite(before) and math.isfinite(after)):
        return 0.0
    gain, spreads = sign * (after - before), [row.get(f"eval/{name}/std") for row in (first, now)]
    if None in spreads:
        return math.copysign(math.inf, gain) if abs(gain) > _SET_SHARE * abs(before) else 0.0
    scored = samples - max(row.get("eval/unscored", 0.0) for row in (first, now))
    error = math.hypot(*(spread or 0.0 for spread in spreads)) / math.sqrt(max(scored, 1.0))
    if error == 0:
        return 0.0 if gain == 0 else math.copysign(math.inf, gain)
    return gain / error


def alarms(bounds: GuardConfig, watch: Watch, first: Mapping[str, float], now: Mapping[str, float]) -> dict[str, str]:
    """The guards that are up, each with a sentence.

    Args:
        bounds: of the run's config.
        watch: what is trained and what is not.
        first: metrics of the first evaluation, of the base model.
        now: metrics of this one.

    >>> watch = Watch({"a": 1.0}, {"b": 1.0}, samples=4)
    >>> first, now = (
    ...     {"pixels/saturation": 0.1, "eval/diversity": 0.2},
    ...     {"pixels/saturation": 0.4, "eval/diversity": 0.2},
    ... )
    >>> alarms(GuardConfig(), watch, first, now)
    {'saturation': 'saturation went from 0.1 to 0.4, more than 0.15 away from the base model'}
    """
    found = {"held_out": _held_out(watch, first, now) if bounds.held_out else None}
    found["diversity"] = _lost_share("diversity", bounds.diversity, first, now)
    for name, bound in (("saturation", bounds.saturation), ("dark_share", bounds.dark_share)):
        found[name] = _drifted(name, bound, first, now)
    found["edge_energy"] = _multiplied("edge_energy", bounds.edge_energy, first, now)
    return {name: message for name, message in found.items() if message is not None}


STATISTICS = ("saturation", "dark_share", "edge_energy")
"""The guards of pixels."""
NAMES = ("held_out", "diversity", *STATISTICS)
"""All guards, as in :func:`alarms`."""


def _held_out(watch: Watch, first: Mapping[str, float], now: Mapping[str, float]) -> str | None:
    def change(names: Mapping[str, float]) -> dict[str, float]:
        return {name: moved(first, now, name, sign, watch.samples) for name, sign in names.items()}

    if watch.trained and not any(by >= _CERTAIN for by in change(watch.trained).values()):
        return None
    fallen = [name for name, by in change(watch.held_out).items() if by <= -_CERTAIN]
    if not fallen:
        return None
    numbers = "; ".join(f"{n} from {first[f'eval/{n}/mean']:.3g} to {now[f'eval/{n}/mean']:.3g}" for n in fallen)
    return f"the trained reward rose, and rewards that are held out got worse: {numbers}"


def _pair(key: str, first: Mapping[str, float], now: Mapping[str, float]) -> tuple[float, float] | None:
    before, after = first.get(key, math.nan), now.get(key, math.nan)
    return (before, after) if math.isfinite(before) and math.isfinite(after) else None


def _lost_share(name: str, bound: float | None, first: Mapping[str, float], now: Mapping[str, float]) -> str | None:
    values = _pair(f"eval/{name}", first, now)
    if bound is None or values is None or values[1] >= bound * values[0]:
        return None
    return f"{name} went from {values[0]:.3g} to {values[1]:.3g}, below {bound:.0%} of the base model's"


def _drifted(name: str, bound: float | None, first: Mapping[str, float], now: Mapping[str, float]) -> str | None:
    values = _pair(f"pixels/{name}", first, now)
    if bound is None or values is None or abs(values[1] - values[0]) <= bound:
        return None
    return f"{name} went from {values[0]:.3g} to {values[1]:.3g}, more than {bound:g} away from the base model"


def _multiplied(name: str, bound: float | None, first: Mapping[str, float], now: Mapping[str, float]) -> str | None:
    values = _pair(f"pixels/{name}", first, now)
    if bound is None or values is None or values[0] / bound <= values[1] <= values[0] * bound:
        return None
    return f"{name} went from {values[0]:.3g} to {values[1]:.3g}, by more than a factor of {bound:g}"


def check(bounds: GuardConfig, measured: RewardSet) -> None:
    """Refuse a best measure that no evaluation has.

    Raises:
        UserError: names the measure and the known ones.
    """
    if bounds.best is not None and bounds.best not in measured.names:
        known = ", ".join(measured.names)
        raise UserError(
            f"guards.best: {bounds.best!r} is no reward of the evaluations.{nearest(bounds.best, measured.names)} "
            f"Known: {known}. Name it in eval.rewards, or in rewards with weight 0."
        )


class Guards:
    """The guards of a run. What they remember is in the run's counters, and so in its checkpoints."""

    def __init__(self, bounds: GuardConfig, watch: Watch) -> None:
        """Guard a run by the bounds of its config."""
        self._bounds, self._watch = bounds, watch

    def look(self, counters: Counters, metrics: Mapping[str, float]) -> tuple[dict[str, float], dict[str, str]]:
        """Compare an evaluation with the first one.

        Returns:
            ``alarm/<guard>``, 1 if it is up, of every guard; and the sentences of those that are up.
        """
        if not counters.first:
            counters.first = {name: value for name, value in metrics.items() if _kept(name) and math.isfinite(value)}
        found = alarms(self._bounds, self._watch, counters.first, metrics)
        counters.alarmed = counters.alarmed + 1 if found else 0
        return {f"alarm/{name}": float(name in found) for name in NAMES}, found

    def stops(self, counters: Counters) -> bool:
        """Whether the run has had its fill of alarms; it starts counting anew if it is resumed all the same."""
        if self._bounds.stop_after is None or counters.alarmed < self._bounds.stop_after:
            return False
        counters.alarmed = 0
        return True

    def improves(self, counters: Counters, metrics: Mapping[str, float]) -> bool:
        """Whether an evaluation's measure is the best so far; then it is remembered."""
        name = self._bounds.best
        if name is None or not math.isfinite(metrics[f"eval/{name}/mean"]):
            return False
        value, sign = metrics[f"eval/{name}/mean"], {**self._watch.trained, **self._watch.held_out}[name]
        if counters.best is not None and counters.best_of == name and sign * (value - counters.best) <= 0:
            return False
        counters.best, counters.best_of = value, name
        return True

    def save_best(self, folder: Path, counters: Counters, save: Callable[[Path], object]) -> None:
        """Write the best weights to ``best/step_000040``, with ``best.json`` to say so, and remove those before.

        Args:
            folder: of the run.
            counters: of the run.
            save: writes the weights that were evaluated into a folder.
        """
        path = folder / BEST / f"step_{counters.step:06d}"
        if not path.exists():
            with whole_folder(path) as temporary:
                save(temporary)
                said = {"measure": counters.best_of, "value": counters.best, "step": counters.step}
                write_json(temporary / "best.json", said)
        for other in _kept_steps(folder):
            if other != path:
                shutil.rmtree(other)


def forget_later(folder: Path, step: int) -> None:
    """Remove what was kept after ``step``: a run that goes on from there finds its best anew."""
    for path in _kept_steps(folder):
        if int(path.name.removeprefix("step_")) > step:
            shutil.rmtree(path)


def _kept_steps(folder: Path) -> list[Path]:
    return [path for path in (folder / BEST).glob("step_*") if path.is_dir()]


def _kept(name: str) -> bool:
    return name.startswith(("eval/", "pixels/"))
