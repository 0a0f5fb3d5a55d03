"""The self-test of rewards: sick ones are found, each by the check that is meant for it."""

import gc

import pytest
import torch

from flowrl import plugins
from flowrl.config import RewardOptions
from flowrl.reward import Reward, RewardBatch
from flowrl.reward_checks import CHECKS, PeakMemory, probe, self_test

REWARDS = """
import torch
from flowrl.errors import UserError
from flowrl.reward import Reward, RewardBatch


def pictures(level):
    images = torch.full((2, 3, 8, 8), level) + torch.tensor([0.0, 0.1]).view(2, 1, 1, 1)
    return RewardBatch(images, ["a", "b"], [{}, {}])


class Healthy(Reward):
    range = (0.0, 1.0)
    differentiable = True

    def __call__(self, batch):
        return batch.images.mean(dim=(1, 2, 3))

    def examples(self):
        return pictures(0.8), pictures(0.1)


class Neighbours(Healthy):
    range = (-9.0, 9.0)

    def __call__(self, batch):
        return super().__call__(batch) - 0.5 * super().__call__(batch).mean()


class Declared(Neighbours):
    cacheable = False


class ByPlace(Healthy):
    range = (-9.0, 9.0)

    def __call__(self, batch):
        return super().__call__(batch) + 0.1 * torch.arange(len(batch))


class OutOfRange(Healthy):
    range = (0.0, 0.5)


class Undeclared(Healthy):
    differentiable = False


class Detached(Healthy):
    def __call__(self, batch):
        return super().__call__(batch).detach()


class Flat(Healthy):
    def __call__(self, batch):
        return super().__call__(batch).detach() + 0 * batch.images.sum()


class Numpy(Healthy):
    differentiable = False

    def __call__(self, batch):
        return torch.from_numpy(batch.images.numpy().mean(axis=(1, 2, 3)))


class Sometimes(Healthy):
    def __call__(self, batch):
        scores = super().__call__(batch)
        return scores if len(batch) > 1 else scores * float("nan")


class NoWeights(Healthy):
    def __init__(self):
        raise UserError("weights of it are not there")


class Crash(Healthy):
    def __init__(self):
        raise OSError("disk")


class Bare(Healthy):
    def examples(self):
        return None


class Needy(Bare):
    needs = frozenset({"target"})


def plain(images, prompts, metadata):
    return images.mean(dim=(1, 2, 3))


def video(videos, prompts, metadata):
    return videos.mean(dim=(1, 2, 3, 4))
"""


@pytest.fixture
def found(tmp_path):
    """The states and details of a reward's checks."""
    path = tmp_path / "rewards.py"
    path.write_text(REWARDS)

    def run(name, **how):
        findings = list(self_test(f"{path}:{name}", **how))
        assert {finding.topic for finding in findings} == {f"{path}:{name}"}
        return {finding.name: (finding.state, finding.detail) for finding in findings}

    return run


def failing(findings) -> list[str]:
    """The checks that fail."""
    return [name for name, (state, _) in findings.items() if state == "FAIL"]


def test_a_healthy_reward(found):
    """Every check is made, and passes."""
    findings = found("Healthy")
    assert list(findings) == ["made", "separation", *CHECKS]
    assert failing(findings) == []
    # Example pictures: .8 and .9 are good, .1 and .2 are bad; nothing but rounding differs.
    assert findings["separation"] == ("ok", "positive 0.8 to 0.9, negative 0.1 to 0.2")
    assert findings["bounds"][1].startswith("scores 0.1 to 0.9, declared 0 to 1")
    assert findings["gradient"] == ("ok", "reaches the pictures")
    assert "4 x 3 x 8 x 8" in findings["cost"][1]


@pytest.mark.parametrize(
    ("name", "checks", "detail"),
    [
        # Pictures .8 .9 .1 .2 with the mean .5: .9 - .25 among others, .9 - .45 alone.
        ("Neighbours", ["singles"], "differ by 0.2; the largest score is 0.45"),
        ("ByPlace", ["singles", "permutation"], "two orders of a batch differ by 0.3"),
        ("OutOfRange", ["bounds"], "scores 0.1 to 0.9, declared 0 to 0.5"),
        ("Undeclared", ["gradient"], "write differentiable = True"),
        ("Detached", ["gradient"], "none reaches the pictures"),
        ("Flat", ["gradient"], "none reaches the pictures"),
        ("Sometimes", ["singles"], "differ in what could be scored"),
        ("Crash", ["made"], "OSError: disk"),
        ("NoWeights", ["made"], "not available: weights of it are not there"),
        ("Nobody", ["made"], "there is no 'Nobody'"),
    ],
)
def test_sick_rewards(name, checks, detail, found):
    """The check that is meant for it fails, and no other."""
    findings = found(name)
    assert failing(findings) == checks
    assert detail in findings[checks[-1]][1]


def test_weights_that_are_absent_can_be_a_note(found):
    """Under ``--all`` it is no failure; a reward that crashes is."""
    assert found("NoWeights", if_missing="note")["made"][0] == "note"
    assert found("Crash", if_missing="note")["made"][0] == "FAIL"


@pytest.mark.parametrize("name", ["Numpy", "Bare", "plain", "video"])
def test_other_healthy_rewards(name, found):
    """No way through for gradients, no example pictures, plain functions of pictures and of videos."""
    assert failing(found(name)) == []


def test_what_cannot_be_checked_is_noted(found):
    """Scores that depend on neighbours by declaration; metadata that nobody knows."""
    findings = found("Declared")
    assert failing(findings) == []
    assert findings["singles"][0] == findings["permutation"][0] == "note"
    assert found("Needy")["contract"][0] == "note"


@pytest.mark.parametrize("name", ["jpeg", "jpeg_incompressibility", "shapes", "shapes_partial"])
def test_built_in_rewards_pass(name):
    """Ours keep their own contract."""
    findings = list(self_test(name, RewardOptions()))
    assert [finding for finding in findings if finding.state == "FAIL"] == []
    assert len(findings) == 2 + len(CHECKS)


def test_probes():
    """Both kinds of example in one batch; of different sizes, the larger kind."""

    class Two(Reward):
        shapes = ((1, 3, 8, 8), (2, 3, 8, 8))

        def __call__(self, batch):
            return torch.zeros(len(batch))

        def examples(self):
            return tuple(RewardBatch(torch.zeros(shape), ["a"] * shape[0], [{}] * shape[0]) for shape in self.shapes)

    reward = Two()
    assert len(probe(reward)) == 3
    reward.shapes = ((1, 3, 8, 8), (2, 3, 4, 4))
    assert len(probe(reward)) == 2
    assert len(probe(plugins.load("rewards", "jpeg")())) == 2


def test_peak_memory_sees_what_is_freed_again():
    """A block of 64 MB that is gone at the end was there in between."""
    gc.collect()  # or what an earlier test left is freed in between
    with PeakMemory() as memory:
        block = torch.ones(16 * 2**20)
        memory._most = max(memory._most, memory._now())  # the thread may not have had its turn
        del block
    assert memory.bytes > 48 * 2**20
    assert str(memory).endswith("MB at its peak")
