"""flowrl.evaluation: fixed seeds, the stock sampler, and diversity."""

from __future__ import annotations

import math

import pytest
import torch

from flowrl import kernels
from flowrl.adapters import LoRA
from flowrl.data import PromptRow
from flowrl.evaluation import Setting, diversity, evaluate
from flowrl.policy import Policy
from flowrl.reward import RewardSet

from . import runs, tiny

ROWS = [PromptRow(row, text, {}, f"p.txt:{row + 1}") for row, text in enumerate(["a red circle", "two blue squares"])]


def _evaluate(kernel: kernels.Kernel, micro_batch_size: int = 4):
    policy = Policy(tiny.sd3(), kernel=kernel, lora=LoRA(rank=2))
    rewards = RewardSet.from_config({runs.reward("brightness"): 1.0})
    setting = Setting(2, 4, 1.0, micro_batch_size, seed=0, call={})
    return evaluate(policy, ROWS, rewards, setting), policy


def test_diversity_by_hand():
    """The mean over pairs of the root of the mean squared pixel difference."""
    # Samples 0, 0 and 1 everywhere: distances 0, 1, 1 over three pairs.
    images = torch.tensor([0.0, 0.0, 1.0]).view(1, 3, 1, 1, 1).expand(1, 3, 3, 4, 4)
    assert diversity(images) == pytest.approx(2 / 3)
    assert diversity(images[:, :2]) == 0
    assert math.isnan(diversity(images[:, :1]))


def test_training_settings_do_not_touch_an_evaluation():
    """Whatever the kernel and its noise, an evaluation samples the stock pipeline with the same seeds."""
    (quiet, policy), (noisy, _) = _evaluate(kernels.ode()), _evaluate(kernels.flow_sde(1.0))
    assert quiet.metrics == noisy.metrics
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(quiet.images, noisy.images, strict=True))
    assert policy.denoiser_calls == 0


def test_every_prompt_is_counted_once():
    """A micro-batch size that does not divide the samples changes nothing: four scores, two kept pictures."""
    (whole, _), (cut, _) = _evaluate(kernels.ode()), _evaluate(kernels.ode(), micro_batch_size=3)
    assert [record["row"] for record in whole.records] == [0, 1]
    assert len(whole.images) == 2
    for name, value in whole.metrics.items():
        assert cut.metrics[name] == pytest.approx(value, abs=1e-5)
