"""flowrl.objectives.preference: pair losses in numbers worked out by hand."""

from __future__ import annotations

import math

import pytest
import torch

from flowrl.objectives import pairs
from flowrl.objectives.preference import dpo_loss, ipo_loss, margin, simpo_loss

WINNERS = torch.tensor([-0.02, 0.03, 0.0, 0.01])
LOSERS = torch.tensor([0.02, -0.01, 0.0, 0.05])


def test_dpo_by_hand():
    """-(100 / 2) (-0.02 - 0.02) = 2; ln(1 + e^-2) = 0.1269, and e^2 for a pair the wrong way round."""
    margins = margin(WINNERS, LOSERS, 100.0)
    assert margins.tolist() == pytest.approx([2.0, -2.0, 0.0, 2.0], abs=1e-5)
    wanted = [math.log1p(math.exp(-2)), math.log1p(math.exp(2)), math.log(2), math.log1p(math.exp(-2))]
    assert dpo_loss(margins).tolist() == pytest.approx(wanted, rel=1e-5)


def test_the_gradient_at_the_reference_is_a_quarter_of_beta():
    """(beta / 4) (dL_w - dL_l), for beta 500: 125 and -125."""
    errors = torch.zeros(2, requires_grad=True)
    (found,) = torch.autograd.grad(dpo_loss(margin(errors[0], errors[1], 500.0)), errors)
    assert found.tolist() == [125.0, -125.0]


def test_a_batch_is_the_mean_of_its_halves():
    """No mean is taken inside the logarithm: one far pair does not speak for the others."""
    whole = dpo_loss(margin(WINNERS, LOSERS, 100.0))
    assert whole.shape == (4,)
    halves = [dpo_loss(margin(WINNERS[part], LOSERS[part], 100.0)).mean() for part in (slice(0, 2), slice(2, 4))]
    assert float(whole.mean()) == pytest.approx(float(sum(halves) / 2))
    assert float(whole.mean()) != pytest.approx(float(dpo_loss(margin(WINNERS, LOSERS, 100.0).mean())), rel=0.01)


def test_phydpo_without_kappa_is_diffusion_dpo():
    """Bit for bit; and at the reference the mean loss is ln 2, whatever the weights."""
    plain, gaps = dpo_loss(margin(WINNERS, LOSERS, 100.0)), torch.tensor([0.1, 1.0, 2.0, 0.0])
    assert torch.equal(pairs.gap_weights(gaps, 0.0) * plain, plain)
    at_reference = pairs.gap_weights(gaps, 3.0) * dpo_loss(torch.zeros(4))
    assert float(at_reference.mean()) == pytest.approx(math.log(2))


def test_a_tied_pair_of_pnapo_has_no_gradient():
    """Its beta is 0."""
    errors = torch.tensor([0.1, 0.2], requires_grad=True)
    beta = 100.0 * pairs.gap_strength(torch.tensor(0.0))
    (found,) = torch.autograd.grad(dpo_loss(margin(errors[0], errors[1], beta)), errors)
    assert found.abs().tolist() == [0.0, 0.0]


def test_ipo_is_a_parabola_around_its_aim():
    """1 / (2 * 0.1) = 5: 0 there, 9 three to either side, and a slope that comes back."""
    margins = torch.tensor([2.0, 5.0, 8.0], requires_grad=True)
    losses = ipo_loss(margins, 0.1)
    assert losses.tolist() == pytest.approx([9.0, 0.0, 9.0])
    assert torch.autograd.grad(losses.sum(), margins)[0].tolist() == pytest.approx([-6.0, 0.0, 6.0])


def test_simpo_is_ln_2_where_the_margin_is_gamma():
    """-(10 / 2) (0.3 - 0.4) = 0.5; without gamma it is DPO."""
    margins = margin(torch.tensor([0.3]), torch.tensor([0.4]), 10.0)
    assert float(simpo_loss(margins, 0.5)) == pytest.approx(math.log(2))
    assert torch.equal(simpo_loss(margins, 0.0), dpo_loss(margins))
