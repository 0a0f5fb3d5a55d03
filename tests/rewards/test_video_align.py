"""VideoReward on a tiny random Qwen2-VL with a LoRA of PEFT's own: against transformers' whole model."""

import pytest
import torch

from flowrl.errors import UserError
from flowrl.reward import RewardBatch
from flowrl.rewards import video_align
from flowrl.rewards.video_align import MEAN, STD, TOKENS, VideoAlignReward, frames_of

from . import qwen

TEXT = "Rate.\nVQ: <|VQ_reward|>\nMQ: <|MQ_reward|>\nPrompt - {text_prompt}\nTA: <|TA_reward|>\nEND\n"


@pytest.fixture(scope="module", autouse=True)
def small():
    """Frames of 8 to 16 tokens of 8 by 8 pixels."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(video_align, "LOW", 8 * 8 * 8)
        patch.setattr(video_align, "HIGH", 16 * 8 * 8)
        yield


@pytest.fixture(scope="module")
def published(tmp_path_factory):
    """The tuned model with its LoRA, the head's row, and a folder with all the files."""
    from peft import LoraConfig, inject_adapter_in_model

    torch.manual_seed(0)
    folder = qwen.folder(tmp_path_factory.mktemp("video_align"))
    layers = r".*language_model.*(q_proj|v_proj|down_proj)"
    model = inject_adapter_in_model(LoraConfig(r=2, lora_alpha=4, target_modules=layers), qwen.tuned(folder, tokens=3))
    for name, parameter in model.named_parameters():
        if "lora_" in name:
            torch.nn.init.normal_(parameter, std=0.3)
    row = torch.randn(1, qwen.WIDTH)
    state = {
        f"base_model.model.{name}": value for name, value in (model.state_dict() | {"rm_head.weight": row}).items()
    }
    torch.save(state, folder / "model.pth")
    (folder / "instruction.txt").write_text(TEXT, encoding="utf-8")
    return model.eval().requires_grad_(False), row, folder


def make(folder, **options):
    """The reward on the files of a folder."""
    places = {"instruction": str(folder / "instruction.txt"), "weights": str(folder / "model.pth")}
    return VideoAlignReward(
        **({**places, "model": str(folder), "instruction_sha256": "", "dtype": "float32"} | options)
    )


def batch_of(*prompts, fps=8.0):
    """Videos of seven frames, of a size that needs no change."""
    videos = torch.rand(len(prompts), 7, 3, 24, 32, generator=torch.Generator().manual_seed(1))
    return RewardBatch(videos, list(prompts), [{} for _ in prompts], fps=fps)


def wanted(model, folder, video, prompt):
    """What the whole model holds at the three tokens, `[3, D]`, given its own video processor's patches."""
    from transformers import AutoTokenizer
    from transformers.models.qwen2_vl.image_processing_qwen2_vl import Qwen2VLImageProcessor

    words = AutoTokenizer.from_pretrained(folder)
    words.add_tokens(list(TOKENS), special_tokens=True)
    processor = Qwen2VLImageProcessor(patch_size=4)
    # 4 frames of 24 x 32 are 2 layers of 6 x 8 patches, 2 * 3 * 4 tokens; a still's patches repeat one frame,
    # so its even and odd halves are put together from two stills
    stills = [
        processor(images=[frame], do_resize=False, do_rescale=False, return_tensors="pt")["pixel_values"]
        for frame in video
    ]
    pairs = [
        torch.stack([a.view(48, 3, 2, 16)[:, :, 0], b.view(48, 3, 2, 16)[:, :, 0]], dim=2).flatten(1)
        for a, b in zip(stills[::2], stills[1::2], strict=True)
    ]
    chat = f"<|im_start|>user\n<|vision_start|>{'<|video_pad|>' * 24}<|vision_end|>"
    chat += TEXT.replace("{text_prompt}", prompt) + "<|im_end|>\n<|im_start|>assistant\n"
    ids = words(chat, return_tensors="pt")["input_ids"]
    last = model.model(
        input_ids=ids,
        pixel_values_videos=torch.cat(pairs),
        video_grid_thw=torch.tensor([[2, 6, 8]]),
        mm_token_type_ids=2 * (ids == model.config.video_token_id).int(),
        position_ids=torch.arange(ids.shape[1]).expand(3, 1, -1),
    ).last_hidden_state[0]
    return torch.stack([last[(ids[0] == words.convert_tokens_to_ids(token)).nonzero().item()] for token in TOKENS])


def test_is_the_published_formula(published):
    """Frames 0, 2, 4 and 6 of 7; each raw score at its token, standardised; the sum of the three."""
    model, row, folder = published
    batch = batch_of("a {dog} runs", "two cats")
    raw = torch.stack([
        wanted(model, folder, video[[0, 2, 4, 6]], prompt) @ row[0]
        for video, prompt in zip(batch.images, batch.prompts, strict=True)
    ])  # fmt: skip
    visual, motion, text = ((raw[:, i] - MEAN[i]) / STD[i] for i in range(3))
    for part, scores in (("visual", visual), ("motion", motion), ("text", text), ("overall", visual + motion + text)):
        torch.testing.assert_close(make(folder, part=part)(batch), scores, atol=1e-4, rtol=1e-4)


