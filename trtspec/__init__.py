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
    from trtspec.config.dflash_decoding import DDTreeDecodingConfig, DFlashDecodingConfig
    from trtspec.config.extract_hidden_states import ExtractHiddenStatesConfig
    from trtspec.config.kv import KvCacheConfig
    from trtspec.config.medusa_decoding import MedusaDecodingConfig
    from trtspec.config.mtp_decoding import MtpDecodingConfig
    from trtspec.config.parallel_decoding import PardDecodingConfig, PEagleDecodingConfig
    from trtspec.config.sampling import SamplingParams
    from trtspec.config.tree_decoding import (
        DraftTargetDecodingConfig,
        Eagle3DecodingConfig,
        EagleDecodingConfig,
    )
    from trtspec.errors import TrtspecError
    from trtspec.llmapi.build import build
    from trtspec.llmapi.llm import LLM
    from trtspec.llmapi.outputs import CompletionOutput, RequestOutput
    from trtspec.speculative.hybrid.auto import AutoDecodingConfig
    from trtspec.speculative.hybrid.options import HybridDecodingConfig
    from trtspec.speculative.ngram.options import NGramDecodingConfig
    from trtspec.speculative.suffix.options import SuffixDecodingConfig

__all__ = [
    "LLM",
    "AutoDecodingConfig",
    "CompletionOutput",
    "CudaGraphConfig",
    "DDTreeDecodingConfig",
    "DFlashDecodingConfig",
    "DraftTargetDecodingConfig",
    "Eagle3DecodingConfig",
    "EagleDecodingConfig",
    "ExtractHiddenStatesConfig",
    "HybridDecodingConfig",
    "KvCacheConfig",
    "MedusaDecodingConfig",
    "MtpDecodingConfig",
    "NGramDecodingConfig",
    "PEagleDecodingConfig",
    "PardDecodingConfig",
    "RequestOutput",
    "SamplingParams",
    "SuffixDecodingConfig",
    "TensorRTConfig",
    "TrtspecError",
    "__version__",
    "build",
]

_HOMES = {
    "LLM": "trtspec.llmapi.llm",
    "build": "trtspec.llmapi.build",
    "CompletionOutput": "trtspec.llmapi.outputs",
    "RequestOutput": "trtspec.llmapi.outputs",
    "SamplingParams": "trtspec.config.sampling",
    "CudaGraphConfig": "trtspec.config.cuda_graph",
    "KvCacheConfig": "trtspec.config.kv",
    "AutoDecodingConfig": "trtspec.speculative.hybrid.auto",
    "DDTreeDecodingConfig": "trtspec.config.dflash_decoding",
    "DFlashDecodingConfig": "trtspec.config.dflash_decoding",
    "DraftTargetDecodingConfig": "trtspec.config.tree_decoding",
    "EagleDecodingConfig": "trtspec.config.tree_decoding",
    "Eagle3DecodingConfig": "trtspec.config.tree_decoding",
    "ExtractHiddenStatesConfig": "trtspec.config.extract_hidden_states",
    "HybridDecodingConfig": "trtspec.speculative.hybrid.options",
    "MedusaDecodingConfig": "trtspec.config.medusa_decoding",
    "MtpDecodingConfig": "trtspec.config.mtp_decoding",
    "NGramDecodingConfig": "trtspec.speculative.ngram.options",
    "PardDecodingConfig": "trtspec.config.parallel_decoding",
    "PEagleDecodingConfig": "trtspec.config.parallel_decoding",
    "SuffixDecodingConfig": "trtspec.speculative.suffix.options",
    "TensorRTConfig": "trtspec.backends.tensorrt.options",
    "TrtspecError": "trtspec.errors",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'trtspec' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return __all__
