"""A memory of scores: what was scored once, with the same content and by the same reward, is not scored again.

A score is found by a digest of all that it may depend on: the picture's bytes, the prompt, the metadata, ``fps``, and
what the reward is (its name, options, source text and ``source``). The scores lie in one SQLite file, in which every
write is whole or absent and which several processes may share; scores that are NaN are not kept.

A network gives slightly other last bits in a batch of another size, and a cache makes batches smaller: a run with a
cache agrees with one without to rounding, not bit for bit.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import math
import os
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .data import PromptRow
from .errors import UserError
from .reward import FunctionReward, Reward, RewardBatch, RewardSet, Unscored, read_scores

FILE = "scores.sqlite"
"""The cache's file in its folder."""

_APPLICATION = 0x666C7263  # "flrc": SQLite keeps it in the file's header
_TABLE = "CREATE TABLE scores (key BLOB PRIMARY KEY, score REAL NOT NULL) WITHOUT ROWID"
_WAIT = 60.0  # seconds for another process that is writing; a write takes milliseconds
_AT_ONCE = 500  # SQLite's limit for values in one statement is at least 999


class ScoreFile:
    """Scores by their digests, in a file that is not trusted.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     scores = ScoreFile(Path(folder))
    ...     scores.write({b"a" * 32: 0.5, b"b" * 32: math.nan})
    ...     scores.read([b"a" * 32, b"b" * 32])
    {b'aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa': 0.5}
    """

    def __init__(self, folder: Path) -> None:
        """Check the file in ``folder``, if there is one; the first `write` makes it otherwise.

        Raises:
            UserError: it is no file of ours, or the folder cannot be written.
        """
        self.path = folder / FILE
        existing = next(path for path in (folder, *folder.absolute().parents) if path.exists())
        if not existing.is_dir() or not os.access(existing, os.W_OK):
            raise UserError(f"reward_cache: {folder} cannot be a folder, because of {existing}; write another.")
        self.read([])

    def read(self, keys: Sequence[bytes]) -> dict[bytes, float]:
        """The scores that are known, of ``keys``.

        Raises:
            UserError: the file holds something that is no score.
        """
        found: dict[bytes, float] = {}
        if not self.path.exists():
            return found
        with self._opened() as connection:
            if not self._has_table(connection):
                return found
            for start in range(0, len(keys), _AT_ONCE):
                some = keys[start : start + _AT_ONCE]
                marks = ", ".join("?" * len(some))
                query = f"SELECT key, score FROM scores WHERE key IN ({marks})"
                found |= dict(connection.execute(query, some).fetchall())
        for score in found.values():
            if not isinstance(score, float) or not math.isfinite(score):
                raise self._refused(f"it holds {score!r:.40} as a score")
        return found

    def write(self, scores: Mapping[bytes, float]) -> None:
        """Keep scores, all of them or none; those that are not finite are left out, and known ones stay."""
        rows = [(key, score) for key, score in scores.items() if math.isfinite(score)]
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self._opened() as connection:
            connection.execute("BEGIN IMMEDIATE")
            if not self._has_table(connection):
                connection.execute(f"PRAGMA application_id = {_APPLICATION}")
                connection.execute(_TABLE)
            connection.executemany("INSERT INTO scores VALUES (?, ?) ON CONFLICT (key) DO NOTHING", rows)

    @contextmanager
    def _opened(self) -> Iterator[sqlite3.Connection]:
        """A connection of its own for each use: they may be in different threads, or processes forked since."""
        connection = None
        try:
            connection = sqlite3.connect(self.path, timeout=_WAIT, isolation_level=None)
            connection.execute("PRAGMA trusted_schema = OFF")
            connection.execute("PRAGMA cell_size_check = ON")
            yield connection
            if connection.in_transaction:
                connection.execute("COMMIT")
        except sqlite3.Error as error:
            raise self._refused(str(error)) from error
        finally:
            if connection is not None:
                connection.close()  # takes an unfinished transaction back

    def _has_table(self, connection: sqlite3.Connection) -> bool:
        """Whether our table is there, or nothing yet; anything else, such as a trigger, would run in our process."""
        tables = connection.execute("SELECT sql FROM sqlite_master").fetchall()
        if not tables:
            return False
        if tables != [(_TABLE,)]:
            raise self._refused("it has other tables than this version's")
        if connection.execute("PRAGMA application_id").fetchone() != (_APPLICATION,):
            raise self._refused("it was not made by flowrl")
        return True

    def _refused(self, reason: str) -> UserError:
        return UserError(f"reward_cache: {self.path}: {reason}; delete the file, or write another folder.")


