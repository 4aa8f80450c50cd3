"""Rules for imports: one way, at the top, optional packages in one place each."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from fnmatch import fnmatch

from .violation import Violation
from .walk import WORKERS, SourceFile, Tree, is_optional

# A folder may import only from folders before it; the single modules of the package come first.
ORDER = [
    "errors", "log", "version", "optional", "child_python", "writable", "temporary", "config",
    "ops", "formats", "models", "backends", "distributed", "executor", "guided", "speculative",
    "engine", "builder", "llmapi", "train", "serve", "bench", "commands",
]  # fmt: skip
FRONT_DOOR = "trtspec/__init__.py"  # names everything, lazily
CONVERTERS_IMPORT = {"errors", "config"}
CONVERTERS_USERS = (
    "trtspec/builder/*",
    "trtspec/speculative/*/checkpoint*.py",
    "trtspec/speculative/mtp/families.py",
)
CORE_PACKAGES = {
    "huggingface_hub", "jinja2", "numpy", "safetensors", "tokenizers", "torch", "tqdm",
    "transformers",
}  # fmt: skip
# The one place of each optional package: a file, or a folder that is for it.
PLACES = {
    "cuda": "trtspec/ops/cuda_driver.py",
    "onnx": "trtspec/backends/onnx/",
    "onnx_ir": "trtspec/backends/onnx/",
    "onnxruntime": "trtspec/backends/onnx/",
    "onnxscript": "trtspec/backends/onnx/",
    "tensorrt": "trtspec/backends/tensorrt/",
    "tensorrt_rtx": "trtspec/backends/tensorrt/",
    "llguidance": "trtspec/guided/compiler.py",
    "modelopt": "trtspec/train/",
    "fastapi": "trtspec/serve/",
    "prometheus_client": "trtspec/serve/",
    "pydantic": "trtspec/serve/",
    "starlette": "trtspec/serve/",
    "uvicorn": "trtspec/serve/",
    "ray": "trtspec/serve/replicas/",
    "matplotlib": "trtspec/bench/report/picture.py",
    "rich": "trtspec/bench/report/table.py",
}
LLM_USERS = ("trtspec/serve/engine_source.py", "trtspec/serve/local_engine.py")
WITHOUT = {"rich"}  # its place does the same in plain text where it is missing


def order(tree: Tree) -> Iterator[Violation]:
    """Imports of trtspec go from right to left in `ORDER`; every folder has its place in it."""
    for file in tree.files:
        if not file.name.startswith("trtspec/") or file.name == FRONT_DOOR or file.inside(WORKERS):
            continue
        home = file.module.split(".")[1]
        if home not in ORDER:
            yield Violation("order", file.name, f"unknown folder {home}")
            continue
        for found in file.imports:
            part = found.part
            if part is None:
                continue
            if part not in ORDER or ORDER.index(part) > ORDER.index(home):
                yield Violation("order", file.name, part, found.line)


def at_the_top(tree: Tree) -> Iterator[Violation]:
    """No relative imports, and none inside a function."""
    for file in tree.files:
        if file.inside(WORKERS):
            continue
        for found in file.imports:
            if found.level:
                yield Violation("relative-import", file.name, found.module or ".", found.line)
            if found.in_function:
                yield Violation("function-import", file.name, found.module, found.line)


def converters(tree: Tree) -> Iterator[Violation]:
    """checkpoint_converters knows errors and config only, and few know it."""
    for file in tree.files:
        reads_checkpoints = any(fnmatch(file.name, place) for place in CONVERTERS_USERS)
        inside = file.name.startswith("checkpoint_converters/")
        for found in file.imports:
            if inside and found.package == "trtspec" and found.part not in CONVERTERS_IMPORT:
                yield Violation("converters", file.name, found.module, found.line)
            known = inside or reads_checkpoints
            if found.package == "checkpoint_converters" and not known:
                yield Violation("converters", file.name, "checkpoint_converters", found.line)


def optional_packages(tree: Tree) -> Iterator[Violation]:
    """What is not of the core is imported in its one place, which says how to install it."""
    core = {"trtspec", "checkpoint_converters", *CORE_PACKAGES, *sys.stdlib_module_names}
    guides = [file for file in tree.files if _names_an_extra(file)]
    for file in tree.files:
        if file.inside(WORKERS):
            continue
        for found in file.imports:
            package = found.package
            if found.level or package in core:
                continue
            place = PLACES.get(package)
            if place is None or not file.inside(place):
                yield Violation("optional-dependency", file.name, package, found.line)
            elif package not in WITHOUT and not any(guide.inside(place) for guide in guides):
                what = f"{package}, no error that names the extra"
                yield Violation("optional-dependency", file.name, what, found.line)


def _names_an_extra(file: SourceFile) -> bool:
    """Whether the file can say ``pip install trtspec[...]`` (or ``.[...]``, in a checkout)."""
    return any(is_optional(node) for node in file.nodes) or any(
        isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and "pip install" in node.value
        and ("trtspec[" in node.value or ".[" in node.value)
        for node in file.nodes
        if not isinstance(file.parents.get(node), ast.Expr)  # a docstring tells no user
    )


def executor_drafter(tree: Tree) -> Iterator[Violation]:
    """`Drafter` is a Protocol of the executor's own, and no other drafter comes in."""
    for file in tree.files:
        if not file.inside("trtspec/executor/"):
            continue
        for found in file.imports:
            outside = found.package == "trtspec" and found.part != "executor"
            if outside and (found.name or "").endswith("Drafter"):
                yield Violation("executor-drafter", file.name, str(found.name), found.line)
        for node in file.nodes:
            if isinstance(node, ast.ClassDef) and node.name == "Drafter":
                bases = {getattr(base, "attr", getattr(base, "id", "")) for base in node.bases}
                if "Protocol" not in bases:
                    yield Violation("executor-drafter", file.name, "no Protocol", node.lineno)


def server_engine(tree: Tree) -> Iterator[Violation]:
    """The server opens an `LLM` in one file and asks it in another; no other knows what it is."""
    own = {f"trtspec.llmapi.{name}" for name in ("llm", "handle", "growth", "runtime", "worker")}
    for file in tree.files:
        if file.inside("trtspec/serve/") and file.name not in LLM_USERS:
            for found in file.imports:
                if found.module in own or f"{found.module}.{found.name}" in own:
                    yield Violation("server-engine", file.name, found.module, found.line)
