"""The loop: a training that was cut short anywhere ends as one that was not, bit for bit."""

from __future__ import annotations

import errno
import os
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from trtspec.errors import ConfigError, TrainingError
from trtspec.train.checkpoint import claim, load_state
from trtspec.train.run import asked_to_stop
from trtspec.train.trainer import Trainer, steps_of
from trtspec.train.windows import RecordedTexts

from .toy_training import LAYERS, ToyHead, record, schedule, texts


class KilledHead(ToyHead):
    """Dies in a step, as a process that is killed there would: nothing is saved on the way out."""

    def __init__(self, at: int) -> None:
        super().__init__()
        self._left = at

    def loss(self, window: Any, depth: int) -> Any:
        if not self._left:
            raise SystemError("killed")
        self._left -= 1
        return super().loss(window, depth)


def weights(head: ToyHead) -> list[torch.Tensor]:
    return [p.detach().clone() for p in head.module.parameters()]


def test_resumed_equals_uninterrupted(tmp_path: Path) -> None:
    """Killed after any number of steps, at or between checkpoints; depth, rates, order and noise
    go on as if it had not been."""
    data = texts(tmp_path / "texts")
    whole = ToyHead()
    Trainer(whole, data, schedule(), tmp_path / "whole").run()
    assert whole.depths == [1] * 4 + [2] * 4 + [3] * 4
    for killed_at, clock_step in ((1, 1.0), (5, 1.0), (7, 0.34), (11, 0.34)):
        folder = tmp_path / f"cut-{killed_at}"
        folder.mkdir()
        ticks = iter(range(10_000))

        def clock(ticks: Any = ticks, clock_step: float = clock_step) -> float:
            return next(ticks) * clock_step

        plan = schedule(save_seconds=1.0)
        with pytest.raises(SystemError):
            Trainer(KilledHead(killed_at), data, plan, folder).run(clock=clock)
        head = ToyHead()
        again = Trainer(head, data, plan, folder)
        assert again.step <= killed_at
        again.run()
        assert again.step == 12
        for found, expected in zip(weights(head), weights(whole), strict=True):
            assert torch.equal(found, expected)


@pytest.fixture(autouse=True)
def folders(tmp_path: Path) -> None:
    (tmp_path / "whole").mkdir()


def test_run_in_parts_and_again(tmp_path: Path) -> None:
    """`until` stops on the way; a training that is done does nothing more."""
    data, folder = texts(tmp_path / "texts"), tmp_path / "whole"
    trainer = Trainer(ToyHead(), data, schedule(), folder)
    trainer.run(until=5)
    assert trainer.step == 5
    done = ToyHead()
    Trainer(done, data, schedule(), folder).run()
    before = (folder / "state.pt").read_bytes()
    again = Trainer(ToyHead(), data, schedule(), folder)
    again.run()
    assert again.step == 12 and (folder / "state.pt").read_bytes() == before


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_told_to_stop(tmp_path: Path, number: signal.Signals) -> None:
    """The step under way is done and kept; the process's own handlers are back afterwards."""

    class Told(ToyHead):
        def loss(self, window: Any, depth: int) -> Any:
            if len(self.depths) == 4:
                os.kill(os.getpid(), number)
            return super().loss(window, depth)

    data, folder, before = texts(tmp_path / "texts"), tmp_path / "whole", signal.getsignal(number)
    with asked_to_stop() as stops:
        trainer = Trainer(Told(), data, schedule(), folder)
        trainer.run(stops=stops)
    assert trainer.step == 5 == Trainer(ToyHead(), data, schedule(), folder).step
    assert signal.getsignal(number) == before


def test_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The message says that what was before is kept, and it is: another run goes on from there."""
    data, folder = texts(tmp_path / "texts"), tmp_path / "whole"
    Trainer(ToyHead(), data, schedule(), folder).run(until=4)
    before = (folder / "state.pt").read_bytes()

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(TrainingError, match=r"No space left.*before is kept.*same command"):
            Trainer(ToyHead(), data, schedule(), folder).run(until=8)
    assert [path.name for path in folder.iterdir()] == ["state.pt"]
    assert (folder / "state.pt").read_bytes() == before
    assert Trainer(ToyHead(), data, schedule(), folder).step == 4


def test_damaged_state_is_named(tmp_path: Path) -> None:
    (tmp_path / "state.pt").write_bytes(b"no")
    with pytest.raises(TrainingError, match=r"state\.pt is no whole state.*remove it"):
        load_state(tmp_path)


def test_state_of_another_target(tmp_path: Path) -> None:
    """Refused with both values; the same facts are welcome again."""
    folder = tmp_path / "state"
    claim(folder, {"target": "a", "fingerprint": "12"})
    claim(folder, {"target": "a", "fingerprint": "12"})
    with pytest.raises(ConfigError, match=r"another training: fingerprint '12', not '34'"):
        claim(folder, {"target": "a", "fingerprint": "34"})


def test_held_out_texts_are_never_trained_on(tmp_path: Path) -> None:
    data = texts(tmp_path / "texts")
    assert data.held_out == [31]
    seen = {text for batch in data.batches(8, 24, 3) for text, _, _ in batch}
    assert seen == set(data.trained) and 31 not in seen
    found = Trainer(ToyHead(), data, schedule(), tmp_path).held_out()
    assert found.loss > 0 and len(found.agreement) == 3


def test_steps_of_passes(tmp_path: Path) -> None:
    data = texts(tmp_path / "texts")
    one = steps_of(data, 1, 8, 24, 5)
    assert steps_of(data, 0.001, 8, 24, 5) == 1
    assert one < steps_of(data, 2.5, 8, 24, 5) < steps_of(data, 3, 8, 24, 5)


def test_held_out_agreement_is_of_answers(tmp_path: Path) -> None:
    """Weighed by the rows that count; windows of prompts alone are left out."""
    paths = record(tmp_path / "texts", [16] * 64)
    seen: list[int] = []

    class Counted(ToyHead):
        def loss(self, window: Any, depth: int) -> Any:
            seen.extend(window.valid.sum(1).tolist())
            return torch.tensor(float(window.num_tokens)), [1.0] * depth

    for prompt, rows in ((0, [8, 8, 8, 8]), (11, [6, 6])):
        seen.clear()
        data = RecordedTexts(paths, LAYERS[:2], 4, prompts=[prompt] * 64)
        Trainer(Counted(), data, replace(schedule(), rows=8), tmp_path / "whole").held_out()
        assert seen == rows
