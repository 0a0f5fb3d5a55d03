"""flowrl.selection: what each selection returns, and that runs take it."""

import math
import re

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from flowrl import plugins, selection
from flowrl.config import PolicyConfig
from flowrl.errors import UserError
from flowrl.preflight import make_selection
from flowrl.selection import AllSteps, Fraction, Listed, RandomWindow, Sliding, StepSelection, Window, stand_in

from . import runs, selection_table, tiny

TEN = stand_in(10)
WINDOWS = st.integers(2, 30).flatmap(lambda steps: st.tuples(st.just(steps), st.integers(1, steps - 1)))
"""Lengths of a schedule, and of a window that leaves out its last step."""


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """The folder of a tiny random SD3 pipeline."""
    return runs.save_model(tmp_path_factory.mktemp("tiny"))


def trained(chosen, count, seed=0, schedule=TEN):
    """The trained steps of the first training steps; the stochastic ones are the same."""
    found = [chosen.select(step, seed + step, schedule) for step in range(count)]
    assert all(list(noise) == list(train) for noise, train in found)
    return [list(train) for _, train in found]


def test_all_steps():
    """All are stochastic; the last, which has no noise, is not trained, nor is one with too little of it."""
    assert AllSteps().select(3, 1, TEN) == (range(10), list(range(9)))
    quiet = TEN._replace(stds=[0.7, 0.5, 0.4, 0.006, 0.0])
    assert AllSteps().select(3, 1, quiet).train == [0, 1, 2]


@pytest.mark.parametrize(("share", "count"), [(1.0, 9), (0.6, 6), (2 / 9, 2), (0.01, 1)])
def test_a_fraction_is_rounded_up(share, count):
    """Of the nine trainable steps, in order and each once; a fraction of 1 is all of them, on every seed."""
    for seed in range(20):
        noise, train = Fraction(share=share).select(0, seed, TEN)
        assert noise == range(10)
        assert len(train) == count
        assert train == sorted(set(train) & set(range(9)))


def test_a_fraction_is_drawn_evenly():
    """Over many seeds every trainable step comes up as often as any other."""
    drawn = [step for seed in range(900) for step in Fraction(share=1 / 3).select(0, seed, TEN).train]
    assert all(240 <= drawn.count(step) <= 360 for step in range(9))  # 300 each, give or take 4 sigma


def test_a_fixed_window():
    """The same steps each time."""
    assert trained(Window(start=3, size=2), 3) == [[3, 4]] * 3


@given(WINDOWS)
def test_a_window_lies_inside_the_schedule(case):
    """Of the length asked for, without the last step."""
    steps, length = case
    RandomWindow(size=length).check(steps)
    for train in trained(RandomWindow(size=length), 50, schedule=stand_in(steps)):
        assert train == list(range(train[0], train[0] + length))
        assert train[0] >= 0
        assert train[-1] <= steps - 2


def test_a_window_may_start_anywhere():
    """Over many seeds every start comes up, about as often as any other; a seed decides, not the training step."""
    window, six = RandomWindow(size=2), stand_in(6)
    starts = [window.select(0, seed, six).train[0] for seed in range(1000)]
    assert set(starts) == {0, 1, 2, 3}
    assert all(200 <= starts.count(start) <= 300 for start in range(4))  # 250 each, give or take 3.6 sigma
    assert starts == [window.select(7, seed, six).train[0] for seed in range(1000)]


def test_a_window_between_bounds():
    """Flow-GRPO-Fast draws from the first half of the schedule."""
    fast = RandomWindow(size=2, low=1, high=5)
    fast.check(10)
    assert {tuple(train) for train in trained(fast, 100)} == {(1, 2), (2, 3), (3, 4)}


def test_sliding_by_hand():
    """MixGRPO: the window stays for ``interval`` training steps, moves by ``shift``, and touches the end."""
    eight = stand_in(8)  # the windows of 3 that leave out step 7 start at 0 to 4
    starts = [train[0] for train in trained(Sliding(size=3, shift=2, interval=2), 9, schedule=eight)]
    assert starts == [0, 0, 2, 2, 4, 4, 0, 0, 2]
    starts = [train[0] for train in trained(Sliding(size=3, shift=3, interval=1), 4, schedule=eight)]
    assert starts == [0, 3, 4, 0]  # the last window is pushed back inside the schedule
    stays = Sliding(size=3, shift=2, interval=2, roll_back=False)
    assert [train[0] for train in trained(stays, 9, schedule=eight)] == [0, 0, 2, 2, 4, 4, 4, 4, 4]
    frozen = Sliding(size=3, shift=0, interval=2)
    assert trained(frozen, 5, schedule=eight) == [[0, 1, 2]] * 5
    whole = Sliding(size=7, interval=2)
    assert trained(whole, 3, schedule=eight) == [list(range(7))] * 3


