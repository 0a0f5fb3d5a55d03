import gc
import weakref
from contextlib import suppress
from importlib.util import find_spec
from shutil import which
from unittest import mock

import pytest
import torch
from diffusers import SD3Transformer2DModel
from safetensors.torch import load_file, save_file

from flowrl import encoders, fitting, kernels
from flowrl.adapters import WeightCopy
from flowrl.config import FitConfig
from flowrl.errors import UserError
from flowrl.memo import nbytes
from flowrl.policy import Policy
from flowrl.preflight import preflight
from flowrl.sample import draw, find_source

from . import runs, tiny

CPU = torch.device("cpu")
needs_torchao = pytest.mark.skipif(find_spec("torchao") is None, reason="needs the extra flowrl[torchao]")


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A saved tiny model."""
    return runs.save_model(tmp_path_factory.mktemp("fitting"))


@pytest.fixture(scope="module")
def plain(model, tmp_path_factory):
    """The tiny run without any fitting."""
    return runs.train(runs.recipe(model, tmp_path_factory.mktemp("plain") / "run"))


def made(pipeline="sd3", **how):
    """A tiny policy that was made to fit."""
    policy = tiny.policy(pipeline, "flow_sde")
    fitting.fit(policy, FitConfig(**how), CPU)
    return policy


def gradients(policy, pipeline="sd3"):
    """The rollout, its largest |log ratio| on-policy, and the gradients of its log-probabilities."""
    rollout = policy.rollout(**tiny.arguments(pipeline))
    deviations = []
    for step, transition in rollout.transitions.items():
        log_prob = policy.replay(rollout, step).log_prob
        deviations.append(float((log_prob.detach() - transition.log_prob).abs().max()))
        log_prob.sum().backward()
    return rollout, max(deviations), {name: p.grad for name, p in policy.parameters.items()}


def refused(model, tmp_path, *overrides, processes=1):
    """What `check_fit` says of a tiny run."""
    config = runs.recipe(model, tmp_path / "run", *overrides)
    with pytest.raises(UserError) as error:
        fitting.check_fit(config, len(runs.EVAL_PROMPTS), processes)
    return str(error.value)


def test_nothing_is_the_default():
    """Without a wish, nothing changes."""
    before, after = gradients(tiny.policy("sd3", "flow_sde")), gradients(made())
    assert torch.equal(before[0].images, after[0].images)


def test_gradient_checkpointing_gives_the_same_gradients():
    """Bit for bit, with fewer bytes kept for the backward pass."""

    def kept(policy):
        rollout = policy.rollout(**tiny.arguments("sd3"))
        sizes = []
        with torch.autograd.graph.saved_tensors_hooks(lambda t: (sizes.append(nbytes(t)), t)[1], lambda t: t):
            policy.replay(rollout, 1)
        return sum(sizes)

    with_, without = made(gradient_checkpointing=True), made()
    _, deviation, found = gradients(with_)
    _, _, wanted = gradients(without)
    assert deviation == 0
    assert all(torch.equal(found[name], wanted[name]) for name in wanted)
    assert kept(with_) < kept(without) / 2


def test_gradient_checkpointing_of_a_block_that_writes_into_its_input():
    """Its second run, in the backward pass, must find the input that the first one found; and it can be undone."""

    class Block(torch.nn.Linear):
        def forward(self, x, *, factor=1.0):
            return super().forward(x.mul_(factor))

    model = torch.nn.Module()
    model.blocks = torch.nn.ModuleList([Block(3, 3), Block(3, 3)])

    def gradient():
        x = torch.ones(2, 3)
        for block in model.blocks:
            x = block(x * 1.0, factor=3.0)
        return torch.autograd.grad(x.square().sum(), model.blocks[0].weight)[0]

    wanted = gradient()
    undo = fitting.checkpoint_blocks(model)
    assert torch.equal(gradient(), wanted)
    undo()
    assert all("forward" not in vars(block) for block in model.blocks)


def test_regional_compilation_compiles_the_blocks():
    """Each repeated block by itself, and nothing else."""
    policy = tiny.policy("flux", "flow_sde")
    module = policy.modules["transformer"]
    blocks = [*module.transformer_blocks, *module.single_transformer_blocks]
    with mock.patch.object(torch.nn.Module, "compile", autospec=True) as compiled:
        fitting.fit(policy, FitConfig(compile="regional"), CPU)
    assert [call.args[0] for call in compiled.call_args_list] == blocks


def test_regional_compilation_of_a_model_without_repeated_blocks():
    """A wish that would be ignored is an error."""
    with pytest.raises(UserError, match=r"fit.compile: regional: the transformer .*SD3Transformer2DModel, does not"):
        made(compile="regional")


@pytest.mark.slow
@pytest.mark.skipif(which("c++") is None, reason="the compiler writes C++")
@pytest.mark.filterwarnings("default")  # of the compiler, about itself
def test_regional_compilation_trains():
    """The compiled forward pass may round otherwise with gradients than without: within 1e-5."""
    _, deviation, found = gradients(made("flux", compile="regional"), "flux")
    _, _, wanted = gradients(made("flux"), "flux")
    assert deviation <= 1e-6
    for name, gradient in wanted.items():
        assert torch.allclose(found[name], gradient, rtol=1e-3, atol=1e-5), name


def test_attention_backend():
    """It is set in every layer that takes one; the native one gives the same pictures."""
    policy = made("flux", attention="native")
    rollout, deviation, _ = gradients(policy, "flux")
    assert deviation == 0
    processors = [block.attn.processor for block in policy.modules["transformer"].transformer_blocks]
    assert {processor._attention_backend for processor in processors} == {"native"}
    assert torch.allclose(rollout.images, gradients(made("flux"), "flux")[0].images, atol=1e-5)


def test_attention_backend_of_a_model_that_takes_none():
    """A wish that would be ignored is an error."""
    with pytest.raises(UserError, match=r"fit.attention: native: the transformer .*SD3Transformer2DModel, does not"):
        made(attention="native")


def test_unknown_attention_backend(model, tmp_path):
    """The known ones are listed."""
    message = refused(model, tmp_path, "fit.attention=flsh")
    assert "no backend 'flsh'" in message
    assert "Did you mean 'flash'?" in message
    assert "xformers" in message


@pytest.mark.parametrize(("backend", "advice"), [("xformers", "flowrl[xformers]"), ("flash_hub", "kernels")])
def test_missing_attention_backend(backend, advice, model, tmp_path):
    """Refused before any weights load, with what to install."""
    config = runs.recipe(model, tmp_path / "run", f"fit.attention={backend}")
    with pytest.raises(
        UserError, match=rf"fit.attention: {backend} cannot be used here: .*{advice}".replace("[", r"\[")
    ):
        preflight(config)


def test_vae():
    """Both switches are on, and the pictures the same but for rounding."""
    policy = made(vae_tiling=True, vae_slicing=True)
    assert (policy.pipe.vae.use_tiling, policy.pipe.vae.use_slicing) == (True, True)
    images = policy.rollout(**tiny.arguments("sd3")).images
    assert torch.allclose(images, made().rollout(**tiny.arguments("sd3")).images, atol=1e-5)


def test_vae_without_tiling():
    """A wish that would be ignored is an error."""
    policy = tiny.policy("sd3", "flow_sde")
    policy.pipe.vae = torch.nn.Identity()
    with pytest.raises(UserError, match=r"fit.vae_tiling: the vae of this pipeline, Identity, does not support it"):
        fitting.fit(policy, FitConfig(vae_tiling=True), CPU)


@needs_torchao
@pytest.mark.filterwarnings("ignore")  # of torchao, about itself
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_quantised_base(dtype):
    """The ratio is 1, the LoRA stays float32 and learns, the base model is smaller, and `reference` is the base."""
    policy = tiny.policy("sd3", "flow_sde", dtype=dtype)
    module = policy.modules["transformer"]
    before = _weight_bytes(module)
    fitting.fit(policy, FitConfig(quantise="int8"), CPU)
    assert _weight_bytes(module) < before * (0.5 if dtype == torch.float32 else 0.75)
    _, deviation, found = gradients(policy)
    assert deviation == 0
    assert policy.dtype == dtype
    assert all(gradient.abs().max() > 0 and gradient.dtype == torch.float32 for gradient in found.values())


def _weight_bytes(module):
    """Bytes of the weights that are not trained, those inside of torchao's tensors counted as they are."""
    total = 0
    for parameter in module.parameters():
        if not parameter.requires_grad:
            inner = parameter.__tensor_flatten__()[0] if hasattr(parameter, "__tensor_flatten__") else []
            total += sum(nbytes(getattr(parameter, name)) for name in inner) if inner else nbytes(parameter.data)
    return total


