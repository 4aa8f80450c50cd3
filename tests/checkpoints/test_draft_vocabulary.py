"""Draft vocabularies: offsets become ids, ids are not taken for offsets, maps cut the head."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file
from torch import Tensor

from checkpoint_converters.containers.safetensors_files import TensorHeader, read_file_header
from checkpoint_converters.token_map import doubts_about, read_d2t, read_token_map, require_order
from trtspec.builder.checkpoints import read_draft
from trtspec.errors import CheckpointError

from .draft_folder import IDS, TARGET, H, V, covered, offsets, speculators, yuhuili1, yuhuili3


def table_of(path: Path, d2t: Tensor, t2d: Tensor | None) -> dict[str, TensorHeader]:
    file = path / "table.safetensors"
    save_file({"d2t": d2t} | ({} if t2d is None else {"t2d": t2d}), file)
    return read_file_header(file)


def table(path: Path, d2t: Tensor, t2d: Tensor | None, vocab: int) -> Tensor:
    headers = table_of(path, d2t, t2d)
    return read_d2t(headers["d2t"], headers.get("t2d"), vocab)


@settings(max_examples=50, deadline=None)
@given(vocab=st.integers(2, 200), data=st.data(), dtype=st.sampled_from([torch.int64, torch.int32]))
def test_offsets_round_trip(
    tmp_path_factory: pytest.TempPathFactory, vocab: int, data: st.DataObject, dtype: torch.dtype
) -> None:
    ids = sorted(data.draw(st.sets(st.integers(0, vocab - 1), min_size=1)))
    mask = torch.zeros(vocab, dtype=torch.bool)
    mask[ids] = True
    path = tmp_path_factory.mktemp("d2t")
    for t2d in (None, mask):
        assert table(path, offsets(ids).to(dtype), t2d, vocab).tolist() == ids
    absolute = torch.tensor(ids)
    if not torch.equal(absolute, offsets(ids)):  # one id, in the first row, is its own offset
        with pytest.raises(CheckpointError, match="subtract the row number"):
            table(path, absolute, mask, vocab)


def test_ids_for_offsets_are_refused(tmp_path: Path) -> None:
    message = r"row 4 gives token 21, the target has tokens 0 to 19.*subtract the row number"
    with pytest.raises(CheckpointError, match=message):
        table(tmp_path, torch.tensor([0, 3, 4, 9, 17, 19]), None, V)
    # In range by chance: only the mask tells.
    with pytest.raises(CheckpointError, match="t2d shows"):
        table(tmp_path, torch.tensor([0, 3, 4]), covered([0, 3, 4]), V)


@pytest.mark.parametrize(
    ("d2t", "message"),
    [
        ([0, 0, 18], "row 2 gives token 20, the target has tokens 0 to 19"),
        ([-1, 0, 0], "row 0 gives token -1"),
        ([1, 0, 5], "row 1 gives token 1, as row 0 does"),
    ],
)
def test_bad_offsets(tmp_path: Path, d2t: list[int], message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        table(tmp_path, torch.tensor(d2t), None, V)
    with pytest.raises(CheckpointError, match=r"F32 \[3\]; it must be one row of integers"):
        table(tmp_path, torch.tensor(d2t).float(), None, V)


def test_bad_offsets_name_the_folder(tmp_path: Path) -> None:
    folder = yuhuili3(tmp_path)
    folder.tensors["d2t"] = torch.tensor(IDS)
    with pytest.raises(CheckpointError, match=r"pytorch_model\.bin: d2t"):
        read_draft(folder.write(pickled=True), TARGET)


def test_uncalibrated_offsets_are_noted(tmp_path: Path) -> None:
    folder = yuhuili3(tmp_path)
    assert not any("calibrated" in note for note in read_draft(folder.write(), TARGET).notes)
    folder.tensors |= {"d2t": torch.zeros(6).long(), "t2d": covered(list(range(6)))}
    draft = read_draft(folder.write(), TARGET)
    assert draft.tensors["token_map"].tolist() == [0, 1, 2, 3, 4, 5]
    assert any("never calibrated" in note for note in draft.notes)


@pytest.mark.parametrize(
    ("ids", "mask", "message"),
    [
        # As a head is made, before its vocabulary is chosen: every token, or none.
        (list(range(6)), list(range(V)), r"d2t covers 6 tokens, t2d 20; d2t is all zeros"),
        (list(range(6)), [], r"d2t covers 6 tokens, t2d 0, and 6 of d2t's are not.*all zeros"),
        (list(range(6)), IDS, r"t2d 6, and 3 of d2t's are not among them, .* token 1 of row 1"),
        (IDS, [0, 3, 4, 9, 15, 18], r"t2d 6, and 1 of d2t's .* token 19 of row 5: save the d2t"),
        (IDS, IDS[:5], r"t2d 5, and 1 of d2t's .* if d2t is right, leave t2d out"),
        (IDS, [*IDS, 1], r"d2t covers 6 tokens, t2d 7: save"),
    ],
)
@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int64, torch.float32])
def test_tables_that_contradict_each_other(
    tmp_path: Path, ids: list[int], mask: list[int], message: str, dtype: torch.dtype
) -> None:
    with pytest.raises(CheckpointError, match=message):
        table(tmp_path, offsets(ids), covered(mask).to(dtype), V)


def test_the_mask_of_a_whole_head_does_not_matter(tmp_path: Path) -> None:
    assert len(table(tmp_path, torch.zeros(V).long(), covered([]), V)) == V


def doubts(path: Path, d2t: Tensor, t2d: Tensor | None, vocab: int) -> tuple[str, ...]:
    headers = table_of(path, d2t, t2d)
    t2d_header = headers.get("t2d")
    return doubts_about(read_d2t(headers["d2t"], t2d_header, vocab), t2d_header, vocab)


NONE, BLOCK, AS_IDS = (
    None,
    "but one block of the target's 203 tokens, ",
    " different token ids of 203",
)
SPARSE = [0, 1, 3, 4, 6, 9, *range(12, 48, 2)]
"""Token ids, which are possible as offsets too."""


@pytest.mark.parametrize(
    ("d2t", "t2d", "doubt"),
    [
        ([0] * 24, None, "first 24 tokens of 203.*never calibrated.*accepted seldom"),
        ([0] * 24, covered(list(range(24)), 203), "never calibrated"),
        ([5] * 24, None, f"{BLOCK}5 to 28.*save the d2t"),
        ([5] * 24, covered(list(range(5, 29)), 203), NONE),
        ([0] * 20 + [1] * 4, None, f"{BLOCK}0 to 24,"),
        (SPARSE, None, f"holds 24{AS_IDS}.*subtract the row"),
        ([*SPARSE[:-2], 60, 48], None, f"holds 24{AS_IDS}"),
        # A mask says that they are none.
        (SPARSE, covered([id + row for row, id in enumerate(SPARSE)], 203), NONE),
        # Filled up at the end.
        (SPARSE[:-1] + SPARSE[-2:-1], None, f"holds 23{AS_IDS}"),
        ([*SPARSE[:-1], 160], torch.arange(203), "t2d is I64 with other values than 0 and 1"),
        # All but two of the target's tokens.
        ([2] * 201, None, NONE),
        # So few offsets may well all differ.
        (SPARSE[:12], None, NONE),
    ],
)
def test_doubts(tmp_path: Path, d2t: list[int], t2d: Tensor | None, doubt: str | None) -> None:
    found = doubts(tmp_path, torch.tensor(d2t), t2d, 203)
    assert re.search(str(doubt), found[0]) if doubt else found == ()


@pytest.mark.parametrize(("count", "gap"), [(24, 4), (64, 4), (64, 2), (1000, 4), (2000, 12)])
def test_tables_of_scattered_tokens_are_not_doubted(tmp_path: Path, count: int, gap: int) -> None:
    noise = torch.Generator().manual_seed(count)
    for _ in range(20):
        ids = torch.randperm(count * gap, generator=noise)[:count].sort().values.tolist()
        assert doubts(tmp_path, offsets(ids), None, count * gap) == ()


def test_doubts_are_among_the_notes(tmp_path: Path) -> None:
    folder = yuhuili3(tmp_path)
    assert read_draft(folder.write(), TARGET).doubts == ()
    folder.tensors |= {"d2t": torch.zeros(6).long()}
    folder.tensors.pop("t2d")
    draft = read_draft(folder.write(), TARGET)
    assert len(draft.doubts) == 1 and draft.doubts[0] in draft.notes


def test_a_table_that_reorders_a_full_head(tmp_path: Path) -> None:
    folder = yuhuili3(tmp_path)
    swapped = [1, 0, *range(2, V)]
    folder.tensors |= {"d2t": offsets(swapped), "lm_head.weight": torch.randn(V, H)}
    with pytest.raises(CheckpointError, match="reorders a head of all 20 tokens"):
        read_draft(folder.write(draft_vocab_size=V), TARGET)


@pytest.mark.parametrize(
    "content", [[9, 0, 3], torch.tensor([9, 0, 3]), torch.tensor([9, 0, 3]).int()]
)
def test_token_map_files(tmp_path: Path, content: Any) -> None:
    torch.save(content, tmp_path / "freq.pt")
    assert read_token_map(tmp_path / "freq.pt", V).tolist() == [9, 0, 3]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ([], "is no token map"),
        ([1, "two"], "is no token map"),
        ([True, False], "is no token map"),
        ({"ids": [1]}, "is no token map"),
        (torch.ones(2, 2).long(), "is no token map"),
        (torch.tensor([0.5]), "is no token map"),
        ([3, 20], "entry 1 gives token 20, the target has tokens 0 to 19"),
        ([-2], "entry 0 gives token -2"),
        ([5, 7, 5], "entry 2 gives token 5, as row 0 does$"),
        ([0, 2, 2, 6], "entry 2 gives token 2, as row 1 does.*look like a d2t: add the entry"),
    ],
)
def test_bad_token_maps(tmp_path: Path, content: Any, message: str) -> None:
    torch.save(content, tmp_path / "freq.pt")
    with pytest.raises(CheckpointError, match=message):
        read_token_map(tmp_path / "freq.pt", V)


def test_token_map_damaged_or_absent(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"freq\.pt does not exist"):
        read_token_map(tmp_path / "freq.pt", V)
    (tmp_path / "freq.pt").write_text("1 2 3")
    with pytest.raises(CheckpointError, match=r"freq\.pt"):
        read_token_map(tmp_path / "freq.pt", V)


@pytest.mark.parametrize(
    ("order", "message"),
    [
        (torch.randperm(V), None),
        (torch.zeros(V).long(), "must hold each token once, and row 1 gives token 0, as row 0"),
        (torch.arange(1, V + 1), "row 19 gives token 20, the target has tokens 0 to 19"),
        (torch.arange(V - 1), r"is I64 \[19\]; it must be .* the target's 20 tokens"),
        (torch.arange(V).float(), r"is F32 \[20\]"),
    ],
)
def test_orders(tmp_path: Path, order: Tensor, message: str | None) -> None:
    """By which an assistant's head is cut into clusters."""
    save_file({"order": order}, tmp_path / "order.safetensors")
    header = read_file_header(tmp_path / "order.safetensors")["order"]
    if message is None:
        require_order(header, V)
        return
    with pytest.raises(CheckpointError, match=message):
        require_order(header, V)


