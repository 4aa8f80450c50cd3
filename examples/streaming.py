"""Print texts as they come: two requests run in one batch, and one of them is ended early."""

from __future__ import annotations

from trtspec import LLM, SamplingParams

NGRAM = {"method": "ngram", "num_speculative_tokens": 5}


def main() -> None:
    with LLM("trtspec-tiny", speculative_config=NGRAM) as llm:
        params = SamplingParams(max_tokens=60, temperature=0)
        shown = llm.generate_async("def main(", params, streaming=True)
        other = llm.generate_async("class Reader", params, streaming=True)
        written = 0
        for snapshot in shown:
            text = snapshot.outputs[0].text
            print(text[written:], end="", flush=True)
            written = len(text)
        print()
        other.abort()
        other.wait()
        ended = other.output.outputs[0]
        print(f"--- the other ended by {ended.finish_reason}, after {len(ended.token_ids)} tokens")


if __name__ == "__main__":
    main()
