"""ChatPayloads: the JSON of /v1/chat/completions."""

from __future__ import annotations

from typing import Any

from trtspec.llmapi.outputs import CompletionOutput, RequestOutput
from trtspec.serve.logprobs import ChatLogprobs
from trtspec.serve.payloads import ChoicePayloads, LogprobsForm, Read
from trtspec.serve.tools.message import Call, Message


class ChatPayloads(ChoicePayloads):
    """Reads each text as a message, whole or again with all that came so far."""

    prefix = "chatcmpl"
    whole_object = "chat.completion"
    chunk_object = "chat.completion.chunk"

    def __init__(self, *shared: Any, read: Read) -> None:
        super().__init__(*shared)
        self._read = read
        self._texts: dict[int, str] = {}  # by choice, what was sent of each
        self._sent: dict[int, Message] = {}

    def opening(self, prompt: int) -> list[dict[str, Any]]:
        return [
            {
                "index": prompt * self._samples + sample,
                "delta": {"role": "assistant", "content": ""},
                "logprobs": None,
                "finish_reason": None,
            }
            for sample in range(self._samples)
        ]

    def _choice(
        self, prompt: int, completion: CompletionOutput, output: RequestOutput
    ) -> dict[str, Any]:
        index = prompt * self._samples + completion.index
        read = self._read(completion.text, output.prompt_token_ids, True)
        told = self._told(index, Message(), read)
        message = {"role": "assistant", "content": None if told else "", "refusal": None, **told}
        for call in message.get("tool_calls", ()):
            del call["index"]  # of use in a stream alone
        choice = {"index": index, "message": message}
        choice["logprobs"] = self._logprobs(index, completion.logprobs)
        choice |= self._end(completion)
        return choice | {"finish_reason": _reason(completion.finish_reason, read)}

    def _delta(self, prompt: int, grown: CompletionOutput, output: RequestOutput) -> dict[str, Any]:
        index = prompt * self._samples + grown.index
        text = self._texts[index] = self._texts.get(index, "") + grown.text
        is_whole = grown.finish_reason is not None
        read = self._read(text, output.prompt_token_ids, is_whole)
        delta = self._told(index, self._sent.get(index, Message()), read)
        self._sent[index] = read
        logprobs = self._logprobs(index, grown.logprobs)
        reason = _reason(grown.finish_reason, read)
        return {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": reason}

    def _told(self, index: int, before: Message, now: Message) -> dict[str, Any]:
        """The fields by which a message grew. Reasoning has the two names that clients know."""
        told: dict[str, Any] = {}
        if thought := now.reasoning[len(before.reasoning) :]:
            told |= {"reasoning_content": thought, "reasoning": thought}
        if content := now.content[len(before.content) :]:
            told["content"] = content
        calls = []
        for place, call in enumerate(now.calls):
            if place >= len(before.calls):
                calls.append(self._new_call(index, place, call))
            elif more := call.arguments[len(before.calls[place].arguments) :]:
                calls.append({"index": place, "function": {"arguments": more}})
        return {**told, "tool_calls": calls} if calls else told

    def _new_call(self, index: int, place: int, call: Call) -> dict[str, Any]:
        function = {"name": call.name, "arguments": call.arguments}
        identified = {"index": place, "id": self.call_id(index, place)}
        return {**identified, "type": "function", "function": function}

    def _form(self) -> LogprobsForm:
        return ChatLogprobs(self._tokens)


def _reason(reason: str | None, message: Message) -> str | None:
    return "tool_calls" if reason == "stop" and message.calls else reason
