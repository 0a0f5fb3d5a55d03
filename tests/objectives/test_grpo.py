"""flowrl.objectives.grpo: the clipped surrogate and its diagnostics, in numbers worked out by hand."""

from __future__ import annotations

import math

import pytest
import torch

from flowrl import kernels
from flowrl.errors import RunStopped, UserError
from flowrl.objectives import Seeds, Work, grpo

from .. import tiny


def test_surrogate_by_hand():
    """The clip takes effect only where the ratio has moved in the advantage's favour."""
    # r = 1.5, A = 1: max(-1.5, -1.2) = -1.2.   r = 0.5, A = 1: max(-0.5, -0.8) = -0.5.
    # r = 1.5, A = -1: max(1.5, 1.2) = 1.5.     r = 0.5, A = -1: max(0.5, 0.8) = 0.8.
    ratio = torch.tensor([1.5, 0.5, 1.5, 0.5])
    advantages = torch.tensor([1.0, 1.0, -1.0, -1.0])
    loss = grpo.clipped_surrogate(ratio.log(), advantages, 0.2)
    torch.testing.assert_close(loss, torch.tensor([-1.2, -0.5, 1.5, 0.8]))


def test_gradient_raises_the_better_sample():
    """On-policy the gradient of the loss by the log-probability is minus the advantage."""
    log_ratio = torch.zeros(2, requires_grad=True)
    grpo.clipped_surrogate(log_ratio, torch.tensor([2.0, -3.0]), 1e-4).sum().backward()
    assert log_ratio.grad.tolist() == [-2.0, 3.0]


def test_clipped_samples_have_no_gradient():
    """Past the clip range in the advantage's favour nothing is left to gain, and the diagnostics count it."""
    log_ratio = torch.tensor([0.5, -0.5], requires_grad=True)
    advantages = torch.tensor([1.0, -1.0])
    grpo.clipped_surrogate(log_ratio, advantages, 0.1).sum().backward()
    assert log_ratio.grad.tolist() == [0.0, 0.0]
    metrics = grpo.ratio_metrics(log_ratio.detach(), advantages, 0.1)
    assert metrics["ratio/clip_fraction"].tolist() == [1.0, 1.0]
    assert float(metrics["ratio/max_deviation"]) == pytest.approx(math.exp(0.5) - 1)


def test_loss_of_a_batch_is_the_mean_of_its_halves():
    """The loss is one value a sample, so a batch may be cut anywhere."""
    log_ratio, advantages = torch.randn(8) * 0.1, torch.randn(8)
    whole = grpo.clipped_surrogate(log_ratio, advantages, 0.1).mean()
    halves = [
        grpo.clipped_surrogate(a, b, 0.1).mean() for a, b in zip(log_ratio.split(4), advantages.split(4), strict=True)
    ]
    torch.testing.assert_close(whole, sum(halves) / 2)


def test_on_policy_check_names_the_step():
    """A deviation stops the run; rounding in bfloat16 does not, and NaN does."""
    grpo.check_on_policy(torch.zeros(3), 2, torch.float32)
    grpo.check_on_policy(torch.tensor([1e-3]), 2, torch.bfloat16)
    for value in (1e-3, math.nan):
        with pytest.raises(RunStopped, match=r"at step 2 .*for torch.float32"):
            grpo.check_on_policy(torch.tensor([0.0, value]), 2, torch.float32)


def test_kl_regularised_optimum_is_the_tilt():
    """A Gaussian policy N(theta, s^2) with reward x and KL weight beta to N(0, s^2) ends at theta = s^2 / beta."""
    # E[x] - beta theta^2 / (2 s^2) is greatest at theta = s^2 / beta = 0.25 / 0.5 = 0.5.
    s, beta = torch.tensor(0.5), 0.5
    theta = torch.zeros(1, requires_grad=True)
    generator = torch.Generator().manual_seed(0)
    optimizer = torch.optim.SGD([theta], lr=0.02)
    for _ in range(400):
        x = theta.detach() + s * torch.randn(4000, 1, generator=generator)
        mean = theta.expand(4000, 1)
        old = kernels.log_prob(x, mean.detach(), s)
        log_ratio = kernels.log_prob(x, mean, s) - old
        advantages = x[:, 0] - x.mean()
        loss = grpo.clipped_surrogate(log_ratio, advantages, 0.2)
        loss = loss + beta * kernels.kl(mean, torch.zeros(4000, 1), s)
        optimizer.zero_grad()
        loss.mean().backward()
        optimizer.step()
    assert float(theta.detach()) == pytest.approx(0.5, abs=0.02)