def test_head_of_three_rows(published, tmp_path):
    """Row i is of token i: the other two of the nine numbers are left."""
    model, row, folder = published
    state = torch.load(folder / "model.pth", weights_only=True)
    rows = torch.cat([row, 2 * row, -row])
    torch.save(state | {"base_model.model.rm_head.weight": rows}, tmp_path / "three.pth")
    batch = batch_of("a dog")
    held = wanted(model, folder, batch.images[0, [0, 2, 4, 6]], "a dog")
    scores = make(folder, weights=str(tmp_path / "three.pth"), part="motion")(batch)
    assert scores.item() == pytest.approx(((held[1] @ (2 * row[0])).item() - 1.1646) / 1.3811, abs=1e-4)


def test_lora_counts(published, tmp_path):
    """Its matrices are in the score, and it was trained with a scale of 128 / 64 = 2."""
    _, _, folder = published
    batch, state = batch_of("a dog"), torch.load(folder / "model.pth", weights_only=True)
    assert any(".lora_B.default.weight" in name for name in state)
    torch.save({name: 0 * value if ".lora_B." in name else value for name, value in state.items()}, tmp_path / "no.pth")
    assert abs(make(folder)(batch) - make(folder, weights=str(tmp_path / "no.pth"))(batch)) > 1e-3
    assert video_align.LORA_SCALE == 2.0


@pytest.mark.parametrize(
    ("count", "fps", "chosen"),
    [
        (81, 16.0, [0, 9, 18, 27, 36, 44, 53, 62, 71, 80]),  # 81 / 16 * 2 = 10.1: ten frames, 80 / 9 apart
        (49, 8.0, [0, 4, 9, 13, 17, 22, 26, 31, 35, 39, 44, 48]),  # 12.25: twelve, 48 / 11 apart
        (5, 8.0, [0, 1, 3, 4]),  # 1.25: four at least, 4 / 3 apart
        (3, 8.0, [0, 2]),  # no more than there are, and an even number
    ],
)
def test_frames(count, fps, chosen):
    """Two a second, worked out by hand."""
    assert frames_of(count, fps, "") == chosen


def test_singles_and_gradients(published):
    """A video alone has its score in a batch; gradients reach the frames that are shown, and no other."""
    _, _, folder = published
    reward, batch = make(folder), batch_of("a dog", "two cats on a long wall")
    scores = reward(batch)
    torch.testing.assert_close(scores, torch.cat([reward(batch.select([i])) for i in (0, 1)]), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(scores.flip(0), reward(batch.select([1, 0])), atol=1e-5, rtol=1e-5)
    videos = batch.images.clone().requires_grad_()
    (slope,) = torch.autograd.grad(reward(RewardBatch(videos, batch.prompts, batch.metadata, fps=8.0)).sum(), videos)
    assert (slope.flatten(2).norm(dim=2) > 0).tolist() == [[True, False] * 3 + [True]] * 2
    assert reward.differentiable
    assert reward.media == "video"


def test_frames_a_second(published):
    """Without them, or with a single frame, there is no choosing."""
    _, _, folder = published
    with pytest.raises(UserError, match=r"set policy\.fps"):
        make(folder)(batch_of("a dog", fps=None))
    with pytest.raises(UserError, match="two frames or more, got 1"):
        frames_of(1, 8.0, "")


def test_wrong_options_and_files(published, tmp_path):
    """Each names what was wanted; nothing is fetched."""
    _, _, folder = published
    wrong = [
        ({"part": "txt"}, "Known: overall, visual"),
        ({"instruction": ""}, "DETAILED_PROMPT_WITH_SPECIAL_TOKEN"),
        ({"instruction_sha256": video_align.INSTRUCTION_SHA256}, "of sha256 fdb630"),
        ({"weights": f"{video_align.REPOSITORY}:{video_align.FILE}"}, "of KwaiVGI/VideoReward"),
    ]
    for option, words in wrong:
        with pytest.raises(UserError, match=words):
            make(folder, **option)
    (tmp_path / "text.txt").write_text(TEXT.replace("MQ_reward", "MQ"))
    with pytest.raises(UserError, match="each once"):
        make(folder, instruction=str(tmp_path / "text.txt"))
    state = torch.load(folder / "model.pth", weights_only=True)
    half = next(name for name in state if ".lora_B." in name)
    for removed, words in (("base_model.model.rm_head.weight", "got none"), (half, "LoRA does not fit")):
        torch.save({name: value for name, value in state.items() if name != removed}, tmp_path / "bad.pth")
        with pytest.raises(UserError, match=words):
            make(folder, weights=str(tmp_path / "bad.pth"))
    torch.save(state | {half.replace(".lora_B.", ".lora_magnitude_vector."): torch.ones(1)}, tmp_path / "bad.pth")
    with pytest.raises(UserError, match="lora_A and lora_B alone"):
        make(folder, weights=str(tmp_path / "bad.pth"))
