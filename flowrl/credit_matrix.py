"""When a reward may speak: a matrix of rewards by denoising steps.

A reward says something about the first, noisy steps only as far as what they decide shows in it: a layout early, a
texture late. The divergence between the policy and the policy tilted by the reward, at each noise level, measures that;
what it gains from one step to the next is that step's part. The matrix shares each reward's budget out in proportion,
so that every step gets as much as any other, all rewards together. See "ReCAST", https://arxiv.org/abs/2609.13425.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

_ROUNDS = 1000
_CLOSE = 1e-9


def divergences(ratios: Tensor, alpha: float = 2.0) -> Tensor:
    """Renyi divergence of the tilted policy from the policy, after each step: `[T]` float64.

        D(t) = log(mean_m rho_m(t)^alpha) / (alpha - 1),    rho(t) = E[r | x_t] / E[r]

    Args:
        ratios: `[M, T]`, of M trajectories the reward expected from the state that step t leads to, over that expected
            of the prompt, >= 0. Estimate it by several continuations of each state: one alone adds their own variance.
        alpha: order, > 0 and not 1.

    Raises:
        ValueError: a ratio is negative, or alpha is out of range.

    >>> rho = torch.tensor([[1.0, math.exp(0.5), math.e]])
    >>> divergences(rho).round(decimals=6).tolist()
    [0.0, 1.0, 2.0]
    """
    if not (alpha > 0 and alpha != 1):
        raise ValueError(f"alpha: wanted a number > 0 and not 1, got {alpha}")
    if ratios.ndim != 2 or not (ratios >= 0).all():
        raise ValueError(f"ratios: wanted numbers >= 0, [M, T], got {list(ratios.shape)}")
    return ratios.double().pow(alpha).mean(dim=0).log() / (alpha - 1)


def gains(divergence: Tensor) -> Tensor:
    """What each step adds to a divergence `[T]`, never less than 0: noise alone has none, and less noise never less.

    >>> gains(torch.tensor([0.0, 1.0, 0.9, 2.0]))
    tensor([0.0000, 1.0000, 0.0000, 1.1000])
    """
    return divergence.diff(prepend=divergence.new_zeros(1)).clamp_min(0)


def credit_matrix(gained: Tensor, budgets: Tensor, temperature: float = 1.0) -> Tensor:
    """Share the rewards' budgets out to the steps: `[R, T]` float64 with rows ``budgets / sum`` and columns ``1 / T``.

    ``diag(u) K diag(v)`` with ``K = exp(g / mean(g) / temperature)``, a reward without any gain being uniform; u and v
    by Sinkhorn's algorithm on logarithms.

    Args:
        gained: `[R, T]`, >= 0.
        budgets: `[R]`, > 0.
        temperature: > 0; the higher, the more alike the steps.

    Raises:
        ValueError: something is out of range.

    >>> credit_matrix(torch.ones(2, 3), torch.tensor([2.0, 1.0])).mul(9).round(decimals=6)
    tensor([[2., 2., 2.],
            [1., 1., 1.]], dtype=torch.float64)
    """
    if gained.ndim != 2 or budgets.shape != gained.shape[:1] or not gained.shape[1] > 0:
        raise ValueError(f"wanted gains [R, T] and budgets [R], got {list(gained.shape)} and {list(budgets.shape)}")
    if not (temperature > 0 and (budgets > 0).all() and (gained >= 0).all()):
        raise ValueError("wanted a temperature > 0, budgets > 0 and gains >= 0")
    rows, steps = gained.double(), gained.shape[1]
    mean = rows.mean(dim=1, keepdim=True)
    log_kernel = torch.where(mean > 0, rows / torch.where(mean > 0, mean, 1.0), 0.0) / temperature
    log_rows = (budgets.double() / budgets.double().sum()).log()
    u, v = torch.zeros_like(log_rows), log_kernel.new_zeros(steps)
    for _ in range(_ROUNDS):
        u = log_rows - (log_kernel + v).logsumexp(dim=1)
        columns = (log_kernel + u[:, None] + v).logsumexp(dim=0)
        v = v - math.log(steps) - columns
        if (columns.exp() * steps - 1).abs().max() < _CLOSE:
            break
    return (log_kernel + u[:, None] + v).exp()
