"""The texts of a training: recorded traffic, or what the target writes now."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Protocol

from torch.nn.functional import cross_entropy

from trtspec.builder.tokenizer import has_tokenizer, tokenizer_fingerprint, tokenizer_folder
from trtspec.config.model import ModelConfig
from trtspec.errors import ConfigError
from trtspec.llmapi.llm import LLM
from trtspec.llmapi.prompts import load_tokenizer
from trtspec.log import logger
from trtspec.speculative.registry import methods
from trtspec.train.openings import (
    BASE,
    CHAT,
    PROMPTS,
    BaseOpenings,
    ChatOpenings,
    GivenPrompts,
    Openings,
    has_chat_template,
    question_head,
)
from trtspec.train.options import TrainOptions
from trtspec.train.rules import RULES
from trtspec.train.seeds import SEEDS, SYSTEMS
from trtspec.train.self_writer import SelfWriter
from trtspec.train.target import TrainingTarget
from trtspec.train.teacher import Teacher
from trtspec.train.text_store import SUFFIX, TextStore
from trtspec.train.windows import RecordedTexts

RECORDED = "recorded"
_CHECKED_TEXTS = 4


class Writer(Protocol):
    """A target that writes texts."""

    @property
    def path(self) -> Path: ...

    @property
    def config(self) -> ModelConfig: ...


@dataclass(frozen=True)
class DataSource:
    """kind: `RECORDED`, or how the target's texts begin. prompts: if they are given. key: of the
    folder that keeps what is written, the same for the same texts."""

    kind: str
    description: str
    key: str
    prompts: tuple[str, ...] = ()


def find_source(options: TrainOptions, target: Writer, layers: Sequence[int]) -> DataSource:
    """Interpret the options for this target.

    Raises:
        ConfigError: a file cannot be read, or the target has no tokenizer to write with.
    """
    if options.hidden_states is not None:
        names = [path.name for path in recorded_paths(options.hidden_states)]
        if not names:
            raise ConfigError(
                f"no files of hidden states in {options.hidden_states}; record some first"
            )
        text = f"recorded in {options.hidden_states}, {len(names)} texts"
        return DataSource(RECORDED, text, key_of_facts(names))
    folder = target.path if options.tokenizer is None else tokenizer_folder(options.tokenizer)
    if not has_tokenizer(folder):
        raise ConfigError(
            f"{folder} has no tokenizer, so it cannot write texts to learn from; give one by "
            "--tokenizer, or --hidden_states recorded while it served"
        )
    facts: list[object] = [options.seed, list(layers), options.max_text_tokens]
    if options.tokenizer is not None:
        facts.append(tokenizer_fingerprint(folder))
    if options.prompts is not None:
        prompts = read_prompts(options.prompts)
        text = f"{len(prompts)} prompts of {options.prompts}, answered by the target"
        key = key_of_facts([PROMPTS, *facts, list(prompts), options.raw_prompts])
        return DataSource(PROMPTS, text, key, prompts)
    tokenizer = load_tokenizer(folder)
    is_chat = not options.from_base and has_chat_template(tokenizer)
    kind = CHAT if is_chat else BASE
    if is_chat:
        question_head(tokenizer)  # a template that will not do is refused now
        text = (
            "written by the target: a question in its own chat template, from first words of "
            f"{len(SEEDS)} kinds, then the answer"
        )
        facts += [[[seed.words, seed.pastes] for seed in SEEDS], list(SYSTEMS)]
    else:
        why = "as asked" if options.from_base else "as it has no chat template"
        text = f"written by the target from the beginning of a text, {why}"
    rules = "; ".join(f"{name} ({meaning})" for name, meaning in RULES.items())
    text = f"{text}, half greedy and half sampled; dropped are: {rules}"
    return DataSource(kind, text, key_of_facts([kind, *facts]))


def read_prompts(path: Path) -> tuple[str, ...]:
    """One prompt per line; in a .jsonl file, ``prompt`` or the first of ``turns``.

    Raises:
        ConfigError: it cannot be read, a line has no text, or there is none.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--prompts {path} cannot be read: {error}") from error
    numbered = [(number, line) for number, line in enumerate(lines, 1) if line.strip()]
    if path.suffix == ".jsonl":
        found = tuple(_prompt(line, f"{path}, line {number}") for number, line in numbered)
    else:
        found = tuple(line for _, line in numbered)
    if not found:
        raise ConfigError(f"--prompts {path} holds no prompt")
    return found


