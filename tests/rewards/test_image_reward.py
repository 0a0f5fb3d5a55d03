"""ImageReward: a tiny random model under the authors' names, against transformers' own BLIP."""

import re

import pytest
import torch

from flowrl.errors import UserError
from flowrl.reward import RewardBatch
from flowrl.rewards import image_reward
from flowrl.rewards._clip import normalised, square
from flowrl.rewards.image_reward import MEAN, STD, ImageRewardReward

WIDTH = 64
"""One head of 64."""
BACK = (
    (r"^embeddings\.class_embedding$", "cls_token"),
    (r"^embeddings\.position_embedding$", "pos_embed"),
    (r"^embeddings\.patch_embedding\.", "patch_embed.proj."),
    (r"^encoder\.layers\.(\d+)\.self_attn\.projection\.", r"blocks.\1.attn.proj."),
    (r"^encoder\.layers\.(\d+)\.self_attn\.qkv\.", r"blocks.\1.attn.qkv."),
    (r"^encoder\.layers\.(\d+)\.layer_norm(\d)\.", r"blocks.\1.norm\2."),
    (r"^encoder\.layers\.(\d+)\.mlp\.", r"blocks.\1.mlp."),
    (r"^post_layernorm\.", "norm."),
)


@pytest.fixture(scope="module")
def published(tmp_path_factory):
    """The models, a checkpoint of them as it is published, the tokenizer's folder, and the head's layers."""
    from transformers import BertTokenizerFast, BlipTextConfig, BlipVisionConfig, BlipVisionModel
    from transformers.models.blip.modeling_blip_text import BlipTextModel

    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("image_reward")
    size = {"hidden_size": WIDTH, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 1}
    vision = BlipVisionModel(BlipVisionConfig(**size, image_size=32, patch_size=8, layer_norm_eps=1e-6)).eval()
    letters = [chr(code) for code in range(ord("a"), ord("z") + 1)]
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *letters, *(f"##{letter}" for letter in letters)]
    (folder / "vocab.txt").write_text("\n".join(words))
    text_size = {**size, "encoder_hidden_size": WIDTH, "vocab_size": len(words), "max_position_embeddings": 40}
    text = BlipTextModel(BlipTextConfig(**text_size), add_pooling_layer=False).eval()
    for model in (vision, text):
        for parameter in model.parameters():
            torch.nn.init.normal_(parameter, std=0.2)
    BertTokenizerFast(str(folder / "vocab.txt")).save_pretrained(folder / "tokenizer")
    state = {}
    for name, tensor in vision.state_dict().items():
        pattern, old = next(pair for pair in BACK if re.search(pair[0], name))
        state["blip.visual_encoder." + re.sub(pattern, old, name)] = tensor
    state |= {f"blip.text_encoder.{name}": tensor for name, tensor in text.state_dict().items()}
    state["blip.text_encoder.embeddings.position_ids"] = torch.arange(40)[None]
    head = [torch.nn.Linear(WIDTH, 8), torch.nn.Linear(8, 1)]
    for index, layer in zip((0, 2), head, strict=True):
        state |= {f"mlp.layers.{index}.{name}": tensor.detach() for name, tensor in layer.named_parameters()}
    torch.save(state, folder / "ImageReward.pt")
    return vision, text, folder, head


def batch_of(*prompts):
    """Random pictures that are not square."""
    images = torch.rand(len(prompts), 3, 40, 56, generator=torch.Generator().manual_seed(1))
    return RewardBatch(images, list(prompts), [{} for _ in prompts])


def make(folder, **options):
    """The reward on the files of a folder."""
    return ImageRewardReward(str(folder / "ImageReward.pt"), tokenizer=str(folder / "tokenizer"), **options)


def test_is_the_published_formula(published):
    """First token of the text encoder, which looks at the picture, through both layers, standardised."""
    vision, text, folder, (first, last) = published
    batch = batch_of("a cat", "two dogs")
    words = make(folder)._tokenizer(batch.prompts, padding="max_length", max_length=35, return_tensors="pt")
    with torch.no_grad():
        seen = vision(pixel_values=normalised(square(batch.images, 32))).last_hidden_state
        read = text(
            input_ids=words["input_ids"],
            attention_mask=words["attention_mask"],
            encoder_hidden_states=seen,
            encoder_attention_mask=torch.ones(2, 17, dtype=torch.long),
        ).last_hidden_state[:, 0]
        wanted = (last(first(read))[:, 0] - MEAN) / STD
    torch.testing.assert_close(make(folder)(batch).detach(), wanted, atol=1e-5, rtol=1e-5)
    assert words["input_ids"].shape == (2, 35)


def test_singles_gradients_and_prompts(published):
    """A picture alone has its score in a batch; gradients reach the picture; another prompt gives another score."""
    _, _, folder, _ = published
    reward, batch = make(folder), batch_of("a cat", "two dogs", "a cat")
    scores = reward(batch).detach()
    alone = torch.cat([reward(batch.select([index])).detach() for index in range(3)])
    torch.testing.assert_close(scores, alone, atol=1e-5, rtol=1e-5)
    pictures = batch.images.clone().requires_grad_()
    reward(RewardBatch(pictures, batch.prompts, batch.metadata)).sum().backward()
    assert pictures.grad.abs().sum() > 0
    swapped = reward(RewardBatch(batch.images, ["two dogs"] * 3, batch.metadata)).detach()
    assert swapped[1] == pytest.approx(scores[1].item(), abs=1e-5)
    assert abs(swapped[0] - scores[0]) > 1e-5


def test_long_prompts_are_cut(published):
    """After 35 tokens, as published."""
    _, _, folder, _ = published
    long = " ".join("abcdefghij"[i % 10] for i in range(60))
    found = make(folder)(RewardBatch(batch_of("a", "a").images[:1].expand(2, -1, -1, -1), [long, long[:100]], [{}, {}]))
    assert found[0].item() == pytest.approx(found[1].item(), abs=1e-5)


def test_files_of_another_kind(published, tmp_path):
    """A checkpoint without a BLIP, a wrong sum, no tokenizer, and no file at all while offline."""
    _, _, folder, _ = published
    torch.save({"a": torch.zeros(1)}, tmp_path / "other.pt")
    with pytest.raises(UserError, match="is no ImageReward checkpoint"):
        ImageRewardReward(str(tmp_path / "other.pt"))
    with pytest.raises(UserError, match="with sha256 00"):
        make(folder, sha256="00")
    with pytest.raises(UserError, match="could not be loaded"):
        ImageRewardReward(str(folder / "ImageReward.pt"), tokenizer=str(tmp_path))
    with pytest.raises(UserError, match=rf"{image_reward.FILE}.* is not in the cache and could not be fetched"):
        ImageRewardReward()
