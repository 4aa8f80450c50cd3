"""The installed TensorRT: ``tensorrt``, else ``tensorrt_rtx``, which has the same API."""

from __future__ import annotations

from typing import Any

from trtspec.errors import ConfigError
from trtspec.log import logger

ENGINE_SUFFIX = ".engine"

trt: Any = None
try:
    import tensorrt

    trt = tensorrt
except ImportError:
    try:
        import tensorrt_rtx

        trt = tensorrt_rtx
    except ImportError:
        pass


def require_tensorrt() -> Any:
    """The package; ConfigError, naming the extras, if there is none."""
    if trt is None:
        raise ConfigError(
            "backend 'tensorrt' needs TensorRT, which is not installed; install TensorRT-RTX: "
            "pip install trtspec[tensorrt-rtx], or TensorRT 11: pip install trtspec[tensorrt]"
        )
    return trt


def tensorrt_version() -> str:
    """Name and version of the package, as ``tensorrt_rtx 1.7.1.116``."""
    package = require_tensorrt()
    return f"{package.__name__} {package.__version__}"


def buildable_capabilities() -> list[str] | None:
    """The compute capabilities that engines can be built for without such a GPU, ascending; None if
    this TensorRT only builds for the GPU that is present."""
    kinds = getattr(require_tensorrt(), "ComputeCapability", None)
    if kinds is None:
        return None
    numbers = sorted(int(name[2:]) for name in dir(kinds) if name.startswith("SM"))
    return [f"{number // 10}.{number % 10}" for number in numbers]


def check_compute_capability(capability: str | None) -> None:
    """Raise ConfigError if this TensorRT cannot build for a GPU of that compute capability."""
    if capability is None:
        return
    buildable = buildable_capabilities()
    if buildable is None:
        raise ConfigError(
            f"{tensorrt_version()} builds for the GPU of this machine only, compute_capability "
            f"{capability} was asked for; install TensorRT-RTX: pip install trtspec[tensorrt-rtx], "
            "or build on that GPU"
        )
    if capability not in buildable:
        raise ConfigError(
            f"{tensorrt_version()} does not build for compute capability {capability} "
            f"(it does for {', '.join(buildable)})"
        )


class _Messages:
    """Collects TensorRT's errors for the exception; its warnings go to the log."""

    def __init__(self) -> None:
        super().__init__()
        self._errors: list[str] = []

    def log(self, severity: Any, message: str) -> None:
        if severity in (trt.ILogger.ERROR, trt.ILogger.INTERNAL_ERROR):
            self._errors.append(message.strip())
        elif severity == trt.ILogger.WARNING:
            logger.debug("TensorRT: %s", message.strip())

    def text(self) -> str:
        """The errors so far."""
        return "; ".join(self._errors) or "see its log"


def accepted_class(mixin: type, base: str) -> Any:
    """Our class ``mixin`` as one that TensorRT accepts for its own ``base``, which only exists with
    TensorRT."""
    return type(mixin.__name__, (mixin, getattr(trt, base)), {}) if trt is not None else mixin


TensorRTLog = accepted_class(_Messages, "ILogger")
