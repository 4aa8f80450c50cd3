"""FP8 (E4M3) as DeepSeek and Qwen publish it: quant_method ``fp8``.

A layer has ``weight [N, K]`` in FP8 and, with ``weight_block_size``, a ``weight_scale_inv`` per
block, by which it is multiplied; otherwise one ``weight_scale`` or one per output. The file's
scales for activations are not used.
"""

from __future__ import annotations

from checkpoint_converters.quantised.said import Said
from checkpoint_converters.quantised.scheme import Scheme
from checkpoint_converters.quantised.small_floats import read_fp8

METHOD = "fp8"
_BLOCK = "weight_block_size"


def read_fp8_scheme(said: Said) -> Scheme:
    """Read the scheme of an FP8 checkpoint.

    Raises:
        CheckpointError: another kind of floats, or invalid blocks.
    """
    said.choice("fmt", ("e4m3", "float8_e4m3fn"), "e4m3")
    if said.get(_BLOCK) is None:
        roles = ("weight", "input_scale")
        return Scheme("FP8", "weight_scale", roles, lambda m: read_fp8(m, "weight_scale"))
    block, scale = said.pair(_BLOCK), "weight_scale_inv"
    return Scheme("FP8 in blocks", scale, ("weight",), lambda m: read_fp8(m, scale, block))
