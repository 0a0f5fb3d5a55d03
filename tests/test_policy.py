"""Tests of `flowrl.policy`: the seam, over every kernel and every tiny pipeline that it fits."""

from functools import cache

import pytest
import torch
from diffusers import (
    DPMSolverMultistepScheduler,
    EulerDiscreteScheduler,
    FluxPriorReduxPipeline,
    LCMScheduler,
    PNDMScheduler,
    StableDiffusion3PAGPipeline,
)

from flowrl import kernels
from flowrl.adapters import LoRA
from flowrl.errors import UserError
from flowrl.kernels import KERNELS
from flowrl.policy import Policy, SeededNoise

from . import tiny
from .pipelines.cases import CASES

every_pipeline = pytest.mark.parametrize("pipeline", list(tiny.PIPELINES))
every_stochastic = pytest.mark.parametrize(("pipeline", "kernel"), tiny.STOCHASTIC)
guidance = pytest.mark.parametrize("guided", [False, True], ids=["unguided", "guided"])
FITTING = dict(reversed(tiny.STOCHASTIC))


@cache
def shared(pipeline, kernel=None, dtype=torch.float32):
    """A policy with a LoRA that acts, for tests that change nothing."""
    return tiny.policy(pipeline, kernel or FITTING[pipeline], dtype=dtype)


def like(x, *, seed=0):
    """Noise in the shape of latents."""
    return torch.randn(x.shape, generator=torch.Generator().manual_seed(seed))


@guidance
@every_pipeline
@pytest.mark.parametrize("kernel", list(KERNELS))
def test_noise_zero_gives_the_stock_latents(pipeline, kernel, guided):
    """At noise 0 every kernel gives the final latents of an untouched pipeline bit for bit, on its own schedule."""
    policy = tiny.policy(pipeline, kernel, noise_level=None if kernel == "ode" else 0.0, b=0.0)
    arguments = tiny.arguments(pipeline, guided=guided)
    rollout = policy.rollout(**arguments)
    assert torch.equal(rollout.latents, tiny.stock(pipeline, **arguments))
    assert rollout.transitions == {}  # nothing stochastic, so nothing to train


@every_stochastic
def test_no_noise_steps_gives_the_stock_latents(pipeline, kernel):
    """The same with a kernel that has noise and a rollout that asks for none."""
    arguments = tiny.arguments(pipeline)
    rollout = tiny.policy(pipeline, kernel, b=0.0).rollout(noise_steps=(), **arguments)
    assert torch.equal(rollout.latents, tiny.stock(pipeline, **arguments))


@every_pipeline
def test_noise_zero_gives_the_stock_latents_in_bfloat16(pipeline):
    """The stock step is taken in the dtypes of the stock step."""
    dtype, arguments = torch.bfloat16, tiny.arguments(pipeline)
    rollout = tiny.policy(pipeline, "ode", b=0.0, dtype=dtype).rollout(**arguments)
    assert rollout.latents.dtype == dtype
    assert torch.equal(rollout.latents, tiny.stock(pipeline, dtype=dtype, **arguments))


@guidance
@every_pipeline
def test_sample_is_the_stock_pipeline(pipeline, guided):
    """`Policy.sample` gives the pictures of an untouched pipeline bit for bit, whatever the kernel."""
    policy = tiny.policy(pipeline, FITTING[pipeline], b=0.0)
    arguments = tiny.arguments(pipeline, guided=guided)
    assert torch.equal(policy.sample(**arguments), tiny.stock(pipeline, output_type="pt", **arguments))


@pytest.mark.parametrize("count", [1, 2, 5])
@guidance
@every_stochastic
def test_replayed_log_prob_is_the_recorded_one(pipeline, kernel, guided, count):
    """Before an update the ratio is exactly 1, in float32, at every step, for every size of micro-batch."""
    policy = shared(pipeline, kernel)
    steps = range(tiny.STEPS if pipeline == "sd15" else tiny.STEPS - 1)  # flow models end on sigma 0, without noise
    rollout = policy.rollout(**tiny.arguments(pipeline, guided=guided, count=count), train_steps=steps)
    assert sorted(rollout.transitions) == list(steps)
    for step, transition in rollout.transitions.items():
        assert torch.equal(policy.replay(rollout, step).log_prob, transition.log_prob)
        assert transition.log_prob.shape == (count,)
        assert transition.log_prob.isfinite().all()