def stays(chosen, schedule):
    """How many training steps in a row each start lasts, over one pass."""
    starts = [train[0] for train in trained(chosen, 500, schedule=schedule)]
    first = starts[: starts.index(0, starts.index(1))]
    return [first.count(start) for start in sorted(set(first))]


def test_stays_get_shorter_linearly():
    """From ``interval`` at the start towards ``min_interval``, by the authors' formula, rounded down."""
    # Twelve steps: windows of 2 start at 0 to 9, and 10 is T - 2: 10 (1 - l/10) + 2 l/10 = 10 - 0.8 l.
    wanted = [10, 9, 8, 7, 6, 6, 5, 4, 3, 2]
    assert stays(Sliding(size=2, interval=10, schedule="decay", min_interval=2), stand_in(12)) == wanted
    # A quarter of 10 is 2 where nothing is said.
    assert stays(Sliding(size=2, interval=10, schedule="decay"), stand_in(12)) == wanted


def test_stays_get_shorter_exponentially():
    """``ceil(interval exp(-rate max(0, l - threshold)))``."""
    found = stays(Sliding(size=2, interval=10, schedule="exp_decay", threshold=3, rate=0.5), stand_in(9))
    assert found == [10, 10, 10, 10, *(math.ceil(10 * math.exp(-0.5 * k)) for k in (1, 2, 3))]


def test_a_random_slide_is_a_random_window():
    """The paper's third schedule draws the start anew for each training step."""
    assert trained(Sliding(size=3, schedule="random"), 30) == trained(RandomWindow(size=3), 30)


def test_a_list_is_taken_as_it_is():
    """In its own order, stochastic and trained."""
    assert Listed(steps=[0, 3, 1]).select(5, 5, TEN) == ([0, 3, 1], [0, 3, 1])


@given(st.integers(0, 10**6), st.integers(0, 2**62), st.integers(6, 40))
def test_a_selection_has_no_memory(step, seed, steps):
    """A new object, asked once, says what an old one says that was asked before: that is what resuming needs."""
    schedule = stand_in(steps)
    for used in (AllSteps(), Fraction(), Window(), RandomWindow(), Sliding(), Sliding(schedule="random")):
        used.select(step + 1, seed + 1, schedule)
        fresh = type(used)(**used.model_dump())
        assert used.select(step, seed, schedule) == fresh.select(step, seed, schedule)


@pytest.mark.parametrize(
    ("chosen", "message"),
    [
        (Window(start=8, size=2), "a window of 2 steps from step 8 does not fit: wanted steps from 0 to 8"),
        (RandomWindow(size=10), "a window of 10 steps from step 0 .* steps from 0 to 8"),
        (RandomWindow(size=3, low=3, high=5), r"a window of 3 steps from step 3 .* steps from 3 to 4"),
        (RandomWindow(size=2, high=10), "high 10 does not fit"),
        (Sliding(size=10), "a window of 10 steps does not fit"),
        (Listed(steps=[3, 10]), r"indices from 0 to 9, got \[10\]"),
        (Listed(steps=[1, 1]), "each index once"),
    ],
)
def test_what_does_not_fit_a_schedule_is_refused(chosen, message):
    """Before anything runs, with what would fit."""
    with pytest.raises(UserError, match=message):
        chosen.check(10)


@pytest.mark.parametrize(
    ("value", "wanted"),
    [
        ("all", AllSteps()),
        (3, RandomWindow(size=3)),
        ([0, 2], Listed(steps=[0, 2])),
        ("sliding", Sliding()),
        ({"name": "sliding", "size": 3, "schedule": "decay"}, Sliding(size=3, schedule="decay")),
        ({"name": "fraction", "share": 0.5}, Fraction(share=0.5)),
        ({"name": "flowrl.selection:Window", "start": 1}, Window(start=1)),
    ],
)
def test_from_a_config(value, wanted):
    """A short form, a name, or a name with options; the config comes back from YAML as it was."""
    policy = PolicyConfig(train_steps=value)
    assert make_selection(policy) == wanted
    assert make_selection(PolicyConfig.model_validate(policy.model_dump(mode="json"))) == wanted


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("slidin", "unknown selection 'slidin'. Did you mean 'sliding'?"),
        ({"name": "sliding", "sise": 3}, "policy.train_steps sliding: unknown key 'sise'. Did you mean 'size'?"),
        ({"name": "sliding", "size": 0}, "size is 0: wanted at least 1"),
        ({"name": "sliding", "schedule": "slow"}, "schedule is 'slow': wanted 'progressive', 'random'"),
        ({"name": "window", "start": 9}, "a window of 2 steps from step 9 does not fit"),
        ({"name": "math:sqrt"}, "wanted a subclass of flowrl.selection.StepSelection"),
    ],
)
def test_mistakes_in_a_config(value, message):
    """Named before any weights load."""
    with pytest.raises(UserError) as caught:
        make_selection(PolicyConfig(train_steps=value))
    assert message in str(caught.value)


