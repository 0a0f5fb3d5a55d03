"""HPS v3 on a tiny random Qwen2-VL: against transformers' own whole model and image processor."""

import pytest
import torch
from PIL import Image

from flowrl.errors import UserError
from flowrl.reward import RewardBatch
from flowrl.rewards import hps3
from flowrl.rewards._qwen import fitted, resized
from flowrl.rewards.hps3 import Hps3Reward

from . import qwen

TEXT = "Rate this.\nPrompt - {text_prompt}\nScore: <|Reward|>\nEND\n"
AREA = 16 * 8 * 8
"""Of a token, 8 by 8 pixels: 16 tokens."""


@pytest.fixture(scope="module", autouse=True)
def small():
    """Pictures of 16 tokens, not 256."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hps3, "AREA", AREA)
        yield


@pytest.fixture(scope="module")
def published(tmp_path_factory):
    """The whole model, its head, and a folder with all the files."""
    from safetensors.torch import save_file

    torch.manual_seed(0)
    folder = qwen.folder(tmp_path_factory.mktemp("hps3"))
    model = qwen.tuned(folder, tokens=1)
    head = torch.nn.Sequential(
        torch.nn.Linear(qwen.WIDTH, 12), torch.nn.ReLU(), torch.nn.Dropout(0.05),
        torch.nn.Linear(12, 6), torch.nn.ReLU(), torch.nn.Linear(6, 2),
    ).eval().requires_grad_(False)  # fmt: skip
    for parameter in head.parameters():
        torch.nn.init.normal_(parameter)  # so that scores differ by far more than the tolerances
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    state |= {f"rm_head.{name}": tensor for name, tensor in head.state_dict().items()}
    save_file(state, folder / "HPSv3.safetensors")
    (folder / "instruction.txt").write_text(TEXT, encoding="utf-8")
    return model, head, folder


def make(folder, **options):
    """The reward on the files of a folder."""
    places = {"instruction": str(folder / "instruction.txt"), "weights": str(folder / "HPSv3.safetensors")}
    return Hps3Reward(**({**places, "model": str(folder), "instruction_sha256": "", "dtype": "float32"} | options))


def batch_of(*prompts):
    """Pictures of bytes that are not square."""
    images = torch.randint(0, 256, (len(prompts), 3, 40, 56), generator=torch.Generator().manual_seed(1)) / 255
    return RewardBatch(images, list(prompts), [{} for _ in prompts])


def test_is_the_published_formula(published):
    """The whole model of transformers, given its processor's patches and positions 0, 1, 2, ..., and the head's mu."""
    from transformers import AutoTokenizer
    from transformers.models.qwen2_vl.image_processing_qwen2_vl import Qwen2VLImageProcessor

    model, head, folder = published
    batch = batch_of("a {cat} on a mat", "two dogs")
    words = AutoTokenizer.from_pretrained(folder)
    words.add_tokens(["<|Reward|>"], special_tokens=True)
    processor = Qwen2VLImageProcessor(patch_size=4, min_pixels=AREA, max_pixels=AREA)
    wanted = []
    # 40 x 56 has 5 x 7 tokens, more than 16: sqrt(1024 / 2240) = 0.676; 27 and 38 pixels hold 3 and 4 tokens
    small = fitted(batch.images, AREA, AREA, 8)
    assert small.shape == (2, 3, 24, 32)
    for image, prompt in zip(small, batch.prompts, strict=True):
        patches = processor(images=[image], do_resize=False, do_rescale=False, return_tensors="pt")
        assert patches["image_grid_thw"].tolist() == [[1, 6, 8]]
        chat = f"<|im_start|>user\n<|vision_start|>{'<|image_pad|>' * 12}<|vision_end|>"
        chat += TEXT.replace("{text_prompt}", prompt) + "<|im_end|>\n<|im_start|>assistant\n"
        ids = words(chat, return_tensors="pt")["input_ids"]
        places = torch.arange(ids.shape[1]).expand(3, 1, -1)
        last = model.model(
            input_ids=ids,
            pixel_values=patches["pixel_values"],
            image_grid_thw=patches["image_grid_thw"],
            mm_token_type_ids=(ids == model.config.image_token_id).int(),
            position_ids=places,
        ).last_hidden_state
        (at,) = (ids[0] == words.convert_tokens_to_ids("<|Reward|>")).nonzero().flatten().tolist()
        wanted.append(head(last[0, at])[0])
    torch.testing.assert_close(make(folder)(batch), torch.stack(wanted), atol=1e-5, rtol=1e-5)


def test_sizes_are_the_processors():
    """Multiples of 28 next to 256 tokens, as transformers has them, for pictures of many shapes."""
    from transformers.models.qwen2_vl.image_processing_qwen2_vl import smart_resize

    area = 256 * 28 * 28
    for height, width in [(512, 512), (1024, 768), (100, 300), (480, 832), (30, 31), (448, 448), (64, 3000)]:
        assert resized(height, width, area, area) == smart_resize(height, width, 28, area, area)
        assert resized(height, width, 100352, area) == smart_resize(height, width, 28, 100352, area)


def test_resizes_as_pil_does():
    """By the rounding of each of its passes: 2/255 on a smooth picture."""
    ramp = torch.linspace(0, 255, 40 * 56).view(40, 56).round().byte()
    picture = Image.fromarray(ramp.numpy()).convert("RGB").resize((32, 24), Image.Resampling.BICUBIC)
    ours = fitted(ramp[None, None].expand(1, 3, -1, -1) / 255, AREA, AREA, 8)
    theirs = torch.frombuffer(bytearray(picture.tobytes()), dtype=torch.uint8).view(24, 32, 3).permute(2, 0, 1)
    assert (ours[0] * 255 - theirs).abs().max() <= 2


def test_singles_gradients_and_prompts(published):
    """Alone or beside a longer prompt the score is the same; gradients reach the picture; the prompt matters."""
    _, _, folder = published
    reward, batch = make(folder), batch_of("a cat", "two dogs that run over a field", "x")
    scores = reward(batch)
    alone = torch.cat([reward(batch.select([index])) for index in range(3)])
    assert scores.std() > 0.1
    torch.testing.assert_close(scores, alone, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(scores.flip(0), reward(batch.select([2, 1, 0])), atol=1e-5, rtol=1e-5)
    pictures = batch.images.clone().requires_grad_()
    (slope,) = torch.autograd.grad(reward(RewardBatch(pictures, batch.prompts, batch.metadata)).sum(), pictures)
    assert slope.flatten(1).norm(dim=1).min() > 0
    assert reward.differentiable
    other = reward(RewardBatch(batch.images, ["a dog", *batch.prompts[1:]], batch.metadata))
    assert (other - scores).abs().gt(1e-5).tolist() == [True, False, False]


def test_names_of_older_checkpoints(published, tmp_path):
    """Before transformers 4.52 the language model was ``model.`` and the picture encoder ``visual.``."""
    from safetensors.torch import load_file, save_file

    _, _, folder = published
    state = load_file(folder / "HPSv3.safetensors")
    old = {name.replace("model.language_model.", "model.").replace("model.visual.", "visual."): value
           for name, value in state.items()}  # fmt: skip
    assert old.keys() != state.keys()
    save_file(old, tmp_path / "old.safetensors")
    batch = batch_of("a cat")
    scores = make(folder, weights=str(tmp_path / "old.safetensors"))(batch)
    torch.testing.assert_close(scores, make(folder)(batch), atol=0, rtol=0)


def test_positions_stay_exact_in_half_precision(published):
    """The frequencies, and the score, are float32 whatever the dtype of the weights."""
    _, _, folder = published
    reward, batch = make(folder, dtype="bfloat16"), batch_of("a cat")
    buffers = dict(reward._judge._text.named_buffers()) | dict(reward._judge._visual.named_buffers())
    assert {buffer.dtype for name, buffer in buffers.items() if "freq" in name} == {torch.float32}
    assert reward._judge._text.embed_tokens.weight.dtype == torch.bfloat16
    assert reward(batch).dtype == torch.float32


def test_instruction_is_read_and_not_run(published, tmp_path):
    """From literals of a Python file; another text than the published one is refused."""
    _, _, folder = published
    first, last = TEXT[:20], TEXT[20:]
    file = tmp_path / "data_collator_qwen.py"
    file.write_text(f"raise SystemExit\nINSTRUCTION = {first!r}\nprompt_with_special_token = {last!r}\n")
    batch = batch_of("a cat")
    scores = make(folder, instruction=str(file))(batch)
    torch.testing.assert_close(scores, make(folder)(batch), atol=0, rtol=0)
    with pytest.raises(UserError, match="of sha256 f6ee57"):
        make(folder, instruction_sha256=hps3.INSTRUCTION_SHA256)
    for text, wanted in (("INSTRUCTION = 1", "KeyError"), ("a b", "SyntaxError")):
        file.write_text(text)
        with pytest.raises(UserError, match=wanted):
            make(folder, instruction=str(file))
    for text, wanted in ((TEXT.replace("{", ""), "has no {text_prompt}"), (TEXT * 2, "once, got it 2 times")):
        (tmp_path / "text.txt").write_text(text)
        with pytest.raises(UserError, match=wanted):
            make(folder, instruction=str(tmp_path / "text.txt"))


def test_wrong_files_and_options(published, tmp_path):
    """Each names what was wanted; nothing is fetched."""
    from safetensors.torch import load_file, save_file

    _, _, folder = published
    state = load_file(folder / "HPSv3.safetensors")
    bad = str(tmp_path / "bad.safetensors")
    with pytest.raises(UserError, match="there is no file ''"):
        Hps3Reward()
    with pytest.raises(UserError, match=r"HPSv3\.safetensors of MizzenAI/HPSv3"):
        make(folder, weights=f"{hps3.REPOSITORY}:{hps3.FILE}")
    with pytest.raises(UserError, match="AutoTokenizer could not be loaded"):
        make(folder, model=str(tmp_path / "nowhere"))
    for option in ({"dtype": "float8"}, {"device": "toaster"}):
        with pytest.raises(UserError, match=f"{next(iter(option))}: wanted"):
            make(folder, **option)
    for removed, wanted in (("rm_head.5.bias", "no 'rm_head.5.bias'"), ("model.visual.merger.mlp.0.bias", "1 tensors")):
        save_file({name: value for name, value in state.items() if name != removed}, bad)
        with pytest.raises(UserError, match=wanted):
            make(folder, weights=bad)
    embedded = "model.language_model.embed_tokens.weight"
    save_file(state | {embedded: state[embedded][:-1].clone()}, bad)
    with pytest.raises(UserError, match=r"no rows for <\|Reward\|>"):
        make(folder, weights=bad)
    with pytest.raises(UserError, match=r"holds <\|Reward\|>"):
        make(folder)(batch_of("a cat <|Reward|>"))
