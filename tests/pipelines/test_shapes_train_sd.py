"""flowrl.pipelines.shapes.train_sd: how the bundled Stable Diffusion is made."""

from __future__ import annotations

import csv

import torch
from diffusers import StableDiffusionPipeline

from flowrl.pipelines.shapes import train, train_sd


def _train(folder):
    log = train.Log(folder / "training_log.csv")
    train_sd.train(folder, log, train.Schedule(2, 1e-3, minutes=1), pictures=8, batch=4, seed=0)
    return StableDiffusionPipeline.from_pretrained(folder)


def test_two_steps_of_training_make_a_pipeline_that_loads(tmp_path):
    """It logs its loss, leaves a folder that diffusers loads, and one seed gives the same weights."""
    pipe, again = _train(tmp_path / "a"), _train(tmp_path / "b")
    rows = list(csv.DictReader((tmp_path / "a" / "training_log.csv").read_text().splitlines()))
    assert [(row["stage"], row["step"]) for row in rows] == [("unet", "0"), ("unet", "1")]
    for name in ("vae", "unet", "text_encoder"):
        for ours, theirs in zip(getattr(pipe, name).parameters(), getattr(again, name).parameters(), strict=True):
            assert torch.equal(ours, theirs)


def test_training_stops_where_it_is_told(tmp_path):
    """One step of a longer schedule is written; the schedule of the learning rate is not shortened."""
    log = train.Log(tmp_path / "training_log.csv")
    train_sd.train(tmp_path, log, train.Schedule(50, 1e-3, minutes=1, stop=1), pictures=8, batch=4, seed=0)
    assert (tmp_path / "unet").is_dir()
    assert len((tmp_path / "training_log.csv").read_text().splitlines()) == 2


def test_training_text_encoding_is_the_pipelines(tmp_path):
    """The embeddings that the UNet is trained on are those that ``encode_prompt`` gives."""
    torch.manual_seed(0)
    tokenizer = train.build_tokenizer(tmp_path)
    encoder = train_sd.build_text_encoder(tokenizer).eval()
    pipe = StableDiffusionPipeline(
        vae=train_sd.load_vae(),
        text_encoder=encoder,
        tokenizer=tokenizer,
        unet=train_sd.build_unet(),
        scheduler=train_sd.build_scheduler(),
        safety_checker=None,
        feature_extractor=None,
        requires_safety_checker=False,
    )
    prompts = ["a red circle", "two blue squares"]
    with torch.no_grad():
        wanted, _ = pipe.encode_prompt(prompts, "cpu", 1, do_classifier_free_guidance=False)
        tokens = tokenizer(prompts, padding="max_length", max_length=train.MAX_TOKENS, return_tensors="pt").input_ids
        ours = encoder(tokens)[0]
    torch.testing.assert_close(ours, wanted)


def test_ten_steps_start_at_pure_noise():
    """The schedule of a rollout begins at the last training timestep, where the noise share is .998."""
    scheduler = train_sd.build_scheduler()
    scheduler.set_timesteps(10)
    assert scheduler.timesteps[0] == 999
    assert (1 - scheduler.alphas_cumprod[999]).sqrt() > 0.997