def test_missing_torchao(model, tmp_path):
    """The error names the extra."""
    with mock.patch.object(fitting, "find_spec", return_value=None):
        assert "flowrl[torchao]" in refused(model, tmp_path, "fit.quantise=int8")


@pytest.mark.parametrize("how", ["offload", "release"])
def test_run_without_its_text_encoders(how, model, plain, tmp_path):
    """The same run bit for bit; what is released is gone, what is offloaded lies beside the pipeline."""
    kept = []
    leave = encoders.TextEncoders.leave

    def listened(self):
        kept.extend(weakref.ref(part) for part in self._modules.values())
        leave(self)
        gc.collect()
        pipe = self._policy.pipe
        assert (pipe.text_encoder, pipe.text_encoder_2) == (None, None)
        assert [part() is None for part in kept] == [how == "release"] * 2

    with mock.patch.object(encoders.TextEncoders, "leave", listened):
        runs.assert_same_run(runs.train(runs.recipe(model, tmp_path / "run", f"fit.text_encoders={how}")), plain)
    assert len(kept) == 2


def test_a_prompt_after_its_encoder():
    """An offloaded encoder comes back for a new prompt; a released one cannot. Equal rows are held once."""
    call = {**tiny.arguments("sd3"), "prompts": ["a red circle"] * 2}
    other = {**call, "prompts": ["a blue circle", "a red circle"]}
    wanted = made().rollout(**other).images
    for release in (False, True):
        policy = made()
        encoders.let_go(policy, [lambda p=policy: p.rollout(**call)], release=release)
        assert policy.denoiser_calls == 0
        one = sum(tensor[:1].numel() * 4 for tensor in _embeddings(made(), call))
        assert policy._memo.nbytes() == one
        policy.rollout(**call)
        if release:
            with pytest.raises(UserError, match=r"write fit.text_encoders: offload"):
                policy.rollout(**other)
        else:
            assert torch.equal(policy.rollout(**other).images, wanted)
            assert policy.pipe.text_encoder is None


