"""llama.cpp's pre-tokenizers by name: how a text is split before pairs are merged.

A GGUF file says no more about it than ``tokenizer.ggml.pre``. The rules are those of the models
that the names come from, or llama.cpp's where the two differ. Names with the same rule stand
together. Names of unsupported architectures are left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

# No (?i:...): regardless of case, U+017F (the long s) is an s too.
_ENDINGS = "(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])"
_BLANKS = r"\s*[\r\n]+|\s+(?!\S)|\s+"

_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_DIGIT = r"\p{N}"

# DeepSeek names ranges of characters where other rules name classes. White space outside ASCII is
# in none of them, as llama.cpp reads it as a vertical tab.
_CJK = r"[[一-龥ࠀ-一가-퟿]&&\S]+"
# Letters with case, but for Armenian's and Georgian's small ones and most of those since Unicode 6.
_CASED = (
    r"[\p{Lu}\p{Ll}\p{Lt}&&[A-ՖႠ-ჅᎠ-ᏽᲐ-ↄⰀ-ⳳꙀ-ꞎꭰ-ﬗ"
    "\uff21-\uff5a\U00010400-\U000104fb\U00010c80-\U00010cf2"
    "\U000118a0-\U000118df\U0001e900-\U0001e943]]"
)
# Narrower than \p{Han}: numbers, marks of repetition and radicals are not in it.
_HAN = (
    "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
    "\U00020000-\U0002a6df\U0002a700-\U0002ebef\U0002f800-\U0002fa1f"
)


def _since_gpt4(digits: str) -> str:
    """A word takes one preceding sign or space, signs take the line ends after them, and ``digits``
    says how many digits group together."""
    words = r"[^\r\n\p{L}\p{N}]?\p{L}+"
    return rf"{_ENDINGS}|{words}|{digits}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_BLANKS}"


def _by_case(digits: str, ending: str = "") -> str:
    """Words end where an ASCII capital follows a lower-case letter, and include an ``ending``;
    ``digits`` as in `_since_gpt4`. In llama.cpp letters outside ASCII count as both cases and marks
    as neither, whatever the models' own rules say."""
    large, small = r"[\p{L}&&[^a-z]]", r"[\p{L}&&[^A-Z]]"
    before = r"[^\r\n\p{L}\p{N}]?"
    words = rf"{before}{large}*{small}+{ending}|{before}{large}+{small}*{ending}"
    return rf"{words}|{digits}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_BLANKS}"


@dataclass(frozen=True)
class PreTokenizer:
    """patterns: each splits the pieces left by the previous one into its matches and the text
    between them. whole_words: a piece that is a token needs no merges. adds_bos: whether a text
    begins with BOS if the file does not say (``add_bos_token``)."""

    patterns: tuple[str, ...]
    whole_words: bool = False
    adds_bos: bool = False


_LLAMA_3 = PreTokenizer((_since_gpt4(r"\p{N}{1,3}"),), whole_words=True, adds_bos=True)
_SINGLE_DIGITS = PreTokenizer((_since_gpt4(_DIGIT),))
_TEKKEN = PreTokenizer((_by_case(_DIGIT),), whole_words=True, adds_bos=True)
_GPT_4 = PreTokenizer((_since_gpt4(r"\p{N}{1,3}"),))
_GPT_4O = PreTokenizer((_by_case(r"\p{N}{1,3}", f"{_ENDINGS}?"),))
_DIGITS_FIRST = PreTokenizer((_DIGIT, _GPT2))
_KIMI_WORDS = rf"[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}&&[^{_HAN}]]+{_ENDINGS}?"
_KIMI_SIGNS = r" ?[^\s\p{L}\p{N}]+[\r\n]*"

PRE_TOKENIZERS: Mapping[str, PreTokenizer] = {
    "default": PreTokenizer(
        (r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", "[0-9][0-9][0-9]"),
    ),
    **dict.fromkeys(("gpt-2", "mellum", "trillion", "olmo"), PreTokenizer((_GPT2,))),
    **dict.fromkeys(
        ("smollm", "starcoder", "refact", "command-r", "codeshell", "minerva-7b"), _DIGITS_FIRST
    ),
    **dict.fromkeys(
        ("llama-bpe", "llama3", "llama-v3", "falcon3", "pixtral", "midm-2.0"), _LLAMA_3
    ),
    **dict.fromkeys(("dbrx", "smaug-bpe", "chatglm-bpe"), _GPT_4),
    "glm4": replace(_GPT_4, whole_words=True),
    "gpt-4o": _GPT_4O,
    **dict.fromkeys(("qwen2", "deepseek-r1-qwen", "kormo", "megrez", "stablelm2"), _SINGLE_DIGITS),
    "tekken": _TEKKEN,
    "deepseek-coder": PreTokenizer(
        (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _CJK, _DIGIT),
    ),
    "deepseek-llm": PreTokenizer(
        (
            r"[\r\n]",
            rf"\s?{_CASED}+",
            r"\s?[!-/:-~" + "\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f、。]+",
            r"\s+$",
            _CJK,
            r"\p{N}+",
        ),
    ),
    "kimi-k2": PreTokenizer(
        (rf"[{_HAN}]+|{_KIMI_WORDS}|\p{{N}}{{1,3}}|{_KIMI_SIGNS}|{_BLANKS}",),
    ),
}
"""Rules by ``tokenizer.ggml.pre``."""