class CachedReward(Reward):
    """A reward that is asked only for what its cache does not know; equal samples of a batch are scored once.

    Where gradients are wanted, the reward itself is asked.
    """

    def __init__(self, reward: Reward, identity: str, scores: ScoreFile) -> None:
        """Put ``scores`` before ``reward``; ``identity`` is what `identify` said of it."""
        self.reward, self.scores = reward, scores
        self._identity = identity.encode()
        for name in (name for name in Reward.__annotations__ if not name.startswith("_")):
            setattr(self, name, getattr(reward, name))

    def __call__(self, batch: RewardBatch) -> Tensor:
        """The scores `[B]`, known or new."""
        if torch.is_grad_enabled() and batch.images.requires_grad:
            return self.reward(batch)
        keys = digests(self._identity, batch)
        known = self.scores.read(sorted(set(keys)))
        first = {key: row for row, key in reversed(list(enumerate(keys))) if key not in known}
        missing, reason = dict(sorted(first.items(), key=lambda item: item[1])), None
        if missing:
            fresh, reason = self._ask(batch.select(list(missing.values())))
            new = dict(zip(missing, fresh, strict=True))
            self.scores.write(new)
            known |= new
        scores = torch.tensor([known[key] for key in keys], dtype=torch.float32)
        if reason is not None:
            raise Unscored(reason, scores)
        return scores

    def check(self, rows: Sequence[PromptRow]) -> None:
        """As the reward's own."""
        self.reward.check(rows)

    def examples(self) -> tuple[RewardBatch, RewardBatch] | None:
        """As the reward's own."""
        return self.reward.examples()

    def _ask(self, batch: RewardBatch) -> tuple[list[float], str | None]:
        try:
            return read_scores(self.reward(batch), len(batch), self.name).tolist(), None
        except Unscored as error:
            scores = [math.nan] * len(batch) if error.scores is None else error.scores.tolist()
            return scores, error.reason


def with_cache(rewards: RewardSet, options: Mapping[str, Mapping[str, Any]], folder: Path) -> RewardSet:
    """The same rewards with a cache; those that are not cacheable stay as they are.

    Args:
        rewards: a set.
        options: of each reward, by its name in the set.
        folder: of the cache.

    Raises:
        UserError: the cache's file is not fit, or a reward's scores depend on more than the sample.
    """
    for name, reward in zip(rewards.names, rewards.rewards, strict=True):
        if reward.scope != "sample":
            raise UserError(
                f"reward {name!r} scores a sample by the others of its {reward.scope}, which no cache can keep; leave "
                "reward_cache out."
            )
    scores = ScoreFile(folder)
    cached = [
        CachedReward(reward, identify(name, reward, options.get(name, {})), scores) if reward.cacheable else reward
        for name, reward in zip(rewards.names, rewards.rewards, strict=True)
    ]
    return replace(rewards, rewards=tuple(cached))


def identify(name: str, reward: Reward, options: Mapping[str, Any]) -> str:
    """What a reward is, as text: another name, option, weight file or line of its source file makes another text.

    Helpers that it imports from other files are not looked at.

    >>> from flowrl import plugins
    >>> identify("jpeg", plugins.load("rewards", "jpeg")(), {"quality": 80})[:25]
    '["jpeg", {"quality": 80},'
    """
    made = reward.function if isinstance(reward, FunctionReward) else type(reward)
    place = f"{getattr(made, '__module__', '')}:{getattr(made, '__qualname__', type(made).__qualname__)}"
    return json.dumps([name, dict(options), place, reward.source, _source_digest(made)], sort_keys=True, default=str)


def digests(identity: bytes, batch: RewardBatch) -> list[bytes]:
    """A digest of 32 bytes for each sample: of the reward, the picture, the prompt, the metadata and ``fps``.

    Raises:
        UserError: metadata that is no JSON, so that its content cannot be told.
    """
    keys = []
    for image, prompt, metadata in zip(batch.images.detach().cpu(), batch.prompts, batch.metadata, strict=True):
        try:
            said = json.dumps([list(image.shape), prompt, metadata, batch.fps], sort_keys=True)
        except TypeError as error:
            raise UserError(f"reward_cache: metadata of {prompt!r:.80} is no JSON: {error}.") from error
        digest = hashlib.blake2b(digest_size=32)
        for part in (identity, said.encode(), image.contiguous().numpy().tobytes()):
            digest.update(len(part).to_bytes(8, "little"))  # where one part ends and the next begins
            digest.update(part)
        keys.append(digest.digest())
    return keys


def _source_digest(made: Any) -> str:
    """Of the file that a class or function is written in; empty if there is none, as in a notebook."""
    try:
        path = inspect.getsourcefile(made)
    except TypeError:  # built-in
        return ""
    if path is None or not Path(path).is_file():
        return ""
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()