def _embeddings(policy, call):
    found = policy.pipe.encode_prompt(call["prompts"], None, None, do_classifier_free_guidance=True)
    return [tensor for tensor in found if tensor is not None]


def test_pipeline_that_cannot_do_without_its_text_encoders():
    """Found out before the first step."""
    policy = made()
    prepare = policy.pipe.prepare_latents

    def nosy(*args, **kwargs):
        return policy.pipe.text_encoder.dtype and prepare(*args, **kwargs)

    policy.pipe.prepare_latents = nosy
    with pytest.raises(UserError, match=r"uses its text encoders outside of encode_prompt .*; write keep"):
        encoders.let_go(policy, [lambda: policy.rollout(**tiny.arguments("sd3"))], release=True)


def full(b=0.0):
    """A policy of all weights, moved by noise of a spread."""
    policy = Policy(tiny.base("sd3"), kernel=kernels.flow_sde(0.7), full=True)
    with torch.no_grad():
        for parameter in policy.parameters.values():
            parameter.add_(b * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)))
    return policy


def test_full_reference_is_the_base_model():
    """Whatever was trained, and whatever happens inside."""
    call = tiny.arguments("sd3")
    base = tiny.policy("sd3", "flow_sde", b=0.0).rollout(**call)
    policy = full(b=0.1)
    assert policy.parameters.keys() == {f"transformer.{n}" for n, _ in policy.pipe.transformer.named_parameters()}
    trained = policy.rollout(**call)
    with suppress(ZeroDivisionError), policy.reference():
        inside = policy.rollout(**call).images
        raise ZeroDivisionError
    assert torch.equal(inside, base.images)
    assert not torch.equal(trained.images, base.images)
    assert torch.equal(policy.rollout(**call).images, trained.images)
    assert gradients(policy)[1] == 0
    assert policy.dtype == torch.float32


def test_full_copies():
    """An averaged copy of all weights is the model at that time."""
    policy, call = full(), tiny.arguments("sd3")
    copy, before = WeightCopy(policy.parameters), policy.rollout(**call).images
    with torch.no_grad():
        next(iter(policy.parameters.values())).add_(1)
    with copy.active():
        assert torch.equal(policy.rollout(**call).images, before)


@runs.each_objective
def test_full_run_resumes_exactly_and_exports(objective, model, tmp_path):
    """Two steps and two more are four, bit for bit; the export is what `from_pretrained` reads."""
    settings = ("fit.train=full", f"objective.name={objective}", "eval.every=0", "learning_rate=1e-3")
    straight = runs.train(runs.recipe(model, tmp_path / "straight", *settings))
    runs.train(runs.recipe(model, tmp_path / "halves", *settings, "max_steps=2"))
    resumed = runs.train(runs.recipe(model, tmp_path / "halves", *settings), resume=True)
    found, wanted = runs.state(resumed), runs.state(straight)
    assert found.keys() == wanted.keys()
    assert all(torch.equal(found[name], wanted[name]) for name in wanted)
    for folder, kind in (("model", "parameters"), ("model/ema", "copies/ema")):
        module = SD3Transformer2DModel.from_pretrained(resumed / folder / "transformer")
        key = f"checkpoints/step_000004/weights.safetensors:{kind}/transformer."
        assert all(torch.equal(tensor, wanted[f"{key}{name}"]) for name, tensor in module.named_parameters())


