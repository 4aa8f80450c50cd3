"""The distance of kept weights from their floats: none but that of rounded inputs."""

from __future__ import annotations

from pathlib import Path

from trtspec.bench.weight_accuracy import WAYS, distances

from ..checkpoints.tiny_gguf import tiny


def test_rounded_inputs_are_what_differs(tmp_path: Path) -> None:
    model = tiny("Q4_0").write(tmp_path / "model.gguf")
    exact, rounded = "as stored, float32, inputs not rounded", "as stored, float32"
    found = distances(model, [i % 40 for i in range(70)], {n: WAYS[n] for n in (exact, rounded)})
    assert found[exact].agreement > 0.98
    assert abs(found[exact].divergence) < 1e-7 < found[rounded].divergence < 0.1
