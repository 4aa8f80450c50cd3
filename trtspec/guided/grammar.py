"""grammar_of: options of guided decoding as a grammar of llguidance."""

from __future__ import annotations

import json
import re
from typing import Any

from trtspec.config.guided_decoding import GuidedDecodingParams
from trtspec.errors import RequestError

_WHITESPACE = r"[ \t\n\r]{0,20}"
"""Between tokens of JSON: enough to indent, and an end to a model that writes nothing else."""


def grammar_of(params: GuidedDecodingParams, library: Any) -> str:
    """The grammar that ``library`` (the module llguidance) compiles.

    RequestError for a grammar that cannot be converted, and for malformed structural tags.
    """
    try:
        return str(_converted(params, library))
    except RequestError:
        raise
    except ValueError as error:
        raise RequestError(f"the grammar is refused: {error!s:.500}") from None


def _converted(params: GuidedDecodingParams, library: Any) -> Any:
    if params.choice is not None:
        alternatives = "|".join(re.escape(choice) for choice in params.choice)
        return library.grammar_from("regex", alternatives)
    if params.regex is not None:
        return library.grammar_from("regex", params.regex)
    if params.grammar is not None:
        return library.grammar_from("grammar", params.grammar)
    options = _json_options(params)
    if params.structural_tag is not None:
        return _tagged(json.loads(params.structural_tag), options, library)
    schema = '{"type": "object"}' if params.json_object else params.json
    return library.LLMatcher.grammar_from_json_schema(schema, defaults=options)


def _json_options(params: GuidedDecodingParams) -> dict[str, Any]:
    if params.disable_any_whitespace:
        return {"whitespace_flexible": False}
    return {"whitespace_pattern": params.whitespace_pattern or _WHITESPACE}


def _tagged(tags: dict[str, Any], options: dict[str, Any], library: Any) -> Any:
    triggers, structures = tags.get("triggers"), tags.get("structures")
    if not isinstance(triggers, list) or not isinstance(structures, list) or not structures:
        raise RequestError(
            "`structural_tag` needs lists `structures` and `triggers`, got "
            f"{', '.join(tags) or 'nothing'}"
        )
    made = []
    for structure in structures:
        given = structure if isinstance(structure, dict) else {}
        begin, schema, end = given.get("begin"), given.get("schema", {}), given.get("end", "")
        is_text = isinstance(begin, str) and isinstance(end, str)
        if not begin or not is_text or not isinstance(schema, dict):
            raise RequestError(
                "`structural_tag`: a structure is {'begin': str, 'schema': {...}, 'end': str}, "
                f"got {structure!r:.80}"
            )
        fitting = (t for t in triggers if isinstance(t, str) and t and begin.startswith(t))
        trigger = next(fitting, "")
        if not trigger:
            raise RequestError(
                f"`structural_tag`: no trigger begins {begin!r}; triggers: {triggers!r:.80}"
            )
        grammar = {"x-guidance": options, **schema}
        made.append(library.StructTag(trigger=trigger, begin=begin, grammar=grammar, end=end))
    # A trigger like <tool> may be plain text for this tokenizer, or be one token: text is both.
    return library.StructTag.to_grammar(made, assume_special=False)
