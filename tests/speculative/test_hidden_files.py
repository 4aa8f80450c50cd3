"""Files of hidden states: their bytes, and what failures, kills and slow disks leave."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import trtspec.speculative.hidden_states.files as hidden_files
from trtspec.errors import ConfigError, EngineError
from trtspec.speculative.hidden_states.files import (
    HiddenFileWriter,
    remove_leftovers,
    write_hidden_states,
)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_round_trip(tmp_path: Path, dtype: torch.dtype) -> None:
    """Any split into parts, views among them, gives the same file."""
    states = torch.randn(7, 3, 5).to(dtype)
    tokens = [3, 1, 4, 1, 5, 9, 2**40]
    flat = states.view(7, 15)
    wide = torch.randn(2, 30).to(dtype)
    wide[:, ::2] = flat[2:4]
    for number, rows in enumerate(
        ([flat], list(flat[:, None]), [flat[:2], wide[:, ::2], flat[4:]])
    ):
        path = tmp_path / f"{number}.safetensors"
        write_hidden_states(path, tokens, rows, [4, -1, 0])
        loaded = load_file(path)
        assert loaded["token_ids"].tolist() == tokens
        assert loaded["hidden_states"].dtype == dtype
        assert torch.equal(loaded["hidden_states"], states)
    contents = {path.read_bytes() for path in tmp_path.iterdir()}
    assert len(contents) == 1 and len(list(tmp_path.iterdir())) == 3


def test_failures_leave_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(unfinished: Path, path: Path) -> None:
        assert unfinished.exists() and not path.exists()
        raise KeyboardInterrupt

    rows = [torch.zeros(2, 4)]
    with pytest.raises(KeyboardInterrupt):
        write_hidden_states(tmp_path / "a.safetensors", [1, 2], rows, [0], fail)
    assert list(tmp_path.iterdir()) == []
    writer = HiddenFileWriter(tmp_path / "gone", 1)
    (tmp_path / "gone").rmdir()
    file = writer.submit(0, [1, 2], rows, [0])
    with pytest.raises(EngineError, match=r"2 tokens \(32 bytes\) cannot be written to .*gone"):
        file.result()
    assert rows == []  # its memory is free


KILLED = """
import sys, time
from pathlib import Path
import torch
import trtspec.speculative.hidden_states.files as hidden_files
def hang(file, tensor):
    file.write(b"x" * 100)
    file.flush()
    print("half", flush=True)
    time.sleep(60)
hidden_files._write_tensor = hang
hidden_files.write_hidden_states(Path(sys.argv[1]), [1], [torch.zeros(1, 4)], [0])
"""


@pytest.mark.slow
def test_a_killed_writer(tmp_path: Path) -> None:
    """What it leaves is never taken for a file, and goes once nobody writes it any more."""
    command = [sys.executable, "-c", KILLED, str(tmp_path / "a.safetensors")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdout.readline() == "half\n"
        (left,) = tmp_path.iterdir()
        assert list(tmp_path.glob("*.safetensors")) == []
        os.utime(left, (0, 0))
        assert remove_leftovers(tmp_path) == 0 and left.exists()  # it is being written
        process.send_signal(signal.SIGKILL)
    fresh = tmp_path / ".b.safetensors.unfinished"
    fresh.touch()
    whole = tmp_path / "c.safetensors"
    write_hidden_states(whole, [1], [torch.zeros(1, 4)], [0])
    os.utime(left, (0, 0))
    HiddenFileWriter(tmp_path, 1)
    assert sorted(tmp_path.iterdir()) == [fresh, whole]


def test_a_slow_disk_bounds_what_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With one thread two files may be under way; a third waits for its turn."""
    write, go_on = hidden_files._write_tensor, threading.Event()

    def slow(file: Any, tensor: torch.Tensor) -> None:
        assert go_on.wait(30)
        write(file, tensor)

    monkeypatch.setattr(hidden_files, "_write_tensor", slow)
    writer = HiddenFileWriter(tmp_path, 1)
    done: list[int] = []

    def submit(count: int) -> None:
        for i in range(count):
            file = writer.submit(len(done), [i], [torch.zeros(1, 4)], [0])
            done.append(i)
            files.append(file)

    files: list[hidden_files.HiddenFile] = []
    thread = threading.Thread(target=submit, args=(3,))
    thread.start()
    thread.join(0.3)
    assert thread.is_alive() and done == [0, 1]
    go_on.set()
    thread.join(30)
    paths = [file.result()["hidden_states_path"] for file in files]
    assert sorted(paths) == sorted(map(str, tmp_path.iterdir())) and len(set(paths)) == 3


@pytest.mark.parametrize("when", ["waiting", "writing", "written"])
def test_discard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str) -> None:
    write, begun, go_on = hidden_files._write_tensor, threading.Event(), threading.Event()

    def slow(file: Any, tensor: torch.Tensor) -> None:
        begun.set()
        assert go_on.wait(30)
        write(file, tensor)

    monkeypatch.setattr(hidden_files, "_write_tensor", slow)
    writer = HiddenFileWriter(tmp_path, 1)
    first = writer.submit(0, [1], [torch.zeros(1, 4)], [0])
    assert begun.wait(30)
    if when == "written":
        go_on.set()
        first.result()
        first.discard()
        assert list(tmp_path.iterdir()) == []
        return
    second = writer.submit(1, [1], [torch.zeros(1, 4)], [0])
    (first if when == "writing" else second).discard()
    ended = threading.Event()
    second.add_done_callback(ended.set)
    go_on.set()
    assert ended.wait(30)
    first.result()
    assert [path.name.endswith(f"-{int(when == 'writing')}.safetensors")
            for path in tmp_path.iterdir()] == [True]  # fmt: skip


def test_a_folder_is_made_or_refused(tmp_path: Path) -> None:
    HiddenFileWriter(tmp_path / "a" / "b", 1)
    assert list((tmp_path / "a" / "b").iterdir()) == []
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"cannot be written to .*give a folder"):
        HiddenFileWriter(tmp_path / "file", 1)
