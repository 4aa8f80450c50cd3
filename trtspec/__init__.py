"""trtspec: speculative decoding over compiled engines.

Names are imported when first used, so that a submodule can be imported without the whole.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from trtspec.version import __version__

if TYPE_CHECKING:
    from trtspec.backends.tensorrt.options import TensorRTConfig
    from trtspec.config.cuda_graph import CudaGraphConfig
    from trtspec.config.guided_decoding import GuidedDecodingParams
    from trtspec.config.guided_decoding import GuidedDecodingParams as StructuredOutputsParams
    from trtspec.config.kv import KvCacheConfig
    from trtspec.config.sampling import SamplingParams
    from trtspec.errors import TrtspecError
    from trtspec.executor.logits.logits_processor import LogitsProcessor
    from trtspec.llmapi.engines import build
    from trtspec.llmapi.llm import LLM
    from trtspec.llmapi.lora import LoRARequest
    from trtspec.llmapi.outputs import CompletionOutput, RequestOutput
    from trtspec.speculative.assistant.options import AssistantDecodingConfig
    from trtspec.speculative.block.ddtree import DDTreeDecodingConfig
    from trtspec.speculative.block.dflash import DFlashDecodingConfig
    from trtspec.speculative.block.dflash2 import DFlash2DecodingConfig
    from trtspec.speculative.block.dspark import DSparkDecodingConfig
    from trtspec.speculative.block.jetspec import JetSpecDecodingConfig
    from trtspec.speculative.draft_model.options import DraftTargetDecodingConfig
    from trtspec.speculative.eagle.options import Eagle3DecodingConfig, EagleDecodingConfig
    from trtspec.speculative.hidden_states.options import ExtractHiddenStatesConfig
    from trtspec.speculative.hybrid.options import AutoDecodingConfig, HybridDecodingConfig
    from trtspec.speculative.medusa.options import MedusaDecodingConfig
    from trtspec.speculative.mtp.options import MtpDecodingConfig
    from trtspec.speculative.mtp.options import MtpDecodingConfig as MTPDecodingConfig
    from trtspec.speculative.ngram.options import NGramDecodingConfig
    from trtspec.speculative.parallel.options import (
        Pard2DecodingConfig,
        PardDecodingConfig,
        PEagleDecodingConfig,
    )
    from trtspec.speculative.parallel.options import PardDecodingConfig as PARDDecodingConfig
    from trtspec.speculative.self_draft.options import SelfDecodingConfig
    from trtspec.speculative.suffix.options import SuffixDecodingConfig

__all__ = [
    "LLM",
    "AssistantDecodingConfig",
    "AutoDecodingConfig",
    "CompletionOutput",
    "CudaGraphConfig",
    "DDTreeDecodingConfig",
    "DFlash2DecodingConfig",
    "DFlashDecodingConfig",
    "DSparkDecodingConfig",
    "DraftTargetDecodingConfig",
    "Eagle3DecodingConfig",
    "EagleDecodingConfig",
    "ExtractHiddenStatesConfig",
    "GuidedDecodingParams",
    "HybridDecodingConfig",
    "JetSpecDecodingConfig",
    "KvCacheConfig",
    "LoRARequest",
    "LogitsProcessor",
    "MTPDecodingConfig",
    "MedusaDecodingConfig",
    "MtpDecodingConfig",
    "NGramDecodingConfig",
    "PARDDecodingConfig",
    "PEagleDecodingConfig",
    "Pard2DecodingConfig",
    "PardDecodingConfig",
    "RequestOutput",
    "SamplingParams",
    "SelfDecodingConfig",
    "StructuredOutputsParams",
    "SuffixDecodingConfig",
    "TensorRTConfig",
    "TrtspecError",
    "__version__",
    "build",
]

_HOMES = {
    "LLM": "trtspec.llmapi.llm",
    "LoRARequest": "trtspec.llmapi.lora",
    "build": "trtspec.llmapi.engines",
    "CompletionOutput": "trtspec.llmapi.outputs",
    "RequestOutput": "trtspec.llmapi.outputs",
    "SamplingParams": "trtspec.config.sampling",
    "CudaGraphConfig": "trtspec.config.cuda_graph",
    "GuidedDecodingParams": "trtspec.config.guided_decoding",
    "KvCacheConfig": "trtspec.config.kv",
    "LogitsProcessor": "trtspec.executor.logits.logits_processor",
    "AssistantDecodingConfig": "trtspec.speculative.assistant.options",
    "AutoDecodingConfig": "trtspec.speculative.hybrid.options",
    "DDTreeDecodingConfig": "trtspec.speculative.block.ddtree",
    "DFlash2DecodingConfig": "trtspec.speculative.block.dflash2",
    "DFlashDecodingConfig": "trtspec.speculative.block.dflash",
    "DSparkDecodingConfig": "trtspec.speculative.block.dspark",
    "JetSpecDecodingConfig": "trtspec.speculative.block.jetspec",
    "DraftTargetDecodingConfig": "trtspec.speculative.draft_model.options",
    "EagleDecodingConfig": "trtspec.speculative.eagle.options",
    "Eagle3DecodingConfig": "trtspec.speculative.eagle.options",
    "ExtractHiddenStatesConfig": "trtspec.speculative.hidden_states.options",
    "HybridDecodingConfig": "trtspec.speculative.hybrid.options",
    "MedusaDecodingConfig": "trtspec.speculative.medusa.options",
    "MtpDecodingConfig": "trtspec.speculative.mtp.options",
    "NGramDecodingConfig": "trtspec.speculative.ngram.options",
    "Pard2DecodingConfig": "trtspec.speculative.parallel.options",
    "PardDecodingConfig": "trtspec.speculative.parallel.options",
    "PEagleDecodingConfig": "trtspec.speculative.parallel.options",
    "SelfDecodingConfig": "trtspec.speculative.self_draft.options",
    "SuffixDecodingConfig": "trtspec.speculative.suffix.options",
    "TensorRTConfig": "trtspec.backends.tensorrt.options",
    "TrtspecError": "trtspec.errors",
}
_SPELLINGS = {
    "MTPDecodingConfig": "MtpDecodingConfig",
    "PARDDecodingConfig": "PardDecodingConfig",
    "StructuredOutputsParams": "GuidedDecodingParams",
}
"""As TensorRT-LLM and vLLM write them."""


def __getattr__(name: str) -> Any:
    own = _SPELLINGS.get(name, name)
    if own not in _HOMES:
        raise AttributeError(f"module 'trtspec' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[own]), own)


def __dir__() -> list[str]:
    return __all__
