"""Prompt files, and the plan of a step."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowrl import data
from flowrl.data import PromptRow, load_prompts, plan_step, rows_for_step, sample_seed
from flowrl.errors import UserError
from flowrl.pipelines.shapes import clips

SIZES = st.integers(min_value=1, max_value=40)


def rows_of(count: int) -> list[PromptRow]:
    """A prompt set of ``count`` rows."""
    return [PromptRow(row, f"prompt {row}", {}, f"prompts.txt:{row + 1}") for row in range(count)]


def test_text_file(tmp_path: Path, monkeypatch):
    """A line is a prompt; blank lines are skipped but keep their number in ``where``; the name is as it was written."""
    monkeypatch.chdir(tmp_path)
    Path("p.txt").write_bytes("\ufeffa red circle\r\n\r\n  ein grüner Kreis \n".encode())
    first, second = load_prompts("p.txt")
    assert first == PromptRow(0, "a red circle", {}, "p.txt:1")
    assert second == PromptRow(1, "ein grüner Kreis", {}, "p.txt:3")


def test_unicode_line_separators_do_not_split_a_prompt(tmp_path: Path):
    """Only line feeds end a line: a line number must be the one that an editor shows."""
    path = tmp_path / "p.jsonl"
    path.write_text('{"prompt": "one\u2028line"}\n{"prompt": "two"}\n', encoding="utf-8")
    assert [row.where.rpartition(":")[2] for row in load_prompts(path)] == ["1", "2"]


def test_json_lines(tmp_path: Path):
    """Metadata is kept, and may be left out; equal prompts are rows of their own."""
    path = tmp_path / "p.jsonl"
    path.write_text('{"prompt": "a", "metadata": {"count": 3}}\n\n{"prompt": "a"}')
    first, second = load_prompts(str(path))
    assert first == PromptRow(0, "a", {"count": 3}, f"{path}:1")
    assert second == PromptRow(1, "a", {}, f"{path}:3")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{prompt: a}", "not JSON: .* column 2. A line looks like"),
        ('["a"]', r'wanted an object like .*, got \["a"\]'),
        ('{"prompt": "a", "metdata": {}}', r"metdata: unknown field\. Did you mean 'metadata'\?"),
        ('{"prompt": "a", "colour": "red"}', r"colour: unknown field\. What rewards need goes into 'metadata'\."),
        ('{"metadata": {}}', r"prompt: wanted a text that is not empty, got null\."),
        ('{"prompt": 3}', r"prompt: wanted a text that is not empty, got 3\."),
        ('{"prompt": "  "}', r'prompt: wanted a text that is not empty, got "  "\.'),
        ('{"prompt": "a", "metadata": [1]}', r"metadata: wanted an object like .*, got \[1\]\."),
    ],
)
def test_malformed_line_is_named(tmp_path: Path, monkeypatch, line: str, message: str):
    """The message opens with file and line, and names the field."""
    monkeypatch.chdir(tmp_path)
    Path("p.jsonl").write_text(f'{{"prompt": "fine"}}\n{line}\n')
    with pytest.raises(UserError, match=f"^p.jsonl:2: {message}"):
        load_prompts("p.jsonl")


def test_file_that_is_not_text(tmp_path: Path):
    """A file in another encoding is refused with the line of its first bad byte."""
    path = tmp_path / "p.txt"
    path.write_bytes(b"fine\ncaf\xe9\n")
    with pytest.raises(UserError, match=r"p\.txt:2: the file is not UTF-8 text"):
        load_prompts(path)


def test_empty_file(tmp_path: Path):
    """A file of blank lines holds no prompt, and says so."""
    path = tmp_path / "p.txt"
    path.write_text("\n  \n")
    with pytest.raises(UserError, match="there is no prompt in it"):
        load_prompts(path)


@pytest.mark.parametrize(("name", "hint"), [("shapes_trian", "Did you mean 'shapes_train'"), ("prompts/none.txt", "")])
def test_missing_file_lists_the_bundled_sets(tmp_path: Path, monkeypatch, name: str, hint: str):
    """A name that is neither a set nor a file is answered with the sets that there are."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError) as caught:
        load_prompts(name)
    assert f"there is no file {name!r}" in str(caught.value)
    assert hint in str(caught.value)
    assert str(caught.value).endswith(
        "Bundled: clips_heldout, clips_train, shapes_heldout, shapes_train, words_heldout, words_train."
    )


