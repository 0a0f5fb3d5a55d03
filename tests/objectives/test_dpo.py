"""flowrl.objectives.dpo: the loss of a group, and its gradient through the policy."""

from __future__ import annotations

import math

import pytest
import torch

from flowrl.errors import UserError
from flowrl.objectives import Seeds, Work
from flowrl.objectives.dpo import DPO
from flowrl.objectives.exchange import with_groups
from flowrl.objectives.preference import dpo_loss, margin

from .. import tiny

ERRORS = torch.tensor([[0.38, 0.42, 0.40]])
REFERENCE = torch.full((1, 3), 0.4)
ADVANTAGES = torch.tensor([[1.0, -1.0, 0.0]])


def _judge(**options):
    return DPO(**options).judge(ERRORS, REFERENCE, ADVANTAGES)


def test_best_against_worst_by_hand():
    """The margin is -50 (-0.02 - 0.02) = 2."""
    judged = _judge()
    assert float(judged.loss) == pytest.approx(math.log1p(math.exp(-2)), rel=1e-4)
    found = {name: float(value) for name, value in judged.metrics.items()}
    wanted = {"dpo/accuracy": 1.0, "dpo/margin": 2.0, "dpo/excess": -0.02, "dpo/paired": 1.0}
    assert {name: found[name] for name in wanted} == pytest.approx(wanted, rel=1e-4)


def test_all_pairs_by_hand():
    """Margins 2 (0 against 1), 1 (0 against 2) and 1 (2 against 1); gaps 2, 1, 1."""
    two, one = math.log1p(math.exp(-2)), math.log1p(math.exp(-1))
    assert float(_judge(pairs="all").loss) == pytest.approx((two + 2 * one) / 3, rel=1e-4)
    # 1 + gap is 3, 2, 2, whose mean is 7 / 3.
    weighted = (3 * two + 2 * 2 * one) / (7 / 3) / 3
    assert float(_judge(pairs="all", gap_weight=1.0).loss) == pytest.approx(weighted, rel=1e-4)


def test_other_losses_by_hand():
    """IPO: (2 - 5)^2. SimPO: the errors alone, m = 2 again. The anchor adds 0.5 * 0.38. PNAPO: m = 2 tanh(1)."""
    assert float(_judge(loss="ipo").loss) == pytest.approx(9.0, rel=1e-4)
    assert float(_judge(loss="simpo", gamma=2.0).loss) == pytest.approx(math.log(2), rel=1e-4)
    assert float(_judge(loss="simpo", gamma=2.0, anchor=0.5).loss) == pytest.approx(math.log(2) + 0.19, rel=1e-4)
    wanted = math.log1p(math.exp(-2 * math.tanh(1)))  # 2 sigmoid(2) - 1 = tanh(1)
    assert float(_judge(gap_beta=True).loss) == pytest.approx(wanted, rel=1e-4)


def test_a_group_without_spread_teaches_nothing():
    """It has no pair: loss and gradient are 0, also for IPO, whose pairs aim away from 0."""
    for loss in ("sigmoid", "ipo", "simpo"):
        errors = ERRORS.clone().requires_grad_()
        judged = DPO(loss=loss, anchor=1.0).judge(errors, REFERENCE, torch.zeros(1, 3))
        assert judged.loss.tolist() == judged.metrics["dpo/paired"].tolist() == [0.0]
        assert torch.autograd.grad(judged.loss.sum(), errors)[0].abs().max() == 0


def _scene(**options):
    policy = tiny.policy("sd3", "flow_sde", b=0.3)
    rollout = policy.rollout(**tiny.arguments("sd3", guided=False), train_steps=())
    objective = DPO(times=2, **options)
    return policy, rollout, objective, objective.pieces(policy, rollout, Seeds(0, [1, 2]))


def test_the_gradient_is_that_of_the_pair():
    """The mean over the two samples has the gradient of -ln sigmoid(m), though each has one error of the two."""
    policy, rollout, objective, pieces = _scene(beta=20.0)
    work = with_groups(objective, policy, {0: (rollout, pieces, Work(torch.tensor([-1.0, 1.0])))}, 2)[0]
    parameters = list(policy.parameters.values())
    for piece in pieces:
        terms = objective.loss(policy, rollout, piece, work)
        error, reference = objective.errors(policy, rollout, piece)
        excess = error - reference
        wanted = dpo_loss(margin(excess[1], excess[0], 20.0))
        torch.testing.assert_close(terms.loss.detach(), wanted.detach().expand(2), rtol=1e-4, atol=1e-5)
        gradients = zip(
            torch.autograd.grad(terms.loss.mean(), parameters), torch.autograd.grad(wanted, parameters), strict=True
        )
        for found, gradient in gradients:
            torch.testing.assert_close(found, gradient, rtol=1e-3, atol=1e-6)


def test_simpo_asks_no_reference_model(monkeypatch):
    """Only the policy itself is called, twice a level."""
    policy, rollout, objective, pieces = _scene(loss="simpo")
    monkeypatch.setattr(policy, "reference", lambda: pytest.fail("a reference"))
    work = with_groups(objective, policy, {0: (rollout, pieces, Work(torch.tensor([1.0, -1.0])))}, 2)[0]
    assert objective.loss(policy, rollout, pieces[0], work).loss.isfinite().all()
    assert objective.model_calls(0) == 4
    assert DPO(times=2).model_calls(0) == 6


def test_weights_of_a_single_pair_are_refused():
    """They would be 1, and the option would do nothing."""
    with pytest.raises(UserError, match=r"gap_weight.*Write pairs: all"):
        DPO(gap_weight=1.0).check(10)
    DPO(gap_weight=1.0, pairs="all").check(10)
