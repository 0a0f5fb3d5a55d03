"""Set rewards in whole runs, in evaluations, and where they are refused before weights load."""

import json

import pytest
import torch
from typer.testing import CliRunner

from flowrl.cli import app
from flowrl.errors import UserError
from flowrl.objectives.stepwise_grpo import StepwiseGRPO
from flowrl.preflight import check_gradients, check_media, make_rewards, preflight
from flowrl.reward import RewardSet

from . import runs
from .test_set_reward import Centred

UNLIKE, DARKEST = "tests.test_set_runs:Unlike", "tests.test_set_runs:Darkest"


class Unlike(Centred):
    """Brightness less the group's mean."""


class Darkest(Centred):
    """The same over the step; its number is the least brightness."""

    scope = "step"
    higher_is_better = False

    def __init__(self):
        super().__init__("step")

    def measure(self, members):
        return float(members.features.min())


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """The folder of a tiny random SD3 pipeline."""
    return runs.save_model(tmp_path_factory.mktemp("tiny"))


def test_a_run_trains_on_groups_and_steps(model, tmp_path):
    """Both kinds beside a plain reward: group and step means are 0, and an evaluation has the number of the set."""
    rewards = {runs.reward("brightness"): 0.0, UNLIKE: 1.0, DARKEST: 0.5}
    config = runs.recipe(model, tmp_path / "run", "max_steps=2", "micro_batch_size=3", rewards=rewards)
    runs.train(config)
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    step, evaluation = lines[1], lines[-1]
    for name in (UNLIKE, DARKEST):
        assert step[f"reward/{name}/mean"] == pytest.approx(0, abs=1e-6)
        assert step[f"reward/{name}/failures"] == 0
    assert step["grad_norm"] > 0
    plain = runs.reward("brightness")
    mean, std = evaluation[f"eval/{plain}/mean"], evaluation[f"eval/{plain}/std"]
    assert mean - 3 * std <= evaluation[f"eval/{DARKEST}/mean"] <= mean  # the least of all, and no mean of 0
    assert f"eval/{DARKEST}/std" not in evaluation
    assert evaluation[f"eval/{UNLIKE}/mean"] == pytest.approx(0, abs=1e-6)
    assert f"eval/{UNLIKE}/std" in evaluation


def test_a_cache_is_refused(model, tmp_path):
    """Before weights load: a score by the others of its group is no property of the picture."""
    config = runs.recipe(model, tmp_path / "run", f"reward_cache={tmp_path / 'cache'}", rewards={UNLIKE: 1.0})
    with pytest.raises(UserError, match=r"Unlike' scores a sample by the others of its group.*leave reward_cache out"):
        preflight(config)
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize("command", [["serve", UNLIKE], ["score", "{folder}", "--reward", UNLIKE]])
def test_serving_and_lists_of_files_are_refused(command, tmp_path):
    """Neither sees a whole group."""
    command = [part.format(folder=tmp_path) for part in command]
    result = CliRunner().invoke(app, ["rewards", *command])
    assert result.exit_code == 2
    assert "needs all pictures of a group at once" in " ".join(result.stderr.split())


def test_a_pipeline_for_videos_is_refused():
    """Where it is known to draw them."""
    rewards = RewardSet(("c",), (Centred(),), torch.ones(1))
    with pytest.raises(UserError, match="the pipeline draws videos"):
        check_media("WanPipeline", [rewards])
    check_media("StableDiffusion3Pipeline", [rewards])
    check_media(None, [rewards])


def test_objectives_that_score_pictures_of_their_own_are_refused(model, tmp_path):
    """They do so by micro-batch; at weight 0 the reward is only watched."""
    config = runs.recipe(model, tmp_path, "objective.name=stepwise_grpo", rewards={UNLIKE: 1.0})
    with pytest.raises(UserError, match="scores pictures of its own, micro-batch by micro-batch"):
        check_gradients(config, StepwiseGRPO(), make_rewards(config.rewards))
    rewards = {UNLIKE: 0.0, runs.reward("brightness"): 1.0}
    config = runs.recipe(model, tmp_path, "objective.name=stepwise_grpo", rewards=rewards)
    check_gradients(config, StepwiseGRPO(), make_rewards(config.rewards))
