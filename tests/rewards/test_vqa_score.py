"""VQAScore on a tiny random LLaVA, with its real processor."""

import pytest
import torch

from flowrl.errors import UserError
from flowrl.reward import RewardBatch
from flowrl.rewards.vqa_score import VqaScoreReward

from . import heads

CHAT = (
    "{% for message in messages %}{% for part in message['content'] %}"
    "{% if part['type'] == 'image' %}<image>{% else %}{{ part['text'] }}{% endif %}"
    "{% endfor %}{% endfor %}{% if add_generation_prompt %} answer{% endif %}"
)


@pytest.fixture(scope="module")
def llava(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A LLaVA of two layers, saved as published ones are."""
    from transformers import (
        CLIPImageProcessor,
        CLIPTokenizer,
        CLIPVisionConfig,
        LlamaConfig,
        LlavaConfig,
        LlavaForConditionalGeneration,
        LlavaProcessor,
    )

    folder = tmp_path_factory.mktemp("llava")
    heads.vocabulary(folder)
    words = CLIPTokenizer.from_pretrained(folder)
    words.add_special_tokens({"additional_special_tokens": ["<image>"]})
    size = {"height": heads.SIDE, "width": heads.SIDE}
    pictures = CLIPImageProcessor(size={"shortest_edge": heads.SIDE}, crop_size=size)
    LlavaProcessor(
        pictures,
        words,
        patch_size=8,
        vision_feature_select_strategy="default",
        chat_template=CHAT,
        num_additional_image_tokens=1,
    ).save_pretrained(folder)
    tower = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = LlavaConfig(
        vision_config=CLIPVisionConfig(**tower, image_size=heads.SIDE, patch_size=8),
        text_config=LlamaConfig(**tower, vocab_size=len(words), initializer_range=1.0),
        image_token_index=words.convert_tokens_to_ids("<image>"),
    )
    LlavaForConditionalGeneration(config).save_pretrained(folder)
    return str(folder)


def test_is_the_probability_of_yes(llava: str) -> None:
    """The same number from the model's logits, asked here by hand; batch equals singles; no gradient."""
    reward = VqaScoreReward(llava, template="Is it {prompt}?", dtype="float32")
    batch = RewardBatch(torch.rand(3, 3, 40, 56), ["a {cat}", "two dogs running", "a cat"], [{}] * 3)
    scores = reward(batch)
    processor, model = reward._processor, reward._model
    picture = (batch.images[1] * 255).round().byte()
    inputs = processor(text="<image>Is it two dogs running? answer", images=picture, return_tensors="pt")
    wanted = model(**inputs).logits[0, -1].softmax(dim=-1)[processor.tokenizer.encode("yes", add_special_tokens=False)]
    torch.testing.assert_close(scores[1:2], wanted, atol=1e-6, rtol=1e-4)
    torch.testing.assert_close(scores, torch.cat([reward(batch.select([i])) for i in range(3)]), atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(scores.flip(0), reward(batch.select([2, 1, 0])), atol=1e-6, rtol=1e-5)
    assert scores.unique().numel() == 3
    assert not reward.differentiable
    assert not scores.requires_grad


def test_wrong_options(llava: str, tmp_path) -> None:
    """A question without the prompt, no answer, and a model that is not there."""
    with pytest.raises(UserError, match="template: wanted"):
        VqaScoreReward(llava, template="Is it good?")
    with pytest.raises(UserError, match="yes: wanted"):
        VqaScoreReward(llava, yes="")
    with pytest.raises(UserError, match="AutoProcessor could not be loaded"):
        VqaScoreReward(str(tmp_path / "nowhere"))
