"""``flowrl rewards``: tables, JSON, exit codes, and files that nobody should trust."""

import json
import math
import os

import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

from flowrl import reward_server, rewards_cli
from flowrl.cli import app
from flowrl.rewards_cli import correlations, describe

from . import runs

BRIGHT, RED = runs.reward("brightness"), runs.reward("redness")


def flowrl(*arguments: object, code: int = 0):
    """Run a command, and hand back what it printed and what it complained of."""
    result = CliRunner().invoke(app, ["rewards", *map(str, arguments)], env={"COLUMNS": "250"})
    assert result.exit_code == code, (result.output, result.exception)
    return result


@pytest.fixture
def pictures(tmp_path):
    """A folder of grey pictures: a is black, b is a fifth grey, c is white and larger."""
    folder = tmp_path / "pictures"
    folder.mkdir()
    for name, level, side in (("a.png", 0, 4), ("b.png", 51, 4), ("c.PNG", 255, 6)):
        Image.new("RGB", (side, side), (level, level, level)).save(folder / name, "PNG")
    return folder


def test_list_shows_every_reward():
    """Declarations without making a reward."""
    rows = {row["name"]: row for row in json.loads(flowrl("list", "--json").stdout)}
    assert {"jpeg", "jpeg_incompressibility", "shapes", "shapes_partial"} <= set(rows)
    assert rows["jpeg"]["range"] == [None, 0.0]
    assert rows["jpeg"]["license"] == "Apache-2.0"
    assert rows["jpeg"]["missing"] == ""
    shown = flowrl("list").stdout
    assert all(name in shown for name in rows)


def test_what_is_missing_is_named(monkeypatch):
    """A reward whose extra is not installed says how to install it; one that does not import says why."""

    class Extra:
        media, needs, range, higher_is_better, differentiable, license = "image", (), (0.0, 1.0), True, False, "MIT"
        extra = "ocr"

    monkeypatch.setattr("flowrl.plugins.load", lambda group, name: Extra)
    wanted = ["torch>=2", "no-such-package>=1; extra == 'ocr'", "other-missing; extra == 'serve'"]
    monkeypatch.setattr("importlib.metadata.requires", lambda _: wanted)
    assert describe("x")["missing"] == "pip install 'flowrl[ocr]'"
    monkeypatch.setattr("importlib.metadata.requires", lambda _: ["numpy; extra == 'ocr'"])
    assert describe("x")["missing"] == ""
    monkeypatch.undo()
    assert "unknown reward 'nobody'" in describe("nobody")["missing"]
    assert describe(BRIGHT)["media"] == "function"


def test_score_a_folder(pictures):
    """In order of the names, whatever the sizes; black is 0, 51 of 255 is .2, white is 1."""
    rows = json.loads(flowrl("score", pictures, "--reward", BRIGHT, "--reward", RED, "--json").stdout)
    assert [os.path.basename(row["file"]) for row in rows] == ["a.png", "b.png", "c.PNG"]  # noqa: PTH119
    assert [row["scores"][BRIGHT] for row in rows] == pytest.approx([0.0, 0.2, 1.0])
    assert [row["scores"][RED] for row in rows] == pytest.approx([0.0, 0.0, 0.0], abs=1e-6)
    shown = flowrl("score", pictures, "--reward", BRIGHT, "--batch-size", 1).stdout
    assert "b.png" in shown
    assert "0.2" in shown


def test_prompts_and_metadata(pictures, tmp_path):
    """One prompt for all, or one each; metadata come along, and their absence is the user's mistake."""
    one = tmp_path / "one.jsonl"
    one.write_text('{"prompt": "a red circle", "metadata": {"kind": "single"}}\n')
    rows = json.loads(flowrl("score", pictures, "--reward", BRIGHT, "--prompts", one, "--json").stdout)
    assert {row["prompt"] for row in rows} == {"a red circle"}
    each = tmp_path / "each.txt"
    each.write_text("first\nsecond\nthird\n")
    rows = json.loads(flowrl("score", pictures, "--reward", BRIGHT, "--prompts", each, "--json").stdout)
    assert [row["prompt"] for row in rows] == ["first", "second", "third"]
    each.write_text("first\nsecond\n")
    result = flowrl("score", pictures, "--reward", BRIGHT, "--prompts", each, code=2)
    assert "2 prompts for 3 pictures" in result.stderr
    needy = tmp_path / "needy.py"
    needy.write_text(
        "from flowrl.reward import Reward\n"
        "class Needy(Reward):\n"
        "    needs = frozenset({'target'})\n"
        "    def __call__(self, batch):\n"
        "        return batch.images.mean(dim=(1, 2, 3))\n"
    )
    assert "needs metadata.target" in flowrl("score", pictures, "--reward", f"{needy}:Needy", code=2).stderr


