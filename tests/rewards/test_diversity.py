"""Diversity of a set as a reward: values by hand, signs, and what is refused."""

import math

import pytest
import torch

from flowrl.errors import UserError
from flowrl.reward import Unscored
from flowrl.reward_checks import self_test
from flowrl.rewards.diversity import PairwiseDistanceReward, VendiReward
from flowrl.set_reward import Members


def members_of(*features) -> Members:
    """One group with these features."""
    count = len(features)
    return Members(torch.tensor(features), torch.zeros(count, dtype=torch.int64), ["a"] * count, [{}] * count)


def test_vendi_by_hand():
    """Of a, a and b at right angles: V = exp(2/3 log 3/2 + 1/3 log 3) = 1.8899; without an a 2, without b 1."""
    members = members_of([1.0, 0.0], [2.0, 0.0], [0.0, 1.0])
    value = math.exp(2 / 3 * math.log(3 / 2) + math.log(3) / 3)
    assert VendiReward().combine(members).tolist() == pytest.approx([value - 2, value - 2, value - 1], abs=1e-6)
    assert VendiReward().measure(members) == pytest.approx(value, abs=1e-6)


def test_vendi_counts_features_that_are_all_0_as_one_more_kind():
    """They have no direction, and are like nothing else."""
    assert VendiReward().measure(members_of([0.0, 0.0], [1.0, 0.0])) == pytest.approx(2)


def test_pairwise_distance_by_hand():
    """Features 0, 0 and 2 on both of two axes: |f| / sqrt 2 = 2; means (0 + 2) / 2, (0 + 2) / 2 and (2 + 2) / 2."""
    members = members_of([0.0, 0.0], [0.0, 0.0], [2.0, 2.0])
    assert PairwiseDistanceReward().combine(members).tolist() == pytest.approx([1.0, 1.0, 2.0])


@pytest.mark.parametrize("kind", [VendiReward, PairwiseDistanceReward])
def test_a_reward_passes_the_self_test(kind):
    """Its examples separate, and the declared range holds."""
    assert [finding for finding in self_test(kind.name) if finding.state == "FAIL"] == []


@pytest.mark.parametrize("kind", [VendiReward, PairwiseDistanceReward])
def test_one_alone_has_no_score(kind):
    """There is nobody to differ from."""
    with pytest.raises(Unscored, match="two samples or more to compare, got 1"):
        kind().combine(members_of([1.0]))


def test_the_set_is_a_group_or_a_step():
    """As the option says."""
    assert (VendiReward().scope, VendiReward(within="step").scope) == ("group", "step")
    with pytest.raises(UserError, match="within: wanted group or step, got 'run'"):
        VendiReward(within="run")
