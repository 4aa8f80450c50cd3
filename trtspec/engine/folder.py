"""The engine folder: what `trtspec-build` writes and every runtime reads.

    config.json        format version, models, build, speculation, fingerprints, environment
    target/            model.pt2, weights.safetensors
    draft/             model.pt2, rollout.pt2, weights.safetensors      (with a draft model)
    tokenizer/         tokenizer files of the target

``config.json`` is written last and the folder is renamed into place as a whole, so a folder that
has one is complete. Weights lie beside the artifacts, in packed layout, and are mapped, not copied.
"""

from __future__ import annotations

import json
import platform
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from trtspec.config.build import BuildConfig
from trtspec.config.model import ModelConfig
from trtspec.config.strict import from_dict
from trtspec.errors import EngineError
from trtspec.ops import OPS_VERSION

FORMAT_VERSION = 1
# One mask word, whatever was built: room for drafters that need no engine of their own (n-gram).
DEFAULT_TREE_ROWS = 64
CONFIG_NAME = "config.json"
WEIGHTS_NAME = "weights.safetensors"
MODEL_NAME = "model.pt2"
ROLLOUT_NAME = "rollout.pt2"
TOKENIZER_FOLDER = "tokenizer"


@dataclass(frozen=True)
class SpeculationContract:
    """What a draft inside the folder was built for; (k, D, N) as in the glossary, all maxima."""

    method: str
    topk: int
    num_steps: int
    num_draft_tokens: int


@dataclass(frozen=True)
class Environment:
    """What compiled code depends on; a folder runs only where all of it matches."""

    torch: str
    machine: str
    vector_isa: str
    ops: int

    @classmethod
    def here(cls) -> Environment:
        return cls(
            torch=torch.__version__.split("+")[0],
            machine=platform.machine(),
            vector_isa=torch.backends.cpu.get_cpu_capability(),
            ops=OPS_VERSION,
        )


@dataclass(frozen=True)
class CacheLayout:
    """The fixed sizes of an engine's inputs: cache blocks, block tables and mask words."""

    tokens_per_block: int
    blocks_per_sequence: int
    mask_words: int


@dataclass(frozen=True)
class EngineConfig:
    """The contents of an engine folder's ``config.json``."""

    target: ModelConfig
    draft: ModelConfig | None
    build: BuildConfig
    speculation: SpeculationContract | None
    fingerprints: Mapping[str, str]
    environment: Environment

    @property
    def layout(self) -> CacheLayout:
        """Block tables reach past max_seq_len by the rows a step writes before it accepts them."""
        assert self.build.max_seq_len is not None, "a written engine has a resolved max_seq_len"
        tokens = self.build.max_seq_len + speculative_rows(self.speculation)
        return CacheLayout(
            tokens_per_block=self.build.tokens_per_block,
            blocks_per_sequence=-(-tokens // self.build.tokens_per_block),
            mask_words=-(-speculative_rows(self.speculation) // 64),
        )

    def write(self, folder: Path) -> None:
        data = {
            "format_version": FORMAT_VERSION,
            "target": self.target.to_dict(),
            "draft": self.draft.to_dict() if self.draft else None,
            "build": asdict(self.build),
            "speculation": asdict(self.speculation) if self.speculation else None,
            "fingerprints": dict(self.fingerprints),
            "environment": asdict(self.environment),
        }
        (folder / CONFIG_NAME).write_text(json.dumps(data, indent=2) + "\n")

    @classmethod
    def read(cls, folder: Path) -> EngineConfig:
        """Read and check a folder's contract.

        Raises:
            EngineError: no or unreadable config, another format version, or an environment that
                the compiled code does not fit.
        """
        data = _read_json(folder / CONFIG_NAME)
        version = data.get("format_version")
        if version != FORMAT_VERSION:
            raise EngineError(
                f"{folder} has engine format {version}, this trtspec reads {FORMAT_VERSION}; "
                "rebuild it with trtspec-build"
            )
        try:
            draft, speculation = data["draft"], data["speculation"]
            config = cls(
                target=ModelConfig.from_dict(data["target"]),
                draft=ModelConfig.from_dict(draft) if draft else None,
                build=from_dict(BuildConfig, data["build"]),
                speculation=from_dict(SpeculationContract, speculation) if speculation else None,
                fingerprints=data["fingerprints"],
                environment=from_dict(Environment, data["environment"]),
            )
        except KeyError as error:
            raise EngineError(
                f"{folder / CONFIG_NAME} lacks {error}; rebuild it with trtspec-build"
            ) from error
        config._check_environment(folder)
        return config

    def _check_environment(self, folder: Path) -> None:
        built, here = asdict(self.environment), asdict(Environment.here())
        wrong = [
            f"{key} {built[key]} (here {here[key]})" for key in built if built[key] != here[key]
        ]
        if wrong and self.build.backend != "eager":
            raise EngineError(
                f"{folder} was compiled for {', '.join(wrong)}; rebuild it with trtspec-build"
            )


def speculative_rows(speculation: SpeculationContract | None) -> int:
    """Most rows behind a request's committed tokens: those verified, or those of a rollout."""
    if speculation is None:
        return DEFAULT_TREE_ROWS
    rollout_rows = 1 + (speculation.num_steps - 1) * speculation.topk
    return max(DEFAULT_TREE_ROWS, speculation.num_draft_tokens, rollout_rows)


def is_engine_folder(path: Path) -> bool:
    """True for a folder whose config.json is an engine's, of whatever format version."""
    try:
        return "format_version" in _read_json(path / CONFIG_NAME)
    except EngineError:
        return False


def read_weights(path: Path) -> dict[str, Tensor]:
    """Map a weight file; pages are read when first used."""
    try:
        with safe_open(path, framework="pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (OSError, SafetensorError) as error:
        raise EngineError(
            f"{path} cannot be read ({error}); the folder is damaged, rebuild it with trtspec-build"
        ) from error


def _read_json(path: Path) -> dict[str, Any]:
    try:
        data = json.loads(path.read_text())
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise EngineError(f"{path} is not a readable engine config ({error})") from error
    if not isinstance(data, dict):
        raise EngineError(f"{path} does not hold a JSON object")
    return data
