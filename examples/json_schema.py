"""Answers that fit a schema, with drafts: needs `pip install 'trtspec[grammar]'`."""

from __future__ import annotations

import json

from trtspec import LLM, SamplingParams

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "kind": {"enum": ["cat", "dog", "bird"]},
        "age": {"type": "integer", "minimum": 0, "maximum": 30},
    },
    "required": ["name", "kind", "age"],
    "additionalProperties": False,
}


def main() -> None:
    form = {"json": SCHEMA, "disable_any_whitespace": True}
    params = SamplingParams(max_tokens=80, temperature=0.8, seed=5, guided_decoding=form)
    with LLM("trtspec-tiny", speculative_config={"method": "suffix"}) as llm:
        output = llm.generate("# a pet: ", params)
        print(json.dumps(json.loads(output.outputs[0].text), indent=1))
        print(f"--- {output.metrics.acceptance_length:.2f} tokens a step")


if __name__ == "__main__":
    main()
