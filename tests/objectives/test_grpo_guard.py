"""flowrl.objectives.grpo_guard: the regulated ratio, in numbers worked out by hand."""

from __future__ import annotations

import math

import pytest
import torch

from flowrl import kernels
from flowrl.adapters import WeightCopy
from flowrl.objectives import Seeds, Work
from flowrl.objectives.grpo import GRPO
from flowrl.objectives.grpo_guard import GRPOGuard, regulated

from .. import tiny


def test_regulated_by_hand():
    """Two Gaussians of std 2, d = 1 apart: at z = 1.25 the log-ratio is 1.25 / 2 - 1 / 8 = 0.5, and z d is 1.25."""
    std, old, new = torch.tensor(2.0), torch.tensor([[3.0]]), torch.tensor([[4.0]])
    x = old + 1.25 * std
    log_ratio = kernels.log_prob(x, new, std) - kernels.log_prob(x, old, std)
    assert log_ratio.tolist() == pytest.approx([0.5])
    assert regulated(log_ratio, kernels.kl(new, old, std), std).tolist() == pytest.approx([1.25])


@pytest.mark.parametrize("shift", [-0.4, 0.1, 2.0])
def test_its_log_has_mean_0_at_a_shifted_gaussian(shift):
    """Over samples of the old policy; the plain log-ratio has the mean -d^2 / (2 std^2), and for both the spread."""
    std, count = torch.tensor(0.7), 200_000
    old = torch.zeros(count, 1)
    new = old + shift
    z = torch.randn(count, 1, generator=torch.Generator().manual_seed(0))
    log_ratio = kernels.log_prob(std * z, new, std) - kernels.log_prob(std * z, old, std)
    assert float(log_ratio.mean()) == pytest.approx(-(shift**2) / (2 * 0.49), abs=5 * abs(shift) / 0.7 / count**0.5)
    found = regulated(log_ratio, kernels.kl(new, old, std), std)
    assert float(found.mean()) == pytest.approx(0, abs=5 * abs(shift) / count**0.5)
    assert float(found.std()) == pytest.approx(abs(shift), rel=0.02)


def test_the_spread_is_the_same_at_every_noise():
    """``z d`` does not know the step's std: one clip range suits all steps."""
    z, d = torch.linspace(-2, 2, 9)[:, None], 0.3
    for std in (torch.tensor(0.05), torch.tensor(0.7)):
        old, new = torch.zeros(9, 1), torch.full((9, 1), d)
        log_ratio = kernels.log_prob(std * z, new, std) - kernels.log_prob(std * z, old, std)
        found = regulated(log_ratio, kernels.kl(new, old, std), std)
        torch.testing.assert_close(found, d * z[:, 0], rtol=1e-4, atol=1e-4)


def test_the_correction_is_each_samples_own():
    """The sample that moved gets it, the one that did not gets none: no mean over the batch."""
    std, old = torch.tensor(1.0), torch.zeros(2, 4)
    new = torch.stack([torch.zeros(4), torch.ones(4)])
    assert kernels.kl(new, old, std).tolist() == [0.0, 0.5]
    assert regulated(torch.zeros(2), kernels.kl(new, old, std), std).tolist() == [0.0, 0.5]


def _scene(steps=(0, 2)):
    policy = tiny.policy("sd3", "flow_sde")
    rollout = policy.rollout(**tiny.arguments("sd3"), train_steps=list(steps))
    return policy, rollout, {"rollout": WeightCopy(policy.parameters)}


def _terms(objective, policy, rollout, copies, *, on_policy):
    work = Work(torch.tensor([1.0, -2.0]), copies, on_policy)
    return [objective.loss(policy, rollout, p, work) for p in objective.pieces(policy, rollout, Seeds(0, [1, 2]))]


def test_on_policy_the_surrogate_is_that_of_grpo_over_the_step():
    """The ratio is exactly 1, so the loss is -A / (sigma - sigma_next)."""
    policy, rollout, copies = _scene()
    found = _terms(GRPOGuard(), policy, rollout, copies, on_policy=True)
    for step, terms in zip((0, 2), found, strict=True):
        place = rollout.places[step]
        share = place.sigma - place.sigma_next
        assert terms.loss.tolist() == pytest.approx([-1 / share, 2 / share])
        assert float(terms.metrics["ratio/max_deviation"]) == 0.0


def test_steps_weigh_alike_in_the_gradient():
    """By the model's output the gradient of plain GRPO goes with std and step length; regulated, it does not.

    ``regulated`` has the gradient ``z dmean / elements``, and ``dmean`` of Flow-GRPO's kernel is ``(1 + a^2 / 2) dt``
    for the output: over -dt, a number that is the same at each step.
    """
    policy, rollout, copies = _scene()
    for step in (0, 2):
        place, transition = rollout.places[step], rollout.transitions[step]
        sigma, dt = place.sigma, place.sigma_next - place.sigma
        level = 0.7 / math.sqrt(1 - (place.sigma_second if sigma == 1 else sigma)) * math.sqrt(sigma)
        output = policy.replay(rollout, step).model_output.detach().requires_grad_()
        mean, std = policy.kernel(transition.x, output, place)
        log_ratio = kernels.log_prob(transition.x_next, mean, std) - transition.log_prob
        loss = regulated(log_ratio, kernels.kl(mean, mean.detach(), std), std) / (sigma - place.sigma_next)
        (gradient,) = torch.autograd.grad(loss.sum(), output)
        z = (transition.x_next - mean.detach()) / std
        slope = (1 + level**2 * (1 - sigma) / (2 * sigma)) * dt / -dt
        torch.testing.assert_close(gradient, slope * z / z[0].numel(), rtol=1e-3, atol=1e-6)
    assert copies


def test_later_updates_take_the_rollouts_mean_from_its_weights():
    """Off-policy the ratio is that of the means under the rollout's weights, computed anew."""
    policy, rollout, copies = _scene(steps=(1,))
    with torch.no_grad():
        old = policy.replay(rollout, 1)
    tiny.set_b(policy, 0.12)
    (terms,) = _terms(GRPOGuard(clip_range=10.0), policy, rollout, copies, on_policy=False)
    with torch.no_grad():
        new = policy.replay(rollout, 1)
    z = (rollout.transitions[1].x_next - old.mean) / old.std
    wanted = (z * (new.mean - old.mean)).flatten(1).mean(dim=1)
    torch.testing.assert_close(terms.metrics["ratio/mean"].log(), wanted, rtol=1e-2, atol=1e-6)


def test_options_that_differ_from_grpo():
    """The published clip range; everything else as in GRPO."""
    guard, plain = GRPOGuard().options.model_dump(), GRPO().options.model_dump()
    assert guard.pop("clip_range") == 2e-6
    plain.pop("clip_range")
    assert guard == plain
