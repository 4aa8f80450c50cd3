"""SelfWriter: the target writes, in rounds, the texts that its draft will learn from, along with
their hidden states."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from trtspec.config.sampling import SamplingParams
from trtspec.errors import TrainingError
from trtspec.llmapi.llm import LLM
from trtspec.log import logger
from trtspec.speculative.hidden_states.files import HIDDEN_STATES_PATH
from trtspec.train.openings import Beginning, Openings
from trtspec.train.rules import RULES, fault, key_of
from trtspec.train.text_store import SUFFIX, StoredText, TextStore

ROUND = 256
"""Most texts begun in a round: with many, batches are rarely half empty; a kill loses a round."""
_LEAST_ROUND = 16
TEMPERATURES = (0.0, 0.7, 0.0, 1.0)
"""Of texts in rotation: half greedy, half sampled. Beginnings are sampled at 1."""
LEAST_TOKENS = 16
_POOR_ROUNDS, _WORTH = 3, 0.05


class SelfWriter:
    """``llm`` records the hidden states of every request into the folder of ``store``. A text
    depends only on its number and ``seed``, so that an interrupted training continues as if it had
    not been interrupted. ``max_tokens``: of a text, prompt and answer."""

    def __init__(
        self, llm: LLM, openings: Openings, store: TextStore, seed: int, max_tokens: int
    ) -> None:
        self._llm, self._openings, self._store = llm, openings, store
        self._seed, self._max_tokens = seed, max_tokens
        ends = set(llm.config.target.eos_token_ids)
        self._special = set(getattr(llm.tokenizer, "all_special_ids", ())) | ends

    def write(self, num_tokens: int) -> None:
        """Run rounds until the store holds that many tokens, or the prompts are used up.

        Raises:
            TrainingError: the disk is full; or round after round hardly any text is worth keeping.
        """
        store, began, first = self._store, time.monotonic(), self._store.num_tokens
        poor = 0
        while store.num_tokens < num_tokens:
            before, missing = len(store.texts), num_tokens - store.num_tokens
            size = min(ROUND, max(_LEAST_ROUND, -(-2 * missing // self._max_tokens)))
            if not self._round(size):
                break
            poor = 0 if len(store.texts) - before >= _WORTH * size else poor + 1
            if poor == _POOR_ROUNDS:
                raise TrainingError(
                    f"in each of {poor} rounds less than {_WORTH:.0%} of what the target wrote was "
                    f"worth keeping (dropped: {_counts(store.dropped)}); let it write on from its "
                    "beginning (--from_base), give --prompts, or --hidden_states recorded while it "
                    "served"
                )
            seconds = time.monotonic() - began
            speed = (store.num_tokens - first) / seconds
            left = max(0, num_tokens - store.num_tokens)
            logger.info(
                "texts: %d of %d tokens in %d texts, %.0f tokens/s, %s left; dropped %s",
                *(store.num_tokens, num_tokens, len(store.texts), speed, _duration(left, speed)),
                _counts(store.dropped),
            )

    def _round(self, size: int) -> bool:
        """Whether there was anything to begin with."""
        dropped: Counter[str] = Counter()
        first = self._store.num_begun
        prompts = self._begin(range(first, first + size), dropped)
        if prompts is None:
            return False
        limits = [max(1, self._max_tokens - len(prompt)) for _, prompt, _ in prompts]
        params = [
            SamplingParams(
                max_tokens=limit,
                temperature=TEMPERATURES[index % len(TEMPERATURES)],
                seed=self._seed_of(2 * index + 1),
            )
            for (index, _, _), limit in zip(prompts, limits, strict=True)
        ]
        kept: list[StoredText] = []
        outputs = self._generate([prompt for _, prompt, _ in prompts], params)
        for (index, prompt, key), output in zip(prompts, outputs, strict=True):
            path = Path(output.kv_transfer_params[HIDDEN_STATES_PATH])
            reason = self._fault(output, LEAST_TOKENS, must_end=False)
            if reason is not None:
                dropped[reason] += 1
                path.unlink()
                continue
            name = f"{index:09}{SUFFIX}"
            path.replace(self._store.folder / name)
            rows = len(prompt) + len(output.outputs[0].token_ids) - 1
            kept.append(StoredText(name, rows, len(prompt), key))
            self._store.keys.add(key)
        self._store.add_round(size, kept, dropped)
        return True

    def _begin(
        self, numbers: range, dropped: Counter[str]
    ) -> list[tuple[int, list[int], str]] | None:
        """(number, prompt, key) of the texts of a round; None if there are no prompts left."""
        begun = self._write_beginnings(numbers)
        prompts: list[tuple[int, list[int], str]] = []
        new: set[str] = set()
        for index in numbers:
            ids: Sequence[int] = ()
            text = ""
            if index in begun:
                beginning, output = begun[index]
                reason = self._fault(output, beginning.least, beginning.must_end)
                if reason is not None:
                    dropped[reason] += 1
                    continue
                ids, text = self._written(output), output.outputs[0].text
            opening = self._openings.prompt(index, ids, text)
            if opening is None:
                break
            prompt, words = opening
            key = key_of(words)
            if key in self._store.keys or key in new:
                dropped["duplicate"] += 1
            elif len(prompt) + LEAST_TOKENS > self._max_tokens:
                dropped["long"] += 1
            else:
                new.add(key)
                prompts.append((index, prompt, key))
        ran_out = not begun and not prompts and not dropped
        return None if ran_out else prompts

    def _write_beginnings(self, numbers: range) -> dict[int, tuple[Beginning, Any]]:
        """What the target writes first, by the number of a text; nothing of given prompts."""
        begun = [(index, self._openings.beginning(index)) for index in numbers]
        asked = [(index, beginning) for index, beginning in begun if beginning is not None]
        params = [
            SamplingParams(max_tokens=b.max_tokens, temperature=1.0, seed=self._seed_of(2 * index))
            for index, b in asked
        ]
        outputs = self._generate([beginning.prompt for _, beginning in asked], params)
        for output in outputs:
            Path(output.kv_transfer_params[HIDDEN_STATES_PATH]).unlink()
        return {
            index: (beginning, output)
            for (index, beginning), output in zip(asked, outputs, strict=True)
        }

    def _generate(self, prompts: Sequence[Any], params: Sequence[SamplingParams]) -> list[Any]:
        if not prompts:
            return []
        outputs: list[Any] = self._llm.generate(prompts, list(params), use_tqdm=False)
        failed = next((output.error for output in outputs if output.error is not None), None)
        if failed is not None:
            for output in outputs:
                with suppress(OSError, TypeError, KeyError):
                    Path(output.kv_transfer_params[HIDDEN_STATES_PATH]).unlink()
            raise TrainingError(
                f"the target could not go on writing ({failed}); {self._store.num_tokens} tokens "
                f"are kept in {self._store.folder}: run the same command again to go on"
            ) from failed
        return outputs

    def _fault(self, output: Any, least: int, must_end: bool) -> str | None:
        completion = output.outputs[0]
        ended = completion.finish_reason == "stop"
        ids = self._written(output)
        return fault(ids, completion.text, self._special, least, must_end, ended)

    def _written(self, output: Any) -> list[int]:
        """Its tokens without the one that ended it."""
        completion = output.outputs[0]
        ids: list[int] = list(completion.token_ids)
        return ids[:-1] if completion.finish_reason == "stop" and ids else ids

    def _seed_of(self, number: int) -> int:
        return (self._seed << 40) + number


def _counts(dropped: Counter[str]) -> str:
    known = [name for name in RULES if dropped[name]]
    return ", ".join(f"{dropped[name]} {name}" for name in known) or "nothing"


def _duration(tokens: int, speed: float) -> str:
    """How long ``tokens`` take; before any was kept, nobody knows."""
    return f"{tokens / speed / 60:.0f} min" if speed > 0 else "unknown time"