@every_stochastic
def test_replayed_log_prob_in_bfloat16(pipeline, kernel):
    """In bfloat16 the log-ratio is at most 1e-3 for the same micro-batch."""
    policy = shared(pipeline, kernel, torch.bfloat16)
    rollout = policy.rollout(**tiny.arguments(pipeline))
    for step, transition in rollout.transitions.items():
        assert transition.x_next.dtype == torch.bfloat16
        assert transition.log_prob.dtype == torch.float32
        assert (policy.replay(rollout, step).log_prob - transition.log_prob).abs().max() <= 1e-3


@every_stochastic
def test_replay_after_an_update(pipeline, kernel):
    """A change of the weights moves the replayed log-probability, and gradients reach every LoRA tensor."""
    policy = tiny.policy(pipeline, kernel)
    rollout = policy.rollout(**tiny.arguments(pipeline), train_steps=[1])
    before = policy.replay(rollout, 1).log_prob
    before.sum().backward()
    assert [name for name, p in policy.parameters.items() if p.grad is None or not p.grad.any()] == []
    with torch.no_grad():
        for parameter in policy.parameters.values():
            parameter.sub_(parameter.grad.sign(), alpha=0.1)
    assert (policy.replay(rollout, 1).log_prob - before).abs().min() > 0


@every_stochastic
def test_every_step_is_finite(pipeline, kernel):
    """The first and the last step of a rollout are finite, and the last latents are the last step's."""
    rollout = shared(pipeline, kernel).rollout(**tiny.arguments(pipeline))
    assert rollout.transitions[0].log_prob.isfinite().all()
    assert rollout.transitions[max(rollout.transitions)].log_prob.isfinite().all()
    assert rollout.latents.isfinite().all()
    assert len(rollout.stds) == len(rollout.places) == tiny.STEPS
    assert rollout.stds[0] > 0
    assert 0 <= rollout.images.min() < rollout.images.max() <= 1
    assert rollout.images.dtype == torch.float32


@every_stochastic
def test_training_a_deterministic_step_is_refused(pipeline, kernel):
    """A step of std 0 has no log-probability; the message names it, before the denoiser runs."""
    policy = tiny.policy(pipeline, kernel)
    with pytest.raises(UserError, match="train_steps contains step 2, which is deterministic"):
        policy.rollout(**tiny.arguments(pipeline), train_steps=[1, 2], noise_steps=[0, 1])
    if pipeline != "sd15":  # whose schedule ends on alpha_cumprod 0.999, with a little noise
        with pytest.raises(UserError, match=r"step 4, which is deterministic.*Stochastic steps here: \[0, 1, 2, 3\]"):
            policy.rollout(**tiny.arguments(pipeline), train_steps=[tiny.STEPS - 1])
    assert policy.denoiser_calls == 0


@pytest.mark.parametrize("argument", ["train_steps", "noise_steps"])
@every_pipeline
def test_steps_outside_the_schedule_are_refused(pipeline, argument):
    """The message says which steps there are."""
    for steps, wanted in (([0, 5], r"contains \[5\]"), ([-1], r"contains \[-1\]"), ("odd", "is 'odd'; wanted 'all'")):
        with pytest.raises(UserError, match=f"{argument} {wanted}"):
            shared(pipeline).rollout(**tiny.arguments(pipeline), **{argument: steps})


def test_kernel_that_does_not_fit_the_model():
    """A kernel for the other kind of model is refused when the policy is made."""
    for pipeline in tiny.PIPELINES:
        for kernel in set(KERNELS) - {"ode"} - {fitting for name, fitting in tiny.STOCHASTIC if name == pipeline}:
            with pytest.raises(UserError, match=f"kernel '{kernel}' does not fit"):
                Policy(tiny.PIPELINES[pipeline](), kernel=KERNELS[kernel]())


