"""flowrl.branching: what is shared is computed once, and nothing else changes."""

import json
import math
from collections import defaultdict

import pytest
import torch
from diffusers import StableDiffusion3Img2ImgPipeline

from flowrl import kernels
from flowrl.adapters import LoRA
from flowrl.advantages import group
from flowrl.branching import Tree, _rows, node_advantages, rollout_tree, ways
from flowrl.errors import UserError
from flowrl.policy import Policy
from flowrl.session import Schedule

from . import runs, tiny

every_pipeline = pytest.mark.parametrize("pipeline", list(tiny.PIPELINES))
guidance = pytest.mark.parametrize("guided", [False, True], ids=["unguided", "guided"])
KERNELS = {"sd3": "flow_sde", "flux": "flow_cps", "sd15": "ddim"}
TREES = {
    # Tree of a group of four, and the trajectories of a group in each of five steps.
    "one split": (Tree(4, [1]), [1, 1, 4, 4, 4]),
    "at once": (Tree(4, [0]), [1, 4, 4, 4, 4]),
    "two splits": (Tree(4, [0, 2]), [1, 2, 2, 4, 4]),
    "in a row": (Tree(4, [2, 1]), [1, 1, 2, 4, 4]),
}
every_tree = pytest.mark.parametrize(("tree", "widths"), TREES.values(), ids=list(TREES))


def call(pipeline, *, groups=2, size=4, guided=False):
    """Arguments for a few groups."""
    prompts = [prompt for prompt in tiny.PROMPTS[:groups] for _ in range(size)]
    made = tiny.arguments(pipeline, guided=guided, count=len(prompts), seeds=range(20, 20 + len(prompts)))
    return {**made, "prompts": prompts}


@guidance
@every_tree
@every_pipeline
def test_shared_steps_are_computed_once(pipeline, tree, widths, guided):
    """Rollout and replays cost a model call for each trajectory that there is at a step, and nothing on the way."""
    policy = tiny.policy(pipeline, KERNELS[pipeline])
    rollout = rollout_tree(policy, tree=tree, **call(pipeline, guided=guided))
    each = 2 * (1 + guided)  # two groups; guidance calls twice
    assert policy.denoiser_calls == each * sum(widths)
    assert rollout.stds[: tiny.STEPS - 1] == [policy.kernel.std(place) for place in rollout.places[:-1]]
    for step in rollout.transitions:
        policy.denoiser_calls = 0
        policy.replay(rollout, step)
        assert policy.denoiser_calls == each * widths[step]


@guidance
@every_tree
@every_pipeline
def test_the_ratio_is_exactly_one(pipeline, tree, widths, guided):
    """Every recorded step, shared or not, replays to its log-probability bit for bit; the first split is the first."""
    policy = tiny.policy(pipeline, KERNELS[pipeline])
    rollout = rollout_tree(policy, tree=tree, **call(pipeline, guided=guided))
    assert sorted(rollout.transitions) == list(range(min(tree.at), tiny.STEPS - 1))
    for step, transition in rollout.transitions.items():
        replay = policy.replay(rollout, step)
        assert torch.equal(replay.log_prob, transition.log_prob)
        assert len(replay.mean) == len(replay.model_output) == len(transition.x) == len(transition.x_next) == 8
        assert transition.log_prob.shape == (8,)
        by_hand = kernels.log_prob(transition.x_next, replay.mean, replay.std)
        assert torch.equal(by_hand, transition.log_prob)


