"""A conversation: the next prompt holds all that was said, most of which the prefix cache has."""

from __future__ import annotations

from trtspec import LLM, SamplingParams

QUESTIONS = ["Write a function that opens a file.", "Now one that closes it."]


def main() -> None:
    with LLM("trtspec-tiny", speculative_config={"method": "suffix"}) as llm:
        messages = []
        for question in QUESTIONS:
            messages.append({"role": "user", "content": question})
            output = llm.chat(messages, SamplingParams(max_tokens=40, temperature=0))
            answer = output.outputs[0].text
            messages.append({"role": "assistant", "content": answer})
            print(f"> {question}\n{answer}")
            print(f"--- {output.num_cached_tokens} tokens of the prompt came from the cache")


if __name__ == "__main__":
    main()
