"""Generate for several prompts at once, with an EAGLE-3 head that drafts."""

from __future__ import annotations

from trtspec import LLM, SamplingParams

PROMPTS = ["def read_file(path):\n", "import os\nimport sys\n\nclass ", "for line in "]


def main() -> None:
    config = {"method": "eagle3", "model": "trtspec-tiny-eagle3", "num_speculative_tokens": 5}
    params = SamplingParams(max_tokens=48, temperature=0.8, seed=1)
    with LLM("trtspec-tiny", speculative_config=config) as llm:
        for output in llm.generate(PROMPTS, params):
            print(output.prompt + output.outputs[0].text)
            print(f"--- {output.metrics.acceptance_length:.2f} tokens a step")


if __name__ == "__main__":
    main()
