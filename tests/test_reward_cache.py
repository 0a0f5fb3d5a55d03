"""The cache of scores: what hits, what misses, and what is refused."""

import math
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from flowrl import reward_cache
from flowrl.config import RewardOptions
from flowrl.errors import UserError
from flowrl.preflight import make_rewards
from flowrl.reward import FunctionReward, Reward, RewardBatch, RewardSet, Unscored
from flowrl.reward_cache import FILE, CachedReward, ScoreFile, digests, identify

from . import runs


def batch_of(*values, prompts=None, metadata=None, fps=None) -> RewardBatch:
    """A grey picture for each value."""
    images = torch.tensor(values)[:, None, None, None].expand(-1, 3, 4, 4).clone()
    return RewardBatch(images, prompts or ["a"] * len(values), metadata or [{} for _ in values], fps=fps)


class Counting(Reward):
    """Brightness in a tenth of a unit, NaN for black; counts what it is shown."""

    name = "counting"
    range = (0.0, 10.0)
    license = "MIT"
    needs = frozenset({"n"})
    higher_is_better = False
    differentiable = True

    def __init__(self):
        self.shown: list[float] = []

    def __call__(self, batch):
        means = batch.images.mean(dim=(1, 2, 3))
        self.shown += means.tolist()
        return torch.where(means == 0, math.nan, means * 10)


@pytest.fixture
def cached(tmp_path) -> CachedReward:
    """A counting reward with a cache."""
    return CachedReward(Counting(), "counting", ScoreFile(tmp_path))


def test_equal_pictures_are_scored_once(cached):
    """Within a batch and from batch to batch; every score is the reward's own."""
    assert cached(batch_of(0.5, 0.25, 0.5)).tolist() == [5.0, 2.5, 5.0]
    assert cached.reward.shown == [0.5, 0.25]
    assert cached(batch_of(0.25, 1.0)).tolist() == [2.5, 10.0]
    assert cached.reward.shown == [0.5, 0.25, 1.0]


def test_another_process_finds_the_scores(cached, tmp_path):
    """A new object on the same folder, as of a resumed run, asks the reward for nothing."""
    cached(batch_of(0.1))
    again = CachedReward(Counting(), "counting", ScoreFile(tmp_path))
    score = again(batch_of(0.1))
    assert torch.equal(score, Counting()(batch_of(0.1)))  # float32, bit for bit
    assert again.reward.shown == []


def test_nan_is_not_kept(cached):
    """What could not be scored is tried again."""
    assert cached(batch_of(0.0, 0.0)).isnan().all()
    assert cached(batch_of(0.0)).isnan().all()
    assert cached.reward.shown == [0.0, 0.0]


@pytest.mark.parametrize(
    "other",
    [
        batch_of(0.5 + 2**-24),
        batch_of(0.5, prompts=["b"]),
        batch_of(0.5, metadata=[{"n": 1}]),
        batch_of(0.5, fps=8.0),
        RewardBatch(torch.full((1, 3, 2, 8), 0.5), ["a"], [{}]),
        RewardBatch(torch.full((1, 1, 3, 4, 4), 0.5), ["a"], [{}]),
    ],
)
def test_other_content_has_another_digest(other):
    """Last bits, prompt, metadata, frame rate and shape of equal bytes all tell samples apart."""
    assert digests(b"x", other) != digests(b"x", batch_of(0.5))
    assert digests(b"x", other) == digests(b"x", other)
    assert digests(b"x", other) != digests(b"y", other)


def test_metadata_is_compared_by_content():
    """The order of keys does not count; what is no JSON cannot be compared, and is refused."""
    one, two = batch_of(0.5, metadata=[{"a": 1, "b": 2}]), batch_of(0.5, metadata=[{"b": 2, "a": 1}])
    assert digests(b"x", one) == digests(b"x", two)
    with pytest.raises(UserError, match="metadata of 'a' is no JSON"):
        digests(b"x", batch_of(0.5, metadata=[{"a": object()}]))


def test_identity_of_a_reward(tmp_path):
    """Its name, options, source and source file make it; an edited file is another reward."""
    file = tmp_path / "mine.py"
    file.write_text("def one(images, prompts, metadata):\n    return [1.0] * len(images)\n")
    code = compile(file.read_text(), str(file), "exec")
    space = {"__name__": "mine"}
    exec(code, space)  # noqa: S102 (the line above)
    reward = FunctionReward(space["one"])
    first = identify("one", reward, {})
    assert first == identify("one", reward, {})
    assert len({first, identify("two", reward, {}), identify("one", reward, {"quality": 3})}) == 3
    file.write_text(file.read_text().replace("1.0", "2.0"))
    assert identify("one", reward, {}) != first
    assert "jpeg" in identify("jpeg", make_rewards({"jpeg": RewardOptions()}).rewards[0], {})