def test_noise_of_a_sample_depends_on_its_seed_alone():
    """Neither the neighbours in the batch nor the dtype change what is drawn, and draws differ from one another."""
    x = torch.zeros(3, 2, 4)
    together, alone = SeededNoise([7, 8, 9]), SeededNoise([8])
    first, second = together(x), together(x)
    assert torch.equal(first[1:2], alone(x[:1]))
    assert torch.equal(second[1:2], alone(x[:1].bfloat16()))
    rows = [*first, *second]
    assert all(not torch.equal(a, b) for i, a in enumerate(rows) for b in rows[:i])
    # The initial noise of the same seed is another stream.
    assert not torch.equal(first[0], torch.randn(2, 4, generator=torch.Generator().manual_seed(7)))


def test_noise_for_another_number_of_latents():
    """Pipelines that make several pictures a prompt would share noise by accident: refused."""
    with pytest.raises(UserError, match="samples 2 latents for 1 seeds"):
        SeededNoise([0])(torch.zeros(2, 3))


@every_stochastic
def test_batch_composition_does_not_change_the_noise(pipeline, kernel):
    """A sample that is drawn alone starts from the same noise, and ends on the same latents up to rounding."""
    policy = shared(pipeline, kernel)
    arguments = {**tiny.arguments(pipeline, guided=False), "prompts": ["a red circle"] * 2}
    both = policy.rollout(**arguments)
    alone = policy.rollout(**{**arguments, "prompts": ["a red circle"], "seeds": arguments["seeds"][1:]})
    assert torch.equal(both.transitions[0].x[1:], alone.transitions[0].x)
    torch.testing.assert_close(both.latents[1:], alone.latents, rtol=1e-4, atol=1e-4)


@every_stochastic
def test_latent_seeds(pipeline, kernel):
    """Equal latent_seeds share the initial noise and nothing else."""
    arguments = {**tiny.arguments(pipeline), "prompts": ["a red circle"] * 2}
    first = shared(pipeline, kernel).rollout(**arguments, latent_seeds=[3, 3]).transitions[0]
    assert torch.equal(first.x[0], first.x[1])
    assert not torch.equal(first.x_next[0], first.x_next[1])


@guidance
@every_stochastic
def test_predict_is_the_model_output_of_a_step(pipeline, kernel, guided):
    """At a sigma of the schedule and the recorded x, `predict` gives the model output of that step, with gradients."""
    policy = tiny.policy(pipeline, kernel)
    rollout = policy.rollout(**tiny.arguments(pipeline, guided=guided))
    for transition in rollout.transitions.values():
        output = policy.predict(rollout, transition.x, transition.place.sigma)
        assert torch.equal(output, policy.replay(rollout, transition.place.step).model_output)
    output.square().mean().backward()
    assert [name for name, p in policy.parameters.items() if p.grad is None or not p.grad.any()] == []


@every_pipeline
def test_predict_with_one_sigma_a_sample(pipeline):
    """Without guidance each sample has a noise level of its own: the same as sample by sample."""
    policy = shared(pipeline)
    rollout = policy.rollout(**tiny.arguments(pipeline, guided=False))
    policy.sample(**tiny.arguments(pipeline, guided=True))  # an evaluation with another guidance changes nothing
    assert policy.takes_sigma_per_sample
    x, levels = like(rollout.latents), torch.tensor([rollout.places[k].sigma for k in (1, 3)])
    mixed = policy.predict(rollout, x, levels)
    for row, sigma in enumerate(levels):
        torch.testing.assert_close(mixed[row], policy.predict(rollout, x, sigma)[row], rtol=1e-4, atol=1e-5)
    assert torch.equal(policy.predict(rollout, x, levels[:1].expand(2)), policy.predict(rollout, x, levels[0]))


@pytest.mark.parametrize("pipeline", ["sd3", "sd15"])
def test_one_sigma_where_guidance_doubles_the_batch(pipeline):
    """With guidance of two passes in one batch, the samples of a micro-batch share their noise level."""
    policy = tiny.policy(pipeline, FITTING[pipeline])
    policy.rollout(**tiny.arguments(pipeline, guided=True))
    assert not policy.takes_sigma_per_sample


@pytest.mark.parametrize("kind", [PNDMScheduler, EulerDiscreteScheduler, DPMSolverMultistepScheduler])
def test_ddpm_type_pipelines_with_another_scheduler(kind):
    """SD1.5 as it is published, and with other samplers, is a policy too: sampled by ddim, replayed exactly."""
    pipe = tiny.sd15()
    pipe.scheduler = kind.from_config(pipe.scheduler.config)
    policy = Policy(pipe, kernel=kernels.ddim())
    rollout = policy.rollout(**tiny.arguments("sd15"))
    for step, transition in rollout.transitions.items():
        assert torch.equal(policy.replay(rollout, step).log_prob, transition.log_prob)
    assert type(policy.pipe.scheduler) is kind


