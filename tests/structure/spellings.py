"""How methods, backends, weight formats and families are spelled, and where they are at home.

One table. A spelling is compared without case, ``_`` and ``-``, so ``"P-EAGLE"`` is ``p_eagle``.

Three of its columns keep the rule from crying wolf:

* `Spelling.classes`: what a class is called after it, as a pattern within a CamelCase name. Words
  that mean other things too (``Auto``, ``Hybrid``, ``DraftModel``) need a longer pattern.
* `Spelling.generic`: an everyday word (``"auto"``, ``"suffix"``, ``"plain"``, ``"eager"``), or one
  that is a key of the field (``"draft_model"``). As a literal it counts only beside a noun of the
  kind (``method == "auto"``, ``{"method": "suffix"}``, ``backend: str = "eager"``) or in one
  collection with a spelling that is not generic. As part of a module's name it counts only if it
  is the whole of it.
* `Kind.exempt`: files that may name all of a kind.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property

from .walk import WORKERS


@dataclass(frozen=True)
class Spelling:
    """name: the canonical one. owner: the file or folder in its home that it belongs to. classes:
    a pattern for class names. generic: see above. others: further literals that mean it."""

    name: str
    owner: str
    classes: str
    generic: bool = False
    others: tuple[str, ...] = ()


@dataclass(frozen=True)
class Kind:
    """homes: folders where its names belong. nouns: what a value of this kind is called, alone
    or as part of a longer name (`draft_method`)."""

    name: str
    homes: tuple[str, ...]
    nouns: frozenset[str]
    spellings: tuple[Spelling, ...]
    exempt: tuple[str, ...] = ()

    @cached_property
    def literals(self) -> dict[str, Spelling]:
        """Spellings by their folded literals."""
        return {fold(text): each for each in self.spellings for text in (each.name, *each.others)}

    def in_class(self, name: str) -> set[str]:
        """The spellings in a CamelCase name."""
        return self._found(self._classes, name)

    def in_module(self, piece: str) -> set[str]:
        """The spellings in a piece of a dotted module name."""
        whole = {each.name for each in self.spellings if piece == each.name}
        return self.in_words(piece) | whole

    def in_words(self, name: str) -> set[str]:
        """The spellings in a snake_case name, generic ones left out."""
        return self._found(self._words, name.lower())

    def owner(self, piece: str) -> str | None:
        """Whose the file or folder `piece` of a home is; None for what is shared."""
        if any(each.owner == piece for each in self.spellings):
            return piece
        return next((each.owner for each in self.spellings if each.name == piece), None)

    @cached_property
    def _classes(self) -> re.Pattern[str]:
        # The first that fits wins, so that PEagle is not an Eagle: they are listed in that order.
        groups = "|".join(f"(?P<s{i}>{each.classes})" for i, each in enumerate(self.spellings))
        return re.compile(rf"(?:{groups})(?![a-z])")

    @cached_property
    def _words(self) -> re.Pattern[str]:
        groups = "|".join(
            f"(?P<s{i}>{re.escape(each.name)})"
            for i, each in enumerate(self.spellings)
            if not each.generic
        )
        return re.compile(rf"(?<![a-z0-9])(?:{groups})(?![a-z0-9])")

    def _found(self, pattern: re.Pattern[str], text: str) -> set[str]:
        groups = (found.lastgroup for found in pattern.finditer(text))
        return {self.spellings[int(group[1:])].name for group in groups if group}


def fold(text: str) -> str:
    """A literal as it is compared. A command's flag ("--draft_model") is no spelling."""
    return text if text.startswith("-") else re.sub("[_-]", "", text.lower())