def test_token_map_cuts_an_own_head(tmp_path: Path) -> None:
    folder, ids = yuhuili1(tmp_path), [19, 2, 7]
    folder.tensors["lm_head.weight"] = torch.randn(V, H)
    torch.save(ids, tmp_path / "freq.pt")
    draft = read_draft(folder.write(), TARGET, tmp_path / "freq.pt")
    assert draft.config.draft_vocab_size == 3 and draft.config.own_head  # type: ignore[union-attr]
    assert torch.equal(draft.tensors["head.weight"], folder.tensors["lm_head.weight"][ids])
    assert draft.tensors.headers["head.weight"].shape == (3, H)
    assert draft.tensors["token_map"].tolist() == ids
    assert draft.tensors["token_map"].dtype == torch.int64


def test_token_map_of_a_borrowed_head(tmp_path: Path) -> None:
    path = yuhuili1(tmp_path).write()
    torch.save([2, 7], tmp_path / "freq.pt")
    torch.save([2, 8], tmp_path / "other.pt")
    draft = read_draft(path, TARGET, tmp_path / "freq.pt")
    assert draft.config.draft_vocab_size == 2 and not draft.config.own_head  # type: ignore[union-attr]
    assert draft.tensors["token_map"].tolist() == [2, 7] and "head.weight" not in draft.tensors
    note = f"proposes 2 of the target's 20 tokens ({tmp_path / 'freq.pt'})"
    assert f"{note}; the end of text (19) is not among them" in draft.notes
    prints = {read_draft(path, TARGET, f).fingerprint for f in (None, *tmp_path.glob("*.pt"))}
    assert len(prints) == 3


