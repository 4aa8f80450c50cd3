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
    from trtspec.config.kv import KvCacheConfig
    from trtspec.config.sampling import SamplingParams
    from trtspec.config.speculative import (
        AutoDecodingConfig,
        DDTreeDecodingConfig,
        DFlashDecodingConfig,
        DraftTargetDecodingConfig,
        Eagle3DecodingConfig,
        EagleDecodingConfig,
        ExtractHiddenStatesConfig,
        HybridDecodingConfig,
        MedusaDecodingConfig,
        MtpDecodingConfig,
        NGramDecodingConfig,
        PardDecodingConfig,
        PEagleDecodingConfig,
        SuffixDecodingConfig,
    )
    from trtspec.errors import TrtspecError
    from trtspec.llmapi.build import build
    from trtspec.llmapi.llm import LLM
    from trtspec.llmapi.outputs import CompletionOutput, RequestOutput

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
    "AutoDecodingConfig": "trtspec.config.speculative",
    "DDTreeDecodingConfig": "trtspec.config.speculative",
    "DFlashDecodingConfig": "trtspec.config.speculative",
    "DraftTargetDecodingConfig": "trtspec.config.speculative",
    "EagleDecodingConfig": "trtspec.config.speculative",
    "Eagle3DecodingConfig": "trtspec.config.speculative",
    "ExtractHiddenStatesConfig": "trtspec.config.speculative",
    "HybridDecodingConfig": "trtspec.config.speculative",
    "MedusaDecodingConfig": "trtspec.config.speculative",
    "MtpDecodingConfig": "trtspec.config.speculative",
    "NGramDecodingConfig": "trtspec.config.speculative",
    "PardDecodingConfig": "trtspec.config.speculative",
    "PEagleDecodingConfig": "trtspec.config.speculative",
    "SuffixDecodingConfig": "trtspec.config.speculative",
    "TensorRTConfig": "trtspec.backends.tensorrt.options",
    "TrtspecError": "trtspec.errors",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'trtspec' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return __all__