METHOD = Kind(
    "method",
    ("trtspec/speculative/",),
    frozenset(
        {
            "method",
            "methods",
            "decoding_type",
            "speculative_algorithm",
            "speculative_decoding_mode",
        }
    ),
    (
        Spelling("ngram", "ngram", "N[Gg]ram"),
        Spelling("suffix", "suffix", "Suffix", generic=True),
        Spelling("draft_model", "draft_model", "DraftModel(?=[A-Z])|DraftTarget", generic=True),
        Spelling("p_eagle", "parallel", "P[Ee]agle|PEAGLE"),
        Spelling("eagle3", "eagle", "(?:Eagle|EAGLE)3"),
        Spelling("eagle", "eagle", "Eagle|EAGLE"),
        Spelling("mtp", "mtp", "M[Tt][Pp]"),
        Spelling("medusa", "medusa", "Medusa"),
        Spelling("assistant", "assistant", "Assistant", generic=True),
        Spelling("self", "self_draft", "Self(?=Decoding|Draft|Method)", generic=True),
        Spelling("pard2", "parallel", "Pard2|PARD2"),
        Spelling("pard", "parallel", "Pard|PARD"),
        Spelling("dflash2", "block", "DFlash2"),
        Spelling("dflash", "block", "DFlash"),
        Spelling("ddtree", "block", "DDTree"),
        Spelling("jetspec", "block", "JetSpec"),
        Spelling("dspark", "block", "DSpark"),
        Spelling("hybrid", "hybrid", "Hybrid(?=Decoding|Draft|Method)", generic=True),
        Spelling("auto", "hybrid", "Auto(?=Decoding|Draft|Method)", generic=True),
        Spelling(
            "extract_hidden_states", "hidden_states", "ExtractHiddenStates|HiddenStatesConnector"
        ),
    ),
    exempt=(WORKERS,),
)
BACKEND = Kind(
    "backend",
    ("trtspec/backends/",),
    frozenset({"backend", "backends"}),
    (
        Spelling("aoti", "aoti", "Aoti|AOTI"),
        Spelling("onnx", "onnx", "Onnx(?!Parser)|ONNX"),  # TensorRT has a class OnnxParser
        Spelling("tensorrt", "tensorrt", "TensorRT|Tensorrt"),
        Spelling("eager", "eager", "Eager(?=Backend|Session)", generic=True),
    ),
)
FORMAT = Kind(
    "format",
    ("trtspec/formats/",),
    frozenset({"weight_format", "weight_formats", "weight_dtype", "quantization"}),
    (
        Spelling("plain", "plain", "Plain(?=Format|Weight|Linear)", generic=True),
        Spelling("int8", "int8", "Int8"),
        Spelling("int4", "int4", "Int4"),
        Spelling("fp8", "fp8", "F[Pp]8"),
        Spelling("mxfp4", "mxfp4", "M[Xx][Ff][Pp]4"),
        Spelling("nvfp4", "nvfp4", "N[Vv][Ff][Pp]4"),
    ),
    # Schemes of checkpoints hold several; the dtype of the K/V cache and types of ggml are spelled
    # like weight formats and are none.
    exempt=(
        "checkpoint_converters/quantised/",
        "checkpoint_converters/containers/gguf_header.py",
        "trtspec/config/kv.py",
    ),
)


def _family(name: str, model: str, *others: str) -> Spelling:
    """A family by its ``model_type`` and what its Hugging Face classes begin with."""
    return Spelling(name, name, model, others=(f"{model}ForCausalLM", *others))


FAMILY = Kind(
    "family",
    ("checkpoint_converters/families/",),
    frozenset({"family", "architecture", "model_type"}),
    (
        _family("llama", "Llama"),
        _family("mistral", "Mistral"),
        _family("qwen2", "Qwen2"),
        _family("qwen3_next", "Qwen3Next"),
        _family("qwen2_moe", "Qwen2Moe"),
        _family("qwen3_moe", "Qwen3Moe"),
        _family("qwen3_5_moe", "Qwen3_5Moe", "qwen3_5_moe_text"),
        _family("qwen3_5", "Qwen3_5", "qwen3_5_text"),
        _family("glm4_moe", "Glm4Moe"),
        _family("granite_moe_hybrid", "GraniteMoeHybrid", "granitemoehybrid", "granitehybrid"),
        _family("granite_moe", "GraniteMoe", "granitemoe"),
        _family("qwen3", "Qwen3"),
        _family("mimo", "MiMo"),
        _family("smollm3", "SmolLM3"),
        _family("olmo2", "Olmo2"),
        _family("olmo3", "Olmo3"),
        _family("granite", "Granite"),
        _family("phi3", "Phi3"),
        _family("glm", "Glm"),
        _family("glm4", "Glm4"),
        _family("gemma", "Gemma"),
        _family("gemma2", "Gemma2"),
        _family("gemma3", "Gemma3"),
        _family("cohere", "Cohere"),
        _family("cohere2", "Cohere2"),
        _family("starcoder2", "Starcoder2"),
        _family("deepseek_v2", "DeepseekV2"),
        _family("deepseek_v3", "DeepseekV3", "DeepSeek-V3"),
        _family("gemma3", "Gemma3"),
        _family("gemma4", "Gemma4"),
        _family("gpt_oss", "GptOss"),
        _family("mixtral", "Mixtral"),
        _family("phi3", "Phi3"),
        _family("olmo2", "Olmo2"),
        _family("nemotron_h", "NemotronH"),
    ),
    # llama.cpp names kinds of tokenizers like families.
    exempt=(
        "trtspec/speculative/mtp/families.py",
        "trtspec/serve/tools/",
        "checkpoint_converters/tokenizers/",
        WORKERS,
    ),
)
KINDS = (METHOD, BACKEND, FORMAT, FAMILY)
