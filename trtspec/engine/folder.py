"""The engine folder: what `trtspec-build` writes and every runtime reads.

    config.json        what wrote it, format version, models, build, speculation, fingerprints,
                       environment, and dtype and shape of all weights
    target/            weights.safetensors; model.pt2 (backend aoti)
                       (rank1-weights.safetensors and so on: of a target that is split over
                       ranks, those of the others)
    draft/             weights.safetensors; pass.pt2, one pass of a rollout, or rollout.pt2, and
                       what feeds a cache of its own: step.pt2, a rollout of one step (none beside
                       another of one), or model.pt2
    draft_2/ ...       the same of further drafts (hybrid)
    *.onnx, *.engine   graphs over slot caches, whose initialisers lie in the weight files, and
                       TensorRT's engines of them
    *.runtime_cache    kernels that TensorRT-RTX compiled when it ran an engine
    tokenizer/         tokenizer files of the target

``config.json`` lists its ``drafts``: folder, network and what each was built for (a method and a
tree). ``speculation`` is the config by which several methods draft together; null where one method
drafts, or none. ``facts`` (see `trtspec.engine.facts`) are for a runtime without Python: they say
what follows from the shapes of networks and from how a draft is rolled out, and are not read here.

``config.json`` is written last and the folder is renamed into place as a whole, so a folder that
has one is complete. Weights lie beside the artifacts, packed for the ops of a CPU, and are
read into large pages, once for all engines of a process; a draft that borrows its target's
embedding or head binds the target's own.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from torch import Tensor

from trtspec.backends.base import Backend
from trtspec.backends.environment import Environment
from trtspec.backends.registry import backend_named, options_of
from trtspec.backends.shape import TARGET
from trtspec.config.build_config import BuildConfig
from trtspec.config.decoding import DecodingConfig
from trtspec.config.kv import CacheLayout
from trtspec.config.model import ModelConfig
from trtspec.config.strict import from_dict
from trtspec.engine.engine_draft import EngineDraft
from trtspec.engine.facts import network_facts
from trtspec.engine.memory import in_large_pages, read_bytes, state_bytes, weight_bytes
from trtspec.engine.weight_formats import draft_formats, target_formats
from trtspec.engine.weight_record import WeightRecord
from trtspec.errors import ConfigError, EngineError
from trtspec.formats.network_formats import NetworkFormats
from trtspec.models.layer_facts import PassBytes
from trtspec.speculative.options import parse_speculative_config, speculative_to_dict
from trtspec.version import __version__

FORMAT_VERSION = 10
WRITER = f"trtspec {__version__}"
"""What folders that are written here say of it."""
# One mask word, whatever was built: room for drafters that need no engine of their own (n-gram).
DEFAULT_TREE_ROWS = 64
CONFIG_NAME = "config.json"
TOKENIZER_FOLDER = "tokenizer"


@dataclass(frozen=True)
class EngineConfig:
    """The contents of an engine folder's ``config.json``.

    drafts: the draft networks, possibly none. speculation: the config by which several methods
    draft together, naming the drafts' folders as their models; None if at most one method drafts,
    whose draft records what it was built for. extract_layers: hidden states that the target writes
    to files, without a draft; numbered as in `CausalLM`. weights: what the weight files hold, by
    folder (``target``, ``draft``, ...); empty in a plan, and ignored when plan and engine are
    compared.
    """

    target: ModelConfig
    drafts: tuple[EngineDraft, ...]
    build: BuildConfig
    fingerprints: Mapping[str, str]
    environment: Environment
    speculation: DecodingConfig | None = None
    extract_layers: tuple[int, ...] = ()
    weights: Mapping[str, WeightRecord] = field(default_factory=dict, compare=False)

    @property
    def backend(self) -> Backend:
        """The backend that compiled the engine and runs it."""
        return backend_named(self.build.backend)

    def state_bytes(self, drafts: Sequence[EngineDraft], max_batch_size: int, max_rows: int) -> int:
        """Bytes of the states of so many requests, of the target and these drafts, and of what the
        target's calls of so many rows leave for them."""
        dtype = self.build.dtype
        own = state_bytes(self.target, dtype, max_batch_size + 1, max_rows)
        for draft in drafts:
            if draft.network.decoder is not None:
                states = max_batch_size + draft.scratch_states(max_batch_size)
                own += state_bytes(draft.network.decoder, dtype, states, 0)
        return own

    @property
    def by_pass(self) -> bool:
        """See `Backend.drafts_by_pass`."""
        return self.backend.drafts_by_pass(self.build.device)

    @property
    def capture_layers(self) -> tuple[int, ...]:
        """The layers whose hidden states the target outputs, for its drafts or for files. Each
        draft reads a contiguous run of them, so a layer may occur twice."""
        layers = self.extract_layers
        for draft in self.drafts:
            if _find_run(layers, draft.network.capture_layers) is None:
                layers += draft.network.capture_layers
        return layers

    def formats_of(self, draft: EngineDraft | None = None) -> NetworkFormats:
        """How the target, or one of its drafts, keeps its weights."""
        if draft is None:
            return target_formats(self.target, self.build)
        return draft_formats(draft.storage, self.target, self.build, draft.weights)

    def weight_bytes(self, draft: EngineDraft | None = None) -> int:
        """Bytes of the weights of the target, or of one of its drafts."""
        network = self.target if draft is None else draft.network
        return weight_bytes(network, self.formats_of(draft), self.build)

    def pass_bytes(self, draft: EngineDraft | None = None) -> PassBytes:
        """Bytes that one pass of the target, or of one of its drafts, reads."""
        network = self.target if draft is None else draft.network
        return read_bytes(network, self.formats_of(draft), self.build)

    def states_of(self, draft: EngineDraft) -> slice | None:
        """The part of each row of the target's captured hidden states that a draft reads; None if
        it reads all of them, or none."""
        layers = draft.network.capture_layers
        if not layers or layers == self.capture_layers:
            return None
        first = _find_run(self.capture_layers, layers)
        assert first is not None, "the target hands out what its drafts read"
        width = self.target.hidden_size
        return slice(first * width, (first + len(layers)) * width)

    @property
    def speculative_rows(self) -> int:
        """Most rows after a request's committed tokens: those verified, or those of a rollout."""
        rows = [DEFAULT_TREE_ROWS, self.speculation.num_rows if self.speculation else 0]
        for draft in self.drafts:
            rows += [draft.speculation.num_draft_tokens, 1 + draft.slots]
        return max(rows)

    @property
    def layout(self) -> CacheLayout:
        """The layout of its caches. Block tables extend beyond max_seq_len by the rows that a step
        writes before it accepts them; a slot extends further by as many rows of padding."""
        assert self.build.max_seq_len is not None, "a written engine has a resolved max_seq_len"
        rows = self.speculative_rows
        tokens, mask_words = self.build.max_seq_len + rows, -(-rows // 64)
        if self.backend.has_slots(options_of(self.backend, self.build.backend_options)):
            return CacheLayout(tokens + rows, 1, mask_words, is_slots=True)
        return CacheLayout(
            tokens_per_block=self.build.tokens_per_block,
            blocks_per_sequence=-(-tokens // self.build.tokens_per_block),
            mask_words=mask_words,
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values; `from_dict` is the inverse."""
        together = self.speculation
        facts = {TARGET: network_facts(self.target, self.build, self.pass_bytes().expected(1))}
        for draft in self.drafts:
            own = network_facts(draft.network, self.build, self.pass_bytes(draft).expected(1))
            facts[draft.folder] = own | {"rollout": draft.rollout_facts(self.by_pass)}
        return {
            "format_version": FORMAT_VERSION,
            "target": self.target.to_dict(),
            "drafts": [draft.to_dict() for draft in self.drafts],
            "build": asdict(self.build),
            "speculation": None if together is None else speculative_to_dict(together),
            "fingerprints": dict(self.fingerprints),
            "environment": self.environment.to_dict(),
            "extract_layers": list(self.extract_layers),
            "weights": {folder: dict(record) for folder, record in self.weights.items()},
            "facts": facts,
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> EngineConfig:
        """The inverse of `to_dict`, also after a round trip through JSON; KeyError or ConfigError
        for other content."""
        drafts = tuple(map(EngineDraft.from_dict, data["drafts"]))
        speculation = parse_speculative_config(data["speculation"])
        if len(drafts) > 1 and (speculation is None or len(speculation.members) < len(drafts)):
            raise ConfigError(
                f"there are {len(drafts)} drafts, but `speculation` does not say how these draft "
                "together"
            )
        return cls(
            target=ModelConfig.from_dict(data["target"]),
            drafts=drafts,
            build=from_dict(BuildConfig, data["build"]),
            fingerprints=data["fingerprints"],
            environment=Environment.from_dict(data["environment"]),
            speculation=speculation,
            extract_layers=tuple(data["extract_layers"]),
            weights=data["weights"],
        )

    def write(self, folder: Path) -> None:
        data = {"written_by": WRITER, **self.to_dict()}
        (folder / CONFIG_NAME).write_text(json.dumps(data, indent=2) + "\n")

    @classmethod
    def read(cls, folder: Path, runs_here: bool = True) -> EngineConfig:
        """Read and check a folder's contract; with ``runs_here``, also that this machine can run
        it.

        Raises:
            EngineError: the config is missing or unreadable, has another format version, needs a
                device that this machine lacks, or was compiled for another environment.
            ConfigError: a package that runs the folder's engines is missing.
        """
        data = _read_json(folder / CONFIG_NAME)
        version = data.get("format_version")
        if version != FORMAT_VERSION:
            writer = data.get("written_by", WRITER)
            by = "" if writer == WRITER else f" of {writer}"
            raise EngineError(
                f"{folder} has engine format {version}{by}, this trtspec reads {FORMAT_VERSION}; "
                "rebuild it with trtspec-build"
            )
        try:
            config = cls.from_dict(data)
        except KeyError as error:
            raise EngineError(
                f"{folder / CONFIG_NAME} lacks {error}; rebuild it with trtspec-build"
            ) from error
        if runs_here:
            config._check_environment(folder)
        return config

    def _check_environment(self, folder: Path) -> None:
        device = self.build.device
        problem = self.backend.device_problem(device)
        if problem is not None:
            gpu, capability = self.environment.gpu, self.environment.compute_capability
            raise EngineError(
                f"{folder} was built for {device} ({gpu}, compute capability {capability}), but "
                f"{problem}, or rebuild the engine with {self.backend.elsewhere}"
            )
        wrong = self.backend.misfits(self.environment, device)
        if wrong:
            raise EngineError(
                f"{folder} was compiled for {', '.join(wrong)}; rebuild it with trtspec-build"
            )


def _find_run(layers: tuple[int, ...], wanted: tuple[int, ...]) -> int | None:
    """The index at which ``wanted`` begins in ``layers``; None: nowhere."""
    starts = range(len(layers) - len(wanted) + 1)
    return next((i for i in starts if layers[i : i + len(wanted)] == wanted), None)


def is_engine_folder(path: Path) -> bool:
    """True for a folder whose config.json is an engine's, of any format version."""
    try:
        return "format_version" in _read_json(path / CONFIG_NAME)
    except EngineError:
        return False


def read_weights(path: Path, device: str = "cpu") -> dict[str, Tensor]:
    """Read a weight file into memory, or onto a GPU. In memory, all readers of the file share the
    same tensors, to which nobody writes."""
    try:
        version = _version(path)
        with safe_open(path, framework="pt", device=device) as file:
            weights = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (OSError, SafetensorError) as error:
        raise EngineError(
            f"{path} cannot be read ({error}); the folder is damaged, rebuild it with trtspec-build"
        ) from error
    return in_large_pages(weights, version) if device == "cpu" else weights


def _version(path: Path) -> tuple[int, ...]:
    """Identifies a file and its content, so that a file later written in its place differs."""
    status = path.stat()
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def _read_json(path: Path) -> dict[str, Any]:
    try:
        data = json.loads(path.read_text())
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise EngineError(f"{path} is not a readable engine config ({error})") from error
    if not isinstance(data, dict):
        raise EngineError(f"{path} does not hold a JSON object")
    return data
