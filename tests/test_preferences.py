"""flowrl.preferences: every form of preference data, and every mistake with its file, line and field."""

import json

import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

from flowrl.errors import UserError
from flowrl.preferences import has_noise, load_groups, mistakes, rows_of, sizes


@pytest.fixture
def folder(tmp_path):
    """Four pictures and a file of latents with noise."""
    for name in "abcd":
        Image.new("RGB", (8, 8)).save(tmp_path / f"{name}.png")
    tensors = {"latents": torch.zeros(2, 4, 1, 1), "noise": torch.zeros(2, 4, 1, 1)}
    save_file(tensors, tmp_path / "two.safetensors")
    return tmp_path


def write(folder, *rows):
    """Lines of JSON, or text as it is."""
    lines = [row if isinstance(row, str) else json.dumps(row) for row in rows]
    (folder / "preferences.jsonl").write_text("\n".join(lines) + "\n", encoding="utf8")
    return folder / "preferences.jsonl"


def test_every_form(folder):
    """Pairs are groups of two with scores 1 and 0; blank lines and Pick-a-Pic's ties are left out."""
    path = write(
        folder,
        {"prompt": " a ", "chosen": "a.png", "rejected": "b.png"},
        {"prompt": "b", "images": ["a.png", "b.png", "c.png"], "scores": [0.5, 1, -2.0]},
        "",
        {"prompt": "c", "latents": "two.safetensors", "scores": [3, 4]},
        {"caption": "d", "jpg_0": "c.png", "jpg_1": "d.png", "label_0": 0.0, "label_1": 1.0, "model_0": "x"},
        {"caption": "e", "jpg_0": "c.png", "jpg_1": "d.png", "label_0": 0.5, "label_1": 0.5},
    )
    found = load_groups(path)
    assert [(g.prompt, g.scores, [p.name for p in g.images]) for g in found] == [
        ("a", (1.0, 0.0), ["a.png", "b.png"]),
        ("b", (0.5, 1.0, -2.0), ["a.png", "b.png", "c.png"]),
        ("c", (3.0, 4.0), []),
        ("d", (0.0, 1.0), ["c.png", "d.png"]),
    ]
    assert [g.where.rsplit(":", 1)[1] for g in found] == ["1", "2", "4", "5"]
    assert found[2].latents == folder / "two.safetensors"
    assert sizes(found) == {2, 3}
    assert not has_noise(found)
    assert has_noise(found[2:3])
    assert [(row.row, row.prompt) for row in rows_of(found)][:2] == [(0, "a"), (1, "b")]
    assert load_groups(folder) == found
    assert mistakes(folder) == (found, [])


def test_folders(folder):
    """chosen/ and rejected/ with pictures of the same names, and the prompt beside the chosen one."""
    for name in ("chosen", "rejected"):
        (folder / name).mkdir()
    Image.new("RGB", (8, 8)).save(folder / "chosen" / "x.png")
    Image.new("RGB", (8, 8)).save(folder / "rejected" / "x.webp")
    (folder / "chosen" / "x.txt").write_text("a red circle\n")
    (found,) = load_groups(folder)
    assert (found.prompt, found.scores) == ("a red circle", (1.0, 0.0))
    assert [path.name for path in found.images] == ["x.png", "x.webp"]
    (folder / "chosen" / "x.txt").write_text("")
    with pytest.raises(UserError, match=r"x\.txt: wanted a prompt, got an empty file"):
        load_groups(folder)
    (folder / "rejected" / "x.webp").unlink()
    with pytest.raises(UserError, match=r"x.png: wanted a picture of its name in rejected/"):
        load_groups(folder)