def test_folder_and_foreign_formats_are_refused(tmp_path: Path):
    """A folder is no file, and a table is no prompt list."""
    with pytest.raises(UserError, match="there is no file"):
        load_prompts(tmp_path)
    path = tmp_path / "p.csv"
    path.write_text("prompt\na\n")
    with pytest.raises(UserError, match=r"wanted a \.txt file .* or a \.jsonl file"):
        load_prompts(path)


@pytest.mark.parametrize("name", data.bundled_prompts())
def test_bundled_sets_load(name: str):
    """Every bundled set is well formed, and its places name the file without a folder of this machine."""
    rows = load_prompts(name)
    assert [row.row for row in rows] == list(range(len(rows)))
    assert rows[-1].where == f"{name}.jsonl:{len(rows)}"


def test_sample_seed_is_the_same_everywhere():
    """The seed is fixed by its definition: the first 8 bytes of BLAKE2b over the JSON of the parts, less one bit."""
    # printf '["noise", 0, 17]' | b2sum -l 64
    assert sample_seed("noise", 0, 17) == 0x90C3D6C3ED0586A4 >> 1


@given(st.lists(st.integers() | st.text(), max_size=4), st.lists(st.integers() | st.text(), max_size=4))
def test_sample_seed_has_no_twins(first: list, second: list):
    """Different parts give different seeds, in [0, 2^63)."""
    assert 0 <= sample_seed(*first) < 2**63
    assert (sample_seed(*first) == sample_seed(*second)) == (first == second)


@given(count=SIZES, groups=SIZES, step=st.integers(0, 500), seed=st.integers(0, 9))
def test_rows_for_step(count: int, groups: int, step: int, seed: int):
    """A step has as many rows as asked for, all in range, each as often as every other or once more."""
    rows = rows_for_step(count, groups, step, seed)
    assert len(rows) == groups
    times = [rows.count(row) for row in range(count)]
    assert sum(times) == groups
    assert max(times) - min(times) <= 1


@given(count=SIZES, groups=SIZES, epoch=st.integers(0, 5))
def test_an_epoch_holds_no_row_twice(count: int, groups: int, epoch: int):
    """The whole steps of an epoch are parts of one shuffle; only rows that fill no step sit it out."""
    steps = count // groups
    rows = [row for step in range(steps) for row in rows_for_step(count, groups, epoch * steps + step, seed=0)]
    assert len(rows) == len(set(rows)) == steps * groups


def test_epochs_and_seeds_shuffle_anew():
    """Two epochs, and two runs, see the rows in other orders; the same run sees the same."""
    orders = {tuple(rows_for_step(20, 20, step, seed)) for step in range(3) for seed in range(3)}
    assert len(orders) == 9
    assert rows_for_step(20, 20, 2, 1) == rows_for_step(20, 20, 2, 1)


def test_every_row_has_its_turn():
    """Rows that one epoch leaves out are in another: with 8 of 15 rows a step, 40 steps see each about 21 times."""
    seen = [row for step in range(40) for row in rows_for_step(15, 8, step, seed=0)]
    # Each step takes a row with chance 8/15: mean 21.3, standard deviation sqrt(40 * 8/15 * 7/15) = 3.2.
    assert all(21.3 - 4 * 3.2 < seen.count(row) < 21.3 + 4 * 3.2 for row in range(15))


@pytest.mark.parametrize("arguments", [(0, 1, 0), (1, 0, 0), (1, 1, -1)])
def test_rows_for_step_refuses_nonsense(arguments):
    """No rows, no groups or a step before the first is our mistake."""
    with pytest.raises(ValueError, match="wanted count, groups_per_step >= 1, step >= 0; got"):
        rows_for_step(*arguments, seed=0)


