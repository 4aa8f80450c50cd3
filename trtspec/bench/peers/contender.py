"""Contenders: trtspec's methods, and what each other engine offers."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median

from trtspec.bench.peers.process import Job
from trtspec.bench.peers.workers.engines import ENGINES, MODES, PLAIN
from trtspec.bench.runs.methods import BenchMethod
from trtspec.child_python import PYTHON
from trtspec.errors import ConfigError
from trtspec.speculative.options import speculative_to_dict

OURS = "trtspec"
TARGET = "model"
"""The name in ``--peer_models`` for a target in an engine's own format."""


@dataclass(frozen=True)
class Peer:
    """An engine as installed here: python, the interpreter that has it; models: paths in its own
    format, of the target under `TARGET`, of a draft under its method."""

    name: str
    python: str = PYTHON
    models: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class MeasuredRound:
    """The measurements of a contender's round. tokens: of each prompt. turn_seconds: of each turn,
    in the order of the prompts. first_seconds: of first tokens alone, that is, prefills; None: not
    measured."""

    tokens: Sequence[Sequence[int]]
    turn_seconds: Sequence[float]
    first_seconds: float | None = None

    @property
    def seconds(self) -> float:
        return sum(self.turn_seconds)

    @property
    def speed(self) -> float:
        """Generated tokens per second, prefills included."""
        return sum(map(len, self.tokens)) / self.seconds

    @property
    def decode_speed(self) -> float | None:
        """The same without first tokens and their time; None: not measured."""
        if self.first_seconds is None:
            return None
        count = sum(map(len, self.tokens)) - len(self.tokens)
        return count / max(self.seconds - self.first_seconds, 1e-9)


@dataclass
class Contender:
    """One engine and way of speculating, and the measurements of its rounds; failure: why it has
    none, in its engine's own words."""

    engine: str
    mode: str
    worker: str
    python: str
    job: Job
    version: str = ""
    rounds: list[MeasuredRound] = field(default_factory=list)
    failure: str | None = None

    @property
    def name(self) -> str:
        return f"{self.engine} {self.mode}"

    @property
    def is_plain(self) -> bool:
        return self.mode == PLAIN

    @property
    def speed(self) -> float:
        """The median over its rounds."""
        return median(each.speed for each in self.rounds)


def read_peers(spellings: Sequence[str], models: Sequence[str], target: str) -> list[Peer]:
    """The requested peers. A spelling is ``name`` (installed beside trtspec) or ``name=python``; in
    `models`, ``name=path`` (the target in the engine's own format) or ``name.method=path`` (a
    method's draft, likewise); ``target``: the folder or file that trtspec and every peer that can
    read it use.

    Raises:
        ConfigError: an unknown name, a missing interpreter or file, an engine that this interpreter
            cannot import, or that cannot read the target.
    """
    own: dict[str, dict[str, str]] = {}
    for text in models:
        key, found, path = text.partition("=")
        name, _, kind = key.partition(".")
        kind = kind or TARGET
        _check_name(name)
        modes = dict.fromkeys(mode for engine in ENGINES.values() for mode in engine.draft_modes)
        if not found or kind not in (TARGET, *modes):
            drafts = " or ".join(f"name.{mode}=path" for mode in modes)
            raise ConfigError(f"--peer_models {text!r} is not name=path, {drafts}")
        if not Path(path).exists():
            raise ConfigError(f"--peer_models {text!r}: there is no {path}")
        own.setdefault(name, {})[kind] = path
    peers = []
    for text in spellings:
        name, _, python = text.partition("=")
        _check_name(name)
        peer = Peer(name, python or PYTHON, own.get(name, {}))
        _check_installed(peer)
        engine = ENGINES[name]
        if TARGET not in peer.models and not engine.reads(target):
            made = f"; make one with: {engine.own_format}," if engine.own_format else ","
            raise ConfigError(
                f"peer {name} cannot read {Path(target).name}: it reads a format of its own{made} "
                f"and give it in --peer_models {name}=<path>"
            )
        peers.append(peer)
    return peers


def installed_peers(target: str) -> list[Peer]:
    """Peers that this interpreter can import and that read the target as it is."""
    peers = [Peer(name) for name, engine in ENGINES.items() if engine.reads(target)]
    return [peer for peer in peers if _can_import(peer)]


def contenders_of(
    peer: Peer,
    base: Job,
    drafts: Mapping[str, str],
    lengths: Sequence[int],
    modes: Sequence[str] = MODES,
) -> list[Contender]:
    """What a peer can do with these models. ``base``: model, dtype, limits; ``drafts``: folders and
    GGUF files by method; ``lengths``: of drafts, each for every way to speculate; ``modes``: the
    wanted ones."""
    engine = ENGINES[peer.name]
    readable = {method: draft for method, draft in drafts.items() if engine.reads(draft)}
    given = {**readable, **peer.models}
    with_draft = {mode: given[mode] for mode in engine.draft_modes if mode in given}
    found = []
    for mode in (mode for mode in (*engine.modes, *with_draft) if mode in modes):
        draft = with_draft.get(mode)
        model = peer.models.get(TARGET, base.model)
        for length in [0] if mode == PLAIN else lengths:
            job = replace(base, model=model, mode=mode, draft=draft, num_draft_tokens=length)
            name = f"{mode}:{length}" if length else mode
            found.append(Contender(engine.title, name, peer.name, peer.python, job))
    return found


def own_contender(method: BenchMethod, folder: Path, base: Job) -> Contender:
    """A method of trtspec over an engine folder."""
    config = speculative_to_dict(method.config) if method.config else None
    job = replace(base, model=str(folder), mode=PLAIN, options={"speculative_config": config})
    mode = method.name if method.config else PLAIN
    return Contender(OURS, mode, OURS, PYTHON, job)


def _check_name(name: str) -> None:
    if name not in ENGINES:
        raise ConfigError(f"peer {name!r} is not one of {', '.join(ENGINES)}")


def _check_installed(peer: Peer) -> None:
    if not _can_import(peer):
        module = ENGINES[peer.name].module
        raise ConfigError(
            f"peer {peer.name}: {peer.python} cannot import {module}; install it in an environment "
            f"of its own and name that one's interpreter: {peer.name}=<environment>/bin/python"
        )


def _can_import(peer: Peer) -> bool:
    """Checked without importing it: some take many seconds, or start threads."""
    find = f"importlib.util.find_spec({ENGINES[peer.name].module!r})"
    # Its worker is a script, which does not look into the folder that it is started in.
    ours = "import sys; sys.path = [entry for entry in sys.path if entry]"
    command = [peer.python, "-c", f"{ours}; import importlib.util; sys.exit(not {find})"]
    try:
        return subprocess.run(command, capture_output=True).returncode == 0
    except OSError:
        return False