def _prompt(line: str, where: str) -> str:
    try:
        entry = json.loads(line)
        text = entry["prompt"] if "prompt" in entry else entry["turns"][0]
    except (ValueError, KeyError, IndexError, TypeError) as error:
        raise ConfigError(
            f'{where} is no prompt ({error!r}); an entry is {{"prompt": "..."}} or '
            '{"turns": ["..."]}'
        ) from error
    if not isinstance(text, str) or not text:
        raise ConfigError(f"{where} has {text!r:.60} as a prompt, which is no text")
    return text


def recorded_paths(folder: Path) -> list[Path]:
    """The files of recorded hidden states in a folder, in a stable order."""
    return sorted(folder.glob(f"*{SUFFIX}"))


def write_texts(
    options: TrainOptions,
    target: Writer,
    source: DataSource,
    layers: Sequence[int],
    store: TextStore,
) -> None:
    """Let the target write until the store holds the wanted number of tokens, and record the
    outputs of ``layers``.

    Raises:
        TrtspecError: the engine cannot be built, the disk is full, or no text is worth keeping.
    """
    if store.num_tokens >= options.tokens:
        return
    store.begin()
    recorder = next(each for each in methods().values() if each.recording is not None)
    config = {
        "method": recorder.name,
        "capture_layers": list(layers),
        "shared_storage_path": str(store.folder),
    }
    length = min(options.max_text_tokens, target.config.usual_sequence)
    with LLM(
        options.model,
        speculative_config=config,
        max_batch_size=options.batch,
        max_seq_len=length,
        device=None if options.device == "auto" else options.device,
        backend=options.backend,
        tokenizer=options.tokenizer,
    ) as llm:
        openings: Openings
        if source.kind == PROMPTS:
            chat = not options.raw_prompts and has_chat_template(llm.tokenizer)
            openings = GivenPrompts(llm, source.prompts, chat)
        else:
            openings = ChatOpenings(llm) if source.kind == CHAT else BaseOpenings(llm)
        SelfWriter(llm, openings, store, options.seed, length).write(options.tokens)
    if store.num_tokens < options.tokens:
        logger.info("the prompts are used up after %d tokens", store.num_tokens)


def check_states(texts: RecordedTexts, target: TrainingTarget) -> None:
    """Raise ConfigError if the hidden states cannot be this target's: another width, or its head
    does not predict the texts' own tokens from them."""
    teacher = Teacher(target, None, "cpu")
    vocabulary, total, count = target.config.vocab_size, 0.0, 0
    for text in texts.held_out[:_CHECKED_TEXTS]:
        window = texts.window([(text, 0, texts.lengths[text])])
        width, tokens = window.state.shape[-1], window.tokens[0]
        if width != target.config.hidden_size:
            raise ConfigError(
                f"the recorded states have {width} elements, those of {target.name} "
                f"{target.config.hidden_size}; they are another model's"
            )
        if int(tokens.max()) >= vocabulary:
            raise ConfigError(
                f"the recorded texts have token {int(tokens.max())}, {target.name} has "
                f"{vocabulary} tokens; they are another model's"
            )
        logits = teacher.logits(window.state[0, :-1], window.normed).float()
        total += float(cross_entropy(logits, tokens[1:], reduction="sum"))
        count += len(tokens) - 1
    if count and total / count > math.log(vocabulary):
        raise ConfigError(
            f"from the recorded states {target.name} finds the texts' next tokens at "
            f"{total / count:.1f} nats each; guessing takes {math.log(vocabulary):.1f}: they are "
            "another model's, or another checkpoint's; record states of this target"
        )


def mask_token(target: TrainingTarget) -> int:
    """The id that stands for unknown tokens: the tokenizer's mask token, else its padding, else the
    end of text."""
    if has_tokenizer(target.tokenizer):
        tokenizer = load_tokenizer(target.tokenizer)
        for name in ("mask_token_id", "pad_token_id"):
            token = getattr(tokenizer, name, None)
            if isinstance(token, int) and 0 <= token < target.config.vocab_size:
                return token
    ends = target.config.eos_token_ids
    return ends[0] if ends else 0


def held_out_prompts(texts: RecordedTexts, store: TextStore | None, count: int) -> list[list[int]]:
    """Beginnings of held-out texts: the prompt if it is known, else half of the text or 64
    tokens."""
    chosen = texts.held_out[:count]
    lengths = [texts.lengths[i] // 2 if store is None else store.texts[i].prompt for i in chosen]
    if store is None:
        lengths = [min(length, 64) for length in lengths]
    return [
        texts.token_ids(i)[: max(1, length)].tolist()
        for i, length in zip(chosen, lengths, strict=True)
    ]


def key_of_facts(facts: object) -> str:
    """A folder name for what these facts, plain JSON values, determine."""
    return blake2b(json.dumps(facts).encode(), digest_size=6).hexdigest()
