"""All known families: those defined here and those of other packages, found by entry points."""

from __future__ import annotations

from functools import cache
from importlib.metadata import entry_points

from checkpoint_converters.families.cohere import COHERE
from checkpoint_converters.families.cohere2 import COHERE2
from checkpoint_converters.families.deepseek_v2 import DEEPSEEK_V2
from checkpoint_converters.families.deepseek_v3 import DEEPSEEK_V3
from checkpoint_converters.families.family import Family
from checkpoint_converters.families.gemma import GEMMA
from checkpoint_converters.families.gemma2 import GEMMA2
from checkpoint_converters.families.gemma3 import GEMMA3
from checkpoint_converters.families.gemma4 import GEMMA4
from checkpoint_converters.families.glm import GLM
from checkpoint_converters.families.glm4 import GLM4
from checkpoint_converters.families.glm4_moe import GLM4_MOE
from checkpoint_converters.families.gpt_oss import GPT_OSS
from checkpoint_converters.families.granite import GRANITE
from checkpoint_converters.families.granite_moe import GRANITE_MOE
from checkpoint_converters.families.granite_moe_hybrid import GRANITE_MOE_HYBRID
from checkpoint_converters.families.llama import LLAMA
from checkpoint_converters.families.mimo import MIMO
from checkpoint_converters.families.mistral import MISTRAL
from checkpoint_converters.families.mixtral import MIXTRAL
from checkpoint_converters.families.olmo2 import OLMO2
from checkpoint_converters.families.olmo3 import OLMO3
from checkpoint_converters.families.phi3 import PHI3
from checkpoint_converters.families.qwen2 import QWEN2
from checkpoint_converters.families.qwen2_moe import QWEN2_MOE
from checkpoint_converters.families.qwen3 import QWEN3
from checkpoint_converters.families.qwen3_5 import QWEN3_5
from checkpoint_converters.families.qwen3_5_moe import QWEN3_5_MOE
from checkpoint_converters.families.qwen3_moe import QWEN3_MOE
from checkpoint_converters.families.qwen3_next import QWEN3_NEXT
from checkpoint_converters.families.smollm3 import SMOLLM3
from checkpoint_converters.families.starcoder2 import STARCODER2
from trtspec.errors import ConfigError

ENTRY_POINTS = "trtspec.families"
"""The entry point group in which other packages add a `Family`."""

_BUILT_IN = (
    LLAMA,
    MISTRAL,
    QWEN2,
    QWEN3,
    MIMO,
    SMOLLM3,
    OLMO2,
    OLMO3,
    GRANITE,
    PHI3,
    GLM,
    GLM4,
    GEMMA,
    GEMMA2,
    GEMMA3,
    GEMMA4,
    COHERE,
    COHERE2,
    STARCODER2,
    MIXTRAL,
    QWEN2_MOE,
    QWEN3_MOE,
    QWEN3_NEXT,
    QWEN3_5,
    QWEN3_5_MOE,
    GLM4_MOE,
    GRANITE_MOE,
    GRANITE_MOE_HYBRID,
    DEEPSEEK_V2,
    DEEPSEEK_V3,
    GPT_OSS,
)


@cache
def families() -> tuple[Family, ...]:
    """All families.

    Raises:
        ConfigError: another package's family uses an architecture or model_type that is taken.
    """
    found = list(_BUILT_IN)
    for entry in entry_points(group=ENTRY_POINTS):
        family: Family = entry.load()
        for key in ("architecture", "model_type"):
            name = getattr(family, key)
            if any(getattr(other, key) == name for other in found):
                raise ConfigError(
                    f"the entry point {entry.value} adds a family of {key} {name!r}, which is "
                    "taken; rename it or uninstall its package"
                )
        found.append(family)
    return tuple(found)


def family_of(architecture: str) -> Family:
    """The family with this known architecture."""
    return next(each for each in families() if each.architecture == architecture)


def other_packages() -> list[str]:
    """The packages that other families come from, with their versions, because how a checkpoint is
    read depends on them."""
    entries = entry_points(group=ENTRY_POINTS)
    return sorted(f"{e.value} {e.dist.version if e.dist else ''}" for e in entries)
