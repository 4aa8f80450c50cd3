"""The registry of draft kinds: every kind is named alike in all places."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import pytest
import torch
from torch import nn

from trtspec.backends.parts import PartRole
from trtspec.config.draft import DraftConfig
from trtspec.engine.engine_draft import EngineDraft, SpeculationContract
from trtspec.errors import ConfigError
from trtspec.formats.base import WeightFormat
from trtspec.formats.network_formats import NetworkFormats
from trtspec.formats.plain import ROWS
from trtspec.models.linear import Linear
from trtspec.speculative.assistant.shape import AssistantConfig
from trtspec.speculative.block.dflash import DFlashConfig
from trtspec.speculative.block.dflash2 import DFlash2Config
from trtspec.speculative.block.dspark import DSparkConfig
from trtspec.speculative.draft_kind import DRAFT_MODEL, DRAFT_ROLLOUT, DRAFT_STEP
from trtspec.speculative.eagle.shape import EagleConfig
from trtspec.speculative.medusa.shape import MedusaConfig
from trtspec.speculative.mtp.modules_shape import MtpModulesConfig
from trtspec.speculative.mtp.shape import MtpConfig
from trtspec.speculative.parallel.shape import Pard2Config, PardConfig, PEagleConfig
from trtspec.speculative.registry import draft_from_dict, draft_kinds, draft_to_dict

from ..tiny_config import tiny_config

MODEL = tiny_config("LlamaForCausalLM", 70, 16, 24, 2, 2, 1, 8, 1e-5, 64)
MODULE = MtpConfig(1, MODEL, 16, (2,), 70, norm_output=True, input_norms=True)
DRAFTS: dict[str, DraftConfig] = {
    "model": MODEL,
    "eagle": EagleConfig(1, MODEL, 16, (2,), 70),
    "eagle3": EagleConfig(3, MODEL, 16, (0, 1), 70),
    "pard": PardConfig(*(getattr(MODEL, f.name) for f in fields(MODEL)), mask_token=69),
    "p_eagle": PEagleConfig(3, MODEL, 16, (0, 1), 70, mask_token=3),
    "mtp": MODULE,
    "mtp_modules": MtpModulesConfig(MODULE, 4),
    "medusa": MedusaConfig(4, 1, 16, 70, (2,)),
    "dflash": DFlashConfig(MODEL, 16, (0, 1), 4, 3, (True, False), 70),
    "dflash2": DFlash2Config(MODEL, 16, (0, 1), 4, 3, (True, False), 70, conv_group_size=8),
    "dspark": DSparkConfig(
        *(MODEL, 16, (0, 1), 4, 3, (True, False), 70),
        markov_rank=4,
        markov_head="gated",
        confidence=True,
    ),
    "pard2": Pard2Config(MODEL, 16, (0, 1), 70, mask_token=69, scale=0.5),
    "assistant": AssistantConfig(MODEL, (0, 1), 16, (2,)),
}
PYTHON_ONLY = {"medusa", "dflash", "dflash2", "dspark", "pard2", "assistant"}


def test_every_kind_is_here() -> None:
    assert {config.kind for config in DRAFTS.values()} == set(draft_kinds())


def multiplied(module: nn.Module) -> list[tuple[int, int]]:
    """Outputs and inputs of its linear layers, of which some are several fused into one."""
    layers = [layer for layer in module.modules() if isinstance(layer, Linear)]
    return [(layer.out_features, layer.in_features) for layer in layers]


@dataclass(frozen=True)
class Asked(NetworkFormats):
    """Keeps the names of the weights whose formats are asked for."""

    names: set[str] = field(default_factory=set)

    def of(self, outputs: Mapping[str, int]) -> WeightFormat:
        self.names.update(self.within + name for name in outputs)
        return super().of(outputs)

    def of_head(self, name: str) -> WeightFormat:
        self.names.add(self.within + name)
        return super().of_head(name)


def by_inputs(matrices: Iterable[Sequence[Any]]) -> Counter[int]:
    """Outputs in all, by inputs."""
    found: Counter[int] = Counter()
    for outputs, inputs, *_ in matrices:
        found[inputs] += outputs
    return found


@pytest.mark.parametrize("name", DRAFTS)
def test_a_kind(name: str) -> None:
    config = DRAFTS[name]
    kind = draft_kinds()[config.kind]
    assert kind.config is type(config)
    data = json.loads(json.dumps(draft_to_dict(config)))
    assert data["kind"] == config.kind and draft_from_dict(data) == config
    # A cache of its own is what a second graph fills.
    others = set(kind.graphs) - {DRAFT_ROLLOUT}
    assert others in (({DRAFT_MODEL}, {DRAFT_STEP}) if config.decoder else (set(),))
    assert config.for_steps(3).describe()
    formats = Asked.uniform(ROWS)
    module = kind.module(config, MODEL, torch.float32, formats)
    matrices = kind.matrices(config)
    assert by_inputs(matrices) == by_inputs(multiplied(module))
    assert isinstance(formats, Asked)
    assert formats.names == {each.name for each in matrices if each.name}
    with pytest.raises(ConfigError, match="unknown option `depth`"):
        draft_from_dict({**data, "depth": 3})


def test_a_kind_must_be_said() -> None:
    with pytest.raises(KeyError, match="kind"):
        draft_from_dict(MODEL.to_dict())


def test_a_kind_that_no_installed_method_has() -> None:
    with pytest.raises(ConfigError, match=r"kind 'brand_new' \(known: .*\); install the package"):
        draft_from_dict({**draft_to_dict(MODEL), "kind": "brand_new"})


@pytest.mark.parametrize("name", sorted(DRAFTS.keys() - {"assistant"}))  # it is refused over slots
def test_every_kind_is_lowered(name: str) -> None:
    """Into parts of different names, whose K/V are all of its own; what stands in for it opens
    each of them."""
    config = DRAFTS[name]
    parts = draft_kinds()[config.kind].parts(config, 16)
    names = [part.name for part in parts]
    assert len(set(names)) == len(names)
    caches = sum(part.num_caches for part in parts if part.role is PartRole.PASS)
    assert caches == (2 * config.decoder.num_layers if config.decoder else 0)
    asked: list[str] = []

    class Opened:
        max_rows = 8

        def rows(self, name: str) -> Any:
            asked.append(name)

        session = rows

        def tensor(self, name: str) -> None:
            return None

    draft_kinds()[config.kind].stand_in(config, Opened())
    assert sorted(asked) == sorted(names)


@pytest.mark.parametrize("name", DRAFTS)
def test_what_a_runtime_without_python_is_told(name: str) -> None:
    """Nothing of a network that it does not roll out, which it refuses by its method's name."""
    draft = EngineDraft(DRAFTS[name], SpeculationContract(name, 1, 3, 4))
    facts = draft.rollout_facts(by_pass=False)
    assert (facts is None) == (name in PYTHON_ONLY)
    json.dumps(facts)
