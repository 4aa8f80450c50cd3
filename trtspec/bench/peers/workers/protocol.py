"""How a worker talks to the benchmark: JSON lines over its standard input and output.

Its only argument is a `Job` as JSON. Once the model is loaded it writes ``{"version": ...}``. Every
line that it then reads is ``{"prompts": [[id, ...], ...], "max_tokens": n, "seed": s}``; it answers
``{"seconds": ..., "tokens": [[id, ...], ...]}``, and ends when its input does. What fails is
answered by ``{"error": ...}``, and ends it.

A worker imports nothing but this module, the standard library and its engine, as the engine may
live in an environment without trtspec.
"""

import json
import os
import sys
import time


class Job:
    """What to serve: ``model`` and ``draft`` are paths, as the engine reads them; ``mode`` one of
    plain, prompt_lookup, draft_model, eagle3, dflash; ``num_draft_tokens`` of a step, where there
    is speculation; ``batch_size`` requests at a time, ``max_seq_len`` tokens of each; ``threads``;
    ``dtype``; ``temperature``; ``stop_ids`` end a text, none: max_tokens alone do; ``options``:
    more, by the engine's own names."""

    def __init__(self, text):
        values = json.loads(text)
        self.model = values["model"]
        self.draft = values["draft"]
        self.mode = values["mode"]
        self.num_draft_tokens = values["num_draft_tokens"]
        self.batch_size = values["batch_size"]
        self.max_seq_len = values["max_seq_len"]
        self.threads = values["threads"]
        self.dtype = values["dtype"]
        self.temperature = values["temperature"]
        self.stop_ids = values["stop_ids"]
        self.options = values["options"]


def one_by_one(answer):
    """From a function that answers one prompt, one that answers all, one after another."""
    return lambda prompts, max_tokens, seed: [answer(ids, max_tokens, seed) for ids in prompts]


def main(load):
    """Serve until the input ends. ``load(job)`` gives the engine's version, and a function
    ``(prompts, max_tokens, seed) -> tokens``, each up to its end, with it or without."""
    # Engines print as they like; the protocol keeps the real output for itself.
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)

    def write(answer):
        out.write(json.dumps(answer) + "\n")
        out.flush()

    try:
        version, answer = load(Job(sys.argv[1]))
        write({"version": version})
        for line in sys.stdin:
            request = json.loads(line)
            began = time.perf_counter()
            tokens = answer(request["prompts"], request["max_tokens"], request["seed"])
            seconds = time.perf_counter() - began
            write({"seconds": seconds, "tokens": [[int(token) for token in ids] for ids in tokens]})
    except Exception as error:  # of any kind: engines have their own
        write({"error": f"{type(error).__name__}: {error}"})
        sys.exit(1)