@every_tree
@every_pipeline
def test_trajectories_part_where_they_should(pipeline, tree, widths):
    """Samples of a node are equal until it parts, and no two nodes are."""
    rollout = rollout_tree(tiny.policy(pipeline, KERNELS[pipeline]), tree=tree, **call(pipeline))
    after = [*widths[1:], 4]  # a split shows in what the step leads to
    for step, transition in rollout.transitions.items():
        for values, width in ((transition.x, widths[step]), (transition.x_next, after[step])):
            for part in values.split(4):
                rows = torch.unique(part.flatten(1), dim=0)
                assert len(rows) == width
                assert all(torch.equal(node[0], row) for node in part.split(4 // width) for row in node)
        assert rollout.leaves(step) == 4 // after[step]
    # One step follows the other.
    for step in sorted(rollout.transitions)[1:]:
        assert torch.equal(rollout.transitions[step].x, rollout.transitions[step - 1].x_next)
        assert torch.equal(rollout.arrivals[step], rollout.transitions[step].x)


@every_tree
@every_pipeline
def test_noise_zero_is_the_plain_rollout(pipeline, tree, widths):
    """Without noise every sample is that of a plain rollout from the group's initial noise, but for rounding."""
    policy, arguments = tiny.policy(pipeline, KERNELS[pipeline], noise_level=0.0), call(pipeline)
    plain = policy.rollout(**arguments, latent_seeds=[20] * 4 + [24] * 4)
    rollout = rollout_tree(policy, tree=tree, **arguments)
    torch.testing.assert_close(rollout.latents, plain.latents, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(rollout.images, plain.images, rtol=1e-4, atol=1e-4)
    assert rollout.transitions == {}


def test_a_split_at_the_first_step_is_a_plain_rollout():
    """Samples share their initial noise alone, and draw what they draw in a plain rollout of equal latent_seeds."""
    policy, arguments = tiny.policy("sd3", "flow_sde"), call("sd3")
    plain = policy.rollout(**arguments, latent_seeds=[20] * 4 + [24] * 4)
    rollout = rollout_tree(policy, tree=Tree(4, [0]), **arguments)
    torch.testing.assert_close(rollout.latents, plain.latents, rtol=1e-4, atol=1e-4)
    for step, transition in plain.transitions.items():
        torch.testing.assert_close(rollout.transitions[step].log_prob, transition.log_prob, rtol=0, atol=1e-4)


def test_seeds_decide():
    """Twice the same is bit-equal; a group alone is the same but for rounding; another seed changes its sample."""
    policy, arguments, tree = tiny.policy("sd3", "flow_sde"), call("sd3"), Tree(4, [1, 2])
    first, again = (rollout_tree(policy, tree=tree, **arguments) for _ in range(2))
    assert torch.equal(first.images, again.images)
    alone = {**arguments, "prompts": arguments["prompts"][4:], "seeds": range(24, 28)}
    latents = rollout_tree(policy, tree=tree, **alone).latents
    torch.testing.assert_close(latents, first.latents[4:], atol=1e-4, rtol=1e-4)
    other = rollout_tree(policy, tree=tree, **{**arguments, "seeds": [*range(20, 27), 99]})
    torch.testing.assert_close(other.latents[:7], first.latents[:7], atol=1e-4, rtol=1e-4)
    assert not torch.allclose(other.latents[7], first.latents[7], atol=1e-3)


@every_pipeline
def test_gradients_are_those_of_every_sample(pipeline):
    """The weighted log-probabilities of a shared step have the gradient that the samples have one by one."""
    policy = tiny.policy(pipeline, KERNELS[pipeline])
    rollout = rollout_tree(policy, tree=Tree(4, [0, 2]), **call(pipeline))
    weights = torch.linspace(-1, 2, 8)
    for step in (0, 1, 3):
        (policy.replay(rollout, step).log_prob * weights).sum().backward()
        shared = {name: p.grad.clone() for name, p in policy.parameters.items()}
        transition = rollout.transitions[step]
        for p in policy.parameters.values():
            p.grad = None
        output = policy.predict(rollout, transition.x, rollout.places[step].sigma)
        mean, std = policy.kernel(transition.x, output, rollout.places[step])
        (kernels.log_prob(transition.x_next, mean, std) * weights).sum().backward()
        for name, p in policy.parameters.items():
            torch.testing.assert_close(p.grad, shared[name], rtol=1e-2, atol=1e-3 * float(shared[name].abs().max()))
            p.grad = None
        assert all(gradient.any() for gradient in shared.values())


def test_arguments_for_each_sample_are_cut():
    """Where they are alike in a group; a list of layers that happens to be as long is left alone."""
    firsts, rows = [0, 0, 2, 2], range(0, 4, 2)
    assert _rows(["a", "a", "b", "b"], rows, firsts) == ["a", "b"]
    assert torch.equal(_rows(torch.tensor([[1], [1], [2], [2]]), rows, firsts), torch.tensor([[1], [2]]))
    for whole in ([0, 1, 2, 3], ["a", "b"], "abcd", 4, None, torch.tensor(1.0), torch.arange(4)):
        assert _rows(whole, rows, firsts) is whole


def test_what_else_a_rollout_is_good_for():
    """Probes, and pictures with gradients from any kept step on, are those of all samples."""
    policy, arguments = tiny.policy("sd3", "flow_sde"), call("sd3")
    rollout = rollout_tree(policy, tree=Tree(4, [1]), **arguments)
    assert policy.predict(rollout, rollout.latents, 0.5).shape == rollout.latents.shape
    pictures = policy.finish(rollout, 2)
    assert pictures.shape == rollout.images.shape
    assert pictures.requires_grad
    assert (len(rollout), len(rollout.stems), len(rollout.stems[0])) == (8, 1, 2)
    assert rollout.stem(1) is rollout.stems[0]
    assert rollout.stem(4) is None


def test_a_split_without_noise_is_refused():
    """Before the denoiser runs; the steps that have noise are named."""
    policy = tiny.policy("sd3", "flow_sde")
    with pytest.raises(UserError, match=r"part at step 2, which draws no noise; stochastic steps here: \[0, 1\]"):
        rollout_tree(policy, tree=Tree(4, [0, 2]), noise_steps=[0, 1], train_steps=[0, 1], **call("sd3"))
    with pytest.raises(UserError, match="part at step 4, which draws no noise"):
        rollout_tree(policy, tree=Tree(4, [4]), **call("sd3"))
    with pytest.raises(UserError, match="part at step 5, which draws no noise"):
        rollout_tree(policy, tree=Tree(4, [5]), **call("sd3"))
    assert policy.denoiser_calls == 0


def test_a_split_before_the_first_step_is_refused():
    """A pipeline that starts from a picture has no step 0."""
    pipe = StableDiffusion3Img2ImgPipeline(**tiny.sd3().components)
    policy = Policy(pipe, kernel=kernels.flow_sde(), lora=LoRA(rank=2))
    pictures = torch.rand(1, 3, 8, 8).repeat(2, 1, 1, 1)
    call = {"steps": 5, "image": pictures, "strength": 0.6, "height": 8, "width": 8}
    with pytest.raises(UserError, match="part at step 1: the pipeline starts at 2"):
        rollout_tree(policy, ["a red circle"] * 2, seeds=[0, 1], tree=Tree(2, [1]), **call)
    policy.denoiser_calls = 0
    rollout = rollout_tree(policy, ["a red circle"] * 2, seeds=[0, 1], tree=Tree(2, [2]), **call)
    assert (rollout.start, policy.denoiser_calls) == (2, 2 * (1 + 2 + 2))  # this pipeline guides by default
    assert torch.equal(policy.replay(rollout, 2).log_prob, rollout.transitions[2].log_prob)


@pytest.mark.parametrize(
    "change",
    [
        {"prompts": ["a red circle"] * 6, "seeds": range(6)},
        {"prompts": ["a red circle"] * 3 + ["a blue circle"], "seeds": range(4)},
        {"prompts": ["a red circle"] * 4, "seeds": range(3)},
    ],
)
def test_groups_that_are_not_whole_are_refused(change):
    """A cut group, two prompts in one, or another number of seeds."""
    with pytest.raises(UserError, match="are no whole groups of 4"):
        rollout_tree(tiny.policy("sd3", "flow_sde"), tree=Tree(4, [1]), **{**call("sd3"), **change})


def test_ways_by_hand():
    """All at once, equal roots, or what is given; else an error that says what to write."""
    assert ways(1, 6) == [6]
    assert ways(3, 27) == [3, 3, 3]
    assert ways(10, 1024) == [2] * 10
    assert ways(2, 6, [2, 3]) == [2, 3]
    for splits, size, into, message in (
        (2, 8, None, "2 splits make no group of 8 in equal parts; .* a group_size such as 4"),
        (4, 8, None, "4 splits make no group of 8"),
        (0, 8, None, "no step is left"),
        (2, 8, [2, 2], r"into is \[2, 2\]; wanted 2 numbers of at least 2, one a split, with the product 8"),
        (2, 8, [8], "wanted 2 numbers"),
        (2, 8, [8, 1], "at least 2"),
    ):
        with pytest.raises(UserError, match=message):
            ways(splits, size, into)
    assert Tree(4, lambda schedule: [len(schedule.places)]).splits(Schedule([1, 2], [0, 0])) == [(2, 4)]


def test_node_advantages_by_hand():
    """Means of neighbours, compared with one another; a NaN is left out; a whole group has nothing to compare with."""
    scores = torch.tensor([[[1.0], [3.0], [6.0], [math.nan]], [[5.0], [5.0], [5.0], [5.0]]])

    def advantage(table, weights):
        return group(table, weights, eps=0.0)

    # Means 2 and 6: one standard deviation from 4.
    assert node_advantages(scores, torch.ones(1), advantage, 2).tolist() == [[-1, -1, 1, 1], [0, 0, 0, 0]]
    assert node_advantages(scores, torch.ones(1), advantage, 4).tolist() == [[0] * 4] * 2
    leaf = node_advantages(scores, torch.ones(1), advantage, 1)
    assert torch.equal(leaf, advantage(scores, torch.ones(1))[0])


# Whole runs: two groups of four in four steps, of which 0, 1 and 2 have noise.

BRANCHED = ("policy.train_steps=[0, 1]", "policy.branch={}")


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """The folder of a tiny random SD3 pipeline."""
    return runs.save_model(tmp_path_factory.mktemp("tiny"))


@pytest.mark.parametrize(
    ("changes", "calls"),
    [
        # A group: 1 + 2 + 4 + 4 in the rollout, and replays of 1 and 2.
        (BRANCHED, 11 + 3),
        # All three noisy steps trained; the trajectories part at 1: 1 + 1 + 4 + 4, and replays of 1 and 4.
        (("policy.branch={at: [1]}",), 10 + 5),
        (("policy.train_steps=[1]", "policy.branch={}"), 10 + 1),
        (("policy.train_steps={name: sliding, size: 1, interval: 1}", "policy.branch={}"), 13 + 1),
        # No replays; the objective's own calls: two levels of the policy and the reference for each of four samples.
        (("policy.train_steps=[1]", "policy.branch={}", "objective.name=nft", "objective.times=2"), 10 + 16),
    ],
)
def test_denoiser_calls_of_a_step(changes, calls, model, tmp_path):
    """Counted in a whole training step."""
    run = runs.watched(runs.recipe(model, tmp_path / "run", *changes))
    assert run.step()["denoiser_calls"] == 2 * calls


def test_each_step_gets_the_advantages_of_its_depth(model, tmp_path):
    """A step that two samples share has the advantage of their mean score; the others the sample's own."""
    run, seen = runs.watched(runs.recipe(model, tmp_path / "run", *BRANCHED)), defaultdict(list)
    loss = run.objective.loss

    def listened(policy, rollout, piece, work):
        seen[piece].append(work.advantages_at(piece))
        return loss(policy, rollout, piece, work)

    run.objective.loss = listened
    run.step()
    scores, by_group = run.trace.scores, run.trace.advantages
    assert torch.equal(torch.stack(seen[1]), torch.tensor(by_group[0]))
    # Step 0 leads to two samples each: its scores are their means.
    torch.testing.assert_close(torch.tensor(scores[1]), torch.tensor(scores[0]).unflatten(1, (2, 2)).mean(2))
    assert torch.equal(torch.stack(seen[0]), torch.tensor(by_group[1]).repeat_interleave(2, 1))
    assert sorted(seen) == [0, 1]


def test_a_branched_run_resumes_bit_equal(model, tmp_path):
    """Four steps are two, a stop, and two more."""
    unbroken = runs.recipe(model, tmp_path / "unbroken", *BRANCHED)
    runs.train(unbroken)
    runs.train(runs.recipe(model, tmp_path / "run", *BRANCHED, "max_steps=2"))
    runs.train(runs.recipe(model, tmp_path / "run", *BRANCHED), resume=True)
    runs.assert_same_run(tmp_path / "run", unbroken.output)


def test_two_processes_are_one_and_micro_batches_change_nothing(model, tmp_path):
    """A group a process, or both groups in one micro-batch: only rounding differs after three steps."""
    settings = (*BRANCHED, "max_steps=3", "eval.every=0")
    one, two, whole = (runs.recipe(model, tmp_path / name, *settings) for name in ("one", "two", "whole"))
    whole = whole.model_copy(update={"micro_batch_size": 8})
    runs.run_watched(one)
    runs.run_watched(whole)
    runs.together(runs.run_watched, two, log=tmp_path / "log")
    traces = [json.loads(runs.trace_file(two.output, rank).read_text()) for rank in range(2)]
    assert traces[0]["sums"] == traces[1]["sums"]
    for other in (two, whole):
        for row, expected in zip(runs.metrics(other.output), runs.metrics(one.output), strict=True):
            assert row == pytest.approx(expected, rel=1e-4, abs=1e-5)
        found, wanted = runs.state(other.output), runs.state(one.output)
        for name in (name for name in wanted if "weights.safetensors:parameters/" in name):
            torch.testing.assert_close(found[name], wanted[name], rtol=0, atol=1e-6)


def test_branches_find_their_prompts_encoded(model, tmp_path):
    """Where the text encoders are released before the first step, the run is the one that keeps them."""
    sums = []
    for number, how in enumerate(("keep", "release")):
        run = runs.watched(runs.recipe(model, tmp_path / str(number), *BRANCHED, f"fit.text_encoders={how}"))
        run._let_encoders_go()
        run.step()
        run.step()
        sums.append(run.trace.sums)
    assert sums[0] == sums[1]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (("policy.branch={}", "micro_batch_size=6"), "6 cuts groups of 4 apart.*such as micro_batch_size: 4"),
        (("policy.branch={}",), "3 splits make no group of 4 in equal parts"),
        (("policy.branch={at: [0, 1], into: [2, 3]}",), r"into is \[2, 3\]; wanted 2 numbers"),
        (("policy.branch={at: [1, 0]}",), "wanted different steps in order"),
        (("policy.branch={at: [4]}",), "at: step 4, but the schedule has the steps 0 to 3"),
        (("policy.branch={into: [1, 4]}",), "wanted at least 2"),
        (
            ("policy.branch={at: [1]}", "policy.kernel=ode", "objective.name=nft", "objective.times=2"),
            "kernel ode with noise_level 0 has none",
        ),
    ],
)
def test_what_cannot_branch_is_refused(changes, message, model, tmp_path):
    """Before any weights load."""
    with pytest.raises(UserError, match=message):
        runs.watched(runs.recipe(model, tmp_path / "run", *changes))
    assert not (tmp_path / "run").exists()


def test_noise_weighting(model, tmp_path):
    """GRPO's loss of a step is multiplied by its std over the mean of the trainable steps'."""
    losses = []
    for weighting in (False, True):
        change = ("policy.train_steps=[1]", "policy.branch={}", f"objective.noise_weighting={weighting}")
        run, found = runs.watched(runs.recipe(model, tmp_path / str(weighting), *change)), []
        loss = run.objective.loss
        run.objective.loss = lambda *arguments, loss=loss, found=found: found.append(loss(*arguments)) or found[-1]
        kept = run.objective.pieces
        stds = []

        def pieces(policy, rollout, seeds, kept=kept, stds=stds):
            stds[:] = [policy.kernel.std(place) for place in rollout.places]
            return kept(policy, rollout, seeds)

        run.objective.pieces = pieces
        run.step()
        losses.append(torch.cat([terms.loss.detach() for terms in found]))
    weight = stds[1] / (sum(stds[:3]) / 3)
    torch.testing.assert_close(losses[1], weight * losses[0])
    assert losses[0].any()