def test_pictures_of_a_full_run(model, tmp_path):
    """`flowrl sample` draws with the trained denoiser, and with the base."""
    run = runs.train(runs.recipe(model, tmp_path / "run", "fit.train=full", "max_steps=1", "learning_rate=0.01"))
    for ema in (False, True):
        source = find_source(run, ["steps=2"], ema=ema)
        trained, base = draw(source, ["a red circle"], tmp_path / f"pictures{ema}", base=True)[::-1]
        assert trained.read_bytes() != base.read_bytes()


@pytest.mark.parametrize("other", ["model.dtype=bfloat16", "fit.fsdp=true", "fit.quantise=int8"])
def test_full_excludes(other, model, tmp_path):
    """What cannot be trained whole is refused."""
    with mock.patch.object(fitting, "find_spec"):
        assert "fit.train: full" in refused(model, tmp_path, "fit.train=full", other, processes=2)


def test_full_of_a_model_in_half_precision():
    """Also without a recipe."""
    with pytest.raises(UserError, match="load it in float32"):
        Policy(tiny.base("sd3", torch.bfloat16), kernel=kernels.flow_sde(0.7), full=True)


def test_release_and_branches(model, tmp_path):
    """Groups that branch are encoded in each of the sizes that they have on the way."""
    settings = ("policy.branch={at: [0, 2]}", "max_steps=2")
    wanted = runs.train(runs.recipe(model, tmp_path / "keep", *settings))
    found = runs.train(runs.recipe(model, tmp_path / "release", *settings, "fit.text_encoders=release"))
    runs.assert_same_run(found, wanted)


def test_blocks_are_the_outermost_ones():
    """Lists inside of blocks are not split."""
    module = tiny.sd3().transformer
    assert fitting.blocks(module) == list(module.transformer_blocks)


def sharded(file):
    """For one of several processes: what a policy with a sharded base gives, into a file of rank 0."""
    torch.distributed.init_process_group("gloo")
    policy = made(fsdp=True)
    module = policy.modules["transformer"]
    mine = sum(p.to_local().numel() for p in module.parameters() if not p.requires_grad)
    whole = sum(p.numel() for p in module.parameters() if not p.requires_grad)
    rollout, deviation, found = gradients(policy)
    assert deviation == 0
    assert mine <= 0.6 * whole
    if torch.distributed.get_rank() == 0:
        save_file({"images": rollout.images.contiguous(), **found}, file)
    torch.distributed.destroy_process_group()


def test_sharded_base_is_the_model_of_one_process(tmp_path):
    """Pictures and gradients to 1e-6; each of two processes holds about half of the frozen weights."""
    runs.together(sharded, tmp_path / "found.safetensors", log=tmp_path / "log")
    found = load_file(tmp_path / "found.safetensors")
    rollout, _, wanted = gradients(made())
    for name, tensor in {"images": rollout.images, **wanted}.items():
        assert (found[name] - tensor).abs().max() <= 1e-6, name


@runs.each_objective
def test_run_with_a_sharded_base(objective, model, tmp_path):
    """Bit for bit the run of two processes that each hold the whole base: training, evaluations and export."""
    settings = ("eval.micro_batch_size=2", f"objective.name={objective}")
    outputs = []
    for fsdp in ("false", "true"):
        config = runs.recipe(model, tmp_path / fsdp, *settings, f"fit.fsdp={fsdp}")
        runs.together(runs.run_watched, config, log=tmp_path / "log")
        outputs.append(config.output)
    runs.assert_same_run(outputs[1], outputs[0])


@pytest.mark.parametrize(
    ("overrides", "processes", "message"),
    [
        ((), 1, "accelerate launch --num_processes 2"),
        (("groups_per_step=3",), 2, "3 micro-batches a step are no equal work for 2 processes"),
        (("updates_per_step=2",), 2, "groups_per_step x group_size as a multiple of 4 x micro_batch_size"),
        (("eval.micro_batch_size=4",), 2, "write eval.micro_batch_size: 2"),
        (("fit.compile=regional",), 2, "neither fit.quantise nor fit.compile"),
    ],
)
def test_sharding_needs_equal_work(overrides, processes, message, model, tmp_path):
    """Else the processes would wait for one another."""
    assert message in refused(model, tmp_path, "fit.fsdp=true", *overrides, processes=processes)


def test_resuming_may_fit_otherwise(model, plain, tmp_path):
    """What does not change the steps may change; what does may not."""
    config = runs.recipe(model, plain, "fit.gradient_checkpointing=true", "fit.text_encoders=offload")
    preflight(config, resume=True)
    with pytest.raises(UserError, match="fit was"):
        preflight(runs.recipe(model, plain, "fit.train=full"), resume=True)