def test_a_pipeline_that_asks_for_more_than_a_schedule(monkeypatch):
    """What the policy's scheduler does not have (sigmas, say) is named, and the pipeline is whole afterwards."""
    pipe = tiny.sd15()
    pipe.scheduler = EulerDiscreteScheduler.from_config(pipe.scheduler.config)
    policy = Policy(pipe, kernel=kernels.ddim())
    monkeypatch.setattr(pipe, "prepare_latents", lambda *_, **__: pipe.scheduler.sigmas)
    with pytest.raises(UserError, match=r"StableDiffusionPipeline asks its EulerDiscreteScheduler .*'sigmas'"):
        policy.rollout(**tiny.arguments("sd15"))
    assert type(pipe.scheduler) is EulerDiscreteScheduler


def test_other_errors_of_a_pipeline_are_its_own(monkeypatch):
    """An attribute that something else than the scheduler lacks is no reason to refuse the pipeline."""
    policy = tiny.policy("sd15", "ddim")
    monkeypatch.setattr(policy.pipe, "prepare_latents", lambda *_, **__: object().shape)
    with pytest.raises(AttributeError, match="'object' object has no attribute 'shape'"):
        policy.rollout(**tiny.arguments("sd15"))


def test_a_model_with_lcms_scheduler():
    """SD with an LCM-LoRA and LCM's scheduler is a policy by the kernel for consistency models, and by no other."""
    pipe = tiny.sd15()
    pipe.scheduler = LCMScheduler.from_config(pipe.scheduler.config)
    with pytest.raises(
        UserError, match="kernel 'ddim' does not fit a consistency model; write one of: ode, consistency"
    ):
        Policy(pipe, kernel=kernels.ddim())
    policy = Policy(pipe, kernel=kernels.consistency())
    rollout = policy.rollout(**{**tiny.arguments("sd15"), "steps": 4})
    assert sorted(rollout.transitions) == [0, 1, 2]
    for step, transition in rollout.transitions.items():
        assert torch.equal(policy.replay(rollout, step).log_prob, transition.log_prob)


def callables(owner):
    """Functions that lie on an instance."""
    return {name: value for name, value in vars(owner).items() if callable(value) and not isinstance(value, type)}


def state(pipe):
    """What a call of the policy must leave as it was."""
    parts = {name: part for name, part in pipe.components.items() if hasattr(part, "modules")}
    return (
        id(pipe.scheduler),
        vars(pipe.scheduler) | {"_internal_dict": dict(pipe.scheduler.config)},
        dict(pipe.config),
        callables(pipe),
        {name: callables(part) for name, part in parts.items()},
        dict(getattr(pipe, "_progress_bar_config", {"none": True})),
        torch.is_grad_enabled(),
    )


CALLS = {
    "rollout": lambda policy, rollout, arguments: policy.rollout(**arguments),
    "replay": lambda policy, rollout, arguments: policy.replay(rollout, 1),
    "predict": lambda policy, rollout, arguments: policy.predict(rollout, rollout.latents, 0.5),
    "sample": lambda policy, rollout, arguments: policy.sample(**arguments),
}


class BrokenError(Exception):
    """Raised inside the denoiser."""


@pytest.mark.parametrize("bar", [None, {"desc": "mine"}], ids=["no bar config", "bar config"])
@pytest.mark.parametrize("call", list(CALLS))
@every_pipeline
def test_pipe_is_restored(pipeline, call, bar):
    """Scheduler, methods, config and progress bar are as before each call of the policy, also after an exception."""
    policy, arguments = tiny.policy(pipeline, FITTING[pipeline]), tiny.arguments(pipeline)
    if bar:
        policy.pipe.set_progress_bar_config(**bar)
    before = repr(state(policy.pipe))
    rollout = policy.rollout(**arguments)
    CALLS[call](policy, rollout, arguments)
    assert repr(state(policy.pipe)) == before

    def broken(*_):
        raise BrokenError

    (module,) = policy.modules.values()
    hook = module.register_forward_pre_hook(broken)
    with pytest.raises(BrokenError):
        CALLS[call](policy, rollout, arguments)
    hook.remove()
    assert repr(state(policy.pipe)) == before
    assert torch.equal(policy.replay(rollout, 1).log_prob, rollout.transitions[1].log_prob)