def test_token_map_of_everything_changes_nothing(tmp_path: Path) -> None:
    torch.save(list(range(V)), tmp_path / "freq.pt")
    draft = read_draft(yuhuili1(tmp_path).write(), TARGET, tmp_path / "freq.pt")
    assert "token_map" not in draft.tensors
    assert not draft.config.maps_tokens  # type: ignore[union-attr]


def test_token_map_where_there_is_one_already(tmp_path: Path) -> None:
    torch.save([1, 2], tmp_path / "freq.pt")
    with pytest.raises(CheckpointError, match=r"own token map \(d2t, 6 tokens\).*freq\.pt"):
        read_draft(speculators(tmp_path).write(), TARGET, tmp_path / "freq.pt")


@pytest.mark.parametrize(
    ("drop", "changes", "message"),
    [
        ("d2t", {}, "covers 6 of the target's 20 tokens, but the checkpoint lacks d2t"),
        ("lm_head.weight", {}, "covers 6 of the target's 20 tokens.* lacks lm_head.weight"),
        (None, {"draft_vocab_size": 7}, "has 7 tokens, but d2t is for 6"),
        (None, {"draft_vocab_size": "six"}, "draft_vocab_size is 'six'"),
        (None, {"vocab_size": 21}, "vocabulary of 21 tokens, the target has 20"),
    ],
)
def test_sizes_that_disagree(
    tmp_path: Path, drop: str | None, changes: dict[str, Any], message: str
) -> None:
    folder = yuhuili3(tmp_path)
    if drop is not None:
        del folder.tensors[drop]
    with pytest.raises(CheckpointError, match=message):
        read_draft(folder.write(**changes), TARGET)


def test_larger_than_the_target(tmp_path: Path) -> None:
    folder = yuhuili3(tmp_path)
    path = folder.write()
    with pytest.raises(CheckpointError, match=r"vocabulary of 20 tokens, the target has 18"):
        read_draft(path, replace(TARGET, vocab_size=18))
    folder.tensors["t2d"] = torch.ones(V + 1, dtype=torch.bool)
    with pytest.raises(CheckpointError, match=r"t2d is \[21\], the target has 20"):
        read_draft(folder.write(), TARGET)
    folder.tensors["lm_head.weight"] = torch.randn(7, H)
    with pytest.raises(CheckpointError, match=r"has 6 tokens, but lm_head\.weight is for 7"):
        read_draft(folder.write(), TARGET)
