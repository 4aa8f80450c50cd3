"""Two methods draft one tree: an index, for what repeats, and a head, for what is new."""

from __future__ import annotations

from trtspec import LLM, SamplingParams

CONFIG = {
    "method": "hybrid",
    "drafters": [
        {"method": "suffix", "num_speculative_tokens": 8},
        {"method": "eagle3", "model": "trtspec-tiny-eagle3", "num_speculative_tokens": 4},
    ],
}
PROMPT = "    self.left = left\n    self.right = right\n    self.top = top\n" * 2


def main() -> None:
    with LLM("trtspec-tiny", speculative_config=CONFIG) as llm:
        output = llm.generate(PROMPT, SamplingParams(max_tokens=64, temperature=0))
        print(output.outputs[0].text)
        print(f"--- {output.metrics.acceptance_length:.2f} tokens a step")
        figures = llm.get_metrics()
        drafted, accepted = (
            figures[f"num_{kind}_tokens_per_source"] for kind in ("draft", "accepted")
        )
        for drafter, *counts in zip(CONFIG["drafters"], accepted, drafted, strict=True):
            print(f"--- {drafter['method']}: {counts[0]} of {counts[1]} drafts accepted")


if __name__ == "__main__":
    main()
