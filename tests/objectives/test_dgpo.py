"""flowrl.objectives.dgpo: the preference of a group, in numbers worked out by hand."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import logsigmoid

from flowrl.objectives import Seeds, Work
from flowrl.objectives.dgpo import DGPO, group_weight
from flowrl.objectives.exchange import with_groups
from flowrl.objectives.forward import mean_square

from .. import tiny


def test_weight_by_hand():
    """At the reference it is 1/2; a winner that denoises better by 0.02 and a loser worse by 0.02 give sigmoid(-2)."""
    advantages = torch.tensor([[1.0, -1.0]])
    assert group_weight(advantages, torch.zeros(1, 2), 100.0).tolist() == [0.5]
    found = group_weight(advantages, torch.tensor([[-0.02, 0.02]]), 100.0)
    assert found.tolist() == pytest.approx([float(torch.tensor(-2.0).sigmoid())])


def _scene(b=0.1, **options):
    policy = tiny.policy("sd3", "flow_sde", b=b)
    rollout = policy.rollout(**tiny.arguments("sd3", guided=False), train_steps=())
    objective = DGPO(times=2, kl=0.0, **options)
    pieces = objective.pieces(policy, rollout, Seeds(0, [1, 2]))
    return policy, rollout, objective, pieces


def _terms(policy, rollout, objective, pieces, advantages=(1.0, -1.0)):
    work = with_groups(objective, policy, {0: (rollout, pieces, Work(torch.tensor(advantages)))}, 2)[0]
    return [objective.loss(policy, rollout, piece, work) for piece in pieces]


def _errors(policy, rollout, piece):
    level = piece.sigma.view(-1, 1, 1, 1)
    x_t = (1 - level) * rollout.latents + level * piece.eps
    return mean_square(policy.predict(rollout, x_t, piece.sigma) - (piece.eps - rollout.latents))


def test_two_samples_are_diffusion_dpo():
    """For advantages 1 and -1 the gradient of -ln sigmoid(-(beta / 2) (excess_w - excess_l)), times 2 / beta."""
    policy, rollout, objective, pieces = _scene(b=0.3, beta=20.0)
    parameters = list(policy.parameters.values())
    for terms, piece in zip(_terms(policy, rollout, objective, pieces), pieces, strict=True):
        error = _errors(policy, rollout, piece)
        with torch.no_grad(), policy.reference():
            reference = _errors(policy, rollout, piece)
        excess = error - reference
        dpo = -logsigmoid(-20.0 / 2 * (excess[0] - excess[1]))
        wanted = torch.autograd.grad(dpo, parameters)
        for found, gradient in zip(torch.autograd.grad(terms.loss.sum(), parameters), wanted, strict=True):
            torch.testing.assert_close(found, gradient * 2 / 20.0, rtol=1e-3, atol=1e-7)


def test_at_the_reference_every_group_has_half_the_weight():
    """A LoRA that has just started is the reference: the loss is A q / 2."""
    policy, rollout, objective, pieces = _scene(b=0.0)
    for terms in _terms(policy, rollout, objective, pieces, (3.0, -9.0)):
        assert terms.metrics["dgpo/weight"].tolist() == [0.5, 0.5]
        torch.testing.assert_close(terms.loss.detach(), torch.tensor([1.5, -2.5]) * terms.metrics["dgpo/error"])


def test_a_group_without_spread_teaches_nothing():
    """Its advantages are 0, and so is the gradient."""
    policy, rollout, objective, pieces = _scene()
    loss = sum(terms.loss.sum() for terms in _terms(policy, rollout, objective, pieces, (0.0, 0.0)))
    gradients = torch.autograd.grad(loss, list(policy.parameters.values()))
    assert all(torch.equal(gradient, torch.zeros_like(gradient)) for gradient in gradients)