def test_hostile_files(pictures):
    """Damaged pictures, huge ones, pipes, folders with a picture's name, markup and escape codes in names."""
    (pictures / "[red]x[&]\x1b[31m.png").write_bytes((pictures / "b.png").read_bytes())
    (pictures / "damaged.png").write_bytes(b"\x89PNG\r\n\x1a\n" + b"\xff" * 50)
    (pictures / "text.jpg").write_text("hello")
    (pictures / "folder.png").mkdir()
    (pictures / "gone.png").symlink_to("nowhere")
    os.mkfifo(pictures / "pipe.png")
    with (pictures / os.fsdecode(b"bytes\xff.png")).open("wb") as file:
        file.write((pictures / "b.png").read_bytes())
    result = flowrl("score", pictures, "--reward", BRIGHT, "--json", code=1)
    rows = {row["file"].rsplit("/", 1)[-1]: row for row in json.loads(result.stdout)}
    assert set(rows) == {
        "a.png",
        "b.png",
        "c.PNG",
        "[red]x[&]\\x1b[31m.png",
        "damaged.png",
        "text.jpg",
        "bytes\\xff.png",
    }
    assert rows["bytes\\xff.png"]["scores"][BRIGHT] == pytest.approx(0.2)
    assert rows["damaged.png"]["scores"][BRIGHT] is None
    assert "not a whole picture" in rows["damaged.png"]["error"]
    shown = flowrl("score", pictures, "--reward", BRIGHT, code=1).stdout
    assert "\x1b" not in shown
    assert "[red]x[&]" in shown


def test_files_that_are_too_large_or_absent(pictures, monkeypatch):
    """Found by the size of the file, or by the header of the picture."""
    assert (
        json.loads(flowrl("score", "no.png", "--reward", BRIGHT, "--json", code=1).stdout)[0]["error"] == "no such file"
    )
    monkeypatch.setattr(rewards_cli, "_PIXELS", 20)
    rows = json.loads(flowrl("score", pictures, "--reward", BRIGHT, "--json", code=1).stdout)
    assert [row["error"] for row in rows] == [None, None, "a picture of 6 x 6; wanted at most 20 pixels"]
    monkeypatch.setattr(rewards_cli, "_FILE_BYTES", 10)
    rows = json.loads(flowrl("score", pictures, "--reward", BRIGHT, "--json", code=1).stdout)
    assert {row["error"] for row in rows} == {"more than 10 bytes"}


def test_nothing_to_score(tmp_path):
    """An empty folder is the user's mistake, and so is an unknown reward."""
    assert "no picture (.png" in flowrl("score", tmp_path, "--reward", BRIGHT, code=2).stderr
    assert "unknown reward 'jpgg'. Did you mean 'jpeg'?" in flowrl("score", tmp_path, "--reward", "jpgg", code=2).stderr


def test_a_reward_that_fails_on_some(pictures):
    """Its scores are empty, the reason is told beside the table."""
    result = flowrl("score", pictures, "--reward", runs.reward("silent"), "--json")
    assert {score for row in json.loads(result.stdout) for score in row["scores"].values()} == {None}
    assert "it returned None" in result.stderr


def test_check():
    """One reward by name; a failure is exit code 1; no name at all, or a name and --all, is a mistake."""
    shown = flowrl("check", "jpeg").stdout
    assert all(check in shown for check in ("separation", "singles", "permutation", "bounds", "gradient", "cost"))
    assert "1 checks failed" in flowrl("check", "nobody", code=1).stderr
    assert "or --all" in flowrl("check", code=2).stderr
    assert "or --all" in flowrl("check", "jpeg", "--all", code=2).stderr


def test_check_all(monkeypatch):
    """Every installed reward; one without its weights is noted."""
    monkeypatch.setattr("flowrl.plugins.known", lambda group: ["jpeg", "absent"])
    shown = flowrl("check", "--all").stdout
    assert "not available: unknown reward 'absent'" in shown
    assert "FAIL" not in shown


