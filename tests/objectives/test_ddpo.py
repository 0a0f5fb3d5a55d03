"""flowrl.objectives.ddpo: the two estimators of the policy gradient."""

from __future__ import annotations

import pytest
import torch

from flowrl.errors import RunStopped
from flowrl.objectives import GRPO, Seeds, Work
from flowrl.objectives.ddpo import DDPO, score_surrogate

from .. import tiny


def test_score_surrogate_by_hand():
    """-A (ln p - ln p_old): -2 * 0.5 = -1, and the gradient by ln p is -A."""
    log_ratio = torch.tensor([0.5, -1.0], requires_grad=True)
    loss = score_surrogate(log_ratio, torch.tensor([2.0, 3.0]))
    loss.sum().backward()
    assert loss.tolist() == [-1.0, 3.0]
    assert log_ratio.grad.tolist() == [-2.0, -3.0]


def _terms(objective, policy, rollout, *, on_policy=True):
    work = Work(torch.tensor([1.0, -2.0]), on_policy=on_policy)
    return [objective.loss(policy, rollout, p, work) for p in objective.pieces(policy, rollout, Seeds(0, [1, 2]))]


@pytest.mark.parametrize(("pipeline", "kernel"), [("sd3", "flow_sde"), ("sd15", "ddim")])
def test_both_estimators_have_the_gradient_of_grpo_at_the_rollouts_weights(pipeline, kernel):
    """Where the ratio is 1, the gradients of A r and of A ln p are the same."""
    policy = tiny.policy(pipeline, kernel)
    rollout = policy.rollout(**tiny.arguments(pipeline), train_steps=[0, 1])
    parameters = list(policy.parameters.values())
    found = [
        torch.autograd.grad(sum(terms.loss.sum() for terms in _terms(objective, policy, rollout)), parameters)
        for objective in (GRPO(), DDPO(), DDPO(estimator="score"))
    ]
    for plain, importance, score in zip(*found, strict=True):
        assert plain.abs().max() > 0
        assert torch.equal(importance, plain)
        torch.testing.assert_close(score, plain, rtol=1e-5, atol=1e-7)


def test_the_score_function_refuses_other_weights_than_the_rollouts():
    """At a second update its gradient would be wrong; importance weights are right there."""
    policy = tiny.policy("sd3", "flow_sde")
    rollout = policy.rollout(**tiny.arguments("sd3"), train_steps=[0])
    tiny.set_b(policy, 0.11)
    assert _terms(DDPO(), policy, rollout, on_policy=False)
    with pytest.raises(RunStopped, match=r"updates_per_step: 1, or objective.estimator: importance"):
        _terms(DDPO(estimator="score"), policy, rollout, on_policy=False)
