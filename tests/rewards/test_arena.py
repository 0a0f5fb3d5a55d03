"""Win rates and tournaments with judges of known answers: values by hand, calls, orders, and what is left out."""

import math

import pytest
import torch

from flowrl.data import PromptRow
from flowrl.errors import UserError
from flowrl.reward import RewardBatch, RewardSet, Unscored
from flowrl.rewards._tournament import all_pairs, knock_out
from flowrl.rewards.arena import ArenaReward

from .test_vlm_judge import Judge as Endpoint
from .test_vlm_judge import judge as endpoint  # noqa: F401 - a fixture


def shades(*values, prompt="a") -> RewardBatch:
    """A grey picture for each value, in one group."""
    images = torch.tensor(values)[:, None, None, None].expand(-1, 3, 8, 8).clone()
    return RewardBatch(images, [prompt] * len(values), [{} for _ in values])


MARKS_FIRST = "tests.rewards.test_arena:marks_first"


class Brighter:
    """The brighter picture wins, equal ones tie; keeps how many pairs it was asked for, and a liking for places."""

    def __init__(self, favour=0.0, blind=()):
        self.favour, self.blind = favour, blind
        self.asked: list[int] = []

    def compare(self, first, second):
        left, right = (batch.images.mean(dim=(1, 2, 3)) for batch in (first, second))
        self.asked.append(len(first))
        won = ((left - right + self.favour).sign() + 1) / 2
        for value in self.blind:
            won[((left - value).abs() < 0.01) | ((right - value).abs() < 0.01)] = math.nan
        return won


def marks_first(first, second):
    """A judge that is a function, and always says the first."""
    return [1.0] * len(first)


def test_win_rates_by_hand():
    """Of 0.2, 0.8, 0.8 and 0.4: 0 of 3, 2.5 of 3, 2.5 of 3 and 1 of 3."""
    judge = Brighter()
    scores = ArenaReward(judge)(shades(0.2, 0.8, 0.8, 0.4))
    assert scores.tolist() == pytest.approx([0, 2.5 / 3, 2.5 / 3, 1 / 3])
    assert judge.asked == [12]  # six pairs, in both orders


def test_both_orders_take_a_liking_for_a_place_away():
    """A judge that always says the first ties all pairs; asked once a pair, it prefers those that come first."""
    assert ArenaReward(MARKS_FIRST)(shades(0.1, 0.5, 0.9)).tolist() == [0.5, 0.5, 0.5]
    once = ArenaReward(MARKS_FIRST, both_orders=False)
    assert once(shades(0.1, 0.5, 0.9)).tolist() == [1.0, 0.5, 0.0]


def test_pairs_without_a_verdict_are_left_out():
    """No pair with the 0.5 has one: it is NaN, and the others are measured by each other alone."""
    with pytest.raises(Unscored, match="no verdict on any of its pairs") as stopped:
        ArenaReward(Brighter(blind=(0.5,)))(shades(0.1, 0.5, 0.9))
    assert stopped.value.scores.tolist() == pytest.approx([0.0, math.nan, 1.0], nan_ok=True)


def test_a_verdict_in_one_order_alone_is_none():
    """It would be what the place says, too."""

    class Once(Brighter):
        def compare(self, first, second):
            won = super().compare(first, second)
            won[(first.images[:, 0, 0, 0] > 0.85)] = math.nan  # none where the brightest stands first
            return won

    with pytest.raises(Unscored) as stopped:
        ArenaReward(Once())(shades(0.1, 0.5, 0.9))
    assert stopped.value.scores.tolist() == pytest.approx([0.0, 1.0, math.nan], nan_ok=True)


@pytest.mark.parametrize("count", [2, 3, 4, 5, 7, 8, 16])
def test_a_judge_without_noise_finds_the_best(count):
    """Whatever the order the tournament's winner is the best, ranks are all different, and pairs are 2N - 2."""
    for seed in range(10):
        order = torch.randperm(count, generator=torch.Generator().manual_seed(seed)).tolist()
        asked = []

        def compare(pairs, order=order, asked=asked):
            asked.extend(pairs)
            return [1.0 if order[a] > order[b] else 0.0 for a, b in pairs]

        scores = knock_out(count, compare)
        assert int(scores.argmax()) == order.index(count - 1)
        assert sorted(scores.tolist()) == pytest.approx([rank / (count - 1) for rank in range(count)])
        assert len(asked) == 2 * count - 2
        everyone = all_pairs(count, compare)
        assert everyone.tolist() == pytest.approx([place / (count - 1) for place in order])