def test_a_cached_reward_says_what_the_reward_says(cached):
    """Every declaration passes through, and so do its checks."""
    for name in Reward.__annotations__:
        assert getattr(cached, name) == getattr(cached.reward, name)
    assert cached.examples() is None
    with pytest.raises(UserError, match=r"metadata\.n: missing"):
        cached.check([type("Row", (), {"metadata": {}, "where": "a.txt:1"})])


def test_gradients_pass_by_the_cache(cached):
    """A score from a file has no gradient, so the reward is asked."""
    cached(batch_of(0.5))
    batch = batch_of(0.5)
    batch.images.requires_grad_()
    cached(batch).sum().backward()
    # The mean over 48 numbers, times 10.
    torch.testing.assert_close(batch.images.grad, torch.full((1, 3, 4, 4), 10 / 48))


def test_reasons_pass_through(tmp_path):
    """A reward that says why samples are NaN says it through the cache; what it could score is kept."""

    class Partly(Reward):
        def __call__(self, batch):
            raise Unscored("the judge sleeps", torch.tensor([1.0, math.nan]))

    rewards = RewardSet(("partly",), (CachedReward(Partly(), "partly", ScoreFile(tmp_path)),), torch.ones(1))
    scores = rewards.score(batch_of(0.5, 0.25, 0.5))
    assert scores.raw.flatten()[[0, 2]].tolist() == [1.0, 1.0]
    assert scores.raw[1].isnan()
    assert scores.errors == {"partly": "the judge sleeps"}
    assert ScoreFile(tmp_path).read(digests(b"partly", batch_of(0.5, 0.25))) == {
        digests(b"partly", batch_of(0.5))[0]: 1.0
    }


def test_frames_of_a_clip_are_cached_too(cached):
    """A still of three equal frames is one picture for a reward for images."""
    clip = RewardBatch(torch.full((1, 3, 3, 4, 4), 0.5), ["a"], [{}], fps=8.0)
    rewards = RewardSet(("counting",), (cached,), torch.ones(1))
    assert rewards.score(clip).raw.tolist() == [[5.0]]
    assert cached.reward.shown == [0.5]


@pytest.mark.parametrize(
    ("statements", "reason"),
    [
        (["CREATE TABLE scores (key BLOB PRIMARY KEY, score REAL)"], "other tables"),
        ([reward_cache._TABLE, "PRAGMA application_id = 7"], "was not made by flowrl"),
        (
            [
                reward_cache._TABLE,
                f"PRAGMA application_id = {reward_cache._APPLICATION}",
                "CREATE TRIGGER t AFTER INSERT ON scores BEGIN DELETE FROM scores; END",
            ],
            "other tables",
        ),
        (
            ["CREATE TABLE x (key, score)", "CREATE VIEW scores AS SELECT key, score FROM x"],
            "other tables",
        ),
    ],
)
def test_foreign_databases_are_refused(statements, reason, tmp_path):
    """A table of another shape, another program's file, a trigger, a view: none is used, and none is changed."""
    with sqlite3.connect(tmp_path / FILE) as connection:
        for statement in statements:
            connection.execute(statement)
    connection.close()
    before = (tmp_path / FILE).read_bytes()
    with pytest.raises(UserError, match=reason):
        ScoreFile(tmp_path)
    assert (tmp_path / FILE).read_bytes() == before


@pytest.mark.parametrize("content", [b"not a database at all" * 50, b"SQLite format 3\0" + b"\xff" * 4096])
def test_foreign_files_are_refused(content, tmp_path):
    """A file that only looks like a database is an error that says what to do."""
    (tmp_path / FILE).write_bytes(content)
    with pytest.raises(UserError, match="delete the file, or write another folder"):
        ScoreFile(tmp_path)


@pytest.mark.parametrize("score", ["many", b"\x80\x04N.", 9e999])
def test_foreign_scores_are_refused(score, cached, tmp_path):
    """A score that is text, bytes (here a pickle) or infinite stops the run instead of entering it."""
    cached(batch_of(0.25))
    with sqlite3.connect(tmp_path / FILE) as connection:
        connection.execute("INSERT INTO scores VALUES (?, ?)", (digests(b"counting", batch_of(0.5))[0], score))
    connection.close()
    with pytest.raises(UserError, match="as a score; delete the file"):
        cached(batch_of(0.5))


