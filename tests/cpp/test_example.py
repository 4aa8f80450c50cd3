"""`examples/generate.cpp`: its tokens are those of Python."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from trtspec import LLM, SamplingParams

from ..cpp_build import cpp_programs


@pytest.mark.slow
def test_it_generates_as_python_does(chain_engine: Path) -> None:
    program = cpp_programs()["example_generate"]
    prompt = [3, 5, 8, 13]
    with LLM(chain_engine) as llm:
        params = SamplingParams(max_tokens=20, temperature=0, ignore_eos=True)
        expected = llm.generate({"prompt_token_ids": prompt}, params).outputs[0].token_ids
    command = [str(program), str(chain_engine), "20", *map(str, prompt)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert [int(token) for token in done.stdout.split()] == expected
    assert "tokens a step" in done.stderr


def test_it_says_what_is_wrong(tmp_path: Path) -> None:
    program = cpp_programs()["example_generate"]
    done = subprocess.run([program, tmp_path, "4", "1"], capture_output=True, text=True)
    assert done.returncode == 1 and str(tmp_path) in done.stderr
