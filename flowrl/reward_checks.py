"""Does a reward keep the contract of `flowrl.reward`? Each check takes a reward and gives one `Finding`.

=============  =========================================================================================
`separation`   its example pictures that must score well all score better than those that must score badly
`singles`      a batch scores as its samples do alone
`permutation`  other neighbours and another order change no score
`bounds`       scores lie in the declared range, and pictures outside [0, 1] never reach it
`gradient`     a gradient reaches the pictures if, and only if, that is declared
`cost`         seconds and memory of one call
=============  =========================================================================================
"""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType

import psutil
import torch
from torch import Tensor

from .config import RewardOptions
from .data import load_prompts
from .errors import UserError
from .findings import Finding, State
from .preflight import make_rewards
from .reward import Reward, RewardBatch, RewardSet

Check = Callable[[RewardSet, RewardBatch], tuple[State, str]]

_TOLERANCE = 1e-3  # of the largest score: networks round differently in batches of other sizes
_REPEATS = 3


def check_reward(
    name: str, options: RewardOptions, *, prompts: Sequence[str] = (), if_missing: State = "FAIL"
) -> Finding:
    """Score a reward's example pictures; the good ones must all score better than the bad ones.

    Args:
        name: the plug-in name.
        options: its options.
        prompts: prompt sets that it must be able to score.
        if_missing: the state of a reward that cannot be made.
    """
    try:
        rewards = make_rewards({name: options})
        for source in prompts:
            rewards.check(load_prompts(source))
        state, detail = separation(rewards)
    except UserError as error:
        return Finding("rewards", name, if_missing, str(error))
    except Exception as error:  # noqa: BLE001 - whatever a plug-in's own code raises is the diagnosis
        return Finding("rewards", name, "FAIL", f"{type(error).__name__}: {error}")
    return Finding("rewards", name, state, detail)


def self_test(name: str, options: RewardOptions | None = None, *, if_missing: State = "FAIL") -> Iterator[Finding]:
    """Every check of one reward, one after the other; the topic of each finding is the reward.

    Args:
        name: the plug-in name.
        options: its options.
        if_missing: the state of a reward whose packages or weights are not there.
    """
    start = time.perf_counter()
    try:
        with PeakMemory() as memory:
            rewards = make_rewards({name: options or RewardOptions()})
            state, detail = separation(rewards)
    except UserError as error:
        yield Finding(name, "made", if_missing, f"not available: {error}")
        return
    except Exception as error:  # noqa: BLE001 - as above
        yield Finding(name, "made", "FAIL", f"{type(error).__name__}: {error}")
        return
    yield Finding(name, "made", "ok", f"in {time.perf_counter() - start:.2f} s, {memory}")
    yield Finding(name, "separation", state, detail)
    batch = probe(rewards.rewards[0])
    if batch is None:
        yield Finding(name, "contract", "note", "not checked: it needs metadata, and brings no example pictures")
        return
    for check, action in CHECKS.items():
        yield _tried(name, check, action, rewards, batch)


def separation(rewards: RewardSet) -> tuple[State, str]:
    """Whether the one reward of a set tells its own good pictures from its bad ones."""
    (reward,) = rewards.rewards
    examples = reward.examples()
    if examples is None:
        return "note", "brings no example pictures: nothing to tell right from wrong by"
    good, bad = (rewards.combine(rewards.score(batch).raw) for batch in examples)
    sign = 1 if reward.higher_is_better else -1
    detail = f"positive {_range(sign * good)}, negative {_range(sign * bad)}"
    # A NaN compares as false, so it fails here.
    return ("ok", detail) if bool(good.min() > bad.max()) else ("FAIL", f"{detail}: no separation")


def singles(rewards: RewardSet, batch: RewardBatch) -> tuple[State, str]:
    """Whether each sample scores the same alone as among others."""
    if not rewards.rewards[0].cacheable:
        return "note", "not checked: it declares that a score depends on more than the sample"
    together = _scores(rewards, batch)
    alone = torch.cat([_scores(rewards, batch.select([row])) for row in range(len(batch))])
    return _compared(together, alone, "a batch and its samples alone")


def permutation(rewards: RewardSet, batch: RewardBatch) -> tuple[State, str]:
    """Whether a batch in the opposite order has the same scores in the opposite order."""
    if not rewards.rewards[0].cacheable:
        return "note", "not checked: it declares that a score depends on more than the sample"
    order = list(range(len(batch)))[::-1]
    return _compared(_scores(rewards, batch.select(order)), _scores(rewards, batch)[order], "two orders of a batch")


def bounds(rewards: RewardSet, batch: RewardBatch) -> tuple[State, str]:
    """Whether the scores lie in the declared range, and pictures in [-1, 1] are refused."""
    low, high = rewards.rewards[0].range
    scores = _scores(rewards, batch)
    if bool((scores < low).any()) or bool((scores > high).any()):
        return "FAIL", f"scores {_range(scores)}, declared {low:g} to {high:g}"
    try:
        rewards.score(RewardBatch(batch.images * 2 - 1.5, batch.prompts, batch.metadata, fps=batch.fps))
    except ValueError:
        return "ok", f"scores {_range(scores)}, declared {low:g} to {high:g}; pictures outside [0, 1] are refused"
    return "FAIL", "pictures outside [0, 1] were scored"