def test_a_damaged_file_is_refused(cached, tmp_path):
    """A file whose pages were overwritten while a run used it."""
    cached(batch_of(0.5))
    size = (tmp_path / FILE).stat().st_size
    (tmp_path / FILE).write_bytes((tmp_path / FILE).read_bytes()[:100] + b"\xff" * (size - 100))
    with pytest.raises(UserError, match="reward_cache"):
        cached(batch_of(0.25))


def test_a_folder_that_cannot_be(tmp_path):
    """A file stands where the folder should be."""
    (tmp_path / "cache").write_text("")
    with pytest.raises(UserError, match="cannot be a folder"):
        ScoreFile(tmp_path / "cache")


def test_nothing_is_written_before_the_first_score(tmp_path):
    """A run is checked before it may leave anything behind; a file that a killed process left empty is taken."""
    scores = ScoreFile(tmp_path / "deep" / "cache")
    assert scores.read([b"a" * 32]) == {}
    assert list(tmp_path.iterdir()) == []
    scores.path.parent.mkdir(parents=True)
    scores.path.touch()
    ScoreFile(tmp_path / "deep" / "cache").write({b"a" * 32: 1.0})
    assert scores.read([b"a" * 32]) == {b"a" * 32: 1.0}


def test_a_write_is_whole_or_absent(tmp_path):
    """When one row of a write cannot be stored, none is."""
    scores = ScoreFile(tmp_path)
    with pytest.raises(UserError, match="NOT NULL"):
        scores.write({b"a" * 32: 1.0, None: 2.0})
    assert scores.read([b"a" * 32]) == {}


WRITER = """
import sys
from pathlib import Path
from flowrl.reward_cache import ScoreFile
scores = ScoreFile(Path(sys.argv[1]))
for number in range(40):
    scores.write({bytes([number]) * 32: float(number), bytes([200 + int(sys.argv[2]), number]) * 16: -1.0})
"""


def test_several_processes_write_at_once(tmp_path):
    """Two processes that make the file and write at the same time lose nothing."""
    done = [subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path / "cache"), str(number)]) for number in (1, 2)]
    assert [process.wait(timeout=120) for process in done] == [0, 0]
    scores = ScoreFile(tmp_path / "cache")
    shared, own = [bytes([n]) * 32 for n in range(40)], [bytes([200 + p, n]) * 16 for p in (1, 2) for n in range(40)]
    assert scores.read(shared) == {key: float(key[0]) for key in shared}
    assert scores.read(own) == dict.fromkeys(own, -1.0)


def test_many_keys_at_once(tmp_path):
    """More keys than one statement takes."""
    scores = ScoreFile(tmp_path)
    every = {number.to_bytes(32, "big"): float(number) for number in range(1201)}
    scores.write(every)
    assert scores.read(list(every)) == every


def test_a_run_with_a_cache(tmp_path):
    """The config's key reaches both sets of rewards; a second run of the same seed asks for no picture again."""
    model = runs.save_model(tmp_path)
    folder = tmp_path / "cache"
    plain = runs.train(runs.recipe(model, tmp_path / "plain", "max_steps=1"))
    first = runs.train(runs.recipe(model, tmp_path / "one", "max_steps=1", f"reward_cache={folder}"))
    size = _rows(folder)
    assert size == 8 + 2 * 2 * 2  # a step of eight pictures, two evaluations of two prompts and two samples
    second = runs.train(runs.recipe(model, tmp_path / "two", "max_steps=1", f"reward_cache={folder}"))
    assert _rows(folder) == size
    assert runs.metrics(first) == runs.metrics(second) == runs.metrics(plain)


def test_rewards_that_are_not_cacheable_stay(tmp_path):
    """A function that says so is asked each time."""

    def judge(images, prompts, metadata):
        return [1.0] * len(images)

    judge.cacheable = False
    rewards = RewardSet(("judge",), (FunctionReward(judge),), torch.ones(1))
    assert reward_cache.with_cache(rewards, {}, tmp_path).rewards == rewards.rewards


def _rows(folder: Path) -> int:
    connection = sqlite3.connect(folder / FILE)
    count = connection.execute("SELECT count(*) FROM scores").fetchone()[0]
    connection.close()
    return count
