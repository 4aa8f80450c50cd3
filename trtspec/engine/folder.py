"""The engine folder: what `trtspec-build` writes and every runtime reads.

    config.json        format version, models, build, speculation, fingerprints, environment
    target/            model.pt2, weights.safetensors
    draft/             rollout.pt2, weights.safetensors; model.pt2 if it has a cache (with a draft)
    tokenizer/         tokenizer files of the target

``config.json`` is written last and the folder is renamed into place as a whole, so a folder that
has one is complete. Weights lie beside the artifacts, in packed layout, and are mapped, not copied;
a draft that borrows its target's embedding or head binds the target's own.
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
from trtspec.config.draft import DraftConfig
from trtspec.config.kv import CacheLayout
from trtspec.config.model import ModelConfig
from trtspec.config.strict import from_dict
from trtspec.config.tree import Choices, TreeShape
from trtspec.engine.device import compute_capability, device_problem, gpu_name
from trtspec.engine.drafts import draft_from_dict, draft_to_dict
from trtspec.errors import EngineError
from trtspec.ops import OPS_VERSION

FORMAT_VERSION = 2
# One mask word, whatever was built: room for drafters that need no engine of their own (n-gram).
DEFAULT_TREE_ROWS = 64
CONFIG_NAME = "config.json"
WEIGHTS_NAME = "weights.safetensors"
TOKENIZER_FOLDER = "tokenizer"


@dataclass(frozen=True)
class SpeculationContract:
    """What a draft inside the folder was built for; (k, D, N) as in the glossary, all maxima, and
    the paths of a static tree."""

    method: str
    topk: int
    num_steps: int
    num_draft_tokens: int
    choices: Choices | None = None

    @classmethod
    def of(cls, method: str, tree: TreeShape) -> SpeculationContract:
        return cls(method, tree.topk, tree.num_steps, tree.num_draft_tokens, tree.choices)

    @property
    def tree(self) -> TreeShape:
        return TreeShape(self.topk, self.num_steps, self.num_draft_tokens, self.choices)


@dataclass(frozen=True)
class Environment:
    """What compiled code depends on; a folder runs only where all of it matches, but for the name
    of the GPU. The last two are None for an engine that runs on the CPU."""

    torch: str
    machine: str
    vector_isa: str
    ops: int
    compute_capability: str | None = None
    gpu: str | None = None

    @classmethod
    def here(cls, device: str = "cpu") -> Environment:
        """This machine's, for an engine on ``device``, which `device_problem` has nothing
        against."""
        on_gpu = device == "cuda"
        return cls(
            torch=torch.__version__.split("+")[0],
            machine=platform.machine(),
            vector_isa=torch.backends.cpu.get_cpu_capability(),
            ops=OPS_VERSION,
            compute_capability=compute_capability() if on_gpu else None,
            gpu=gpu_name() if on_gpu else None,
        )

    @property
    def facts(self) -> dict[str, Any]:
        """What must match."""
        return {key: value for key, value in self.to_dict().items() if key != "gpu"}

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON, without those that the device does not have."""
        return {key: value for key, value in asdict(self).items() if value is not None}


@dataclass(frozen=True)
class EngineConfig:
    """The contents of an engine folder's ``config.json``. extract_layers: states that the target
    hands out to be written to files, without a draft; numbered as in `CausalLM`."""

    target: ModelConfig
    draft: DraftConfig | None
    build: BuildConfig
    speculation: SpeculationContract | None
    fingerprints: Mapping[str, str]
    environment: Environment
    extract_layers: tuple[int, ...] = ()

    @property
    def draft_decoder(self) -> ModelConfig | None:
        """The shape of the draft's layers, which decides the size of its cache, if it has any."""
        return self.draft.decoder if self.draft else None

    @property
    def capture_layers(self) -> tuple[int, ...]:
        """The hidden states that the target hands out: to its draft, or to be written."""
        return self.draft.capture_layers if self.draft else self.extract_layers

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

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON; `from_dict` takes them back."""
        return {
            "format_version": FORMAT_VERSION,
            "target": self.target.to_dict(),
            "draft": draft_to_dict(self.draft) if self.draft else None,
            "build": asdict(self.build),
            "speculation": asdict(self.speculation) if self.speculation else None,
            "fingerprints": dict(self.fingerprints),
            "environment": self.environment.to_dict(),
            "extract_layers": list(self.extract_layers),
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> EngineConfig:
        """The inverse of `to_dict`, also after JSON; KeyError or ConfigError for other content."""
        draft, speculation = data["draft"], data["speculation"]
        return cls(
            target=ModelConfig.from_dict(data["target"]),
            draft=draft_from_dict(draft) if draft else None,
            build=from_dict(BuildConfig, data["build"]),
            speculation=from_dict(SpeculationContract, speculation) if speculation else None,
            fingerprints=data["fingerprints"],
            environment=from_dict(Environment, data["environment"]),
            extract_layers=tuple(data.get("extract_layers", ())),
        )

    def write(self, folder: Path) -> None:
        (folder / CONFIG_NAME).write_text(json.dumps(self.to_dict(), indent=2) + "\n")

    @classmethod
    def read(cls, folder: Path) -> EngineConfig:
        """Read and check a folder's contract.

        Raises:
            EngineError: no or unreadable config, another format version, a device that this
                machine lacks, or an environment that the compiled code does not fit.
        """
        data = _read_json(folder / CONFIG_NAME)
        version = data.get("format_version")
        if version != FORMAT_VERSION:
            raise EngineError(
                f"{folder} has engine format {version}, this trtspec reads {FORMAT_VERSION}; "
                "rebuild it with trtspec-build"
            )
        try:
            config = cls.from_dict(data)
        except KeyError as error:
            raise EngineError(
                f"{folder / CONFIG_NAME} lacks {error}; rebuild it with trtspec-build"
            ) from error
        config._check_environment(folder)
        return config

    def _check_environment(self, folder: Path) -> None:
        device = self.build.device
        problem = device_problem(device)
        if problem is not None:
            gpu, capability = self.environment.gpu, self.environment.compute_capability
            raise EngineError(
                f"{folder} was built for {device} ({gpu}, compute capability {capability}), but "
                f"{problem}, or rebuild the engine with --device cpu"
            )
        built, here = self.environment.facts, Environment.here(device).facts
        wrong = [
            f"{key} {built[key]} (here {here.get(key)})"
            for key in built
            if built[key] != here.get(key)
        ]
        if wrong and self.build.backend != "eager":
            raise EngineError(
                f"{folder} was compiled for {', '.join(wrong)}; rebuild it with trtspec-build"
            )


def speculative_rows(speculation: SpeculationContract | None) -> int:
    """Most rows behind a request's committed tokens: those verified, or those of a rollout."""
    if speculation is None:
        return DEFAULT_TREE_ROWS
    tree = speculation.tree
    return max(DEFAULT_TREE_ROWS, tree.num_draft_tokens, 1 + tree.num_rollout_rows)


def is_engine_folder(path: Path) -> bool:
    """True for a folder whose config.json is an engine's, of whatever format version."""
    try:
        return "format_version" in _read_json(path / CONFIG_NAME)
    except EngineError:
        return False


def read_weights(path: Path, device: str = "cpu") -> dict[str, Tensor]:
    """Map a weight file, whose pages are then read when first used, or copy it to a GPU."""
    try:
        with safe_open(path, framework="pt", device=device) as file:
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
