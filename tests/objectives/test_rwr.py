"""flowrl.objectives.rwr: weighted regression, in numbers worked out by hand."""

from __future__ import annotations

import math

import pytest
import torch

from flowrl.objectives import Seeds, Work
from flowrl.objectives.exchange import with_groups
from flowrl.objectives.forward import mean_square
from flowrl.objectives.rwr import RWR, exponential_weights

from .. import tiny


def test_weights_by_hand():
    """e^(ln 3) = 3 and e^0 = 1 would be 3 to 1; the mean of a group is 1, so 1.5 and 0.5."""
    found = exponential_weights(torch.tensor([[math.log(3) / 2 + 1, -math.log(3) / 2 + 1]]), 1.0)
    assert found[0].tolist() == pytest.approx([1.5, 0.5])
    # Half the temperature squares the proportion: 9 to 1.
    found = exponential_weights(torch.tensor([[math.log(3) / 2 + 1, -math.log(3) / 2 + 1]]), 0.5)
    assert found[0].tolist() == pytest.approx([1.8, 0.2])


def test_extreme_advantages_do_not_overflow():
    """The largest is taken off before the exponential."""
    found = exponential_weights(torch.tensor([[1000.0, -1000.0]]), 0.1)
    assert found[0].tolist() == [2.0, 0.0]


def test_nothing_is_learnt_where_nothing_is_known():
    """A sample without a score has advantage 0, and so have all of a group without spread: their weight is 0."""
    found = exponential_weights(torch.tensor([[1.0, 0.0, 1.0], [0.0, 0.0, 0.0]]), 1.0)
    assert found.tolist() == [[1.0, 0.0, 1.0], [0.0, 0.0, 0.0]]


@pytest.mark.parametrize("kl", [0.0, 10.0])
def test_the_loss_by_hand(kl):
    """Weight times the velocity's squared error, plus kl times the squared difference to the base model."""
    policy = tiny.policy("sd3", "flow_sde")
    rollout = policy.rollout(**tiny.arguments("sd3", guided=False), train_steps=())
    objective = RWR(times=1, temperature=2.0, kl=kl)
    (piece,) = objective.pieces(policy, rollout, Seeds(0, [1, 2]))
    work = Work(torch.tensor([1.0, -1.0]))
    work = with_groups(objective, policy, {0: (rollout, [piece], work)}, 2)[0]
    terms = objective.loss(policy, rollout, piece, work)
    level = piece.sigma.view(-1, 1, 1, 1)
    x_t = (1 - level) * rollout.latents + level * piece.eps
    with torch.no_grad():
        v = policy.predict(rollout, x_t, piece.sigma)
        with policy.reference():
            v_reference = policy.predict(rollout, x_t, piece.sigma)
    error = mean_square(v - (piece.eps - rollout.latents))
    weights = 2 * torch.tensor([1 / 2, -1 / 2]).softmax(dim=0)
    torch.testing.assert_close(terms.loss.detach(), weights * error + kl * mean_square(v - v_reference))
    torch.testing.assert_close(terms.metrics["rwr/weight_max"], weights.max().expand(2))
    assert ("kl/reference" in terms.metrics) == (kl > 0)
