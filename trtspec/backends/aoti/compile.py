"""torch.export and AOTInductor: from a graph to a package, in the calling process."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import torch
import torch._inductor.compile_fx
from torch import Tensor
from torch._inductor.cpu_vec_isa import pick_vec_isa
from torch._inductor.custom_graph_pass import CustomGraphPass, get_hash_for_files
from torch._inductor.exc import CppCompileError
from torch.fx import Graph as FxGraph
from torch.utils import _pytree as pytree

from trtspec.backends.shape import Graph
from trtspec.errors import BuildError


class _KeepRotations(CustomGraphPass):
    """Makes the compiler compute cosines and sines once per call. By default it considers them
    cheap and recomputes them in every head of every layer."""

    def __call__(self, graph: FxGraph) -> None:
        aten, prims = torch.ops.aten, torch.ops.prims
        for target in (aten.cos.default, aten.sin.default):
            for node in graph.find_nodes(op="call_function", target=target):
                with graph.inserting_after(node):
                    # The compiler writes to memory what is asked for in an order of strides.
                    kept = graph.call_function(
                        prims.inductor_force_stride_order.default, (node, node.meta["val"].stride())
                    )
                kept.meta = dict(node.meta)
                node.replace_all_uses_with(kept, lambda user, kept=kept: user is not kept)

    def uuid(self) -> Any:
        return get_hash_for_files((__file__,))


# Ops that libtrtspec_ops.so exports as C functions too; a call runs hardly any others. Those others
# are called by name through torch's dispatcher, which takes microseconds each.
_SHIMMED = (
    "all_gather",
    "all_reduce",
    "causal_conv",
    "draft_candidates",
    "expand_tree",
    "gated_delta",
    "head_products",
    "keep_best",
    "latent_tree_attention",
    "latent_tree_attention_8bit",
    "linear",
    "linear_quantised",
    "lora",
    "mamba2",
    "moe",
    "paged_tree_attention",
    "paged_tree_attention_8bit",
)
_C_PARAMETERS = {
    "Tensor": "AtenTensorHandle {0}",
    "Optional[Tensor]": "AtenTensorHandle* {0}",
    "int": "int64_t {0}",
    "List[int]": "const int64_t* {0}, int64_t num_{0}",
    "float": "double {0}",
    "bool": "int32_t {0}",
    "Optional[ScalarType]": "int32_t* {0}",
}


def _shim(op: torch._ops.OpOverload) -> str:
    """The declaration of an op's C function on the CPU, as AOTInductor calls it."""
    schema = op._schema
    name = schema.name.split("::")[1]
    parameters = [_C_PARAMETERS[str(a.real_type)].format(a.name) for a in schema.arguments]
    parameters += [f"AtenTensorHandle* result_{i}" for i in range(len(schema.returns))]
    return f"AOTITorchError aoti_torch_cpu_{name}({', '.join(parameters)})"


# Weights stay outside the package: the engine folder maps them. The small point-wise kernels stay
# on one thread, as a fork costs more than they do; products and attention use threads inside their
# ops. Fused kernels round to 16 bits where the modules do. So the bits of a model do not depend on
# what the compiler fuses: a target gives the same tokens whether it captures states or not. Short
# vectors stay weights: left alone, the compiler takes what they hold for part of the graph.
INDUCTOR_CONFIG: dict[str, Any] = {
    "emulate_precision_casts": True,
    "aot_inductor.package_constants_in_so": False,
    "cpp.threads": 1,
    "always_keep_tensor_constants": True,
    "post_grad_custom_post_pass": _KeepRotations(),
}


def _configs(device: str) -> dict[str, Any]:
    """The compiler's options for a device."""
    ops = [getattr(torch.ops.trtspec, name).default for name in _SHIMMED if device == "cpu"]
    return {
        **INDUCTOR_CONFIG,
        "aot_inductor.custom_ops_to_c_shims": {op: [_shim(op)] for op in ops},
    }


def prepare() -> None:
    """Let torch detect the processor; torch caches the answer."""
    pick_vec_isa()


def compile_graph(graph: Graph, package: Path, device: str) -> None:
    """Export and compile ``graph`` into ``package`` for a device of this machine, cpu or cuda.

    The module is moved to the device, where its weights, which may be uninitialised, take memory.

    Raises:
        BuildError: the compiler failed.
    """

    def placed(example: Any) -> Any:
        return example.to(device) if isinstance(example, Tensor) else example

    signature = graph.signature
    args, dims = pytree.tree_map(placed, signature.args), signature.dims
    module = graph.make().to(device).eval()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            program = torch.export.export(module, args, dynamic_shapes=dims, strict=False)
            torch._inductor.aoti_compile_and_package(
                program, package_path=str(package), inductor_configs=_configs(device)
            )
        except Exception as error:
            raise BuildError(f"AOTInductor could not compile it: {_said(error)}") from error


def _said(error: BaseException) -> str:
    """A C++ compiler's message about the code, if there is one, followed by its command."""
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, CppCompileError):
        cause = getattr(cause, "inner_exception", None) or cause.__cause__
    if cause is None:
        return f"{type(error).__name__}: {error}"
    return f"{cause.output.strip()}\nThe command was: {' '.join(cause.cmd)}"
