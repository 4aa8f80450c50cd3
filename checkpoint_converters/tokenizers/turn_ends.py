"""Texts of the tokens with which models end a turn, whatever ``eos_token_id`` says."""

from __future__ import annotations

from collections.abc import Collection

TURN_ENDS = frozenset({
    # of a text
    "<|endoftext|>", "<|end_of_text|>", "<\uff5cend▁of▁sentence\uff5c>", "</s>", "<eos>",
    "[EOS]", "<|eos|>",
    # of a turn
    "<|im_end|>", "<|end|>", "<|eot_id|>", "<|eot|>", "<|EOT|>", "<EOT>", "▁<EOT>", "_<EOT>",
    "[EOT]", "<end_of_turn>", "<turn|>", "<|end_of_turn|>", "<|END_OF_TURN_TOKEN|>",
    "<|endofturn|>", "[|endofturn|]", "<end_of_utterance>", "[e~[", "<|return|>", "<|flush|>",
    # of a message that calls a tool: its answer comes next
    "<|eom_id|>", "<|eom|>", "<|call|>", "<|calls|>", "<|tool_response>",
    # the beginning of another's turn, where nothing ends one's own (GLM)
    "<|user|>", "<|observation|>",
    # of the middle that a model of code fills in: padding, or another file or repository begins
    "<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]",
    "<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>", "<|file_sep|>",
})  # fmt: skip

_HTML_BESIDE = ("<eos>", "<|tool_response>")
_NO_ENDS_BESIDE: dict[str, tuple[frozenset[str], ...]] = {
    # It ends one of several messages of a turn there.
    "<|end|>": tuple(
        frozenset({turn, call})
        for turn in ("<|return|>", "<|flush|>")
        for call in ("<|call|>", "<|calls|>")
    ),
    "</s>": tuple(frozenset({end}) for end in _HTML_BESIDE),
}


def has_html(texts: Collection[str]) -> bool:
    """Whether ``<s>`` and ``</s>`` in a vocabulary are HTML because its texts end differently."""
    return any(end in texts for end in _HTML_BESIDE)


def ends_among(texts: Collection[str]) -> list[str]:
    """The control tokens of a vocabulary that end a turn, in their order. Some texts are not ends
    in a vocabulary that has certain others."""
    known = TURN_ENDS.intersection(texts)
    none = {
        text for text, others in _NO_ENDS_BESIDE.items() if any(other <= known for other in others)
    }
    return [text for text in texts if text in known and text not in none]
