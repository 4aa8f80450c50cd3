"""MiMo: Qwen2 with its own head size."""

from __future__ import annotations

from checkpoint_converters.families.family import Family
from checkpoint_converters.families.qwen2 import qwen2_fields
from checkpoint_converters.hf_decoder import HF_DECODER

MIMO = Family("MiMoForCausalLM", "mimo", qwen2_fields, HF_DECODER)
