"""Distances and diversity of sets of features, for many subsets of the same samples at once: pure functions.

A subset is a row of a bool tensor ``members`` `[K, N]`. What all subsets share (kernels, Gram matrices, moments) is
computed once; a subset then costs little more than its own size. All in float64.
"""

from __future__ import annotations

import torch
from torch import Tensor

Reference = tuple[Tensor, Tensor]
"""Mean `[D]` and covariance `[D, D]` of a reference set."""


def polynomial_kernel(x: Tensor, y: Tensor) -> Tensor:
    """``(x . y / D + 1)^3`` `[N, M]`, the kernel of KID.

    >>> polynomial_kernel(torch.tensor([[1.0, 1.0]]), torch.tensor([[1.0, 1.0], [0.0, 0.0]]))
    tensor([[8., 1.]])
    """
    return (x @ y.T / x.shape[1] + 1) ** 3


def rbf_kernel(x: Tensor, y: Tensor, bandwidth: float) -> Tensor:
    """``exp(-|x - y|^2 / (2 bandwidth^2))`` `[N, M]`.

    >>> rbf_kernel(torch.zeros(1, 2), torch.zeros(1, 2), 1.0)
    tensor([[1.]])
    """
    return torch.exp(-torch.cdist(x, y).square() / (2 * bandwidth**2))


def squared_mmd(members: Tensor, within: Tensor, across: Tensor, own: Tensor) -> Tensor:
    """The unbiased estimate of the squared maximum mean discrepancy between subsets and a reference set, `[K]`.

        sum_{i != j} k(x_i, x_j) / (n (n - 1)) + sum_{i != j} k(y_i, y_j) / (m (m - 1)) - 2 sum k(x_i, y_j) / (n m)

    Its mean is 0 for two samples of one distribution, so it is negative half of the time. With the polynomial kernel
    it is KID, https://arxiv.org/abs/1801.01401; the estimate is of https://jmlr.org/papers/v13/gretton12a.html.

    Args:
        members: `[K, N]` bool, two or more in each row.
        within: `[N, N]` the kernel of the samples.
        across: `[N, M]` the kernel of samples and reference.
        own: :func:`mean_of_pairs` of the kernel of the reference.

    >>> same = torch.eye(2)  # two samples unlike each other, and the reference is these two: 0 + 0 - 2 * 2 / 4
    >>> squared_mmd(torch.ones(1, 2, dtype=torch.bool), same, same, mean_of_pairs(same))
    tensor([-1.])
    """
    rows = members.to(within)
    n = rows.sum(dim=1)
    pairs = (rows @ (within - within.diag().diag()) * rows).sum(dim=1) / (n * (n - 1))
    return pairs + own - 2 * (rows @ across.mean(dim=1)) / n


def mean_of_pairs(kernel: Tensor) -> Tensor:
    """The mean of a kernel `[M, M]` off its diagonal, M >= 2.

    >>> mean_of_pairs(torch.tensor([[1.0, 0.5], [0.5, 1.0]]))
    tensor(0.5000)
    """
    count = len(kernel)
    return (kernel.sum() - kernel.trace()) / (count * (count - 1))


def moments(features: Tensor) -> Reference:
    """Mean and covariance (over n - 1) of features `[M, D]`, M >= 2.

    >>> moments(torch.tensor([[0.0], [2.0]]))
    (tensor([1.]), tensor([[2.]]))
    """
    mean = features.mean(dim=0)
    centred = features - mean
    return mean, centred.T @ centred / (len(features) - 1)


