"""Tiny random models of the real classes, saved as the published ones are, for the rewards that load such heads."""

import gzip
import json
from pathlib import Path

import torch

WIDTH, SIDE = 16, 32


def clip_folder(folder: Path) -> Path:
    """A CLIP with CLIP's own tokenizer."""
    from transformers import CLIPConfig, CLIPModel, CLIPTokenizer

    folder.mkdir()
    words = vocabulary(folder)
    tower = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = CLIPConfig(
        text_config={**tower, "vocab_size": len(words), "bos_token_id": 49406, "eos_token_id": 49407},
        vision_config={**tower, "image_size": SIDE, "patch_size": 8},
        projection_dim=WIDTH,
    )
    CLIPModel(config).save_pretrained(folder)
    CLIPTokenizer.from_pretrained(folder).save_pretrained(folder)
    return folder


def vocabulary(folder: Path) -> dict[str, int]:
    """Write CLIP's vocabulary, from the list of merges that open_clip brings."""
    import open_clip
    from open_clip.tokenizer import bytes_to_unicode

    packed = Path(open_clip.__file__).parent / "bpe_simple_vocab_16e6.txt.gz"
    merges = gzip.decompress(packed.read_bytes()).decode().split("\n")[1 : 49152 - 256 - 2 + 1]
    letters = list(bytes_to_unicode().values())
    words = [*letters, *(letter + "</w>" for letter in letters), *("".join(merge.split()) for merge in merges)]
    ids = {word: index for index, word in enumerate([*words, "<|startoftext|>", "<|endoftext|>"])}
    (folder / "vocab.json").write_text(json.dumps(ids), encoding="utf-8")
    (folder / "merges.txt").write_text("\n".join(["#version: 0.2", *merges]), encoding="utf-8")
    return ids


def linear_head(path: Path, prefix: str, indices: list[int]) -> Path:
    """A chain of linear layers without activations, the last of which gives one number."""
    sizes = [WIDTH, 12, 8, 6, 4, 1]
    state = {}
    for index, before, after in zip(indices, sizes, sizes[1:], strict=False):
        state[f"{prefix}.{index}.weight"], state[f"{prefix}.{index}.bias"] = (
            torch.randn(after, before),
            torch.randn(after),
        )
    torch.save(state, path)
    return path


def siglip_folder(folder: Path) -> Path:
    """The vision tower of a SigLIP."""
    from transformers import SiglipVisionConfig, SiglipVisionModel

    config = SiglipVisionConfig(
        hidden_size=WIDTH,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        image_size=SIDE,
        patch_size=8,
    )
    SiglipVisionModel(config).save_pretrained(folder)
    return folder


def open_clip_file(folder: Path) -> Path:
    """A checkpoint of a small open_clip model, whose architecture is then known as ``flowrl-tiny``."""
    import open_clip

    folder.mkdir()
    config = {
        "embed_dim": WIDTH,
        "vision_cfg": {"image_size": SIDE, "layers": 2, "width": 32, "head_width": 16, "patch_size": 8},
        "text_cfg": {"context_length": 77, "vocab_size": 49408, "width": 16, "heads": 2, "layers": 2},
    }
    (folder / "flowrl-tiny.json").write_text(json.dumps(config), encoding="utf-8")
    open_clip.add_model_config(folder)
    torch.save({"state_dict": open_clip.create_model("flowrl-tiny").state_dict()}, folder / "tiny.pt")
    return folder / "tiny.pt"
