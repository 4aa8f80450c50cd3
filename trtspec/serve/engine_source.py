"""EngineSource: what an engine is opened from, as plain data for any process."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trtspec.llmapi.llm import LLM
from trtspec.serve.local_engine import LocalEngine
from trtspec.speculative.options import parse_speculative_config
from trtspec.train.own_vocabulary import let_write


@dataclass(frozen=True)
class EngineSource:
    """model, speculation, options: as for `LLM`. chat_template: in place of the checkpoint's."""

    model: str
    speculation: Mapping[str, Any] | bool | None
    options: Mapping[str, Any]
    chat_template: str | None = None

    def open(self) -> LocalEngine:
        """An engine in this process; errors are those of `LLM`."""
        if isinstance(self.speculation, Mapping):
            asked = parse_speculative_config(self.speculation)
            let_write(self.model, asked, self.options["tokenizer"])
        llm = LLM(self.model, self.speculation, **self.options)
        if self.chat_template is not None:
            llm.tokenizer.chat_template = self.chat_template
        return LocalEngine(llm)
