"""EngineInputs: the order of a compiled engine, and back."""

from __future__ import annotations

import random

import pytest
import torch

from trtspec.backends.inputs import EngineInputs, RowInputs
from trtspec.ops.sampling import SamplingColumns


@pytest.mark.parametrize("seed", range(20))
def test_any_fields(seed: int) -> None:
    """What is not given takes no place, and `filled` is the inverse of `flat`."""
    rng, numbers = random.Random(seed), iter(range(100))

    def some(count: int) -> list[torch.Tensor]:
        return [torch.tensor(next(numbers)) for _ in range(count)]

    made = {
        "rows": RowInputs._make(some(len(RowInputs._fields))),
        "columns": SamplingColumns._make(some(len(SamplingColumns._fields))),
        "caches": tuple(some(rng.randrange(5))),
    }
    for name in EngineInputs._fields:
        if name not in made:
            made[name] = some(1)[0]
    given = {name: value for name, value in made.items() if rng.random() < 0.6}
    inputs = EngineInputs(**given)
    flat = inputs.flat()
    found: list[torch.Tensor] = []
    for name in EngineInputs._fields:
        value = given.get(name, ())
        found += [value] if isinstance(value, torch.Tensor) else value
    assert [id(x) for x in flat] == [id(x) for x in found]
    others = [x + 1000 for x in flat]
    filled = inputs.filled(others)
    assert [id(x) for x in filled.flat()] == [id(x) for x in others]
    assert [value is None for value in filled] == [value is None for value in inputs]
