"""The training loop: steps over recorded texts, agreement by position, checkpoints."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from trtspec.log import logger
from trtspec.train.checkpoint import load_state, save_state
from trtspec.train.head import Head
from trtspec.train.optimizers import Optimizers
from trtspec.train.windows import Piece, RecordedTexts

_HELD_OUT_BATCHES = 32


@dataclass(frozen=True)
class Schedule:
    """``steps``: in total. ``length``: most rows of a window, ``rows``: of a step, padding
    included. ``depth``: positions unrolled at the end; training begins with one if it ``deepens``,
    as the first teaches most and each costs as much. ``save_seconds``: time between checkpoints."""

    steps: int
    length: int
    rows: int
    depth: int
    deepens: bool
    rate: float
    vocabulary_rate: float
    seed: int
    row_multiple: int = 1
    save_seconds: float = 300.0
    log_every: int = 20

    def depth_at(self, step: int) -> int:
        return 1 + self.depth * step // self.steps if self.deepens else self.depth


@dataclass(frozen=True)
class HeldOut:
    """Over held-out texts: the loss in nats, and how often the head's choice is the target's at
    each position, given the target's own text up to there."""

    loss: float
    agreement: tuple[float, ...]

    def describe(self) -> str:
        return f"loss {self.loss:.3f} agreement {_rates(self.agreement)}"


class Trainer:
    """Continues from the state in ``folder``, bit for bit as if it had not been interrupted: order
    and noise of a step depend only on the seed and its number."""

    def __init__(self, head: Head, texts: RecordedTexts, schedule: Schedule, folder: Path) -> None:
        self._head, self._texts, self._schedule, self._folder = head, texts, schedule, folder
        self._optimizers = Optimizers(
            head.module, schedule.steps, schedule.rate, schedule.vocabulary_rate
        )
        self.step = 0
        state = load_state(folder)
        if state is not None:
            head.module.load_state_dict(state["head"])
            self._optimizers.load_state_dict(state["optimizers"])
            self.step = state["step"]
            logger.info("training goes on after step %d of %d", self.step, schedule.steps)
        self._batches = itertools.islice(self._passes(), self.step, None)

    def run(
        self,
        until: int | None = None,
        clock: Callable[[], float] = time.monotonic,
        stops: Callable[[], bool] = lambda: False,
    ) -> None:
        """Train to the end, or to step ``until``, or until ``stops`` says so; the state is saved
        then, and periodically.

        Raises:
            TrainingError: the disk is full.
        """
        schedule = self._schedule
        end = schedule.steps if until is None else min(until, schedule.steps)
        if self.step >= end:
            return
        began = saved = clock()
        tokens, losses, rates = 0, list[float](), list[Sequence[float]]()
        is_last = False
        while not is_last:
            loss, agreement, count = self._one()
            tokens += count
            losses.append(loss)
            rates.append(agreement)
            is_last = self.step == end or stops()
            if self.step % schedule.log_every == 0 or is_last:
                now = clock()
                deepest = [r for r in rates if len(r) == len(agreement)]
                mean = [sum(r) / len(r) for r in zip(*deepest, strict=True)]
                left = (now - began) / tokens * self._tokens_left(count) / 60
                logger.info(
                    "step %d/%d loss %.3f agreement %s, %.0f tokens/s, about %.0f min left",
                    *(self.step, schedule.steps, sum(losses) / len(losses), _rates(mean)),
                    *(tokens / max(now - began, 1e-9), left),
                )
                losses.clear()
                rates.clear()
            if is_last or clock() - saved >= schedule.save_seconds:
                self.save()
                saved = clock()

    def _tokens_left(self, per_step: int) -> float:
        """Tokens of the remaining steps, weighted by how much deeper they unroll than this one."""
        steps = range(self.step, self._schedule.steps)
        here = self._schedule.depth_at(max(0, self.step - 1))
        return sum(self._schedule.depth_at(step) for step in steps) / here * per_step

    def _passes(self) -> Iterator[list[Piece]]:
        """The batches of pass after pass, each in an order of its own."""
        schedule = self._schedule
        for number in itertools.count():
            yield from self._texts.batches(
                schedule.length, schedule.rows, _mixed(schedule.seed, number)
            )

    def _one(self) -> tuple[float, Sequence[float], int]:
        """A step: its loss, its agreement, and its tokens without the padding."""
        schedule = self._schedule
        window = self._texts.window(next(self._batches), schedule.row_multiple)
        torch.manual_seed(_mixed(schedule.seed, self.step))
        loss, agreement = self._head.loss(window, schedule.depth_at(self.step))
        loss.backward()  # type: ignore[no-untyped-call]
        self._optimizers.step(self.step)
        self.step += 1
        return loss.item(), list(agreement), window.num_tokens

    def save(self) -> None:
        state: dict[str, Any] = {
            "head": self._head.module.state_dict(),
            "optimizers": self._optimizers.state_dict(),
            "step": self.step,
        }
        save_state(self._folder, state)

    @torch.no_grad()
    def held_out(self) -> HeldOut:
        """Over at most 32 batches of what the target wrote in held-out texts, unrolled as deep as
        at the end: prompts, such as the same system turn over and over, would not be
        representative."""
        schedule = self._schedule
        found: list[tuple[int, float, list[float]]] = []
        for batch in self._texts.batches(schedule.length, schedule.rows, None)[:_HELD_OUT_BATCHES]:
            torch.manual_seed(schedule.seed)
            window = self._texts.window(batch, schedule.row_multiple, answers_only=True)
            if not window.num_tokens:
                continue
            loss, agreement = self._head.loss(window, schedule.depth)
            found.append((window.num_tokens, loss.item(), list(agreement)))
        total = sum(count for count, _, _ in found)
        mean = sum(count * value for count, value, _ in found) / total
        by_place = zip(*(rates for _, _, rates in found), strict=True)
        counts = [count for count, _, _ in found]
        overall = tuple(
            sum(c * r for c, r in zip(counts, rates, strict=True)) / total for rates in by_place
        )
        return HeldOut(mean, overall)


def steps_of(texts: RecordedTexts, passes: float, length: int, rows: int, seed: int) -> int:
    """Steps of that many passes over the training texts, the last one perhaps partial."""
    whole = int(passes)
    counts = [len(texts.batches(length, rows, _mixed(seed, i))) for i in range(whole + 1)]
    return max(1, sum(counts[:whole]) + round((passes - whole) * counts[whole]))


def _mixed(seed: int, number: int) -> int:
    return (seed * 1_000_003 + number) & (2**63 - 1)


def _rates(rates: Sequence[float]) -> str:
    return " ".join(f"{rate:.3f}" for rate in rates)
