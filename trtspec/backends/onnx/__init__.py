"""Standard ONNX graphs over slot caches, run by ONNX Runtime on the CPU."""

from __future__ import annotations

from trtspec.backends.onnx.backend import OnnxBackend as OnnxBackend
from trtspec.backends.onnx.export import compile_graph as compile_graph
from trtspec.backends.onnx.export import link_graphs as link_graphs
from trtspec.backends.onnx.export import require_onnx as require_onnx
