"""Transforms of the raw scores, applied before the advantage: one pure function a file.

Every function here has the contract

    f(scores [P, G, R], weights [R], **options) -> scores [P, G, R]

with P prompts (groups) a step, G samples a group and R rewards; larger is better, before and after. A sample with a NaN
among the rewards of weight other than 0 moves nobody else's scores and comes back as NaN, which advantages leave out.
Equal scores of a group stay equal. What comes back is float64, so that rounding is no spread. A function that makes one
score of several rewards writes it into the column of each, so that their weights add up. A function with a keyword
``names`` is given the names of the R rewards, so that its other options can name some of them.

A config applies one or several in order: ``shaping: win_rate``, or ``shaping: [{name: par, k: 2}, ...]``. It finds a
function by its name in these files; Python imports it from its file. `docs/advantages.md` has the table of all.
"""
