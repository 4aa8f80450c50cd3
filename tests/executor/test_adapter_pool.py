"""AdapterPool: places of adapters, kept by those who use them; of the others the oldest goes."""

from __future__ import annotations

import random

import torch
from torch import Tensor, nn

from trtspec.config.adapters import AdapterSizes
from trtspec.executor.engines.adapter_pool import AdapterPool
from trtspec.models.adapters import AdaptedLayer, Adapter
from trtspec.models.lora import Lora

SIZES = AdapterSizes(3, 8)
WIDTH, PARTS = 6, (5, 3)


def layers() -> list[AdaptedLayer]:
    lora = Lora(SIZES, WIDTH, PARTS, torch.float32)
    for buffer in lora.buffers():
        nn.init.constant_(buffer, float("nan"))  # what was there before must not count
    return [AdaptedLayer("first", lora, 0), AdaptedLayer("second", lora, 1)]


def adapter(number: int, *names: str, rank: int = 2) -> Adapter:
    noise = torch.Generator().manual_seed(number)

    def pair(outputs: int) -> tuple[Tensor, Tensor]:
        return torch.randn(rank, WIDTH, generator=noise), torch.randn(
            outputs, rank, generator=noise
        )

    outputs = {"first": PARTS[0], "second": PARTS[1]}
    return Adapter(number, f"a{number}", {name: pair(outputs[name]) for name in names})


def added(lora: Lora, place: int) -> Tensor:
    """What the adapter at a place adds to the products of an identity."""
    x = torch.eye(WIDTH)
    index = torch.full((WIDTH,), place, dtype=torch.int32)
    result: Tensor = lora(x, index, None, norm=None, gated=False, residual=None)
    return result.T


def expected(own: Adapter) -> Tensor:
    zeros = (torch.zeros(2, WIDTH), torch.zeros(1, 2))
    parts = [own.layers.get(name, zeros) for name in ("first", "second")]
    return torch.cat([(b @ a).expand(n, -1) for (a, b), n in zip(parts, PARTS, strict=True)])


def test_an_adapter_lies_where_it_was_put() -> None:
    """Of several ranks, and of some layers only."""
    own = layers()
    pool = AdapterPool(own, SIZES.number)
    for made in (adapter(1, "first", "second"), adapter(2, "second", rank=8), adapter(3, "first")):
        place = pool.take(made)
        assert place is not None
        torch.testing.assert_close(added(own[0].lora, place), expected(made))


def test_the_least_recently_used_makes_room() -> None:
    pool = AdapterPool(layers(), SIZES.number)
    every = [adapter(i, "first") for i in range(1, 6)]
    places = [pool.take(each) for each in every[:3]]
    assert sorted(places, key=str) == [0, 1, 2]
    assert pool.take(every[3]) is None  # all are used
    assert pool.take(every[0]) == places[0] and pool.num_placed == 3
    for each in every[:3]:
        pool.give_back(each)
    assert pool.take(every[3]) == places[1]  # the first one is used by another request still
    assert pool.take(every[2]) == places[2]
    assert pool.take(every[4]) is None
    pool.give_back(every[0])
    assert pool.take(every[4]) == places[0]
    pool.check_invariants()


def test_random_users() -> None:
    chance, own = random.Random(3), layers()
    pool, held = AdapterPool(own, SIZES.number), list[tuple[Adapter, int]]()
    every = [adapter(i, "first", "second") for i in range(1, 7)]
    for _ in range(400):
        if held and chance.random() < 0.5:
            pool.give_back(held.pop(chance.randrange(len(held)))[0])
        else:
            wanted = chance.choice(every)
            place, used = pool.take(wanted), {each.number for each, _ in held}
            assert (place is None) == (len(used) == SIZES.number and wanted.number not in used)
            if place is not None:
                held.append((wanted, place))
                torch.testing.assert_close(added(own[0].lora, place), expected(wanted))
        pool.check_invariants()
        assert pool.in_use == len({each.number for each, _ in held})
        assert len({place for _, place in held}) == pool.in_use
