"""flowrl.pipelines.shapes.train: how the bundled model is made."""

from __future__ import annotations

import csv

import pytest
import torch
from diffusers import StableDiffusion3Pipeline

from flowrl.pipelines.shapes import train, world


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    """The tokenizer of the world."""
    return train.build_tokenizer(tmp_path_factory.mktemp("tokenizer"))


def test_every_word_of_the_world_is_one_token(tokenizer):
    """A caption has as many tokens as words, and two for its ends."""
    for scene in world.all_scenes():
        caption = world.caption(scene)
        assert len(tokenizer(caption).input_ids) == len(caption.split()) + 2, caption


def test_every_caption_fits(tokenizer):
    """No caption of the world is cut off."""
    longest = max(len(tokenizer(world.caption(scene)).input_ids) for scene in world.all_scenes())
    assert longest <= train.MAX_TOKENS


def test_no_text_is_unknown(tokenizer):
    """Words outside the world are spelled out: they decode to themselves, and none is an unknown token."""
    ids = tokenizer("a zebra, 7 élan!").input_ids[1:-1]
    assert tokenizer.unk_token_id not in ids
    assert tokenizer.decode(ids).strip() == "a zebra , 7 élan !"


def test_t5_is_silent():
    """The T5 that SD3's loader insists on adds exact zeros; ten tokens hold any caption."""
    encoder, tokenizer = train.build_t5()
    for scene in world.all_scenes():
        assert len(tokenizer(world.caption(scene)).input_ids) <= 10
    tokens = tokenizer("a red circle above a blue square", return_tensors="pt").input_ids
    assert torch.count_nonzero(encoder(tokens)[0]) == 0


def test_training_text_encoding_is_the_pipelines(tokenizer):
    """The embeddings that the transformer is trained on are those that ``encode_prompt`` gives."""
    torch.manual_seed(0)
    encoders = [train.build_text_encoder(tokenizer).eval() for _ in range(2)]
    t5, t5_tokenizer = train.build_t5()
    pipe = StableDiffusion3Pipeline(
        transformer=train.build_transformer(),
        scheduler=None,
        vae=train.build_vae(),
        text_encoder=encoders[0],
        tokenizer=tokenizer,
        text_encoder_2=encoders[1],
        tokenizer_2=tokenizer,
        text_encoder_3=t5.eval(),
        tokenizer_3=t5_tokenizer,
    )
    prompts = ["a red circle", "two blue squares"]
    with torch.no_grad():
        wanted, _, pooled, _ = pipe.encode_prompt(prompts, None, None, max_sequence_length=2)
        tokens = tokenizer(prompts, padding="max_length", max_length=train.MAX_TOKENS, return_tensors="pt").input_ids
        joint, pooled_here = train.encode_text(encoders, tokens, silent=2)
    torch.testing.assert_close(joint, wanted)
    torch.testing.assert_close(pooled_here, pooled)


def test_learning_rate_by_hand():
    """The factor rises over the warm-up, is half-way down half-way, and ends at 2 %."""
    # Warm-up of 10: 1/10 at the first step. Then 0.02 + 0.98 * (1 + cos(pi * 45 / 90)) / 2 = 0.51 at step 55 of 100.
    assert train.cosine(0, 100, 10) == pytest.approx(0.1)
    assert train.cosine(55, 100, 10) == pytest.approx(0.51)
    assert train.cosine(100, 100, 10) == pytest.approx(0.02)


def _train(folder):
    log = train.Log(folder / "training_log.csv")
    train.train_vae(folder, log, steps=2, batch=2)
    train.train_flow(folder, log, train.Schedule(2, 1e-3, minutes=1), pictures=8, batch=4)
    return StableDiffusion3Pipeline.from_pretrained(folder)


def test_two_steps_of_training_make_a_pipeline_that_loads(tmp_path):
    """Both stages run, log their loss, and leave a folder that diffusers loads; one seed gives the same weights."""
    pipe, again = _train(tmp_path / "a"), _train(tmp_path / "b")
    rows = list(csv.DictReader((tmp_path / "a" / "training_log.csv").read_text().splitlines()))
    assert [(row["stage"], row["step"]) for row in rows] == [("vae", "0"), ("vae", "1"), ("flow", "0"), ("flow", "1")]
    for name in ("vae", "transformer", "text_encoder", "text_encoder_2"):
        for ours, theirs in zip(getattr(pipe, name).parameters(), getattr(again, name).parameters(), strict=True):
            assert torch.equal(ours, theirs)