def _terms(policy, rollout, advantages, *, on_policy=False, **options):
    objective = grpo.GRPO(**options)
    pieces = objective.pieces(policy, rollout, Seeds(0, [1, 2]))
    work = Work(torch.tensor(advantages), on_policy=on_policy)
    return [objective.loss(policy, rollout, piece, work) for piece in pieces]


def test_pieces_are_the_recorded_steps():
    """In order, each once; there is nothing random about them."""
    policy = tiny.policy("sd3", "flow_sde")
    rollout = policy.rollout(**tiny.arguments("sd3", guided=False), train_steps=[2, 0])
    assert grpo.GRPO().pieces(policy, rollout, Seeds(0, [1, 2])) == [0, 2]


def test_on_policy_the_loss_is_minus_the_advantage():
    """The ratio is exactly 1, and an extreme advantage counts as the largest that is allowed."""
    policy = tiny.policy("sd3", "flow_sde")
    rollout = policy.rollout(**tiny.arguments("sd3"), train_steps=[0, 1])
    for terms in _terms(policy, rollout, (0.5, -9.0), on_policy=True, advantage_clip=2.0):
        assert terms.loss.tolist() == [-0.5, 2.0]
        assert terms.metrics["ratio/mean"].tolist() == [1.0, 1.0]
        assert {float(terms.metrics[name].max()) for name in ("ratio/max_deviation", "kl/old")} == {0.0}
        assert "kl/reference" not in terms.metrics


def test_weights_that_have_moved_are_off_policy():
    """Before the first update of a step that stops the run; at later updates the ratio is simply not 1."""
    policy = tiny.policy("sd3", "flow_sde")
    rollout = policy.rollout(**tiny.arguments("sd3"), train_steps=[1])
    tiny.set_b(policy, 0.2)
    with pytest.raises(RunStopped, match=r"ratio is not 1 before the first update.*at step 1"):
        _terms(policy, rollout, (1.0, 1.0), on_policy=True)
    (terms,) = _terms(policy, rollout, (1.0, 1.0))
    assert terms.metrics["ratio/max_deviation"] > 1e-6


def test_without_an_advantage_nothing_is_learnt():
    """The gradient of a sample with advantage 0 is exactly 0, also off-policy."""
    policy = tiny.policy("sd3", "flow_sde")
    rollout = policy.rollout(**tiny.arguments("sd3"), train_steps=[1])
    tiny.set_b(policy, 0.2)
    (terms,) = _terms(policy, rollout, (0.0, 0.0))
    gradients = torch.autograd.grad(terms.loss.sum(), list(policy.parameters.values()))
    assert all(torch.equal(gradient, torch.zeros_like(gradient)) for gradient in gradients)


def test_the_kl_term_by_hand():
    """It adds beta times the divergence of the two transitions; of a LoRA that has just started there is none."""
    policy = tiny.policy("sd3", "flow_sde")
    rollout = policy.rollout(**tiny.arguments("sd3"), train_steps=[1])
    with torch.no_grad():
        replay = policy.replay(rollout, 1)
        with policy.reference():
            reference = policy.replay(rollout, 1)
    # KL of two Gaussians of one std: (m - m_ref)^2 / (2 s^2), here averaged over elements.
    wanted = ((replay.mean - reference.mean).square() / (2 * replay.std**2)).flatten(1).mean(dim=1)
    assert (wanted > 0).all()
    (terms,) = _terms(policy, rollout, (0.5, -0.5), on_policy=True, beta=3.0)
    torch.testing.assert_close(terms.metrics["kl/reference"], wanted)
    torch.testing.assert_close(terms.loss.detach(), torch.tensor([-0.5, 0.5]) + 3 * wanted)
    tiny.set_b(policy, 0.0)
    (terms,) = _terms(policy, rollout, (0.5, -0.5), beta=3.0)
    assert terms.metrics["kl/reference"].tolist() == [0.0, 0.0]


def test_a_single_step_is_refused():
    """It ends on clean data: there is no transition to train."""
    grpo.GRPO().check(2)
    with pytest.raises(UserError, match=r"policy.steps is 1"):
        grpo.GRPO().check(1)