@guidance
@every_pipeline
def test_denoiser_calls(pipeline, guided):
    """Samples through the denoiser are counted: steps x samples, twice with guidance of two passes."""
    policy, arguments = tiny.policy(pipeline, FITTING[pipeline]), tiny.arguments(pipeline, guided=guided)
    policy.rollout(**arguments)
    assert policy.denoiser_calls == tiny.STEPS * 2 * (1 + guided)


def test_sum_reduction():
    """With the reduction "sum" log-probabilities are those of "mean" times a sample's elements: 4 x 8 x 8 = 256."""
    policy = tiny.policy("sd3", "flow_sde")
    mean = policy.rollout(**tiny.arguments("sd3"))
    policy.reduction = "sum"
    total = policy.rollout(**tiny.arguments("sd3"))
    for step, transition in total.transitions.items():
        torch.testing.assert_close(transition.log_prob, 256 * mean.transitions[step].log_prob)
        assert torch.equal(policy.replay(total, step).log_prob, transition.log_prob)


def test_window_of_noise():
    """Only the steps of noise_steps are stochastic, and "all" trains those alone."""
    rollout = shared("sd3").rollout(**tiny.arguments("sd3"), noise_steps=[1, 2])
    assert [std > 0 for std in rollout.stds] == [False, True, True, False, False]
    assert sorted(rollout.transitions) == [1, 2]


def test_bad_arguments():
    """Lengths that disagree, unknown arguments and steps that were not recorded are refused with the numbers."""
    policy = shared("sd3")
    with pytest.raises(UserError, match="2 prompts came with 1 seeds and 1 latent_seeds"):
        policy.rollout(["a", "b"], seeds=[0], steps=2)
    with pytest.raises(UserError, match="StableDiffusion3Pipeline takes no argument heigth, widht"):
        policy.rollout(["a"], seeds=[0], steps=2, heigth=8, widht=8)
    with pytest.raises(UserError, match=r"num_images_per_prompt is 2, .* group_size"):
        policy.rollout(["a"], seeds=[0], steps=2, num_images_per_prompt=2)
    rollout = policy.rollout(**tiny.arguments("sd3"), train_steps=[0, 2])
    with pytest.raises(UserError, match=r"step 1 was not recorded; the rollout holds \[0, 2\]"):
        policy.replay(rollout, 1)
    with pytest.raises(UserError, match=r"step 1 was not kept; the rollout holds \[0, 2\]"):
        policy.finish(rollout, 1)


@pytest.mark.parametrize("pipeline", list(tiny.PIPELINES))
def test_finish_gives_the_rollouts_pictures_with_gradients(pipeline):
    """From a kept step on, without noise, come the rollout's own pictures, and their gradient reaches the LoRA."""
    policy = tiny.policy(pipeline, FITTING[pipeline])
    rollout = policy.rollout(**tiny.arguments(pipeline), train_steps=(), noise_steps=[0, 1], keep_steps=[3])
    pictures = policy.finish(rollout, 3)
    torch.testing.assert_close(pictures.detach(), rollout.images, rtol=0, atol=1e-6)
    pictures.mean().backward()
    assert all(parameter.grad.abs().sum() > 0 for parameter in policy.parameters.values())
    with torch.no_grad():
        whole = policy.finish(rollout, 0)
    assert (whole - rollout.images).abs().max() > 1e-3  # the noise of steps 0 and 1 is missing


def test_what_depends_on_the_number_of_a_step_is_the_same_in_a_replay():
    """SD3's skip-layer guidance works on a part of the schedule: with it and without, the ratio is exactly 1."""
    policy = tiny.policy("sd3", "flow_sde")
    guidance = {"skip_guidance_layers": [0], "skip_layer_guidance_start": 0.3, "skip_layer_guidance_stop": 0.7}
    rollout = policy.rollout(**tiny.arguments("sd3"), **guidance)
    calls = []
    for step, transition in rollout.transitions.items():
        before = policy.denoiser_calls
        assert torch.equal(policy.replay(rollout, step).log_prob, transition.log_prob)
        calls.append(policy.denoiser_calls - before)
    assert calls == [4, 4, 6, 6]  # two samples, with and without a prompt, and without the layer


