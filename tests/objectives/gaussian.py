"""A policy with one number, for which every objective's optimum can be worked out by hand.

Its samples are ``x ~ N(theta, s^2)``, and the reference policy is theta = 0. It is a policy by transitions (one
stochastic step, from nothing to x) and by its forward process (the exact velocity field of that Gaussian), so that
objectives of either kind run on it as they are. With the reward x the policy of greatest ``E[x] - beta KL`` is the
reference tilted by ``exp(x / beta)``, which is ``N(s^2 / beta, s^2)``.
"""

from __future__ import annotations

from contextlib import contextmanager
from types import SimpleNamespace

import torch
from torch import nn

from flowrl import kernels
from flowrl.adapters import WeightCopy
from flowrl.kernels import FlowPlace
from flowrl.objectives import Seeds, Work
from flowrl.objectives.exchange import with_groups
from flowrl.policy import Replay
from flowrl.trajectory import Rollout, Transition

STD = 0.5
SIGMAS = (0.9, 0.7, 0.5, 0.3)
"""Noise levels of the schedule, on which the forward process is noised. The one transition is that of step 0."""


class GaussianPolicy:
    """What objectives use of `flowrl.policy.Policy`, for ``N(theta, STD^2)``."""

    reduction = "mean"
    dtype = torch.float32
    prediction = "flow"
    takes_sigma_per_sample = True
    device = torch.device("cpu")
    kernel = SimpleNamespace(std=lambda place: STD if place.step == 0 else 0.0)

    def __init__(self, theta: float = 0.0) -> None:
        """Start at theta."""
        self.theta = nn.Parameter(torch.tensor([theta]))
        self.parameters = {"theta": self.theta}

    @torch.no_grad()
    def rollout(self, count: int, seed: int) -> Rollout:
        """``count`` samples."""
        x = self.theta + STD * torch.randn(count, 1, generator=torch.Generator().manual_seed(seed))
        places = [
            FlowPlace(k, 1000 * s, s, s_next, SIGMAS[1])
            for k, (s, s_next) in enumerate(zip(SIGMAS, (*SIGMAS[1:], 0.0), strict=True))
        ]
        log_prob = kernels.log_prob(x, self.theta.expand(count, 1), torch.tensor(STD))
        transition = Transition(places[0], torch.zeros(count, 1), x, log_prob, STD)
        return Rollout(
            images=torch.empty(0),
            latents=x,
            transitions={0: transition},
            arrivals={},
            start=0,
            places=places,
            stds=[STD, 0.0, 0.0, 0.0],
            prompts=["x"] * count,
            latent_seeds=list(range(count)),
            call={},
            memory=None,
        )

    def replay(self, rollout: Rollout, step: int) -> Replay:
        """The transition under the current theta."""
        x, std = rollout.transitions[step].x_next, torch.tensor(STD)
        mean = self.theta.expand(len(x), 1)
        return Replay(kernels.log_prob(x, mean, std), mean, std, mean)

    def predict(self, rollout: Rollout, x_t: torch.Tensor, sigma: torch.Tensor) -> torch.Tensor:
        """The velocity ``(x_t - E[x_0 | x_t]) / sigma`` of samples from ``N(theta, s^2)``."""
        level = torch.as_tensor(sigma).view(-1, 1)
        gain = (1 - level) * STD**2 / ((1 - level) ** 2 * STD**2 + level**2)
        return (x_t - self.theta - gain * (x_t - (1 - level) * self.theta)) / level

    @contextmanager
    def reference(self):
        """Theta is 0 inside the block."""
        current, self.theta.data = self.theta.data, torch.zeros(1)
        try:
            yield
        finally:
            self.theta.data = current


def train(objective, *, steps=200, updates=1, samples=2048, group_size=32, learning_rate=0.05, theta=0.0):
    """Train on the reward x as the trainer does; theta at the end.

    Args:
        objective: what is trained with; its advantages are x less the mean of the group.
        steps: rollouts.
        updates: optimizer updates of each.
        samples: of a rollout.
        group_size: of its groups.
        learning_rate: of SGD, with which theta is averaged over the last half of the updates.
        theta: where it starts.
    """
    policy, trace = GaussianPolicy(theta), []
    copies = {name: WeightCopy(policy.parameters) for name in objective.copies()}
    optimizer = torch.optim.SGD([policy.theta], lr=learning_rate)
    for step in range(steps):
        rollout = policy.rollout(samples, step)
        reward = rollout.latents[:, 0].view(-1, group_size)
        advantages = (reward - reward.mean(dim=1, keepdim=True)).flatten()
        groups = [step * samples + number // group_size for number in range(samples)]
        seeds = Seeds(step, [step * samples + number for number in range(samples)], groups)
        for update in range(updates):
            pieces = objective.pieces(policy, rollout, seeds)
            work = Work(advantages, copies, on_policy=update == 0)
            work = with_groups(objective, policy, {0: (rollout, pieces, work)}, group_size)[0]
            terms = [objective.loss(policy, rollout, piece, work) for piece in pieces]
            optimizer.zero_grad()
            torch.stack([term.loss for term in terms]).mean().backward()
            optimizer.step()
            trace.append(float(policy.theta.detach()))
        for name, decay in objective.copies().items():
            copies[name].update(decay(step))
    half = trace[len(trace) // 2 :]
    return sum(half) / len(half)
