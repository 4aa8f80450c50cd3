"""ResponsesPayloads: the JSON of /v1/responses, whole or as a stream of events."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from trtspec.llmapi.outputs import CompletionOutput, RequestOutput
from trtspec.serve.errors import ApiError
from trtspec.serve.payloads import Payloads, Read, acceptance_rule, speculation, usage
from trtspec.serve.token_text import TokenText
from trtspec.serve.tools.message import Message

_KINDS = {"reasoning": "reasoning_text", "message": "output_text"}
"""What the parts of an item are."""


class ResponsesPayloads(Payloads):
    """Of one answer, which is a list of items: reasoning, a message, calls."""

    prefix = "resp"
    done = b""

    def __init__(
        self,
        request_id: str,
        model: str,
        fingerprint: str,
        tokens: TokenText,
        samples: int,
        *,
        read: Read,
        asked: Mapping[str, Any],
    ) -> None:
        super().__init__(request_id, model, fingerprint, tokens, samples)
        self._read, self._asked = read, asked
        self._text, self._sent = "", Message()
        self._items: list[dict[str, Any]] = []
        self._places: dict[str, int] = {}
        self._num_events = 0

    def whole(self, outputs: Sequence[RequestOutput], metrics: bool) -> dict[str, Any]:
        (output,) = outputs
        (completion,) = output.outputs
        self._grow(self._read(completion.text, output.prompt_token_ids, True))
        answer = self._response(output, completion)
        return answer | {"metrics": speculation(outputs)} if metrics else answer

    def opening(self, prompt: int) -> list[dict[str, Any]]:
        begun = self._response(None, None)
        return [
            {"type": "response.created", "response": begun},
            {"type": "response.in_progress", "response": begun},
        ]

    def growth(
        self, prompt: int, grown: Sequence[CompletionOutput], output: RequestOutput
    ) -> list[dict[str, Any]]:
        events = []
        for g in grown:
            self._text += g.text
            is_whole = g.finish_reason is not None
            events += self._grow(self._read(self._text, output.prompt_token_ids, is_whole))
            if is_whole:
                answer = self._response(output, output.outputs[g.index])
                events += self._endings(answer["output"])
                events.append({"type": f"response.{answer['status']}", "response": answer})
        return events

    def chunk(
        self, choices: Sequence[dict[str, Any]], outputs: Sequence[RequestOutput], **more: Any
    ) -> dict[str, Any]:
        (event,) = choices
        return {**event, "response": {**event["response"], **more}} if more else event

    def encode(self, chunk: Mapping[str, Any]) -> bytes:
        numbered = {**chunk, "sequence_number": self._num_events}
        self._num_events += 1
        return f"event: {chunk['type']}\n".encode() + super().encode(numbered)

    def failure(self, error: ApiError) -> dict[str, Any]:
        return {**error.to_dict()["error"], "type": "error"}

    def _response(
        self, output: RequestOutput | None, completion: CompletionOutput | None
    ) -> dict[str, Any]:
        status, details, items = "in_progress", None, list[dict[str, Any]]()
        if completion is not None:
            is_cut = completion.finish_reason == "length"
            items = [{**item, "status": "completed"} for item in self._items]
            if is_cut and items:
                items[-1]["status"] = "incomplete"
            status = "incomplete" if is_cut else "completed"
            details = {"reason": "max_output_tokens"} if is_cut else None
        return {
            "id": self.id,
            "object": "response",
            "created_at": self.created,
            "status": status,
            "error": None,
            "incomplete_details": details,
            "model": self.model,
            "output": items,
            **self._asked,
            **acceptance_rule([] if output is None else [output]),
            "usage": None if output is None else _usage(output),
        }

    def _grow(self, now: Message) -> list[dict[str, Any]]:
        """The events by which the answer becomes a longer one."""
        before, self._sent = self._sent, now
        events: list[dict[str, Any]] = []
        for kind, new in (
            ("reasoning", now.reasoning[len(before.reasoning) :]),
            ("message", now.content[len(before.content) :]),
        ):
            if new:
                item = self._item(kind, kind, events)
                item["content"][0]["text"] += new
                place = {**self._place(kind), "content_index": 0}
                events.append({"type": f"response.{_KINDS[kind]}.delta", **place, "delta": new})
                if kind == "message":
                    events[-1]["logprobs"] = []
        for index, call in enumerate(now.calls):
            key = f"call {index}"
            item = self._item(key, "function_call", events, name=call.name)
            new = call.arguments[len(item["arguments"]) :]
            item["arguments"] += new
            if new:
                delta = {**self._place(key), "delta": new}
                events.append({"type": "response.function_call_arguments.delta", **delta})
        return events

    def _item(
        self, key: str, kind: str, events: list[dict[str, Any]], **more: Any
    ) -> dict[str, Any]:
        """The item, which begins here if there is none yet."""
        if key in self._places:
            return self._items[self._places[key]]
        place = self._places[key] = len(self._items)
        item: dict[str, Any] = {"id": f"{self.id}-{place}", "type": kind, "status": "in_progress"}
        if kind == "function_call":
            item |= {"call_id": self.call_id(0, int(key.split()[1])), "arguments": "", **more}
        else:
            item["content"] = []
            if kind == "message":
                item["role"] = "assistant"
            else:
                item["summary"] = []
        self._items.append(item)
        added = {"output_index": place, "item": {**item}}
        events.append({"type": "response.output_item.added", **added})
        if kind != "function_call":
            part = _part(kind, "")
            item["content"] = [part]
            where = {**self._place(key), "content_index": 0, "part": {**part}}
            events.append({"type": "response.content_part.added", **where})
        return item

    def _place(self, key: str) -> dict[str, Any]:
        place = self._places[key]
        return {"item_id": self._items[place]["id"], "output_index": place}

    def _endings(self, items: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        events = []
        for key, index in self._places.items():
            item, place = items[index], self._place(key)
            if item["type"] == "function_call":
                said = {"name": item["name"], "arguments": item["arguments"]}
                events.append({"type": "response.function_call_arguments.done", **place, **said})
            else:
                (part,) = item["content"]
                place["content_index"] = 0
                text = {"text": part["text"]}
                if item["type"] == "message":
                    text["logprobs"] = []
                events.append({"type": f"response.{part['type']}.done", **place, **text})
                events.append({"type": "response.content_part.done", **place, "part": part})
            done = {"output_index": index, "item": item}
            events.append({"type": "response.output_item.done", **done})
        return events


def _part(kind: str, text: str) -> dict[str, Any]:
    part: dict[str, Any] = {"type": _KINDS[kind], "text": text}
    return part | {"annotations": [], "logprobs": []} if kind == "message" else part


def _usage(output: RequestOutput) -> dict[str, Any]:
    """As this API names it. Which tokens are reasoning is not counted."""
    counted = usage([output])
    return {
        "input_tokens": counted["prompt_tokens"],
        "input_tokens_details": counted["prompt_tokens_details"],
        "output_tokens": counted["completion_tokens"],
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": counted["total_tokens"],
    }