def test_plan_by_hand():
    """Two groups of three in micro-batches of four: 4 + 2, group after group."""
    rows = rows_of(2)
    first, second = plan_step(rows, group_size=3, micro_batch_size=4, step=5, seed=1)
    assert (first.index, second.index) == (0, 1)
    assert first.rows == [rows[0], rows[0], rows[0], rows[1]]
    assert (first.groups, first.samples) == ([0, 0, 0, 1], [0, 1, 2, 0])
    assert (second.groups, second.samples) == ([1, 1], [1, 2])
    assert second.seeds[1] == sample_seed("noise", 1, 5, 1, 1, 2)  # run, step, row, group, sample


@given(groups=SIZES, size=st.integers(1, 9), micro=SIZES)
def test_micro_batch_size_changes_nothing(groups: int, size: int, micro: int):
    """However the step is cut, its samples, their order and their seeds are the same, and each occurs once."""
    rows = rows_of(groups)
    whole = plan_step(rows, group_size=size, micro_batch_size=groups * size, step=3, seed=0)
    parts = plan_step(rows, group_size=size, micro_batch_size=micro, step=3, seed=0)
    for field in ("rows", "groups", "samples", "seeds"):
        assert [item for part in parts for item in getattr(part, field)] == getattr(whole[0], field)
    assert [part.index for part in parts] == list(range(len(parts)))
    assert all(len(part.rows) == micro for part in parts[:-1])


@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
def test_ranks_share_a_step_without_gap_or_overlap(world_size: int):
    """Micro-batch i belongs to rank i % world_size: together the ranks hold the step, whatever their number."""
    plan = plan_step(rows_of(5), group_size=4, micro_batch_size=3, step=0, seed=0)
    owned = [
        (group, sample)
        for rank in range(world_size)
        for batch in plan[rank::world_size]
        for group, sample in zip(batch.groups, batch.samples, strict=True)
    ]
    assert sorted(owned) == [(group, sample) for group in range(5) for sample in range(4)]


def test_no_two_samples_share_noise():
    """All seeds of a run differ, also where a row fills two groups of a step."""
    rows = rows_of(3)
    seeds = [
        seed
        for run in range(3)
        for step in range(10)
        for batch in plan_step([*rows, *rows], group_size=4, micro_batch_size=5, step=step, seed=run)
        for seed in batch.seeds
    ]
    assert len(set(seeds)) == len(seeds) == 3 * 10 * 6 * 4


@pytest.mark.parametrize(("size", "micro"), [(0, 1), (1, 0)])
def test_plan_refuses_empty_sizes(size: int, micro: int):
    """Sizes under 1 are our mistake."""
    with pytest.raises(ValueError, match="wanted group_size and micro_batch_size >= 1, got"):
        plan_step(rows_of(1), group_size=size, micro_batch_size=micro, step=0, seed=0)


def test_bundled_sets_are_plain_json():
    """A bundled line has a prompt and its kind, and nothing else; words have no kinds."""
    for name in data.bundled_prompts():
        for row in load_prompts(name):
            if name.startswith("words"):
                assert row.metadata == {}
                continue
            assert list(row.metadata) == ["kind"]
            kinds = clips.PACES if name.startswith("clips") else ("single", "count", "relation")
            assert row.metadata["kind"] in kinds


def test_initial_noise_is_shared_in_a_group_on_request():
    """A sample's initial noise is its own; shared, it is one a group, and the noise of the steps is as it was."""
    rows = [PromptRow(5, "a red circle", {}, "prompts.txt:6")] * 2
    sizes = {"group_size": 3, "micro_batch_size": 6, "step": 0, "seed": 0}
    (own,), (shared,) = plan_step(rows, **sizes), plan_step(rows, **sizes, share_initial_noise=True)
    assert own.latent_seeds == own.seeds == shared.seeds
    assert len(set(shared.latent_seeds)) == 2
    assert shared.latent_seeds[:3] == shared.latent_seeds[:1] * 3
    assert not set(shared.latent_seeds) & set(shared.seeds)
