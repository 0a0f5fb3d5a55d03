"""Tests of `flowrl.trajectory`: a rollout holds its tensors and nothing more."""

import pytest
import torch

from flowrl.trajectory import own

from . import tiny

every_stochastic = pytest.mark.parametrize(("pipeline", "kernel"), tiny.STOCHASTIC)


def sizes(tensors):
    """Bytes of different tensors."""
    return sum(tensor.numel() * tensor.element_size() for tensor in {id(t): t for t in tensors}.values())


def held(rollout):
    """Every tensor of the recorded transitions."""
    return [tensor for t in rollout.transitions.values() for tensor in (t.x, t.x_next, t.log_prob)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@every_stochastic
def test_bytes_of_transitions(pipeline, kernel, dtype):
    """T transitions in a row share latents: they hold T + 1 latents, and T log-probabilities a sample."""
    steps = range(tiny.STEPS - 1)
    rollout = tiny.policy(pipeline, kernel, dtype=dtype).rollout(**tiny.arguments(pipeline), train_steps=steps)
    # 2 samples; each latent 4 x 8 x 8 (FLUX: 16 x 16) elements of 4 or 2 bytes, each log-probability 4 bytes.
    wanted = 5 * 2 * 256 * dtype.itemsize + 4 * 2 * 4
    assert rollout.transition_bytes() == sizes(held(rollout)) == wanted
    for step in steps[1:]:
        assert rollout.transitions[step].x is rollout.transitions[step - 1].x_next


def test_bytes_of_steps_with_a_gap():
    """Steps 0 and 2 share nothing: 2 samples x (4 latents of 1024 bytes + 2 log-probabilities of 4 bytes)."""
    rollout = tiny.policy("sd3", "flow_sde").rollout(**tiny.arguments("sd3"), train_steps=[0, 2])
    assert rollout.transition_bytes() == sizes(held(rollout)) == 2 * (4 * 1024 + 2 * 4)


@every_stochastic
def test_no_hidden_copies(pipeline, kernel):
    """Each tensor of a rollout owns exactly its storage and no graph; the final latents are the last step's."""
    rollout = tiny.policy(pipeline, kernel).rollout(**tiny.arguments(pipeline), train_steps=[0, 3], noise_steps=[0, 3])
    for tensor in (*held(rollout), rollout.latents, rollout.images):
        assert tensor.untyped_storage().nbytes() == tensor.numel() * tensor.element_size()
        assert tensor.grad_fn is None
        assert not tensor.requires_grad


@every_stochastic
def test_places_and_stds(pipeline, kernel):
    """The rollout tells the whole schedule; a transition's place and std are those of its step."""
    policy = tiny.policy(pipeline, kernel)
    rollout = policy.rollout(**tiny.arguments(pipeline), train_steps=[1, 3])
    assert len(rollout) == len(rollout.prompts) == 2
    assert [place.step for place in rollout.places] == list(range(tiny.STEPS))
    assert list(rollout.stds) == [policy.kernel.std(place) for place in rollout.places]
    for step, transition in rollout.transitions.items():
        assert transition.place == rollout.places[step]
        assert transition.std == rollout.stds[step]
    sigmas = [place.sigma for place in rollout.places]
    assert sigmas == sorted(sigmas, reverse=True)
    assert [place.sigma_next for place in rollout.places[:-1]] == pytest.approx(sigmas[1:])


def test_own():
    """A tensor that owns its storage is kept; a part of another is copied, or it would keep the whole alive."""
    whole = torch.arange(6.0)
    assert own(whole) is whole
    assert own(whole.reshape(2, 3)).data_ptr() == whole.data_ptr()
    part = own(whole[:2])
    assert part.tolist() == [0, 1]
    assert part.untyped_storage().nbytes() == 8


def test_transition_bytes_shows_views():
    """A view that keeps a larger tensor alive counts with the whole of it."""
    rollout = tiny.policy("sd3", "flow_sde").rollout(**tiny.arguments("sd3"), train_steps=[0])
    before, (transition,) = rollout.transition_bytes(), rollout.transitions.values()
    with_view = torch.zeros(10 * transition.x.numel())[: transition.x.numel()].view_as(transition.x)
    object.__setattr__(transition, "x", with_view)
    assert rollout.transition_bytes() == before + 9 * sizes([transition.x_next])