PAIR = {"prompt": "a", "chosen": "a.png", "rejected": "b.png"}


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("{", "jsonl:2: not JSON: "),
        ("[1]", r"jsonl:2: wanted an object, got \[1\]"),
        ({"prompt": "a"}, "jsonl:2: wanted chosen and rejected, images and scores"),
        ({**PAIR, "prompt": " "}, 'jsonl:2: prompt: wanted a text that is not empty, got " "'),
        ({**PAIR, "chosn": 1}, "jsonl:2: chosn: unknown field. Did you mean 'chosen'"),
        ({**PAIR, "chosen": 3}, "jsonl:2: chosen: wanted the name of a file, got 3"),
        ({**PAIR, "chosen": "none.png"}, "jsonl:2: chosen: there is no file .*none.png"),
        ({**PAIR, "chosen": "../secret.png"}, r"jsonl:2: chosen: '../secret.png' leads out of the folder"),
        ({**PAIR, "rejected": "/etc/hostname"}, "jsonl:2: rejected: '/etc/hostname' leads out of the folder"),
        ({"prompt": "a", "images": ["a.png", "b.png"], "scores": [1]}, "scores: wanted two numbers or more"),
        ({"prompt": "a", "images": ["a.png", "b.png"], "scores": [1, "2"]}, "scores: wanted two numbers or more"),
        ({"prompt": "a", "images": ["a.png"], "scores": [1, 2]}, "images: wanted 2 files, one for each score"),
        ({"prompt": "a", "scores": [1, 2]}, "images: wanted 2 files, one for each score"),
        ({"prompt": "a", "latents": "a.png", "scores": [1, 2]}, "latents: wanted a .safetensors file, got a.png"),
        (
            {"caption": "a", "jpg_0": "a.png", "jpg_1": "b.png", "label_0": 2, "label_1": 0},
            "label_0, label_1: wanted numbers from 0 to 1",
        ),
    ],
)
def test_mistakes_are_named(folder, row, message):
    """File, line and field; what reads well is read nevertheless by ``mistakes``."""
    path = write(folder, PAIR, row, PAIR)
    with pytest.raises(UserError, match=message):
        load_groups(path)
    found, wrong = mistakes(path)
    assert (len(found), len(wrong)) == (2, 1)


def test_several_mistakes(folder):
    """The first is told, with the number of the others."""
    path = write(folder, "{", "{", PAIR)
    with pytest.raises(UserError, match=r"jsonl:1: not JSON.* And 1 more; `flowrl data check` lists them"):
        load_groups(path)


def test_files_that_do_not_open(folder):
    """Pictures and latents are opened by ``mistakes`` only."""
    (folder / "a.png").write_bytes(b"no picture")
    (folder / "bad.safetensors").write_bytes(b"nothing")
    save_file({"x": torch.zeros(2)}, folder / "other.safetensors")
    save_file({"latents": torch.zeros(3, 4)}, folder / "three.safetensors")
    save_file({"latents": torch.zeros(2, 4), "noise": torch.zeros(2, 5)}, folder / "uneven.safetensors")
    kept = [
        {"prompt": "a", "latents": f"{n}.safetensors", "scores": [1, 2]} for n in ("bad", "other", "three", "uneven")
    ]
    path = write(folder, PAIR, *kept)
    assert len(load_groups(path)) == 5
    _, wrong = mistakes(path)
    assert [line.split(".jsonl:")[1].split(":")[0] for line in wrong] == ["1", "2", "3", "4", "5"]
    for line, part in zip(
        wrong,
        ["a.png is no picture", "cannot be read", "no tensor 'latents' but x", "wanted 2 rows", "noise is [2, 5] and"],
        strict=True,
    ):
        assert part in line


def test_nothing_to_read(folder):
    """No file, a file of another kind, a folder without data, an empty file."""
    for path, message in [
        (folder / "none.jsonl", "wanted a .jsonl file or a folder"),
        (folder / "a.png", "wanted a .jsonl file or a folder"),
        (folder, "has neither preferences.jsonl nor the folders chosen and rejected"),
    ]:
        with pytest.raises(UserError, match=message):
            load_groups(path)
    with pytest.raises(UserError, match="there is no preference in it"):
        load_groups(write(folder, ""))
