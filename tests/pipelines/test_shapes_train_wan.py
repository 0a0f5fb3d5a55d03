"""flowrl.pipelines.shapes.train_wan: how the bundled Wan is made."""

from __future__ import annotations

import csv

import numpy as np
import pytest
import torch
from diffusers import AutoencoderKLWan, WanPipeline

from flowrl.pipelines.shapes import clips, train, train_wan


def _train(folder):
    log = train.Log(folder / "training_log.csv")
    train_wan.train_vae(folder, log, steps=2, batch=2)
    train_wan.train_flow(folder, log, train.Schedule(2, 1e-3, minutes=1), count=4, batch=4, seed=0)
    return WanPipeline.from_pretrained(folder)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A pipeline after two steps of each stage, and its folder."""
    folder = tmp_path_factory.mktemp("wan")
    return _train(folder), folder


def test_two_steps_of_training_make_a_pipeline_that_loads(made, tmp_path):
    """It logs its loss, leaves a folder that diffusers loads, and one seed gives the same weights."""
    pipe, folder = made
    again = _train(tmp_path)
    rows = list(csv.DictReader((folder / "training_log.csv").read_text().splitlines()))
    assert [(row["stage"], row["step"]) for row in rows] == [("vae", "0"), ("vae", "1"), ("flow", "0"), ("flow", "1")]
    for name in ("vae", "transformer", "text_encoder"):
        for ours, theirs in zip(getattr(pipe, name).parameters(), getattr(again, name).parameters(), strict=True):
            assert torch.equal(ours, theirs)


def test_cycles_go_on_from_each_other(tmp_path):
    """One log of both, and the second starts from the weights of the first."""
    log = train.Log(tmp_path / "training_log.csv")
    train_wan.train_vae(tmp_path / "one", log, steps=1, batch=2)
    train_wan.train_vae(tmp_path / "two", log, steps=1, cycles=2, batch=2)
    rows = list(csv.DictReader((tmp_path / "training_log.csv").read_text().splitlines()))
    assert [(row["stage"], row["step"]) for row in rows] == [("vae", "0"), ("vae", "0"), ("vae", "1")]
    vae = AutoencoderKLWan.from_pretrained(tmp_path / "one" / "vae")
    train_wan.train_cycle(vae, log, 1, steps=1, batch=2, seed=0)
    other = AutoencoderKLWan.from_pretrained(tmp_path / "two" / "vae")
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(vae.parameters(), other.parameters(), strict=True))


def test_training_text_encoding_is_the_pipelines(made):
    """The embeddings that the transformer is trained on are those that ``encode_prompt`` gives, at any length."""
    pipe, _ = made
    prompts = ["a red circle moves up", ""]
    texts = pipe.tokenizer(prompts, padding="max_length", max_length=train_wan.MAX_TOKENS, return_tensors="pt")
    for length in (train_wan.MAX_TOKENS, 40):
        with torch.no_grad():
            wanted, _ = pipe.encode_prompt(
                prompts, do_classifier_free_guidance=False, max_sequence_length=length, device="cpu"
            )
            ours = train_wan.encode_text(pipe.text_encoder, texts.input_ids, texts.attention_mask, length)
        torch.testing.assert_close(ours, wanted)


def test_training_latents_are_the_pipelines(made):
    """Encoded and normalised as the pipeline undoes it: decoding its way gives the autoencoder's own clip."""
    pipe, _ = made
    latents, captions = train_wan.encode_clips(pipe.vae, 3, seed=5)
    videos, texts = train_wan.render(3, np.random.default_rng(5))
    assert texts == captions
    std, mean = (
        torch.tensor(v).view(1, -1, 1, 1, 1) for v in (pipe.vae.config.latents_std, pipe.vae.config.latents_mean)
    )
    with torch.no_grad():
        wanted = pipe.vae.encode(videos).latent_dist.mean
    torch.testing.assert_close(latents * std + mean, wanted)
    assert latents.shape == (3, train_wan.LATENT_CHANNELS, 3, 8, 8)


def test_each_word_of_the_world_is_one_token():
    """A caption is its words and an end; any other text is spelt out."""
    tokenizer = train_wan.build_tokenizer()
    for motion in clips.all_motions():
        text = clips.caption(motion)
        assert len(tokenizer(text).input_ids) == len(text.split()) + 1 <= train_wan.MAX_TOKENS
    assert tokenizer.unk_token_id not in tokenizer("Two 3-legged cats, please!").input_ids
