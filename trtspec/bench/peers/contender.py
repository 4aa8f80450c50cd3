"""Contenders: trtspec's methods and what each other engine offers beside them."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from trtspec.bench.methods import BenchMethod
from trtspec.bench.peers.process import Job
from trtspec.bench.peers.workers.engines import ENGINES, PLAIN
from trtspec.child_python import PYTHON
from trtspec.errors import ConfigError
from trtspec.speculative.options import speculative_to_dict

OURS = "trtspec"
TARGET = "model"
"""What ``--peer_models`` calls a target in an engine's own format."""


@dataclass(frozen=True)
class Peer:
    """An engine as it is installed here: python, the interpreter that has it; models: paths in its
    own format, of the target by `TARGET`, of a draft by its method."""

    name: str
    python: str = PYTHON
    models: Mapping[str, str] = field(default_factory=dict)


@dataclass
class Contender:
    """One engine and way of speculating, and what its rounds measured. seconds: of each round.
    first_seconds: of the first tokens alone, prefills that is. tokens: of the last round."""

    engine: str
    mode: str
    worker: str
    python: str
    job: Job
    version: str = ""
    seconds: list[float] = field(default_factory=list)
    first_seconds: list[float] = field(default_factory=list)
    tokens: list[list[int]] = field(default_factory=list)

    @property
    def name(self) -> str:
        return f"{self.engine} {self.mode}"

    @property
    def is_plain(self) -> bool:
        return self.mode == PLAIN

    @property
    def speeds(self) -> list[float]:
        """Generated tokens a second of each round, prefills included."""
        count = sum(map(len, self.tokens))
        return [count / seconds for seconds in self.seconds]

    @property
    def decode_speeds(self) -> list[float]:
        """The same without the first tokens and their time."""
        count = sum(map(len, self.tokens)) - len(self.tokens)
        rounds = zip(self.seconds, self.first_seconds, strict=True)
        return [count / max(seconds - first, 1e-9) for seconds, first in rounds]


def read_peers(spellings: Sequence[str], models: Sequence[str]) -> list[Peer]:
    """The peers that were asked for. A spelling is ``name`` (installed beside trtspec) or
    ``name=python``; of `models`, ``name=path`` (the target in the engine's own format) or
    ``name.method=path`` (the draft of a method, likewise).

    Raises:
        ConfigError: an unknown name, a missing interpreter or file, or an engine that this
            interpreter cannot import.
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
        if ENGINES[name].own_format and TARGET not in peer.models:
            raise ConfigError(
                f"peer {name} reads a format of its own; make it with: "
                f"{ENGINES[name].own_format}, and give it in --peer_models {name}=<path>"
            )
        peers.append(peer)
    return peers


def installed_peers() -> list[Peer]:
    """Those that this interpreter can import and that read Hugging Face folders."""
    peers = [Peer(name) for name, engine in ENGINES.items() if engine.own_format is None]
    return [peer for peer in peers if _can_import(peer)]


def contenders_of(
    peer: Peer, base: Job, drafts: Mapping[str, str], lengths: Sequence[int]
) -> list[Contender]:
    """What a peer can do with these models. ``base``: model, dtype, limits; ``drafts``: Hugging
    Face folders by method; ``lengths``: of drafts, each for every way to speculate."""
    engine = ENGINES[peer.name]
    given = peer.models if engine.own_format else {**drafts, **peer.models}
    with_draft = {mode: given[mode] for mode in engine.draft_modes if mode in given}
    found = []
    for mode in (*engine.modes, *with_draft):
        draft = with_draft.get(mode)
        model = peer.models.get(TARGET, base.model)
        for length in [0] if mode == PLAIN else lengths:
            job = replace(base, model=model, mode=mode, draft=draft, num_draft_tokens=length)
            name = f"{mode}:{length}" if length else mode
            found.append(Contender(peer.name, name, peer.name, peer.python, job))
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
    """Found without importing it: some take many seconds, or start threads."""
    find = f"importlib.util.find_spec({ENGINES[peer.name].module!r})"
    # Its worker is a script, which does not look into the folder that it is started in.
    ours = "import sys; sys.path = [entry for entry in sys.path if entry]"
    command = [peer.python, "-c", f"{ours}; import importlib.util; sys.exit(not {find})"]
    try:
        return subprocess.run(command, capture_output=True).returncode == 0
    except OSError:
        return False
