"""flowrl.objectives.dro: signed errors, and the limit that keeps them from running away."""

from __future__ import annotations

import pytest
import torch

from flowrl.objectives import Seeds, Work
from flowrl.objectives.dro import DRO, dro_loss

from .gaussian import GaussianPolicy


def test_by_hand():
    """Good: 0.3. Bad: -0.3 below the limit of 1.1 * 0.4, and -0.44 beyond, without gradient. Neither: 0."""
    errors = torch.tensor([0.3, 0.3, 0.5, 0.5], requires_grad=True)
    losses = dro_loss(errors, torch.full((4,), 0.4), torch.tensor([1.0, -1.0, -1.0, 0.0]), 0.1)
    assert losses.tolist() == pytest.approx([0.3, -0.3, -0.44, 0.0])
    assert torch.autograd.grad(losses.sum(), errors)[0].tolist() == [1.0, -1.0, 0.0, 0.0]


def test_a_batch_is_the_mean_of_its_halves():
    """Each sample's loss is its own."""
    errors, reference = torch.rand(2, 4, generator=torch.Generator().manual_seed(0))
    labels = torch.tensor([1.0, -1.0, 1.0, -1.0])
    whole = dro_loss(errors, reference, labels, 0.1)
    halves = [dro_loss(errors[part], reference[part], labels[part], 0.1) for part in (slice(0, 2), slice(2, 4))]
    assert torch.equal(torch.cat(halves), whole)


def _driven_away(limit):
    """Theta after training on bad samples alone, and the share of them that was guarded at the end."""
    policy, objective, advantages = GaussianPolicy(0.1), DRO(times=4, limit=limit), -torch.ones(64)
    rollout = policy.rollout(64, 0)
    pieces = objective.pieces(policy, rollout, Seeds(0, list(range(64))))
    for _ in range(200):
        terms = [objective.loss(policy, rollout, piece, Work(advantages)) for piece in pieces]
        (gradient,) = torch.autograd.grad(torch.stack([term.loss for term in terms]).mean(), policy.theta)
        policy.theta.data -= 0.05 * gradient
    return float(policy.theta.detach()), float(torch.stack([term.metrics["dro/guarded"] for term in terms]).mean())


def test_the_limit_stops_what_would_run_away():
    """With nothing but bad samples the error grows without end; with the limit most are soon guarded."""
    theta, guarded = _driven_away(limit=0.5)
    assert guarded > 0.5
    assert abs(theta) < 10
    without, _ = _driven_away(limit=1e30)
    assert abs(without) > 1000
