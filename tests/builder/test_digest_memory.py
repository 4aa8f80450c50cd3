"""Digests are remembered as long as a file stays what it was, and a bad memory is only a miss."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import trtspec.builder.digest_memory as module
from checkpoint_converters.content_hash import hash_file
from trtspec.builder.digest_memory import DigestMemory
from trtspec.builder.plan import plan_build
from trtspec.config.build_config import BuildConfig

from ..e2e.helpers import TinyModels

OLD = 10**18  # ns: a time long past


@pytest.fixture
def hashed(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The names of the files that were really read. All files count as settled."""
    names: list[str] = []
    monkeypatch.setattr(module, "SETTLED_NS", -(10**12))

    def watched(file: Path, threads: int) -> str:
        names.append(file.name)
        return hash_file(file, threads)

    monkeypatch.setattr(module, "hash_file", watched)
    yield names


def write(path: Path, content: bytes, time_ns: int = OLD) -> Path:
    path.write_bytes(content)
    os.utime(path, ns=(time_ns, time_ns))
    return path


def test_read_once(tmp_path: Path, hashed: list[str]) -> None:
    file = write(tmp_path / "weights", b"abc")
    link = tmp_path / "link"
    link.symlink_to(file)
    memory = tmp_path / "memory"
    for path in (file, file, link):
        assert DigestMemory(memory).digest(path) == hash_file(file)
    assert hashed == ["weights"]
    assert DigestMemory(memory, verify=True).digest(file) == hash_file(file)
    assert hashed == ["weights"] * 2


@pytest.mark.parametrize("change", ["content", "size", "time", "inode", "path"])
def test_any_change_is_a_miss(tmp_path: Path, hashed: list[str], change: str) -> None:
    file, memory = write(tmp_path / "weights", b"abc"), DigestMemory(tmp_path / "memory")
    memory.digest(file)
    if change == "content":
        write(file, b"abd", OLD + 1)  # one nanosecond later
    elif change == "size":
        write(file, b"abcd")
    elif change == "time":
        write(file, b"abc", OLD - 1)
    elif change == "inode":
        write(tmp_path / "other", b"abd").replace(file)
    else:
        file = write(tmp_path / "other", b"abd")
    assert memory.digest(file) == hash_file(file)
    assert len(hashed) == 2


def test_times_that_were_put_back(tmp_path: Path, hashed: list[str]) -> None:
    """Other contents of the same size, time and inode."""
    file, memory = write(tmp_path / "weights", b"abc"), DigestMemory(tmp_path / "memory")
    memory.digest(file)
    time.sleep(0.05)  # a tick of the file system's clock
    write(file, b"abd")
    assert memory.digest(file) == hash_file(file)
    assert len(hashed) == 2


def test_verify_finds_what_no_time_shows(
    tmp_path: Path, hashed: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a disk that rots; what is found is remembered."""
    monkeypatch.setattr(module, "_facts", lambda path: "always the same")
    file, folder = write(tmp_path / "weights", b"abc"), tmp_path / "memory"
    before = DigestMemory(folder).digest(file)
    write(file, b"abd")
    assert DigestMemory(folder).digest(file) == before
    assert DigestMemory(folder, verify=True).digest(file) == hash_file(file) != before
    assert DigestMemory(folder).digest(file) == hash_file(file)
    assert len(hashed) == 2


def test_a_file_that_just_changed_is_not_remembered(
    tmp_path: Path, hashed: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It could change again within one tick of its clock."""
    monkeypatch.setattr(module, "SETTLED_NS", 2 * 10**9)
    file, memory = tmp_path / "weights", DigestMemory(tmp_path / "memory")
    file.write_bytes(b"abc")
    assert memory.digest(file) == memory.digest(file)
    assert len(hashed) == 2 and not (tmp_path / "memory").exists()


def test_a_file_that_changes_meanwhile_is_not_remembered(
    tmp_path: Path, hashed: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file, memory = write(tmp_path / "weights", b"abc"), DigestMemory(tmp_path / "memory")

    def slow(path: Path, threads: int) -> str:
        digest = hash_file(path, threads)
        write(path, b"xyz", OLD + 5)
        return digest

    monkeypatch.setattr(module, "hash_file", slow)
    memory.digest(file)
    monkeypatch.setattr(module, "hash_file", hash_file)
    assert memory.digest(file) == hash_file(file)


def damages() -> list[Callable[[bytes], bytes]]:
    """Every byte changed in turn, and other contents."""
    chosen = random.Random(0)

    def flipped(place: float) -> Callable[[bytes], bytes]:
        def damage(content: bytes) -> bytes:
            at = int(place * len(content))
            return content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :]

        return damage

    others = (b"", b"\xff\xfe", b"{}", b"a\nb\nc", b"\n\n")
    return [
        *(flipped(chosen.random()) for _ in range(40)),
        lambda content: content[: len(content) // 2],
        lambda content: content + b"\nmore",
        *(lambda _, other=other: other for other in others),
    ]


def test_a_damaged_memory_is_a_miss(tmp_path: Path, hashed: list[str]) -> None:
    file, memory = write(tmp_path / "weights", b"abc"), DigestMemory(tmp_path / "memory")
    memory.digest(file)
    (place,) = (tmp_path / "memory").iterdir()
    whole = place.read_bytes()
    for damage in damages():
        place.write_bytes(damage(whole))
        assert memory.digest(file) == hash_file(file)
        assert place.read_bytes() == whole, "mended"


def test_without_a_place_to_write(tmp_path: Path, hashed: list[str]) -> None:
    file = write(tmp_path / "weights", b"abc")
    (tmp_path / "no-folder").write_text("")
    assert DigestMemory(tmp_path / "no-folder").digest(file) == hash_file(file)


def test_many_at_once(tmp_path: Path, hashed: list[str]) -> None:
    """All get the digest, and one whole memory stays, with no scratch file beside it."""
    file, memory = write(tmp_path / "weights", os.urandom(10**5)), DigestMemory(tmp_path / "m")
    with ThreadPoolExecutor(8) as pool:
        digests = set(pool.map(memory.digest, [file] * 40))
    assert digests == {hash_file(file)}
    assert len(list((tmp_path / "m").iterdir())) == 1


def test_a_plan_reads_its_weights_once(models: TinyModels, hashed: list[str]) -> None:
    folder = models.folder("llama")
    for file in folder.iterdir():
        os.utime(file, ns=(OLD, OLD))
    plans = [plan_build(folder, BuildConfig(backend="eager")) for _ in range(2)]
    assert plans[0].fingerprint == plans[1].fingerprint
    assert hashed.count("model.safetensors") <= 1
    again = plan_build(folder, BuildConfig(backend="eager"), verify=True)
    assert again.fingerprint == plans[0].fingerprint
    assert "model.safetensors" in hashed
