"""TensorRT engines for a GPU, from the graphs that ONNX Runtime runs as well."""

from __future__ import annotations

from trtspec.backends.tensorrt.backend import TensorRTBackend as TensorRTBackend
from trtspec.backends.tensorrt.options import TensorRTConfig as TensorRTConfig
