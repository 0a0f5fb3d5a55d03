"""Distances and diversity of many subsets at once equal those of each subset alone, and closed forms."""

import math

import pytest
import torch

from flowrl.rewards import _sets


def normal(count, width, seed=0, shift=0.0, scale=1.0):
    """Samples of a normal distribution, float64."""
    generator = torch.Generator().manual_seed(seed)
    return shift + scale * torch.randn(count, width, generator=generator, dtype=torch.float64)


def random_rows(count, width, seed=0):
    """Subsets with about two thirds of the samples."""
    return torch.rand(count, width, generator=torch.Generator().manual_seed(seed)) < 0.67


def frechet_by_roots(x, y):
    """The distance from matrix roots alone: tr (S T)^(1/2) by the eigenvalues of the product."""
    (mu, s), (nu, t) = _sets.moments(x), _sets.moments(y)
    roots = torch.linalg.eigvals(s @ t).real.clamp(min=0).sqrt().sum()
    return (mu - nu).square().sum() + s.trace() + t.trace() - 2 * roots


@pytest.mark.parametrize(("count", "width"), [(40, 6), (12, 20)])
def test_frechet_of_subsets_is_that_of_each_alone(count, width):
    """More samples than features, and fewer: the two ways that it is computed, against a third."""
    x, y, members = normal(count, width, 1, shift=5.0), normal(200, width, 2, scale=2.0), random_rows(7, count)
    found = _sets.frechet(members, x, _sets.moments(y))
    wanted = torch.stack([frechet_by_roots(x[row], y) for row in members])
    torch.testing.assert_close(found, wanted, rtol=1e-6, atol=1e-6)


def test_frechet_in_one_dimension():
    """(mu - mu_r)^2 + (sd - sd_r)^2: of (0, 2) and (3, 9) it is 25 + (sqrt 2 - sqrt 18)^2 = 25 + 8."""
    x, y = torch.tensor([[0.0], [2.0]]).double(), torch.tensor([[3.0], [9.0]]).double()
    assert float(_sets.frechet(torch.ones(1, 2, dtype=torch.bool), x, _sets.moments(y))) == pytest.approx(33)


def test_frechet_of_diagonal_gaussians():
    """It adds up over the axes: with the reference's mean and four times its covariance, sum of (2 s - s)^2 = tr S."""
    x = normal(300, 4, 3)
    found = _sets.frechet(
        torch.ones(1, 300, dtype=torch.bool), x.mean(dim=0) + 2 * (x - x.mean(dim=0)), _sets.moments(x)
    )
    assert float(found) == pytest.approx(float(_sets.moments(x)[1].trace()), rel=1e-9)


def mmd_by_loops(x, y, kernel):
    """The three means, pair by pair."""
    n, m = len(x), len(y)
    one = lambda a, b: float(kernel(a[None], b[None]))  # noqa: E731
    first = sum(one(x[i], x[j]) for i in range(n) for j in range(n) if i != j) / (n * (n - 1))
    second = sum(one(y[i], y[j]) for i in range(m) for j in range(m) if i != j) / (m * (m - 1))
    return first + second - 2 * sum(one(a, b) for a in x for b in y) / (n * m)


@pytest.mark.parametrize("kernel", [_sets.polynomial_kernel, lambda x, y: _sets.rbf_kernel(x, y, 1.5)])
def test_mmd_of_subsets_is_that_of_each_alone(kernel):
    """The closed form in the sums of the kernel, against loops."""
    x, y, members = normal(8, 3, 1), normal(6, 3, 2, shift=1.0), random_rows(4, 8)
    found = _sets.squared_mmd(members, kernel(x, x), kernel(x, y), _sets.mean_of_pairs(kernel(y, y)))
    assert found.tolist() == pytest.approx([mmd_by_loops(x[row], y, kernel) for row in members], abs=1e-6)


def test_kid_of_one_distribution_is_unbiased():
    """Over 400 draws of two samples of one distribution the mean is within three standard errors of 0; a shift is not.

    The biased estimate, with the diagonals, has no such mean: it is at least 0 each time.
    """
    kernel, everyone = _sets.polynomial_kernel, torch.ones(1, 8, dtype=torch.bool)

    def draws(shift):
        found = []
        for seed in range(400):
            x, y = normal(8, 4, 2 * seed, shift=shift), normal(10, 4, 2 * seed + 1)
            found.append(_sets.squared_mmd(everyone, kernel(x, x), kernel(x, y), _sets.mean_of_pairs(kernel(y, y))))
        return torch.cat(found)

    same, other = draws(0.0), draws(1.0)
    assert abs(float(same.mean())) < 3 * float(same.std()) / 20
    assert bool((same < 0).any())
    assert float(other.mean()) > 10 * float(other.std()) / 20


def test_vendi_by_hand():
    """Two equal and one different: eigenvalues 2/3, 1/3 and 0, exp(2/3 log 3/2 + 1/3 log 3) = 1.8899."""
    kernel = torch.tensor([[1.0, 1.0, 0.0], [1.0, 1.0, 0.0], [0.0, 0.0, 1.0]]).double()
    rows = torch.tensor([[True, True, True], [True, True, False], [True, False, True], [True, False, False]])
    wanted = [math.exp(2 / 3 * math.log(3 / 2) + math.log(3) / 3), 1.0, 2.0, 1.0]
    assert _sets.vendi(rows, kernel).tolist() == pytest.approx(wanted, abs=1e-6)


def test_the_order_of_the_samples_changes_nothing():
    """All three, with the columns of the subsets in the same order."""
    x, y, members = normal(9, 4, 1), normal(20, 4, 2), random_rows(5, 9)
    order = torch.randperm(9, generator=torch.Generator().manual_seed(3))
    kernel = _sets.polynomial_kernel
    for measure in (
        lambda rows, x: _sets.frechet(rows, x, _sets.moments(y)),
        lambda rows, x: _sets.squared_mmd(rows, kernel(x, x), kernel(x, y), _sets.mean_of_pairs(kernel(y, y))),
        lambda rows, x: _sets.vendi(rows, _sets.rbf_kernel(x, x, 1.0)),
    ):
        torch.testing.assert_close(measure(members[:, order], x[order]), measure(members, x))


def test_a_pool_must_be_larger_than_what_replaces_it():
    """Or nothing of it is left to compare with."""
    with pytest.raises(ValueError, match="wanted a pool of more than 2 samples, got 2"):
        _sets.replace(torch.ones(1, 2, dtype=torch.bool), 2)
