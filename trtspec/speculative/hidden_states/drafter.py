"""ExtractHiddenStatesDrafter: drafts nothing; the hidden states of each request go to a file."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass, field
from pathlib import Path

from torch import Tensor

from trtspec.errors import ConfigError
from trtspec.executor.step.drafter import Drafter, DrafterNeeds
from trtspec.executor.step.step_plan import StepPlan
from trtspec.executor.step.step_result import StepResult
from trtspec.ops.draft_batch import DraftBatch
from trtspec.speculative.hidden_states.files import HiddenFileWriter
from trtspec.speculative.hidden_states.options import ExtractHiddenStatesConfig


@dataclass
class _Rows:
    """The hidden states of a request's first ``count`` tokens, ``[n, num_layers * hidden_size]``
    each."""

    states: list[Tensor] = field(default_factory=list)
    count: int = 0


class ExtractHiddenStatesDrafter(Drafter):
    """Collects the hidden states of every row that the target computes, and writes them at the end.

    There is a row for each token that was fed: the prompt, and the output except its newest token.
    A preempted request loses its rows and computes them again; an aborted or failed one leaves no
    file. States stay on the host, ``num_layers * hidden_size`` elements per row, while the request
    runs and until its file is written.
    """

    def __init__(self, config: ExtractHiddenStatesConfig) -> None:
        if config.shared_storage_path is None or config.capture_layers is None:
            missing = "capture_layers" if config.capture_layers is None else "shared_storage_path"
            raise ConfigError(f"method {config.method} needs {missing}; name it")
        assert not isinstance(config.capture_layers, str), "it was resolved"
        self.needs = self.needs_of(config)
        self._layers = config.capture_layers
        self._writer = HiddenFileWriter(Path(config.shared_storage_path), config.num_writer_threads)
        self._rows: dict[int, _Rows] = {}

    @staticmethod
    def needs_of(config: ExtractHiddenStatesConfig) -> DrafterNeeds:
        return DrafterNeeds(reads_hidden=True, reads_every_row=True)

    def prepare_draft_tokens(self, batch: StepPlan) -> DraftBatch:
        """Nothing is drafted."""
        return DraftBatch.none(len(batch.items))

    def on_accepted(self, batch: StepPlan, result: StepResult) -> list[tuple[int, ...]]:
        """Store the hidden states of accepted rows. The file of a request whose text ended starts
        being written, as its `Request.transfer`. May wait for a file if the disk does not keep up.
        """
        for item, hidden in zip(batch.items, result.hidden_of(batch), strict=True):
            request = item.request
            if request.finish_reason == "error":
                continue
            rows = self._rows.setdefault(request.id, _Rows())
            assert rows.count == item.start, "every row is told once, in order"
            # A copy: a view would keep the states of all that the step ran beside.
            rows.states.append(hidden.to("cpu", copy=True))
            rows.count += len(hidden)
            if request.is_finished:
                del self._rows[request.id]
                request.transfer = self._writer.submit(
                    request.id, request.tokens[: rows.count], rows.states, self._layers
                )
        return [()] * len(batch.items)

    def release(self, request_id: int) -> None:
        self._rows.pop(request_id, None)

    @property
    def live_requests(self) -> Set[int]:
        return self._rows.keys()
