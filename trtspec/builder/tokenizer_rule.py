"""Whether transformers reads a tokenizer by the rule that its own tokenizer.json specifies.

Some transformers classes construct the rule (normalising, splitting, decoding) themselves and take
only the vocabulary from the file. The configs beside it decide which class reads a folder, so a
text may get other ids than those that the model was trained on.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from trtspec.log import logger

FILE = "tokenizer.json"
_STEPS = ("normalizer", "pre_tokenizer", "decoder")
_FLAGS = ("ignore_merges", "byte_fallback", "fuse_unk", "unk_token")
_TEXTS = (
    "a b",
    " a",
    "a  b   c ",
    "It's 12345 x\n\n1. isn't\n",
    "\tif_a == B2:\r\n    print(x)  # 3.14\n",
    "CamelCase HTTPServer don'T we'LL a/b",
    "Élan e\u0301 \ufb01 \uff21\uff11 ²½ … “q” ▁x\u00a0y",
    "日本語の本。한국어 3,000\u3000ไทย हिन्दी مَرْحَبًا 😀👍🏽",
)


def warn_of_other_rule(tokenizer: Any, folder: Path) -> None:
    """Log a warning if a tokenizer read from a folder follows another rule than the tokenizer.json
    there, with the class and a text that shows it."""
    file = folder / FILE
    if not file.is_file():
        return
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is not None and _spells(file, backend):
        return
    name = type(tokenizer).__name__
    try:
        own = Tokenizer.from_file(str(file))
    except Exception as error:  # it has no class of its own
        logger.warning("%s: cannot be compared with %s, which reads it: %s", file, name, error)
        return
    for text in _probes(own, backend):
        by_file = own.encode(text, add_special_tokens=False).ids
        if backend is None:
            by_class, says_the_same = tokenizer.encode(text, add_special_tokens=False), True
        else:
            by_class = backend.encode(text, add_special_tokens=False).ids
            says_the_same = backend.decode(by_file, False) == own.decode(by_file, False)
        if by_class != by_file or not says_the_same:
            logger.warning(
                "%s: transformers reads the tokenizer as %s, which has another rule than %s: %r is "
                "%s by the class and %s by the file%s; if the file is right, say "
                '"tokenizer_class": "PreTrainedTokenizerFast" in tokenizer_config.json',
                folder,
                name,
                FILE,
                text,
                by_class,
                by_file,
                "" if says_the_same else ", and read back otherwise",
            )
            return


def _spells(file: Path, backend: Tokenizer) -> bool:
    """Whether a file specifies exactly this rule, apart from the vocabulary; true for most, and
    quick to check."""
    said = json.loads(file.read_text(encoding="utf-8"))
    for step in _STEPS:
        part = getattr(backend, step)
        if said.get(step) != (None if part is None else json.loads(part.__getstate__())):
            return False
    model = said["model"]
    flags = {flag: getattr(backend.model, flag, None) or None for flag in _FLAGS}
    return all((model.get(flag) or None) == value for flag, value in flags.items())


def _probes(own: Tokenizer, backend: Tokenizer | None) -> Iterator[str]:
    """Texts on which rules are likely to differ: kinds of characters, borders of special tokens,
    and, if only one of the two looks up whole words, all words."""
    yield from _TEXTS
    kinds = {
        (token.lstrip, token.rstrip, token.normalized, token.special): token.content
        for token in own.get_added_tokens_decoder().values()
    }
    for token in kinds.values():
        yield f"a{token}b {token} c\n{token}\n d"
    looks_up = [getattr(each.model, "ignore_merges", None) for each in (own, backend) if each]
    if len(set(looks_up)) > 1:
        yield from own.decode_batch([[token] for token in range(own.get_vocab_size())])
