"""grammar_of: turns guided decoding options into an llguidance grammar."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from trtspec.config.guided_decoding import GuidedDecodingParams
from trtspec.errors import RequestError
from trtspec.guided.structural_tag import structural_tag

_WHITESPACE = r"[ \t\n\r]{0,20}"
"""Between JSON tokens: enough for indentation, and a limit for models that write nothing else."""

_MAX_GBNF_RULES = 1000
"""The library's reader of GBNF takes up to the square of their number: 1 s for so many, which is
what the largest schema that is taken needs."""


def grammar_of(params: GuidedDecodingParams, library: Any, special: Mapping[str, int]) -> str:
    """The grammar that ``library`` (the module llguidance) compiles. ``special``: text -> id of the
    tokens that are no text to it.

    RequestError for a grammar that cannot be converted, and for malformed structural tags.
    """
    try:
        return str(_converted(params, library, special))
    except RequestError:
        raise
    except ValueError as error:
        raise RequestError(f"the grammar is refused: {error!s:.500}") from None


def _converted(params: GuidedDecodingParams, library: Any, special: Mapping[str, int]) -> Any:
    if params.choice is not None and any(
        name in text for text in params.choice for name in special
    ):
        # As text the library could neither write nor tokenize these.
        choices = [{"type": "const_string", "value": text} for text in params.choice]
        either = {"type": "structural_tag", "format": {"type": "or", "elements": choices}}
        return structural_tag(either, {}, special)
    if params.choice is not None:
        alternatives = "|".join(re.escape(choice) for choice in params.choice)
        return library.grammar_from("regex", alternatives)
    if params.regex is not None:
        return library.grammar_from("regex", params.regex)
    if params.grammar is not None:
        rules = params.grammar.count("::=")
        if rules > _MAX_GBNF_RULES:
            raise RequestError(
                f"`grammar` has {rules} rules of GBNF; at most {_MAX_GBNF_RULES} are taken: write "
                "it in Lark, of which any number is"
            )
        return library.grammar_from("grammar", params.grammar)
    options = _json_options(params)
    if params.structural_tag is not None:
        return structural_tag(json.loads(params.structural_tag), options, special)
    schema = '{"type": "object"}' if params.json_object else params.json
    return library.LLMatcher.grammar_from_json_schema(schema, defaults=options)


def _json_options(params: GuidedDecodingParams) -> dict[str, Any]:
    if params.disable_any_whitespace:
        return {"whitespace_flexible": False}
    return {"whitespace_pattern": params.whitespace_pattern or _WHITESPACE}
