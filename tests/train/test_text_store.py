"""Texts that survive a kill: whole rounds are kept, what was cut short leaves nothing."""

from __future__ import annotations

from pathlib import Path

from trtspec.train.text_store import StoredText, TextStore


def fill(store: TextStore, number: int) -> None:
    text = StoredText(f"{number}.safetensors", 10 + number, 3, f"key{number}")
    (store.folder / text.file).write_bytes(b"states")
    store.add_round(4, [text], {"short": number})


def test_kill_between_files_and_line(tmp_path: Path) -> None:
    store = TextStore(tmp_path / "texts")
    store.begin()
    for number in range(3):
        fill(store, number)
    manifest = tmp_path / "texts" / "rounds.jsonl"
    whole = manifest.read_bytes()
    (store.folder / "3.safetensors").write_bytes(b"of a round that never ended")
    (store.folder / ".4.safetensors.unfinished").write_bytes(b"half")
    for cut in (whole, whole + b'{"texts": [{"fi', whole[:-1]):
        manifest.write_bytes(cut)
        kept = 2 if cut == whole[:-1] else 3
        again = TextStore(tmp_path / "texts")
        assert again.num_begun == 4 * kept and again.num_tokens == sum(10 + i for i in range(kept))
        assert manifest.read_bytes() == cut, "reading changes nothing"
    again.begin()
    assert sorted(path.name for path in store.folder.iterdir()) == [
        "0.safetensors", "1.safetensors", "rounds.jsonl",
    ]  # fmt: skip
    fill(again, 2)
    assert manifest.read_bytes() == whole
    last = TextStore(tmp_path / "texts")
    assert last.texts == store.texts and last.keys == {"key0", "key1", "key2"}
    assert last.dropped == {"short": 3}
