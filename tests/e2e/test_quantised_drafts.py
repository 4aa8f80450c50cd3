"""Heads that are stored in whole numbers: over a target in floats, and over a quantised one, they
keep their bits, and draft what their floats draft."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from trtspec import SamplingParams

from ..checkpoints import quantised_layers
from ..checkpoints.quantised_layers import CASES
from .dflash_heads import BLOCK, dflash, right_dflash
from .eagle_heads import V, cycling_target, eagle, known_text, save_right_heads
from .helpers import assert_no_leak, open_llm, random_prompt, tokens
from .medusa_heads import medusa, right_heads, write_heads
from .mtp_modules import mtp, save_deep, save_right
from .quantised_folder import LEFT_OUT, quantised

SHARPNESS = 40.0
SCHEMES = ("modelopt-awq", "modelopt-int8", "pack-quantized", "int-quantized")
BODIES = [random_prompt(180 + i, n, V - 2) for i, n in enumerate((20, 4, 25))]
PROMPTS = [[i % 2, *(token + 2 for token in body)] for i, body in enumerate(BODIES)]
PARAMS = SamplingParams(max_tokens=40)
TEXTS = [known_text(prompt, 40) for prompt in PROMPTS]


@pytest.fixture(autouse=True)
def groups(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a size that there are kernels for."""
    monkeypatch.setattr(quantised_layers, "GROUP", 16)


@dataclass(frozen=True)
class Head:
    """A folder, how it drafts, and whether the target is in it too."""

    folder: Path
    drafts: Callable[[Path], dict[str, Any]]
    in_target: bool = False


def _eagle3(root: Path) -> Head:
    heads = save_right_heads(root, SHARPNESS)
    return Head(heads.eagle3, lambda folder: eagle(folder, "eagle3", num_speculative_tokens=3))


def _medusa(root: Path) -> Head:
    folder = write_heads(root, right_heads(3, SHARPNESS))
    pickled = folder / "medusa_lm_head.pt"
    save_file(torch.load(pickled), pickled.with_suffix(".safetensors"))
    pickled.unlink()
    return Head(folder, lambda folder: medusa(folder, topk=1))


def _dflash(root: Path) -> Head:
    folder = right_dflash(root, SHARPNESS)
    return Head(folder, lambda f: dflash(f, num_speculative_tokens=BLOCK - 1))


def _mtp(root: Path) -> Head:
    """Norms multiply by one more than their weight, all but the layers is shared."""
    folder = save_right(root, SHARPNESS, "qwen3_next", False)
    return Head(folder, lambda _: mtp(num_speculative_tokens=3), in_target=True)


def _modules(root: Path) -> Head:
    """Several, whose projections read the state first."""
    return Head(save_deep(root, "mimo"), lambda _: mtp(num_speculative_tokens=3), in_target=True)


HEADS: Mapping[str, Callable[[Path], Head]] = {
    "eagle3": _eagle3,
    "medusa": _medusa,
    "dflash": _dflash,
    "mtp": _mtp,
    "modules": _modules,
}


def of_target(folder: Path) -> tuple[str, ...]:
    """The layers in a checkpoint that are not of MTP modules."""
    names = load_file(folder / "model.safetensors")
    return tuple(n.removesuffix(".weight") for n in names if "mtp" not in n)


def run(target: Path, speculation: dict[str, Any], **options: Any) -> tuple[Any, dict[str, Any]]:
    """How a draft is stored, and what was counted; texts are the known ones."""
    with open_llm(target, speculation, **options) as llm:
        assert tokens(llm.generate(PROMPTS, PARAMS, use_tqdm=False)) == TEXTS
        assert_no_leak(llm)
        (draft,) = llm.config.drafts
        counted = llm.get_metrics()
        return draft.storage, {k: v for k, v in counted.items() if k.startswith("num_")}


OFTEN = ("eagle3", "modules")
"""With one scheme; a folder of its own, and one that is the target's too."""
EACH = [
    pytest.param(
        name,
        scheme,
        marks=[] if name in OFTEN and scheme == SCHEMES[0] else [pytest.mark.matrix],
    )
    for name in HEADS
    for scheme in SCHEMES
]


@pytest.mark.parametrize(("name", "scheme"), EACH)
def test_heads_in_whole_numbers(tmp_path: Path, name: str, scheme: str) -> None:
    head, case = HEADS[name](tmp_path / name), CASES[scheme]
    if head.in_target:
        drafted = quantised(head.folder, case, tmp_path / "d", of_target(head.folder), True)
        targets = quantised(head.folder, case, tmp_path / "t", LEFT_OUT, True)
        pairs = [[(f, f) for f in drafted], [(f, f) for f in targets]]
    else:
        plain = tmp_path / "target"
        cycling_target(SHARPNESS).save_pretrained(plain)
        whole, _ = quantised(plain, case, tmp_path / "t", LEFT_OUT, True)
        drafted = quantised(head.folder, case, tmp_path / "d", (), True)
        pairs = [[(target, f) for f in drafted] for target in (plain, whole)]
    for (kept, numbers), (exact, floats) in pairs:
        storage, counted = run(kept, head.drafts(numbers), activation_dtype="float32")
        assert storage is not None
        of_floats, expected = run(exact, head.drafts(floats), activation_dtype="float32")
        assert of_floats is None and counted == expected
        assert counted["num_accepted_tokens"] > 0.5 * counted["num_draft_tokens"]
        run(kept, head.drafts(numbers))  # with inputs of 8 bits, where the target's are
