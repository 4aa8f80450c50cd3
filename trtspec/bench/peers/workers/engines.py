"""What the workers' engines can do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

PLAIN = "plain"
"""No speculation."""


@dataclass(frozen=True)
class PeerEngine:
    """One engine.

    title: its own name. module: by which an installation is found. modes: see `protocol.Job`; ways
    to decode that need no draft. draft_modes: those with one, named like our method that takes the
    same draft. own_format: it reads no Hugging Face folders, only what this tool makes. gguf: it
    reads GGUF files.
    """

    title: str
    module: str
    modes: tuple[str, ...]
    draft_modes: tuple[str, ...] = ()
    own_format: str | None = None
    gguf: bool = False

    def reads(self, model: str) -> bool:
        """Whether it can read a checkpoint as it is: a GGUF file, or a Hugging Face folder."""
        return self.gguf if model.lower().endswith(".gguf") else self.own_format is None


_ALONE = (PLAIN, "prompt_lookup")

ENGINES: Mapping[str, PeerEngine] = {
    "transformers": PeerEngine("transformers", "transformers", _ALONE, ("draft_model",)),
    "openvino": PeerEngine(
        "OpenVINO GenAI",
        "openvino_genai",
        _ALONE,
        ("draft_model", "eagle3"),
        "optimum-cli export openvino --model <target> <folder>",
        gguf=True,
    ),
    "vllm": PeerEngine("vLLM", "vllm", _ALONE, ("draft_model", "eagle3")),
    "xllamacpp": PeerEngine(
        "llama.cpp",
        "xllamacpp",
        _ALONE,
        ("draft_model", "eagle3", "dflash"),
        "llama.cpp's convert_hf_to_gguf.py <target> --outtype bf16",
        gguf=True,
    ),
}

MODES = tuple(dict.fromkeys(m for e in ENGINES.values() for m in (*e.modes, *e.draft_modes)))
"""All that any of them can do."""
