"""TrainOptions: the options of a training, checked before anything is written."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from trtspec.errors import ConfigError
from trtspec.speculative.registry import method_name, trainable_methods

MAX_DEPTH = 16


@dataclass(frozen=True)
class TrainOptions:
    """method: one with a recipe. model: the target, a checkpoint. tokenizer: a folder or GGUF file
    with a tokenizer to use instead of the target's own. output: a new or empty folder.

    Data, one of: hidden_states, a folder of recorded traffic; prompts, a file; otherwise the target
    writes the texts. from_base: it continues beginnings of texts although it has a chat template.
    raw_prompts: prompts do not go through the chat template. tokens: how many it writes, prompts
    and answers together. max_text_tokens: per text.

    passes: over the data. depth: tokens of the longest draft; None: the recipe's. draft_vocab_size:
    None: chosen from the data; 0: the target's. window_tokens: most rows of a window; step_tokens:
    rows of a step. learning_rate, vocabulary_rate: see `trtspec.train.optimizers`.

    state: where data and checkpoints are kept; None: in the user's cache folder. backend: of the
    engine that writes and measures; None: the default. finish: write the head of the last
    checkpoint without further training. no_measure: do not measure acceptance with the engine.
    """

    method: str
    model: str
    output: Path
    hidden_states: Path | None = None
    prompts: Path | None = None
    from_base: bool = False
    raw_prompts: bool = False
    tokens: int = 1_000_000
    max_text_tokens: int = 512
    passes: float = 4.0
    depth: int | None = None
    draft_vocab_size: int | None = None
    window_tokens: int = 512
    step_tokens: int = 2048
    learning_rate: float = 1e-2
    vocabulary_rate: float = 2e-3
    batch: int = 64
    seed: int = 0
    state: Path | None = None
    device: str = "auto"
    backend: str | None = None
    finish: bool = False
    no_measure: bool = False
    tokenizer: str | None = None

    def __post_init__(self) -> None:
        for name, least in (
            *(("tokens", 1), ("max_text_tokens", 32), ("window_tokens", 16), ("batch", 1)),
            ("step_tokens", self.window_tokens),
        ):
            if getattr(self, name) < least:
                raise ConfigError(f"--{name} {getattr(self, name)} must be at least {least}")
        for name in ("passes", "learning_rate", "vocabulary_rate"):
            if not getattr(self, name) > 0:
                raise ConfigError(f"--{name} {getattr(self, name)} must be above 0")
        if self.depth is not None and not 1 <= self.depth <= MAX_DEPTH:
            raise ConfigError(f"--depth {self.depth} must be between 1 and {MAX_DEPTH}")
        if not 0 <= self.seed < 2**20:
            raise ConfigError(f"--seed {self.seed} must be between 0 and {2**20 - 1}")
        given = [name for name in ("hidden_states", "prompts") if getattr(self, name) is not None]
        if self.from_base:
            given.append("from_base")
        if len(given) > 1:
            flags = " and ".join(f"--{name}" for name in given)
            raise ConfigError(f"{flags} name different sources of data; give one of them")
        if self.raw_prompts and self.prompts is None:
            raise ConfigError("--raw_prompts says how --prompts are read; give them as well")
        if method_name(self.method) not in trainable_methods():
            raise ConfigError(
                f"a draft for {self.method} cannot be trained here, as NVIDIA ModelOpt has no such "
                f"network; trained are: {', '.join(trainable_methods())}; what was trained "
                "elsewhere is read as its authors write it"
            )
        check_output(self.output)


def check_output(folder: Path) -> None:
    """Raise ConfigError if the folder is not empty."""
    if folder.exists() and not folder.is_dir():
        raise ConfigError(f"--output {folder} is a file; name a folder that is not there yet")
    if folder.is_dir() and any(folder.iterdir()):
        raise ConfigError(
            f"--output {folder} exists and is not empty; name another folder, or remove it"
        )
