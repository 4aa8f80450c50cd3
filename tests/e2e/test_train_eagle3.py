"""examples/train_eagle3.py: a training of two steps leaves a head that its target can run."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from trtspec import SamplingParams

from .helpers import open_llm, tokens

ROOT = Path(__file__).parents[2]
TINY = ("--steps", "2", "--own_rows", "8", "--held_out_rows", "8", "--max_files", "40")


@pytest.mark.slow
def test_two_steps(tmp_path: Path) -> None:
    pytest.importorskip("modelopt", reason="needs nvidia-modelopt: pip install 'trtspec[train]'")
    target = ROOT / "trtspec" / "assets" / "trtspec-tiny"
    command = [sys.executable, "examples/train_eagle3.py", "--target", str(target), "--no_compile"]
    subprocess.run([*command, *TINY, "--output", str(tmp_path)], cwd=ROOT, check=True)
    speculation = {"method": "eagle3", "model": str(tmp_path / "trtspec-tiny-eagle3")}
    params = SamplingParams(max_tokens=12)
    prompts = [list(range(40, 60))]
    with open_llm(target, {**speculation, "num_speculative_tokens": 3}) as llm:
        drafted = tokens(llm.generate(prompts, params))
        assert llm.get_metrics()["num_draft_tokens"] > 0
    with open_llm(target) as plain:
        assert tokens(plain.generate(prompts, params)) == drafted
