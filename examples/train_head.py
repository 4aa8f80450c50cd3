"""Train an EAGLE-3 head from nothing but the target, and draft with it: needs
`pip install 'trtspec[train]'`, and about a minute. The numbers are small; the head is, too.

    python examples/train_head.py head
"""

from __future__ import annotations

import sys

from trtspec import LLM, SamplingParams
from trtspec.commands.train import main as train

FLAGS = {"--tokens": 12000, "--passes": 8, "--max_text_tokens": 128, "--window_tokens": 128}
FASTER = {"--step_tokens": 1024, "--learning_rate": 0.02, "--vocabulary_rate": 0.004, "--depth": 3}


def main() -> None:
    folder = sys.argv[1] if len(sys.argv) > 1 else "head"
    flags = [str(word) for pair in (FLAGS | FASTER).items() for word in pair]
    target = ["--model", "trtspec-tiny", "--from_base"]  # it was trained on code, not on chats
    if train(["eagle3", "--output", folder, *target, *flags]):
        raise SystemExit(1)
    config = {"method": "eagle3", "model": folder, "num_speculative_tokens": 3}
    with LLM("trtspec-tiny", speculative_config=config) as llm:
        output = llm.generate("def main(", SamplingParams(max_tokens=48, temperature=0))
        print(f"{output.metrics.acceptance_length:.2f} tokens a step")


if __name__ == "__main__":
    main()
