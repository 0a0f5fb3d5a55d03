"""flowrl.objectives.awm: a denoising error as a log-probability, in numbers worked out by hand."""

from __future__ import annotations

import pytest
import torch

from flowrl.adapters import WeightCopy
from flowrl.objectives import Seeds, Work
from flowrl.objectives.awm import AWM, weighted_error
from flowrl.objectives.forward import mean_square, target

from .. import tiny


def test_weights_by_hand():
    """The weights 1, sigma, sigma^2; Huber-like 4 sigma (16^(1/4) - 1e-10^(1/4)) = 2 (2 - 0.003162) at sigma = 1/2."""
    error, sigma = torch.tensor([16.0]), torch.tensor(0.5)
    found = [float(weighted_error(error, sigma, w)) for w in ("uniform", "sigma", "sigma_squared", "huber")]
    assert found == pytest.approx([16.0, 8.0, 4.0, 2 * (2 - 1e-10**0.25)])


def _scene(**options):
    policy = tiny.policy("sd3", "flow_sde")
    rollout = policy.rollout(**tiny.arguments("sd3", guided=False), train_steps=())
    objective = AWM(times=1, **options)
    copies = {name: WeightCopy(policy.parameters) for name in objective.copies()}
    return policy, rollout, objective, copies, objective.pieces(policy, rollout, Seeds(0, [1, 2]))[0]


def _error(policy, rollout, piece):
    level = piece.sigma.view(-1, 1, 1, 1)
    x_t = (1 - level) * rollout.latents + level * piece.eps
    v = policy.predict(rollout, x_t, piece.sigma)
    return mean_square(v - target(rollout.latents, piece.eps, level))


def test_on_policy_the_gradient_is_that_of_advantage_weighted_flow_matching():
    """The ratio is 1, the loss -A / 5, and the gradient A / 5 times that of the error: what AWM is named for."""
    policy, rollout, objective, copies, piece = _scene(kl=0.0)
    advantages = torch.tensor([2.0, -9.0])  # clipped to 2 and -5: 0.4 and -1
    terms = objective.loss(policy, rollout, piece, Work(advantages, copies, True))
    assert terms.loss.tolist() == pytest.approx([-0.4, 1.0])
    parameters = list(policy.parameters.values())
    wanted = torch.autograd.grad((torch.tensor([0.4, -1.0]) * _error(policy, rollout, piece)).sum(), parameters)
    for found, gradient in zip(torch.autograd.grad(terms.loss.sum(), parameters), wanted, strict=True):
        torch.testing.assert_close(found, gradient, rtol=1e-4, atol=1e-7)


def test_later_updates_take_the_error_of_the_rollouts_weights():
    """The log-ratio is the old error less the new one."""
    policy, rollout, objective, copies, piece = _scene(kl=0.0)
    with torch.no_grad():
        old = _error(policy, rollout, piece)
        tiny.set_b(policy, 0.2)
        new = _error(policy, rollout, piece)
    terms = objective.loss(policy, rollout, piece, Work(torch.ones(2), copies))
    torch.testing.assert_close(terms.metrics["ratio/mean"], (old - new).exp())
    torch.testing.assert_close(terms.metrics["awm/error"], new)


def test_both_pulls_by_hand():
    """They add their weights times the squared velocity differences to the base model and to the average."""
    policy, rollout, objective, copies, piece = _scene(kl=2.0, kl_ema=3.0)
    assert set(copies) == {"rollout", "fast"}
    tiny.set_b(policy, 0.2)
    work = Work(torch.ones(2), copies)
    terms = objective.loss(policy, rollout, piece, work)
    plain = AWM(times=1, kl=0.0).loss(policy, rollout, piece, work)
    to_reference, to_average = terms.metrics["kl/reference"], terms.metrics["kl/ema"]
    assert (to_reference > 0).all()
    assert (to_average > 0).all()
    torch.testing.assert_close(terms.loss, plain.loss + 2 * to_reference + 3 * to_average)
    assert objective.model_calls(0) == 4


def test_the_fast_average_follows_as_published():
    """Decay min(0.3, 0.001 step)."""
    decay = AWM(kl_ema=1.0).copies()["fast"]
    assert [decay(step) for step in (0, 100, 1000)] == pytest.approx([0.0, 0.1, 0.3])
