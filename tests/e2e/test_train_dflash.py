"""examples/train_dflash.py: a training of two steps leaves a head that its target can run."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from trtspec import SamplingParams

from .dflash_heads import dflash
from .helpers import open_llm, tokens

ROOT = Path(__file__).parents[2]
TINY = ("--steps", "2", "--own_rows", "8", "--held_out_rows", "8", "--max_files", "40")
TARGET = ROOT / "trtspec" / "assets" / "trtspec-tiny"


@pytest.mark.slow
def test_two_steps(tmp_path: Path) -> None:
    pytest.importorskip("modelopt", reason="needs nvidia-modelopt: pip install 'trtspec[train]'")
    command = [sys.executable, "examples/train_dflash.py", "--target", str(TARGET), "--no_compile"]
    command += [*TINY, "--output", str(tmp_path)]
    ran = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True)
    assert "held-out acceptance" in ran.stdout
    folder = tmp_path / "trtspec-tiny-dflash"
    assert "# trtspec-tiny-dflash" in (folder / "README.md").read_text()
    params = SamplingParams(max_tokens=12)
    prompts = [list(range(40, 60))]
    with open_llm(TARGET, dflash(folder, num_speculative_tokens=7)) as llm:
        drafted = tokens(llm.generate(prompts, params))
        assert llm.get_metrics()["num_draft_tokens"] > 0
    with open_llm(TARGET) as plain:
        assert tokens(plain.generate(prompts, params)) == drafted
