"""python -m trtspec.bench.runtimes: the two runtimes side by side."""

from __future__ import annotations

from pathlib import Path

import pytest

from trtspec.bench.runtimes import main
from trtspec.errors import EngineError

from .program import Program

pytestmark = pytest.mark.slow


def test_table(program: Program, chain_engine: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sizes = ["--num_prompts", "2", "--prompt_tokens", "24", "--max_tokens", "12", "--rounds", "1"]
    main(["--engine_dir", str(chain_engine), "--program", str(program.path), *sizes])
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[:-4] for line in lines[1:5]] == [
        ["none", "Python"],
        ["none", "C++"],
        ["as", "built", "Python"],
        ["as", "built", "C++"],
    ]
    assert lines[5] == "the same tokens everywhere"


@pytest.mark.usefixtures("program")  # where there is none, no engine is compiled for this alone
def test_a_failing_program(chain_engine: Path) -> None:
    with pytest.raises(EngineError, match="/bin/false failed"):
        main(["--engine_dir", str(chain_engine), "--program", "/bin/false", "--num_prompts", "1"])