def test_every_built_in_has_a_name():
    """Each class of the module is an entry point, and each entry point loads a selection."""
    classes = {found for found in vars(selection).values() if isinstance(found, type) and found is not StepSelection}
    classes = {found for found in classes if issubclass(found, StepSelection)}
    assert {plugins.load("selections", name) for name in plugins.known("selections")} == classes


def test_options_are_frozen():
    """A selection does not change under a run."""
    with pytest.raises(ValidationError, match="frozen"):
        Sliding().size = 3


ODD = """
from flowrl.selection import Chosen, StepSelection

class Odd(StepSelection):
    offset: int = 1

    def select(self, step, seed, schedule):
        steps = range(self.offset, len(schedule.places) - 1, 2)
        return Chosen(steps, steps)
"""


def test_a_run_takes_a_selection_of_ones_own(model, tmp_path):
    """By its path; the trainer records its steps alone: 8 samples, 4 steps, and replays of steps 0 and 2."""
    (tmp_path / "odd.py").write_text(ODD)
    change = f"policy.train_steps={{name: '{tmp_path}/odd.py:Odd', offset: 0}}"
    run = runs.watched(runs.recipe(model, tmp_path / "run", change))
    assert run.step()["denoiser_calls"] == 8 * (4 + 2)


def test_a_run_slides(model, tmp_path):
    """The window of each training step, and noise inside it alone."""
    change = "policy.train_steps={name: sliding, size: 1, interval: 1}"
    run, seen = runs.watched(runs.recipe(model, tmp_path / "run", change)), []
    pieces = run.objective.pieces

    def listened(policy, rollout, seeds):
        seen.append((sorted(rollout.transitions), [step for step, std in enumerate(rollout.stds) if std]))
        return pieces(policy, rollout, seeds)

    run.objective.pieces = listened
    for _ in range(4):
        run.step()
    assert seen[::2] == seen[1::2] == [([start], [start]) for start in (0, 1, 2, 0)]


@pytest.mark.parametrize("noise", ["false", "true"])
def test_shared_noise_and_windows(noise, model, tmp_path):
    """Whether a group shares its initial noise changes no count; before the window a group is then one trajectory."""
    settings = ("policy.train_steps={name: window, start: 1, size: 1}", f"policy.share_initial_noise={noise}")
    run, seen = runs.watched(runs.recipe(model, tmp_path / "run", *settings)), []
    pieces = run.objective.pieces
    run.objective.pieces = lambda policy, rollout, seeds: seen.append(rollout) or pieces(policy, rollout, seeds)
    assert run.step()["denoiser_calls"] == 8 * (4 + 1)
    x = seen[0].transitions[1].x
    assert all(torch.allclose(x[0], row, atol=1e-5) for row in x) == (noise == "true")


@pytest.mark.parametrize(("short", "name"), [("all", "all"), ("2", "{name: random_window, size: 2}")])
def test_short_forms_are_bit_equal(short, name, model, tmp_path):
    """A run with the short form and one with the name end with the same weights."""
    sums = []
    for number, value in enumerate((short, name)):
        config = runs.recipe(model, tmp_path / str(number), f"policy.train_steps={value}")
        run = runs.watched(config)
        run.step()
        run.step()
        sums.append(run.trace.sums)
    assert sums[0] == sums[1]


def test_the_page_shows_what_selections_return():
    """The table in ``docs/step_selection.md`` is the one that `tests.selection_table` makes."""
    assert selection_table.indices() in selection_table.PAGE.read_text(encoding="utf-8")


def test_the_selection_of_the_page_runs():
    """The class in ``docs/step_selection.md`` trains every second step, and a rollout takes it."""
    (block,) = re.findall(r"^```python\n(.*?)^```$", selection_table.PAGE.read_text(), flags=re.MULTILINE | re.DOTALL)
    names = {}
    exec(compile(block, "docs/step_selection.md", "exec"), names)  # noqa: S102 (our own document)
    chosen = names["EverySecond"](offset=1)
    rollout = tiny.policy("sd3", "flow_sde").rollout(
        **tiny.arguments("sd3"),
        train_steps=lambda schedule: chosen.select(0, 0, schedule).train,
        noise_steps=lambda schedule: chosen.select(0, 0, schedule).noise,
    )
    assert sorted(rollout.transitions) == [1, 3]
    assert [step for step, std in enumerate(rollout.stds) if std] == [1, 3]
