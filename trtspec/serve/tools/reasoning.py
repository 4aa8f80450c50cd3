"""ReasoningParser: the part of an answer in which a model thinks."""

from __future__ import annotations

from dataclasses import dataclass

from trtspec.serve.tools.message import held


@dataclass(frozen=True)
class ReasoningParser:
    """Reasoning between two marks at the beginning of an answer. name: the value of
    `--reasoning-parser`; others: the names that vLLM and SGLang use for it."""

    name: str
    start: str
    end: str
    others: tuple[str, ...] = ()

    def split(self, text: str, is_open: bool, is_whole: bool) -> tuple[str, str, bool]:
        """The reasoning in a partial text, what follows it, and whether that has begun.
        ``is_open``: the prompt ends inside reasoning; ``is_whole``: nothing follows."""
        if not is_open:
            begun = text.lstrip()
            if not begun.startswith(self.start):
                may_begin = not is_whole and self.start.startswith(begun)
                return ("", "", False) if may_begin else ("", text, True)
            text = begun[len(self.start) :]
        thought, end, rest = text.partition(self.end)
        if end:
            return thought.strip(), rest.lstrip(), True
        if not is_whole:
            thought = thought[: len(thought) - held(thought, self.end)]
        return thought.strip(), "", False


REASONING = (
    ReasoningParser(
        "think",
        "<think>",
        "</think>",
        ("deepseek_r1", "deepseek-r1", "deepseek_v3", "qwen3", "qwen3-thinking", "glm45"),
    ),
    ReasoningParser("mistral", "[THINK]", "[/THINK]"),
)