def test_a_tournament_of_four_by_hand():
    """Marks 2, 4, 1, 3 of samples 0 to 3. Against 0: wins of 1 and 3, a loss of 2, and 0 itself wins 1 of 3.

    Seeds: 1, 3 (equal, in order), 0, 2. Bracket: 1 meets 2, 3 meets 0. Losers 2 (0 of 2) and 0 (1 of 4): 0 is third.
    1 beats 3. Ranks: 1, 3, 0, 2. The advantages of 1, 2/3, 1/3, 0 with the deviation over n - 1 are those of the paper.
    """
    marks = [2, 4, 1, 3]
    scores = knock_out(4, lambda pairs: [float(marks[a] > marks[b]) for a, b in pairs])
    assert scores.tolist() == pytest.approx([1 / 3, 1, 0, 2 / 3])
    advantage = (scores - scores.mean()) / scores.std()
    assert advantage.tolist() == pytest.approx([-0.3873, 1.1619, -1.1619, 0.3873], abs=1e-4)


def test_where_all_tie_the_order_decides_the_tournament():
    """A tie, and no verdict, go to the better seed; equal seeds stand in the samples' order."""
    for verdict in (0.5, math.nan):
        scores = knock_out(4, lambda pairs, verdict=verdict: [verdict] * len(pairs))
        assert scores.tolist() == pytest.approx([1, 2 / 3, 1 / 3, 0])


def test_a_tournament_asks_less():
    """Eight pictures: 14 pairs of 28, each in both orders."""
    judge = Brighter()
    values = [0.1, 0.9, 0.3, 0.5, 0.2, 0.7, 0.8, 0.4]
    scores = ArenaReward(judge, pairing="tournament")(shades(*values))
    assert int(scores.argmax()) == 1
    assert sum(judge.asked) == 2 * 14


def test_many_pairs_are_asked_in_parts():
    """Twelve pictures: 66 pairs in both orders, no more than 64 pictures a side at once."""
    judge = Brighter()
    values = torch.linspace(0, 1, 12).tolist()
    assert ArenaReward(judge)(shades(*values)).tolist() == pytest.approx([place / 11 for place in range(12)])
    assert judge.asked == [64, 64, 4]


def test_groups_do_not_meet():
    """In a set of rewards, two groups of two: each has a winner, whatever the other group looks like."""
    batch = shades(0.1, 0.2, 0.8, 0.9)
    batch = RewardBatch(batch.images, batch.prompts, batch.metadata, groups=torch.tensor([0, 0, 1, 1]))
    raw = RewardSet(("arena",), (ArenaReward(Brighter()),), torch.ones(1)).score(batch).raw
    assert raw[:, 0].tolist() == [0.0, 1.0, 0.0, 1.0]


def test_one_alone_has_no_score():
    """Nobody to compare with is no win and no loss."""
    with pytest.raises(Unscored, match="two samples or more of a group to compare, got 1"):
        ArenaReward(Brighter())(shades(0.5))


def test_a_judge_over_http(endpoint: Endpoint):  # noqa: F811
    """`vlm_judge` by its name: it shows both orders itself, so each pair is two requests; its check is the arena's."""
    url, options = f"{endpoint.url}/v1", {"model": "tiny", "concurrency": 2}
    arena = ArenaReward("vlm_judge", {"url": url, **options})
    arena.check([PromptRow(0, "a", {}, "p.txt:1")])
    before = len(endpoint.requests)
    assert arena(shades(0.1, 0.9, 0.5)).tolist() == [0.0, 1.0, 0.5]
    assert len(endpoint.requests) - before == 6
    endpoint.answer = "neither"
    with pytest.raises(Unscored, match="no verdict in the judge's answer"):
        arena(shades(0.1, 0.9))
    away = ArenaReward("vlm_judge", {"url": "http://127.0.0.1:9/v1", "model": "tiny"})
    with pytest.raises(UserError, match="no judge answers"):
        away.check([])


def test_mistakes_are_named():
    """Options, judges that compare nothing, and verdicts outside [0, 1]."""
    with pytest.raises(UserError, match="pairing: wanted one of all, tournament, got 'swiss'"):
        ArenaReward(Brighter(), pairing="swiss")
    with pytest.raises(UserError, match=r"'jpeg' has no compare\(first, second\)"):
        ArenaReward("jpeg")
    with pytest.raises(UserError, match="judge 'vlm_judge'"):
        ArenaReward("vlm_judge", {"address": "here"})
    with pytest.raises(UserError, match="is no class and takes none"):
        ArenaReward(MARKS_FIRST, {"a": 1})
    with pytest.raises(Unscored, match="wanted numbers from 0 to 1"):
        ArenaReward(lambda first, second: [3.0] * len(first))(shades(0.1, 0.9))
