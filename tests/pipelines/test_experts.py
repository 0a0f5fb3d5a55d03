"""Two experts: each trains inside its own range of noise levels, and both are exported."""

import pytest
import torch
from safetensors.torch import load_file

from flowrl.adapters import WEIGHTS_FILE

from .cases import CASES
from .cases.wan import BOUNDARY
from .conformance import PROMPTS, SEEDS, arguments, documented_scheduler, policy, stock_pictures

NAMES = ("WanPipeline[two experts]", "WanImageToVideoPipeline[two experts]")


def rollout_of(case, made, **choice):
    """A rollout with guidance."""
    return made.rollout(
        PROMPTS[: case.samples], seeds=SEEDS[: case.samples], steps=case.steps, **arguments(case, "on"), **choice
    )


@pytest.mark.filterwarnings("ignore")  # diffusers' own
@pytest.mark.parametrize("name", NAMES)
def test_a_step_trains_the_expert_in_charge_and_no_other(name):
    """Above the boundary the gradients are the first expert's, below it the second's; each has steps of its own."""
    case = CASES[name]
    made = policy(case)
    rollout = rollout_of(case, made)
    trained = {"transformer": [], "transformer_2": []}
    for step, transition in rollout.transitions.items():
        for parameter in made.parameters.values():
            parameter.grad = None
        made.replay(rollout, step).log_prob.sum().backward()
        reached = {key.partition(".")[0] for key, parameter in made.parameters.items() if parameter.grad is not None}
        wanted = "transformer" if transition.place.timestep >= BOUNDARY * 1000 else "transformer_2"
        assert reached == {wanted}
        silent = [key for key, parameter in made.parameters.items() if key.startswith(f"{wanted}.")]
        assert all(made.parameters[key].grad.abs().max() > 0 for key in silent)
        trained[wanted].append(step)
    assert all(trained.values()), f"an expert has no step of its own: {trained}"


@pytest.mark.filterwarnings("ignore")
def test_one_prediction_asks_one_expert():
    """`predict` at a level asks the expert of that level, wherever the rollout stood."""
    case = CASES[NAMES[0]]
    made = policy(case)
    rollout = rollout_of(case, made, train_steps=())
    for sigma, wanted in ((0.95, "transformer"), (0.3, "transformer_2")):
        for parameter in made.parameters.values():
            parameter.grad = None
        made.predict(rollout, rollout.latents, sigma).sum().backward()
        reached = {key.partition(".")[0] for key, parameter in made.parameters.items() if parameter.grad is not None}
        assert reached == {wanted}


@pytest.mark.filterwarnings("ignore")
def test_both_experts_travel(tmp_path):
    """One file holds both; a fresh pipeline loads each expert's part of it, and draws what the policy draws."""
    case = CASES[NAMES[0]]
    made = policy(case)
    ours = rollout_of(case, made, train_steps=(), noise_steps=()).images
    path = made.save_lora(tmp_path)
    assert path == tmp_path / WEIGHTS_FILE
    assert {key.partition(".")[0] for key in load_file(path)} == {"transformer", "transformer_2"}

    fresh = case.build()
    fresh.scheduler, _ = documented_scheduler(fresh.scheduler)
    bare = stock_pictures(case, fresh, "on")
    fresh.load_lora_weights(tmp_path)  # the first expert's keys only
    first = stock_pictures(case, fresh, "on")
    fresh.transformer_2.load_lora_adapter(load_file(path), prefix="transformer_2")
    both = stock_pictures(case, fresh, "on")
    torch.testing.assert_close(both, ours, rtol=0, atol=1e-5)
    assert not torch.allclose(bare, first, atol=1e-4)
    assert not torch.allclose(first, both, atol=1e-4)