def frechet(members: Tensor, features: Tensor, reference: Reference) -> Tensor:
    """The Frechet distance between the Gaussians of subsets and of a reference set, `[K]`.

        |mu - mu_r|^2 + tr(S + S_r - 2 (S_r^(1/2) S S_r^(1/2))^(1/2))

    On the features of one Inception network it is called FID, https://arxiv.org/abs/1706.08500. The covariance of a
    subset is taken from the sums of all samples less those left out, an update of the rank of what is left out. With
    fewer samples than features the last trace is that of a matrix of the samples instead: with the subset's centred
    features ``A`` over ``sqrt(n - 1)``, ``A S_r A^T`` has the same eigenvalues, and is a part of ``X S_r X^T``.

    Args:
        members: `[K, N]` bool, two or more in each row.
        features: `[N, D]` float64.
        reference: of :func:`moments`.

    >>> x, everyone = torch.tensor([[0.0], [2.0]]).double(), torch.ones(1, 2, dtype=torch.bool)
    >>> frechet(everyone, x, moments(x + 3)).round(decimals=9)  # the same spread, 3 away
    tensor([9.], dtype=torch.float64)
    """
    mean, covariance = reference
    x = features - mean  # near 0, so that sums of squares lose little
    rows = members.to(x)
    n = rows.sum(dim=1)
    centre = rows @ x / n[:, None]
    spread = (rows @ x.square().sum(dim=1) - n * centre.square().sum(dim=1)) / (n - 1)
    roots = (_roots_of_samples if x.shape[0] <= x.shape[1] else _roots_of_moments)(members, x, covariance)
    return centre.square().sum(dim=1) + spread + covariance.trace() - 2 * roots


def _roots_of_samples(members: Tensor, x: Tensor, covariance: Tensor) -> Tensor:
    gram, traces = x @ covariance @ x.T, []
    for row in members:
        part = gram[row][:, row]
        part = part - part.mean(dim=0) - part.mean(dim=1, keepdim=True) + part.mean()
        traces.append(_trace_of_root(part / (len(part) - 1)))
    return torch.stack(traces)


def _roots_of_moments(members: Tensor, x: Tensor, covariance: Tensor) -> Tensor:
    values, vectors = torch.linalg.eigh(covariance)
    x = x @ (vectors * values.clamp(min=0).sqrt()) @ vectors.T  # times S_r^(1/2): its covariance is the product's
    everyone, traces = x.T @ x, []
    for row in members:
        out, n, mean = x[~row], int(row.sum()), x[row].mean(dim=0)
        traces.append(_trace_of_root((everyone - out.T @ out - n * mean.outer(mean)) / (n - 1)))
    return torch.stack(traces)


def _trace_of_root(matrix: Tensor) -> Tensor:
    return torch.linalg.eigvalsh(matrix).clamp(min=0).sqrt().sum()


def vendi(members: Tensor, kernel: Tensor) -> Tensor:
    """The Vendi score of subsets, `[K]`: how many different samples there are, from 1 to n.

        exp(-sum_i l_i log l_i), l the eigenvalues of K / n

    See https://arxiv.org/abs/2210.02410.

    Args:
        members: `[K, N]` bool, one or more in each row.
        kernel: `[N, N]` a similarity, positive semidefinite, 1 on the diagonal.

    >>> vendi(torch.tensor([[True, True, False], [True, True, True]]), torch.eye(3))
    tensor([2., 3.])
    """
    scores = []
    for row in members:
        values = torch.linalg.eigvalsh(kernel[row][:, row] / row.sum()).clamp(min=0)
        scores.append(torch.special.entr(values).sum().exp())
    return torch.stack(scores)


def leave_out(subsets: Tensor) -> Tensor:
    """Everyone, and everyone but each subset: from `[K, N]` to `[1 + K, N]`.

    >>> leave_out(torch.eye(2, dtype=torch.bool)).int()
    tensor([[1, 1],
            [0, 1],
            [1, 0]], dtype=torch.int32)
    """
    return torch.cat([torch.ones_like(subsets[:1]), ~subsets])


def replace(subsets: Tensor, pool: int) -> Tensor:
    """A pool of samples, and the pool with its first ones replaced by each subset, as many: `[1 + K, pool + N]`.

    Raises:
        ValueError: a subset is as large as the pool, or larger.

    >>> replace(torch.eye(2, dtype=torch.bool), 3).int()  # the pool's columns come first
    tensor([[1, 1, 1, 0, 0],
            [0, 1, 1, 1, 0],
            [0, 1, 1, 0, 1]], dtype=torch.int32)
    """
    sizes = subsets.sum(dim=1)
    if int(sizes.max()) >= pool:
        raise ValueError(f"wanted a pool of more than {int(sizes.max())} samples, got {pool}")
    kept = torch.arange(pool) >= sizes[:, None]
    first = torch.cat([torch.ones(1, pool, dtype=torch.bool), torch.zeros_like(subsets[:1])], dim=1)
    return torch.cat([first, torch.cat([kept, subsets], dim=1)])
