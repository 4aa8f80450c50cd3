"""A head drafts a chain, then a tree, which has further guesses where the first one is wrong."""

from __future__ import annotations

from trtspec import LLM, SamplingParams

HEAD = {"method": "eagle3", "model": "trtspec-tiny-eagle3", "num_steps": 4}
SHAPES = {
    "a chain of 4": {},
    "a tree, 3 candidates a step, 12 rows verified": {"topk": 3, "num_draft_tokens": 12},
}


def main() -> None:
    texts = set()
    for name, shape in SHAPES.items():
        with LLM("trtspec-tiny", speculative_config={**HEAD, **shape}, dtype="float32") as llm:
            params = SamplingParams(max_tokens=64, temperature=1.0, seed=7)
            output = llm.generate("def test_", params)
        texts.add(output.outputs[0].text)
        print(f"{output.metrics.acceptance_length:.2f} tokens a step: {name}")
    print(f"{len(texts)} different text(s)")


if __name__ == "__main__":
    main()
