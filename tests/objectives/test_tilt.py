"""Every objective with a pull to the reference ends where theory says, on the policy of `tests.objectives.gaussian`."""

from __future__ import annotations

import math

import pytest

from flowrl.objectives.awm import AWM
from flowrl.objectives.ddpo import DDPO
from flowrl.objectives.dpo import DPO
from flowrl.objectives.grpo import GRPO
from flowrl.objectives.grpo_guard import GRPOGuard
from flowrl.objectives.nft import NFT
from flowrl.objectives.prdp import PRDP
from flowrl.objectives.rebel import REBEL
from flowrl.objectives.rwr import RWR

from .gaussian import SIGMAS, STD, train

FREE = {"advantage_clip": 100.0}  # no advantage is clipped
ROUGH = {"samples": 256, "steps": 150}
"""Forward-process objectives: every sample's noise has a generator of its own, which costs time."""


def _gains():
    """``(sigma, g)`` of each level: g is how much the best guess of x_0 moves with theta, ``sigma^2 / V``."""
    return [(sigma, sigma**2 / ((1 - sigma) ** 2 * STD**2 + sigma**2)) for sigma in SIGMAS]


def _nft(kl):
    # The guess is off by r = guess - x_0 ~ N(0, s^2 g), advantages are x_0 - theta. In one dimension, a gradient
    # by theta is 2 A sign(r) g, of mean -2 g s sqrt(g) sqrt(2 / pi); the KL term's is 2 kl (g / sigma)^2 theta.
    pull = sum(g**1.5 * STD * math.sqrt(2 / math.pi) for _, g in _gains())
    return pull / (kl * sum((g / sigma) ** 2 for sigma, g in _gains()))


def _ipo(beta, tau):
    # Errors of a pair with shared noise differ by -2 (g / sigma)^2 theta (x_w - x_l) more than the reference's, so the
    # margin is beta (g / sigma)^2 theta D with D = |x_1 - x_2|, E D = 2 s / sqrt(pi) and E D^2 = 2 s^2; least squares
    # towards 1 / (2 tau) over all levels.
    curves = [(gain / sigma) ** 2 for sigma, gain in _gains()]
    aim = sum(curves) * 2 * STD / math.sqrt(math.pi) / (2 * tau)
    return aim / (beta * sum(curve**2 for curve in curves) * 2 * STD**2)


CASES = {
    # The tilt s^2 / beta = 0.25 / 0.5.
    "grpo": (GRPO(beta=0.5, clip_range=0.2, **FREE), {}, 0.5),
    "ddpo": (DDPO(beta=0.5, clip_range=0.2, **FREE), {}, 0.5),
    "ddpo score": (DDPO(beta=0.5, estimator="score", **FREE), {}, 0.5),
    # The surrogate is multiplied by std / (sigma - sigma_next) = 0.5 / 0.2, so beta acts like 0.2 / 0.5 of itself.
    "guard": (GRPOGuard(beta=1.25, clip_range=0.2, **FREE), {}, 0.5),
    "prdp": (PRDP(beta=0.5, clip_range=None), {"steps": 60, "learning_rate": 0.02}, 0.5),
    "prdp, clipped": (PRDP(beta=0.5, clip_range=0.05), {"steps": 60, "updates": 3, "learning_rate": 0.02}, 0.5),
    # To the policy of the rollout, which here is the reference: many updates of one rollout.
    "rebel": (REBEL(beta=0.5), {"steps": 1, "updates": 80, "samples": 8192, "learning_rate": 0.2}, 0.5),
    # kl times the range of advantages is beta.
    "awm": (AWM(kl=0.005, **FREE), {**ROUGH, "learning_rate": 4.0}, 0.5),
    # Weights of mean 1 move samples by s^2 / temperature = 0.125 in a round, and kl pulls back as far at 0.125 / 0.25.
    "rwr": (RWR(kl=0.25, temperature=2.0), {**ROUGH, "group_size": 128, "learning_rate": 0.1}, 0.5),
    "dpo, ipo": (
        DPO(loss="ipo", beta=1.0, tau=0.556),
        {**ROUGH, "group_size": 2, "learning_rate": 0.1},
        _ipo(1.0, 0.556),
    ),
    "nft": (NFT(kl=0.5, decay_slope=0.0, **FREE), ROUGH, _nft(0.5)),
}


@pytest.mark.parametrize("name", CASES)
def test_it_ends_at_its_analytic_optimum(name):
    """Trained on the reward x from the reference on, with noise of the gradient averaged out."""
    objective, how, wanted = CASES[name]
    assert train(objective, **how) == pytest.approx(wanted, rel=0.06)


def test_a_stronger_pull_ends_nearer_to_the_reference():
    """Twice beta is half the way, and a policy that starts beyond comes back."""
    assert train(GRPO(beta=1.0, clip_range=0.2, **FREE), theta=0.6) == pytest.approx(0.25, rel=0.06)
