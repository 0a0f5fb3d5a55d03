"""How sure a vision-language model is that a picture shows its prompt: the probability that it answers "Yes".

See "Evaluating Text-to-Visual Generation with Image-to-Text Generation", Lin et al., https://arxiv.org/abs/2404.01291.
"""

from __future__ import annotations

from typing import Any

import torch
from PIL import Image
from torch import Tensor

from ..errors import UserError
from ..reward import Reward, RewardBatch
from ._clip import placed, pretrained

TEMPLATE = 'Does this figure show "{prompt}"? Please answer yes or no.'


class VqaScoreReward(Reward):
    """VQAScore: ``P(first token of the answer = Yes)``, over the whole vocabulary.

    The published score of CLIP-FlanT5 is the geometric mean over all tokens of the answer; for other models its authors
    take the first token, as here.
    """

    name = "vqa_score"
    range = (0.0, 1.0)
    license = ""  # the model's own

    def __init__(
        self,
        model: str,
        revision: str | None = None,
        *,
        template: str = TEMPLATE,
        yes: str = "Yes",
        device: str = "cpu",
        dtype: str = "bfloat16",
    ) -> None:
        """Load a model and its processor.

        Args:
            model: a hub id or a folder of any image-text-to-text model of transformers with a chat template.
            revision: of the hub.
            template: the question; ``{prompt}`` stands for the prompt.
            yes: the answer whose first token counts.
            device: where it runs.
            dtype: ``float32``, ``bfloat16`` or ``float16``.

        Raises:
            UserError: an option is wrong, or the model is missing or has no chat template.
        """
        from transformers import AutoModelForImageTextToText, AutoProcessor

        label = f"reward {self.name!r}"
        if "{prompt}" not in template:
            raise UserError(f"{label}: template: wanted a text with {{prompt}} in it, got {template!r}.")
        self._processor = pretrained(AutoProcessor, model, revision, label)
        if not getattr(self._processor, "chat_template", None):
            raise UserError(f"{label}: the processor of {model!r} has no chat template; wanted a model with one.")
        tokens = self._processor.tokenizer.encode(yes, add_special_tokens=False)
        if not tokens:
            raise UserError(f"{label}: yes: wanted an answer such as 'Yes', got {yes!r}.")
        self._yes, self._template = tokens[0], template
        self._model = placed(pretrained(AutoModelForImageTextToText, model, revision, label), device, dtype, label)
        self.source = f"{model}@{revision or 'main'}; its own processor; P({yes!r}) after {template!r}"

    @torch.no_grad()
    def __call__(self, batch: RewardBatch) -> Tensor:
        """The probabilities, `[B]`; one picture at a time, so that no padding plays a part."""
        return torch.stack([self._score(*pair) for pair in zip(batch.images, batch.prompts, strict=True)])

    def _score(self, image: Tensor, prompt: str) -> Tensor:
        pixels = (image.detach().float() * 255).round().to("cpu", torch.uint8).permute(1, 2, 0).numpy()
        question = self._template.replace("{prompt}", prompt)
        content: list[dict[str, Any]] = [{"type": "image"}, {"type": "text", "text": question}]
        text = self._processor.apply_chat_template(
            [{"role": "user", "content": content}], add_generation_prompt=True, tokenize=False
        )
        inputs = self._processor(text=[text], images=[Image.fromarray(pixels)], return_tensors="pt")
        inputs = inputs.to(self._model.device)
        for key, value in inputs.items():
            if value.is_floating_point():
                inputs[key] = value.to(self._model.dtype)
        return self._model(**inputs).logits[0, -1].float().softmax(dim=-1)[self._yes].cpu()