def test_compare(pictures, tmp_path):
    """Brightness and darkness order pictures oppositely, which "lower is better" says; a constant has no order."""
    dark = tmp_path / "dark.py"
    dark.write_text(
        "from flowrl.reward import Reward\n"
        "class Light(Reward):\n"
        "    higher_is_better = False\n"
        "    def __call__(self, batch):\n"
        "        return batch.images.mean(dim=(1, 2, 3))\n"
    )
    (pictures / "damaged.png").write_bytes(b"no")
    names = [BRIGHT, f"{dark}:Light", runs.reward("constant")]
    result = flowrl("compare", pictures, *(part for name in names for part in ("--reward", name)), "--json")
    said = json.loads(result.stdout)
    assert (said["rewards"], said["pictures"]) == (names, 3)
    assert said["spearman"] == [[1.0, -1.0, None], [-1.0, 1.0, None], [None, None, None]]
    assert "left out:" in result.stderr
    shown = flowrl("compare", pictures, "--reward", BRIGHT, "--reward", f"{dark}:Light").stdout
    assert "-1.000" in shown
    assert "two rewards or more" in flowrl("compare", pictures, "--reward", BRIGHT, code=2).stderr


def test_correlations_by_hand():
    """Ranks 1 2 3 4 against 1 3 2 4: 1 - 6 (0 + 1 + 1 + 0) / (4 (16 - 1)) = 0.8; NaN rows are left out pair by pair."""
    nan = math.nan
    scores = torch.tensor([[1.0, 10.0, nan], [2.0, 30.0, 1.0], [3.0, 20.0, nan], [4.0, 90.0, 2.0]])
    matrix = correlations(scores)
    assert matrix[0][1] == matrix[1][0] == pytest.approx(0.8)
    assert math.isnan(matrix[0][2])  # two rows are no comparison


@pytest.fixture
def listening(monkeypatch):
    """What `serve` would serve, and where."""
    calls = []
    monkeypatch.setattr(reward_server, "create_app", lambda served, limits, **how: calls.append((served, limits, how)))
    monkeypatch.setattr(reward_server, "serve", lambda app, host, port: calls.append((host, port)))
    monkeypatch.delenv(reward_server.TOKEN, raising=False)
    return calls


def test_serve(listening):
    """Names become the end of URLs; options and limits reach the rewards; only this machine is let in."""
    flowrl("serve", "jpeg", f"bright={BRIGHT}", RED, "--option", "jpeg.quality=80", "--max-batch", 3, "--port", 0)
    (served, limits, how), where = listening
    assert list(served) == ["jpeg", "bright", "redness"]
    assert served["jpeg"].reward.quality == 80
    assert (limits.batch, how["token"], where) == (3, None, ("127.0.0.1", 0))


def test_serve_refuses(listening, monkeypatch):
    """Names that cannot end a URL, twice the same, options of nobody, and other machines without a token."""
    assert "'health' cannot end a URL" in flowrl("serve", "health=jpeg", code=2).stderr
    assert "cannot end a URL" in flowrl("serve", "a/b=jpeg", code=2).stderr
    assert "is 'jpeg' already" in flowrl("serve", "jpeg", "jpeg=shapes", code=2).stderr
    assert "wanted ALIAS.KEY=VALUE" in flowrl("serve", "jpeg", "--option", "shapes.x=1", code=2).stderr
    assert "unknown option 'x'" in flowrl("serve", "jpeg", "--option", "jpeg.x=1", code=2).stderr
    assert "can be reached from other machines" in flowrl("serve", "jpeg", "--host", "0.0.0.0", code=2).stderr  # noqa: S104
    monkeypatch.setenv(reward_server.TOKEN, "s3cret")
    flowrl("serve", "jpeg", "--host", "0.0.0.0")  # noqa: S104
    assert listening[0][2]["token"] == "s3cret"


def test_train_artifact(tmp_path):
    """A head from labelled pictures: the file, and one line of JSON; mistakes are named."""
    for kind, shade in (("clean", 50), ("flawed", 200)):
        (tmp_path / kind).mkdir()
        for number in range(10):
            Image.new("RGB", (32, 32), (shade + number,) * 3).save(tmp_path / kind / f"{number}.png")
    (tmp_path / "mine.py").write_text("def colour(images):\n    return images.mean(dim=(2, 3))\n")
    out, features = tmp_path / "head.safetensors", f"{tmp_path}/mine.py:colour"
    said = json.loads(flowrl("train-artifact", tmp_path, "--out", out, "--features", features, "--side", 32).stdout)
    assert said == {"out": str(out), "auc": 1.0, "false_alarms": 0.0, "missed": 0.0, "n": 4.0}
    assert out.is_file()
    assert "ends in .safetensors" in flowrl("train-artifact", tmp_path, "--out", tmp_path / "head.pt", code=2).stderr
    assert "at least 10 pictures" in flowrl("train-artifact", tmp_path / "clean", "--out", out, code=2).stderr
