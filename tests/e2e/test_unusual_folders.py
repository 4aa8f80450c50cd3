"""A checkout, an environment, temporary files and caches in folders that shells take apart."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import trtspec

SCRIPT = """
import torch, trtspec
from trtspec import LLM, SamplingParams

print(torch.__file__, trtspec.__file__)
limits = {"max_batch_size": 1, "max_seq_len": 64, "max_num_tokens": 32}
with LLM("trtspec-tiny", **limits) as llm:
    print(len(llm.generate("def main(", SamplingParams(max_tokens=4)).outputs[0].token_ids))
"""


@pytest.mark.ci
def test_compiling_where_names_hold_spaces(tmp_path: Path) -> None:
    root = tmp_path / "my project (1) 'ö'"
    (root / "temporary files").mkdir(parents=True)
    installed = {"site": Path(torch.__path__[0]).parent, "own": Path(trtspec.__path__[0]).parent}
    for name, folder in installed.items():
        (root / name).symlink_to(folder)
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(str(root / name) for name in ("own", "site")),
        "TMPDIR": str(root / "temporary files"),
        "TRTSPEC_CACHE_DIR": str(root / "a cache"),
    }
    environment.pop("TORCHINDUCTOR_CACHE_DIR", None)
    ran = subprocess.run(
        [sys.executable, "-c", SCRIPT], env=environment, cwd=root, capture_output=True, text=True
    )
    assert ran.stdout.split("\n")[0].count(str(root)) == 2, ran.stderr
    assert ran.stdout.split()[-1] == "4", ran.stderr
