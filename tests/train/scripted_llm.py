"""An LLM that writes what a script says, and a file of states for every request."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from trtspec.config.sampling import SamplingParams
from trtspec.errors import EngineError
from trtspec.speculative.hidden_states.files import HIDDEN_STATES_PATH

END = 1


class WordTokenizer:
    """Token i is the word ``w<i>``."""

    all_special_ids = (0, END)
    chat_template: str | None = (
        "{% for m in messages %}<{{ m['role'] }}>{{ m['content'] }}{% endfor %}"
    )

    def __call__(self, text: str, add_special_tokens: bool = True) -> dict[str, list[int]]:
        return {"input_ids": [int(word[1:]) for word in text.split() if word[1:].isdigit()] or [2]}

    def get_chat_template(self, *_: Any) -> str | None:
        return self.chat_template

    def apply_chat_template(self, messages: Sequence[Any], **_: Any) -> str:
        return "".join(f"<{m['role']}>{m['content']}" for m in messages)


def own_words(prompt: Sequence[int], params: SamplingParams) -> list[int]:
    """A text that the prompt and the seed decide."""
    draw = random.Random(f"{list(prompt)} {params.seed} {params.temperature}")
    assert params.max_tokens is not None
    return [draw.randrange(2, 1000) for _ in range(min(20, params.max_tokens - 1))] + [END]


class ScriptedLLM:
    """``write``: the tokens after a prompt; those that end with `END` ended by themselves.
    ``fails_at``: the request, by number, whose states cannot be written."""

    def __init__(
        self,
        folder: Path,
        write: Callable[[Sequence[int], SamplingParams], list[int]] = own_words,
        fails_at: int | None = None,
    ) -> None:
        self.tokenizer: Any = WordTokenizer()
        target = SimpleNamespace(bos_token_id=0, eos_token_ids=(END,), vocab_size=1000)
        self.config = SimpleNamespace(target=target)
        self.requests: list[tuple[list[int], SamplingParams]] = []
        self._folder, self._write, self._fails_at = folder, write, fails_at

    def chat_prompt(self, messages: Sequence[Any], **_: Any) -> dict[str, list[int]]:
        return {"prompt_token_ids": [2, *self.tokenizer(messages[-1]["content"])["input_ids"], 3]}

    def generate(self, prompts: Any, params: Any, use_tqdm: bool = True) -> list[Any]:
        return [self._one(list(p), s) for p, s in zip(prompts, params, strict=True)]

    def _one(self, prompt: list[int], params: SamplingParams) -> Any:
        number = len(self.requests)
        self.requests.append((prompt, params))
        ids = self._write(prompt, params)
        ended = ids[-1:] == [END]
        completion = SimpleNamespace(
            token_ids=ids,
            text="".join(f" w{token}" for token in ids if token != END),
            finish_reason="stop" if ended else "length",
        )
        if number == self._fails_at:
            error = EngineError("the hidden states cannot be written: no space left")
            return SimpleNamespace(outputs=[completion], error=error, kv_transfer_params=None)
        path = self._folder / f"random-{number}.safetensors"
        path.write_text(f"{prompt} {ids}")
        place = {HIDDEN_STATES_PATH: str(path)}
        return SimpleNamespace(outputs=[completion], error=None, kv_transfer_params=place)
