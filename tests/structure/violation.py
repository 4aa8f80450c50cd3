"""One breach of a rule about the shape of the code base, and what each rule asks instead."""

from __future__ import annotations

from dataclasses import dataclass

# What to do instead, printed with every new violation. The keys are all the rules that there are.
REMEDIES = {
    "order": "move what is needed to a folder further left, or hand it in as an argument",
    "relative-import": "write the whole dotted name of the module",
    "function-import": "import at the top of the file; break the cycle that it dodges",
    "converters": "only the builder and speculative/*/checkpoint.py import checkpoint_converters, "
    "and it imports trtspec.errors and trtspec.config only",
    "optional-dependency": "import it in the one place of tests/structure/imports.py and use that, "
    "with an error that names the extra; a new package needs an extra and a place",
    "module-cycle": "move what both modules need to a third one",
    "folder-cycle": "move what both folders need to one of them, or to a third one",
    "method-name": "only trtspec/speculative names a method: ask its registry or a DraftMethod",
    "backend-name": "only trtspec/backends names a backend: ask its registry or the Backend",
    "format-name": "only trtspec/formats and checkpoint_converters/quantised name a weight format: "
    "ask the WeightFormat",
    "family-name": "only checkpoint_converters/families names a family: ask the LayerSpec",
    "method-face": "another method is reached by importing trtspec.speculative.<its folder>, and "
    "nothing inside; shared files name none",
    "backend-face": "another backend is reached by importing trtspec.backends.<its folder>, and "
    "nothing inside; shared files name none",
    "format-face": "another format is reached by importing its module; shared files name none",
    "family-face": "another family is reached by importing its module; shared files name none",
    "native-name": "C++ asks the facts of the engine folder (trtspec/engine/facts.py, "
    "EngineDraft.rollout_facts); what it has itself is named in files that begin with the name",
    "layer-part": "ask the part (MixerSpec, FeedForwardSpec, Block); where one kind alone will do, "
    "`of` and `maybe` say so",
    "executor-drafter": "the executor knows drafters by the Protocol `Drafter` that it defines",
    "server-engine": "ask the `EngineClient`: an engine may be in another process",
    "file-size": "split the file by noun",
    "readme": "write a short README.md: what lives here, who calls it, in which order to read it, "
    "how to add one",
}


@dataclass(frozen=True, order=True)
class Violation:
    """file: its path from the root. what: the short name of the thing, without line numbers, by
    which the allow-list knows it. line: where it stands; 0 for a file or folder as a whole.
    count: more than 1 only where a rule measures (lines above the limit)."""

    rule: str
    file: str
    what: str
    line: int = 0
    count: int = 1

    def __post_init__(self) -> None:
        assert self.rule in REMEDIES, self.rule

    @property
    def key(self) -> tuple[str, str, str]:
        return self.rule, self.file, self.what
