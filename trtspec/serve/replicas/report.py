"""Report: what a replica says of itself, and Reports: those of all, past ones included."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from trtspec.executor.executor_metrics import ExecutorFigures
from trtspec.llmapi.outputs import EngineLoad

_KEPT = 32
"""Reports of replicas that are gone which are kept apart, in case one was only out of reach; those
of more are added up."""
_IDLE = EngineLoad(0, 0, 0.0, 0, 0, 0.0)


@dataclass(frozen=True)
class Report:
    """name: Ray's name of the replica, which no later one has."""

    name: str
    load: EngineLoad
    figures: ExecutorFigures


class Reports:
    """The last report of each replica. Counters of replicas that are gone stay in the sums, which
    would run backwards otherwise.

    up: those that answered last, by name. num_started: how many there have been.
    """

    def __init__(self) -> None:
        self.up: Mapping[str, Report] = {}
        self.num_started = 0
        self._gone: dict[str, Report] = {}
        self._sum = Report("", _IDLE, ExecutorFigures())

    def take_in(self, reports: Sequence[Report]) -> None:
        """Those of all replicas that answer at present."""
        before = {**self._gone, **self.up}
        self.up = {report.name: report for report in reports}
        self.num_started += len(self.up.keys() - before.keys())
        self._gone = {name: last for name, last in before.items() if name not in self.up}
        while len(self._gone) > _KEPT:
            oldest = _past(self._gone.pop(next(iter(self._gone))))
            self._sum = _added([self._sum, oldest])

    @property
    def load(self) -> EngineLoad:
        """Of those that are up, with the tokens of all."""
        loads = [report.load for report in self.up.values()]
        return _with_tokens(EngineLoad.merged(loads) if loads else _IDLE, self._all())

    @property
    def figures(self) -> ExecutorFigures:
        """Of all, with the drafts of those that are up."""
        return _added(self._all()).figures

    def _all(self) -> list[Report]:
        gone = [_past(report) for report in self._gone.values()]
        return [self._sum, *gone, *self.up.values()]


def _past(report: Report) -> Report:
    """What stays of a report when its replica is gone."""
    return replace(report, figures=replace(report.figures, drafts=()))


def _added(reports: Sequence[Report]) -> Report:
    figures = ExecutorFigures.merged([report.figures for report in reports])
    return Report("", _with_tokens(_IDLE, reports), figures)


def _with_tokens(load: EngineLoad, reports: Sequence[Report]) -> EngineLoad:
    return replace(
        load,
        num_prompt_tokens=sum(report.load.num_prompt_tokens for report in reports),
        num_generated_tokens=sum(report.load.num_generated_tokens for report in reports),
    )
