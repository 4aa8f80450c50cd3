"""The work of the host, which the controller weighs with that of the engines."""

from __future__ import annotations

import numpy as np

from trtspec.speculative.hybrid.controller import Controller
from trtspec.speculative.hybrid.costs import CostCurve
from trtspec.speculative.hybrid.outlook import Load, Outlook

from .simulated_serving import ChainDrafter, World, requests_of, union_of


class Host:
    """A controller over one engine, in steps that take what they are said to around the rest."""

    def __init__(self) -> None:
        self.target = CostCurve()
        self.target.profile(lambda rows: 0.010, 64)  # rows cost nothing
        self.controller = Controller(self.target)

    def drafts(self, requests: int, chance: float, around: dict[bool, float], steps: int) -> int:
        """Of so many steps, in how many of the last ten the engine drafted. A draft's node has that
        chance; ``around``: seconds of steps with and without drafts."""
        load = Load(requests, requests)
        chances, call = np.full((requests, 1), chance), 0.0005
        drafted = []
        for _ in range(steps):
            if self.controller.rests(requests):
                drafted.append(False)
                continue
            chosen, tried = self.controller.plan(
                load, np.zeros((requests, 0)), [Outlook(chances, call)]
            )
            spent = call if chosen else 0.0
            nodes = self.controller.count(load, chances[: requests if chosen else 0, 0], spent)
            drafted.append(bool(chosen))
            if not tried:
                tokens = requests + round(chance * nodes)
                self.controller.observe(load, nodes, tokens, spent, around[bool(chosen)])
        return sum(drafted[-10:])


def test_the_host_work_of_drafting_is_weighed() -> None:
    """An engine whose call pays, but not with what the host does about its drafts."""
    assert Host().drafts(4, 0.3, {True: 0.001, False: 0.001}, 100) == 10
    assert Host().drafts(4, 0.3, {True: 0.006, False: 0.001}, 100) == 0


def test_the_host_work_of_other_batches_keeps_no_engine_running() -> None:
    """Steps without drafts are not held to be slow because those of another batch size were."""
    host = Host()
    host.drafts(1, 0.02, {True: 0.020, False: 0.020}, 100)
    assert host.drafts(16, 0.02, {True: 0.002, False: 0.001}, 100) == 0


def test_an_engine_that_would_not_pay_alone_is_weighed_seldom() -> None:
    """Whatever others draft, which are asked in every step; when its drafts get better, it runs."""
    world = World(lambda rows: 20e-3 + 1e-3 * rows)
    cheap = ChainDrafter(world, 2, 0.3, says=0.3)
    engine = ChainDrafter(world, 4, 0.05, 8e-3, says=0.05, name=2)
    union = union_of(world, [cheap, engine])
    union.profile_with(world.target, 16)
    requests = requests_of(2)
    world.serve(union, requests, 400)
    weighed, plan = [0], union._controller.plan

    def counted(*args):  # type: ignore[no-untyped-def]
        weighed[0] += 1
        return plan(*args)

    union._controller.plan = counted  # type: ignore[method-assign]
    calls = cheap.num_calls
    world.serve(union, requests, 400)
    assert cheap.num_calls - calls > 350 and 10 < weighed[0] < 80
    engine.acceptance = engine.says = 0.95
    world.serve(union, requests, 2000)
    calls = engine.num_calls
    world.serve(union, requests, 100)
    assert engine.num_calls - calls > 80
