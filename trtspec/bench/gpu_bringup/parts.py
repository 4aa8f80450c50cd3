"""The parts of a bring-up, ordered by the value of their figures."""

from __future__ import annotations

from functools import partial

from trtspec.bench.gpu_bringup.part import Part

_HERE = "trtspec.bench.gpu_bringup"
_compiling = partial(Part, seconds=240, behind=True, again=True)

PARTS = (
    Part("chains", "Steps: chains", f"{_HERE}.steps:chains", 85, "compile_chains"),
    Part("trees", "Steps: trees", f"{_HERE}.steps:trees", 85, "compile_trees"),
    Part("ahead", "Steps launched ahead", f"{_HERE}.ahead:cases", 75, "compile_chains"),
    Part("latency", "Launches, copies, memory", f"{_HERE}.latency:cases", 25),
    Part("products", "Products by rows", f"{_HERE}.products:cases", 45),
    Part("few_rows", "Few-row products by rows", f"{_HERE}.few_rows:cases", 45),
    Part("attention", "Attention by rows", f"{_HERE}.attention:cases", 45),
    Part("parity", "Do kernels and engines agree?", f"{_HERE}.suites:parity", 75),
    Part("memory", "What does the sanitizer find?", f"{_HERE}.suites:memory", 60),
    _compiling("compile_chains", "The engine for chains", f"{_HERE}.engines:compile_chains"),
    _compiling("compile_trees", "The engine for trees", f"{_HERE}.engines:compile_trees"),
)
SHORT = ("latency", "products", "few_rows", "attention")
"""Parts that need no source tree and no compiler."""
