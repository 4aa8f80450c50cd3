"""The distance of kept weights from their floats: none but that of rounded inputs."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from trtspec.bench.report.result_file import load, rows
from trtspec.bench.runs.divergence import Divergence, exact_build, log_probabilities_of
from trtspec.commands.bench import main
from trtspec.config.build_config import BuildConfig

from ..checkpoints.tiny_gguf import tiny

IDS = [i % 40 for i in range(70)]


def test_rounded_inputs_are_what_differs(tmp_path: Path) -> None:
    model = tiny("Q4_0").write(tmp_path / "model.gguf")
    _, exact = log_probabilities_of(model, exact_build(), IDS)

    def away(**options: str) -> Divergence:
        return Divergence.of(exact, log_probabilities_of(model, BuildConfig(**options), IDS)[1])

    same = away(dtype="float32", activation_dtype="float32")
    assert same.agrees.double().mean() > 0.98
    assert abs(same.nats.mean()) < 1e-7 < away(dtype="float32").nats.mean() < 0.1


def test_around_quantised_weights_is_float32(tmp_path: Path) -> None:
    """K/V aside; in bfloat16 more would be lost."""
    model = tiny("Q4_0").write(tmp_path / "model.gguf")
    _, exact = log_probabilities_of(model, BuildConfig("float32"), IDS)
    kept, usual = log_probabilities_of(model, BuildConfig(), IDS)
    said = BuildConfig("float32", kv_cache_dtype="float16")
    assert kept.startswith("float32")
    assert torch.equal(usual[0], log_probabilities_of(model, said, IDS)[1][0])
    _, narrow = log_probabilities_of(model, BuildConfig("bfloat16"), IDS)
    assert Divergence.of(exact, usual).nats.mean() < Divergence.of(exact, narrow).nats.mean()


def test_the_worst_come_first() -> None:
    exact = torch.log_softmax(torch.zeros(3, 4), -1)
    found = torch.log_softmax(torch.tensor([[0.0] * 4, [3.0, 0, 0, 0], [0, 1.0, 0, 0]]), -1)
    away = Divergence.of([exact[:2], exact[2:]], [found[:2], found[2:]])
    assert [place for place, _ in away.worst(2)] == [1, 2]
    assert away.nats[0] == pytest.approx(0) and away.agrees.tolist() == [True, True, False]


def test_the_command_says_how_far(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text, output = tmp_path / "text", tmp_path / "out.json"
    text.write_text("def add(a, b):\n    return a + b\n" * 20)
    given = ["--model", "trtspec-tiny", "--weight_dtype", "int8", "--text", str(text)]
    main(["accuracy", *given, "--worst", "2", "--tokens", "60", "--output", str(output)])
    said = capsys.readouterr().out
    assert "60 tokens" in said and "KL divergence" in said
    (found,) = rows(load(output))
    assert found["positions"] == 60 and 0 < found["kl_divergence"] < 0.1
    assert len(found["worst"]) == 2
