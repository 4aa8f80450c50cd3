"""A tiny model that reads and writes text, and LLMs over it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel

from trtspec import LLM

from ..e2e.helpers import TinyModels, chain, ngram, open_llm, tree
from ..e2e.tiny_tokenizer import save_bytes

VOCAB = 300
METHODS = ("none", "ngram", "chain", "tree")


@dataclass(frozen=True)
class TextModel:
    """A target and a draft with one byte-level tokenizer; token 0 ends the text."""

    hf: PreTrainedModel
    folder: Path
    draft: Path

    def open(self, method: str = "none", **options: object) -> LLM:
        configs = {
            "none": None,
            "ngram": ngram(4),
            "chain": chain(self.draft, 4),
            "tree": tree(self.draft, 3, 3, 9),
        }
        return open_llm(self.folder, configs[method], skip_tokenizer_init=False, **options)


@pytest.fixture(scope="session")
def text_model(models: TinyModels) -> TextModel:
    torch.manual_seed(5)
    sizes = {"hidden_size": 48, "intermediate_size": 64, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 256}
    config = LlamaConfig(vocab_size=VOCAB, **sizes, **heads, bos_token_id=None, eos_token_id=0)
    hf = LlamaForCausalLM(config).eval()
    with torch.no_grad():
        for weight in hf.parameters():
            if weight.dim() == 2:
                weight.normal_(std=0.15)
        folder = models.save(hf, "text")
        for weight in hf.parameters():
            weight += 0.02 * torch.randn(weight.shape)
        draft = models.save(hf, "text-draft")
    for path in (folder, draft):
        save_bytes(path, VOCAB)
    return TextModel(LlamaForCausalLM.from_pretrained(folder).eval(), folder, draft)


@pytest.fixture(scope="module")
def llm(text_model: TextModel) -> Iterator[LLM]:
    """An LLM without speculation."""
    with text_model.open() as llm:
        yield llm


@pytest.fixture(params=METHODS)
def any_llm(request: pytest.FixtureRequest, text_model: TextModel) -> Iterator[LLM]:
    """An LLM with each method."""
    with text_model.open(request.param) as llm:
        yield llm
