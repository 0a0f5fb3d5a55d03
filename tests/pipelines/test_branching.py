"""Shared trajectories of pipelines of other kinds than the tiny ones: exact, and counted."""

import pytest
import torch

from flowrl import kernels
from flowrl.adapters import LoRA
from flowrl.branching import Tree, rollout_tree
from flowrl.policy import Policy

from .cases import CASES

NAMES = (
    "ZImagePipeline",  # samples in lists
    "WanPipeline",
    "WanImageToVideoPipeline",
    "CogVideoXPipeline",
    "HiDreamImagePipeline",
    "Lumina2Pipeline",
    "StableDiffusion3Img2ImgPipeline",  # starts in the middle
    "StableDiffusionControlNetPipeline",  # a frozen part that is called at each step
)


def alike(case, count):
    """The case's arguments for samples that are all the first one."""
    one, many = dict(case.call(1)), dict(case.call(count))
    for name, value in many.items():
        first = one.get(name)
        if isinstance(value, torch.Tensor) and value.shape != first.shape:
            many[name] = first.repeat_interleave(count, 0)
        elif isinstance(value, list) and isinstance(first, list) and len(value) > len(first) == 1:
            many[name] = first * count
    return many


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # diffusers' own: deprecated classes and arguments
@pytest.mark.parametrize("guidance", ["off", "on"])
@pytest.mark.parametrize("name", NAMES)
def test_branching(name, guidance):
    """Two splits of a group of four cost 1 + 2 + 4 + 4 ... trajectories, and every shared step replays exactly."""
    case = CASES[name]
    if guidance not in case.guidance:
        pytest.skip(f"{name} has no guidance to turn {guidance}")
    lora = LoRA(rank=2, alpha=6.0, targets=case.targets)
    policy = Policy(case.build(), kernel=kernels.KERNELS[case.kernel](), trainable=case.trainable, lora=lora)
    call = {"steps": case.steps, **case.guidance[guidance]}
    start = policy.rollout(["a red circle"], seeds=[0], train_steps=(), **case.call(1), **call).start
    (each, rest), policy.denoiser_calls = divmod(policy.denoiser_calls, case.steps - start), 0
    assert rest == 0
    tree = Tree(4, [start, start + 1])
    rollout = rollout_tree(policy, ["a red circle"] * 4, seeds=range(4), tree=tree, **alike(case, 4), **call)
    assert policy.denoiser_calls == each * (1 + 2 + 4 * (case.steps - start - 2))
    assert [rollout.leaves(step) for step in (start, start + 1)] == [2, 1]
    for step, transition in rollout.transitions.items():
        assert torch.equal(policy.replay(rollout, step).log_prob, transition.log_prob)
