"""The table of classes: what is installed, what the page says, and that both are what the checks find."""

import json
import re
import subprocess
import sys

import diffusers
import pytest

from flowrl.errors import UserError
from flowrl.support import find, read

from . import table
from .cases import CASES
from .conformance import CHECKS, CORE

CONTENT = table.load()


def test_page_is_that_of_the_table():
    """docs/pipelines.md is what `table.page` makes of pipelines/support.json."""
    assert table.PAGE.read_text(encoding="utf8") == table.page(CONTENT)


def test_table_has_every_case():
    """Each class with a case has a row with every check, and each row a case; so do the refusals."""
    here = sorted(CASES.keys() | {"ConsisIDPipeline"})  # which diffusers exports only beside OpenCV
    assert sorted(CONTENT["classes"]) == here, "run python -m tests.pipelines.table --missing"
    assert list(CONTENT["classes"]) == sorted(CONTENT["classes"])
    assert all(list(row["checks"]) == list(CHECKS) for row in CONTENT["classes"].values())
    assert CONTENT["refused"] == table.refused()


def test_rows_are_policies():
    """A class that is not a policy belongs to the refused, not into the table."""
    broken = [
        f"{name}: {check}: {row['checks'][check]}"
        for name, row in CONTENT["classes"].items()
        for check in CORE
        if row["checks"][check].startswith("failed")
    ]
    assert broken == []


def test_readme_number_is_right():
    """README.md says how many classes were checked."""
    text = (table.ROOT / "README.md").read_text(encoding="utf8")
    numbers = re.findall(r"\b(\d+) pipelines of diffusers", text)
    assert numbers == [str(len(table.classes(read(CONTENT).rows)))]


def test_rows_with_reasons():
    """A check that fails or does not apply is marked, and its reason stands below with the class."""
    checks = {**dict.fromkeys(CHECKS, "passed"), "lora": "no loader", "predict": "failed: ValueError: no"}
    row = {"task": "text to image", "scheduler": "flow", "kernel": "flow_sde", "checks": checks}
    text = table.page({"diffusers": "1", "classes": {"B": row, "A": row}, "refused": {"C": "why"}})
    assert "| `A` | flow | yes | yes | yes | **fails** | yes | - | yes |  |\n| `B` |" in text
    assert "- lora: no loader (`A`, `B`)" in text
    assert "- `C`: why." in text
    support = read({"diffusers": "1", "classes": {"B": row}, "refused": {}})
    assert (support.rows[0].passed, support.rows[0].others) == (len(CHECKS) - 2, ["predict", "lora"])


def test_find():
    """What is known of a class; an unknown one comes with the nearest that is."""
    row, found = find("StableDiffusion3Pipeline")
    assert row is not None
    assert [preset.name for preset in found] == ["sd3"]
    with pytest.raises(UserError, match="Did you mean 'StableDiffusion3Pipeline'"):
        find("StableDifusion3Pipeline")
    refused = next(iter(CONTENT["refused"]))
    with pytest.raises(UserError, match=f"{refused} cannot be a policy: "):
        find(refused)


def test_only_named_rows_change(tmp_path, monkeypatch):
    """The generator runs the checks of the named classes, keeps the other rows, and drops none; files come whole."""
    old = {"task": "text to image", "scheduler": "flow", "kernel": "flow_sde", "checks": dict.fromkeys(CHECKS, "old")}
    monkeypatch.setattr(table, "SUPPORT", tmp_path / "support.json")
    monkeypatch.setattr(table, "PAGE", tmp_path / "page.md")
    monkeypatch.setattr(table, "row", lambda name: {**old, "checks": dict.fromkeys(CHECKS, f"new {name}")})
    one, two, *_ = sorted({**CASES, "AnotherPipeline": None})
    (tmp_path / "support.json").write_text(
        json.dumps({"diffusers": "0", "classes": {two: old, one: old}, "refused": {}})
    )
    table.main([next(name for name in (one, two) if name in CASES)])
    found = json.loads((tmp_path / "support.json").read_text())["classes"]
    assert sorted(row["checks"]["lora"][:3] for row in found.values()) == ["new", "old"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["page.md", "support.json"]
    with pytest.raises(SystemExit):
        table.main(["NobodysPipeline"])


@pytest.mark.slow
def test_checks_find_what_the_table_says(tmp_path):
    """Run anew in a process of its own, every check of every class has the outcome that is installed."""
    script = (
        "import json, sys, warnings; warnings.simplefilter('ignore'); from pathlib import Path\n"
        "from tests.pipelines import table; table.SUPPORT = Path(sys.argv[1]); table.PAGE = Path(sys.argv[2])\n"
        "table.main([])"
    )
    new = tmp_path / "support.json"
    subprocess.run([sys.executable, "-c", script, new, tmp_path / "page.md"], cwd=table.ROOT, check=True)
    wanted = {**CONTENT, "classes": dict(CONTENT["classes"])}
    if not hasattr(diffusers, "ConsisIDPipeline"):  # diffusers exports it where OpenCV is installed
        del wanted["classes"]["ConsisIDPipeline"]
    assert json.loads(new.read_text()) == wanted
