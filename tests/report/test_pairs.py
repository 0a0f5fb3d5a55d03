"""Pairs and their outcomes."""

import math
from pathlib import Path

import pytest

from flowrl.report.folder import Evaluation, Sample
from flowrl.report.pairs import Outcome, judge, pair_up, spread


def evaluation(step, *scores, seed=0, prompt="p"):
    """An evaluation with one sample for each score mapping, numbered from 0."""
    return Evaluation(
        step, tuple(Sample(Path(), prompt, 0, number, seed + number, score) for number, score in enumerate(scores))
    )


@pytest.mark.parametrize(
    ("before", "after", "binary", "higher", "outcome"),
    [
        (0.0, 1.0, True, True, Outcome.FIXED),
        (1.0, 0.0, True, True, Outcome.BROKEN),
        (1.0, 1.0, True, True, Outcome.RIGHT),
        (0.0, 0.0, True, True, Outcome.WRONG),
        (0.0, 1.0, True, False, Outcome.BROKEN),
        (0.0, 0.0, True, False, Outcome.RIGHT),
        (-3.0, -2.0, False, True, Outcome.BETTER),
        (-3.0, -2.0, False, False, Outcome.WORSE),
        (0.7, 0.7, False, True, Outcome.SAME),
        (math.nan, 1.0, True, True, Outcome.UNSCORED),
        (0.5, math.nan, False, True, Outcome.UNSCORED),
    ],
)
def test_judge(before, after, binary, higher, outcome):
    """Right and wrong for a reward that says 0 or 1, better and worse for any other, turned round where lower wins."""
    assert judge(before, after, binary=binary, higher_is_better=higher) is outcome


def test_only_equal_prompt_and_noise_make_a_pair():
    """Another seed or another text in the same row is another picture, so no pair."""
    first = evaluation(0, {"a": 0.0}, {"a": 1.0})
    assert len(pair_up(first, evaluation(9, {"a": 1.0}, {"a": 1.0})).pairs) == 2
    assert len(pair_up(first, evaluation(9, {"a": 1.0})).pairs) == 1
    assert pair_up(first, evaluation(9, {"a": 1.0}, {"a": 1.0}, seed=5)).pairs == ()
    assert pair_up(first, evaluation(9, {"a": 1.0}, {"a": 1.0}, prompt="q")).pairs == ()


def test_the_outcome_is_that_of_a_reward_that_judges():
    """`size` comes first but only ranks; `strict` says 0 or 1 and decides, although one picture has no score."""
    before = evaluation(0, {"size": 2.0, "strict": 0.0}, {"size": 0.0, "strict": 1.0}, {"size": 1.0, "strict": 1.0})
    after = evaluation(9, {"size": 1.0, "strict": 1.0}, {"size": 1.0, "strict": math.nan}, {"size": 1.0, "strict": 1.0})
    pairing = pair_up(before, after)
    assert pairing.reward == "strict"
    assert pairing.tally() == {Outcome.FIXED: 1, Outcome.RIGHT: 1, Outcome.UNSCORED: 1}


def test_without_one_the_first_reward_ranks():
    """A half point anywhere means that the reward does not only say right and wrong."""
    pairing = pair_up(
        evaluation(0, {"partial": 0.0}, {"partial": 0.5}), evaluation(9, {"partial": 1.0}, {"partial": 0.5})
    )
    assert pairing.tally() == {Outcome.BETTER: 1, Outcome.SAME: 1}


def test_pictures_without_scores_still_pair():
    """Before and after can be looked at when nothing was scored."""
    pairing = pair_up(evaluation(0, {}), evaluation(9, {}))
    assert (pairing.reward, pairing.tally()) == (None, {Outcome.UNSCORED: 1})


def test_changes_leave_out_what_has_no_score():
    """Second pair: no score before. Third: the reward did not exist then. Left: 1 - 0.25."""
    before = evaluation(0, {"a": 0.25}, {"a": math.nan}, {})
    after = evaluation(9, {"a": 1.0}, {"a": 1.0}, {"a": 1.0})
    assert pair_up(before, after).changes("a") == [0.75]


@pytest.mark.parametrize("count", [1, 2, 7, 24])
def test_spread_takes_exactly_so_many_and_none_twice(count):
    """Even distances in order, first item always, last item from two on."""
    taken = spread(range(192), count)
    assert len(taken) == len(set(taken)) == count
    assert taken == sorted(taken)
    assert taken[0] == 0
    assert count == 1 or taken[-1] == 191


def test_every_outcome_has_its_words_and_its_sign():
    """No outcome can reach the page without a label, and only a loss carries a cross or an arrow down."""
    assert all(outcome.label and outcome.mark for outcome in Outcome)
    assert Outcome.FIXED.mark != Outcome.BROKEN.mark
