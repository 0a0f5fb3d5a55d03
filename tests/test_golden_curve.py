"""Ten steps of a tiny run, number for number: a refactor leaves them as they are, a change of method explains them."""

from __future__ import annotations

import json

import pytest

from . import runs


@pytest.mark.parametrize("objective", runs.OBJECTIVES)
def test_ten_steps(objective, tmp_path):
    """Rewards and gradient norms are those of ``tests/data/golden_curve.json``; ``python -m tests.runs`` renews it."""
    wanted = json.loads(runs.GOLDEN.read_text())[objective]
    found = runs.curve(runs.save_model(tmp_path), tmp_path, objective)
    assert len(found) == 10
    for step, (row, golden) in enumerate(zip(found, wanted, strict=True)):
        assert row == pytest.approx(golden, rel=1e-3), f"step {step}"
