"""From the scores of groups to advantages: one pure function a file.

Every function here has the contract

    f(scores [P, G, R], weights [R], **options) -> (advantages [P, G], diagnostics)

with P prompts (groups) a step, G samples a group and R rewards. Scores are raw but for their sign: larger is better.
(If the run has a ``shaping``, they are what `flowrl.shaping` made of those.) NaN means "could not score": a sample with
a NaN among the rewards of weight other than 0 is left out of all statistics and its advantage is 0, so it moves nobody
else's. A group without spread has advantages of exactly 0, never ``0 / eps``, and is counted. Statistics are float64,
advantages float32. A function with a keyword ``names`` is given the names of the R rewards, so that its other options
can name some of them.

Diagnostics, all floats: ``reward_mean`` and ``reward_std`` of the weighted sum over the valid samples of the step
(population), ``group_std``, its mean standard deviation inside groups of two or more valid samples, ``dead_groups``,
the number of groups without spread, and ``nan_samples``, the number of samples left out. A mean of nothing is NaN.

A config finds a function by its name in these files; Python imports it from its file (``group`` and ``gdpo`` from here
too). `docs/advantages.md` has the table of all.
"""

from .gdpo import gdpo
from .group import group

__all__ = ["gdpo", "group"]