def test_attention_of_a_call_cut_short_comes_back():
    """A replay ends before perturbed-attention guidance puts its processors away: the next call finds the old ones."""
    parts = {name: part for name, part in tiny.sd3().components.items() if part is not None or "_3" in name}
    policy = Policy(StableDiffusion3PAGPipeline(**parts, pag_applied_layers=["blocks.1"]), kernel=kernels.flow_sde())
    before = dict(policy.pipe.transformer.attn_processors)
    call = {"seeds": [0, 1], "steps": 3, "guidance_scale": 1.0}
    perturbed = policy.rollout(tiny.PROMPTS[:2], **call, pag_scale=2.0)
    plain = policy.rollout(tiny.PROMPTS[:2], **call, pag_scale=0.0)
    for _ in range(2):
        policy.replay(perturbed, 1)
        assert policy.pipe.transformer.attn_processors != before  # still there for a checkpointed backward pass
        assert torch.equal(policy.replay(plain, 1).log_prob, plain.transitions[1].log_prob)
        assert policy.pipe.transformer.attn_processors == before
        policy.replay(perturbed, 1)
        policy.sample(tiny.PROMPTS[:2], **call, pag_scale=0.0)
        assert policy.pipe.transformer.attn_processors == before


def test_a_pipeline_without_a_scheduler():
    """It encodes a picture for another one, say."""
    pipe = FluxPriorReduxPipeline(image_encoder=None, feature_extractor=None, image_embedder=None)
    with pytest.raises(UserError, match="FluxPriorReduxPipeline has no scheduler: it samples nothing"):
        Policy(pipe, kernel=kernels.flow_sde())


def test_bad_components():
    """A component that is not there is refused with the list of those that are; so is a pipeline without adapters."""
    with pytest.raises(UserError, match=r"no component unet; its modules: .*transformer"):
        Policy(tiny.sd3(), kernel=kernels.ode(), trainable=["unet"])
    with pytest.raises(UserError, match="SD3Transformer2DModel has no adapter that is active"):
        Policy(tiny.sd3(), kernel=kernels.ode(), lora=None)


def test_what_is_trained():
    """The denoiser's adapters and nothing else, by full name; frozen parts are in evaluation mode."""
    policy = Policy(tiny.sd15(), kernel=kernels.ddim(), lora=LoRA(rank=2, targets=("to_q",)))
    assert list(policy.modules) == ["unet"]
    assert all(name.startswith("unet.") and ".lora_" in name for name in policy.parameters)
    parts = [part for part in policy.pipe.components.values() if isinstance(part, torch.nn.Module)]
    trained = {id(p) for p in policy.parameters.values()}
    assert {id(p) for part in parts for p in part.parameters() if p.requires_grad} == trained
    assert not any(part.training for part in parts)
    assert (policy.device.type, policy.dtype) == ("cpu", torch.float32)


def test_guidance_with_momentum_is_refused():
    """It makes a step depend on what the model said in earlier ones; the message says what to set."""
    pipe = CASES["HunyuanImagePipeline"].build()
    pipe.guider.adaptive_projected_guidance_momentum = -0.5
    with pytest.raises(UserError, match=r"Set pipe.guider.adaptive_projected_guidance_momentum = None"):
        Policy(pipe, kernel=kernels.flow_sde())


def test_a_denoiser_reads_conditions_before_the_first_step(monkeypatch):
    """What it reads there it reads in a replay too, and all pictures of a batch are encoded once."""
    case = CASES["GlmImagePipeline"]
    policy = Policy(case.build(), kernel=kernels.flow_sde(), lora=LoRA(rank=2))
    call = {"seeds": [0, 1], "steps": 3, **case.call(2), **case.guidance["editing"]}
    rollout = policy.rollout(tiny.PROMPTS[:2], **call)
    monkeypatch.setattr(type(policy.pipe.vae), "encode", lambda *_: pytest.fail("the VAE encodes in a replay"))
    for step, transition in rollout.transitions.items():
        assert torch.equal(policy.replay(rollout, step).log_prob, transition.log_prob)