def gradient(rewards: RewardSet, batch: RewardBatch) -> tuple[State, str]:
    """Whether a gradient that is finite and not 0 reaches the pictures, as ``differentiable`` says."""
    (reward,) = rewards.rewards
    found = _has_gradient(reward, batch)
    if found and not reward.differentiable:
        return "FAIL", "a gradient reaches the pictures, and none is declared; write differentiable = True"
    if reward.differentiable and not found:
        return "FAIL", "a gradient is declared, and none reaches the pictures"
    return "ok", "reaches the pictures" if found else "none, as declared"


def cost(rewards: RewardSet, batch: RewardBatch) -> tuple[State, str]:
    """Seconds of a call, and the memory that it takes for its time; never a failure."""
    seconds = []
    with PeakMemory() as memory:
        for _ in range(_REPEATS):
            start = time.perf_counter()
            rewards.score(batch)
            seconds.append(time.perf_counter() - start)
    size = " x ".join(map(str, batch.images.shape))
    return "ok", f"{statistics.median(seconds):.3g} s for {size}, {memory}"


CHECKS: dict[str, Check] = {
    "singles": singles,
    "permutation": permutation,
    "bounds": bounds,
    "gradient": gradient,
    "cost": cost,
}
"""The checks that need a batch."""


def probe(reward: Reward) -> RewardBatch | None:
    """A batch to try a reward with: its own example pictures, or noise; None if it needs metadata and brings none."""
    examples = reward.examples()
    if examples is None:
        if reward.needs:
            return None
        shape = (4, 3, 64, 64) if reward.media == "image" else (2, 8, 3, 64, 64)
        noise = torch.rand(shape, generator=torch.Generator().manual_seed(0))
        return RewardBatch(noise, ["a red circle"] * len(noise), [{} for _ in noise])
    good, bad = examples
    if good.images.shape[1:] != bad.images.shape[1:] or good.fps != bad.fps:
        return max(examples, key=len)
    images = torch.cat([good.images, bad.images])
    return RewardBatch(images, good.prompts + bad.prompts, good.metadata + bad.metadata, fps=good.fps)


class PeakMemory:
    """How far this process's memory, or the GPU's, rises while a block runs; ``str()`` of it says so.

    >>> with PeakMemory() as memory:
    ...     pass
    >>> memory.bytes >= 0
    True
    """

    def __init__(self) -> None:
        """Be ready."""
        self.bytes = 0
        self._process = psutil.Process()
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> PeakMemory:
        self._start = self._most = self._now()
        if torch.cuda.is_initialized():
            torch.cuda.reset_peak_memory_stats()
            self._gpu = torch.cuda.memory_allocated()
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._end.set()
        self._thread.join()
        self.bytes = max(self._most, self._now()) - self._start

    def __str__(self) -> str:
        """Such as ``12 MB at its peak``."""
        gpu = ""
        if torch.cuda.is_initialized() and hasattr(self, "_gpu"):
            gpu = f", {(torch.cuda.max_memory_allocated() - self._gpu) / 2**20:.0f} MB of the GPU's"
        return f"{self.bytes / 2**20:.0f} MB at its peak{gpu}"

    def _watch(self) -> None:
        while not self._end.wait(0.005):
            self._most = max(self._most, self._now())

    def _now(self) -> int:
        return int(self._process.memory_info().rss)


def _tried(name: str, check: str, action: Check, rewards: RewardSet, batch: RewardBatch) -> Finding:
    try:
        state, detail = action(rewards, batch)
    except Exception as error:  # noqa: BLE001 - whatever a plug-in's own code raises is the diagnosis
        return Finding(name, check, "FAIL", f"{type(error).__name__}: {error}")
    return Finding(name, check, state, detail)


def _scores(rewards: RewardSet, batch: RewardBatch) -> Tensor:
    return rewards.score(batch).raw[:, 0]


def _compared(found: Tensor, wanted: Tensor, what: str) -> tuple[State, str]:
    if not torch.equal(found.isnan(), wanted.isnan()):
        return "FAIL", f"{what} differ in what could be scored"
    difference = float((found - wanted).abs().nan_to_num().max())
    most = float(wanted.abs().nan_to_num().max())
    state: State = "ok" if difference <= _TOLERANCE * most else "FAIL"
    return state, f"{what} differ by {difference:.2g}; the largest score is {most:.4g}"


def _has_gradient(reward: Reward, batch: RewardBatch) -> bool:
    # Away from 0 and 1, where a reward that clips has no gradient.
    images = (0.9 * batch.images + 0.05).requires_grad_()
    try:
        with torch.enable_grad():
            scores = reward(RewardBatch(images, batch.prompts, batch.metadata, fps=batch.fps))
            if not (isinstance(scores, Tensor) and scores.requires_grad):
                return False
            scores.nansum().backward()
    except RuntimeError:
        if reward.differentiable:
            raise
        return False  # such as "Can't call numpy() on Tensor that requires grad": there is no way through
    return images.grad is not None and bool(images.grad.isfinite().all()) and bool(images.grad.any())


def _range(scores: Tensor) -> str:
    low, high = float(scores.min()), float(scores.max())
    return f"{low:.4g} to {high:.4g}" if low < high else f"{low:.4g}"  # NaN is not under NaN
