"""The shape of the code base: imports go one way, stay at the top, and files stay readable."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
# A folder may import only from folders before it; the single modules of the package come first.
ORDER = [
    "errors", "log", "version", "config", "ops", "models", "engine", "builder", "executor",
    "speculative", "llmapi", "serve", "bench", "commands",
]  # fmt: skip
CORE_PACKAGES = {
    "huggingface_hub", "numpy", "safetensors", "tokenizers", "torch", "tqdm", "transformers",
}  # fmt: skip
# What an extra installs is imported by the part that it is for, and nowhere else.
EXTRA_PACKAGES = {
    "trtspec/ops/cuda_driver.py": {"cuda"},
    "trtspec/engine/cuda_stream.py": {"cuda"},
    "trtspec/builder/onnx.py": {"onnx", "onnx_ir", "onnxscript"},
    "trtspec/engine/onnx_session.py": {"onnxruntime"},
    "trtspec/engine/tensorrt_package.py": {"tensorrt", "tensorrt_rtx"},
    "trtspec/serve/": {"fastapi", "starlette", "uvicorn", "pydantic", "prometheus_client"},
    "trtspec/bench/serving/client.py": {"httpx"},
    "trtspec/bench/picture.py": {"matplotlib"},
    "trtspec/bench/table.py": {"rich"},
}
CONVERTERS_MAY_IMPORT = {"errors", "config"}
MAX_LINES = 400

PACKAGE_FILES = sorted((ROOT / "trtspec").rglob("*.py"))
WORKERS = ROOT / "trtspec" / "bench" / "peers" / "workers"  # run by the Pythons of other engines
CONVERTER_FILES = sorted((ROOT / "checkpoint_converters").glob("*.py"))


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def imported(path: Path) -> Iterator[tuple[ast.stmt, str]]:
    """Every import statement of a file with the dotted module it names."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node, alias.name
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name_of(path)} has a relative import"
            yield node, node.module or ""


def part(module: str) -> str | None:
    """The folder (or single module) of trtspec that a dotted name lies in; None for others."""
    pieces = module.split(".")
    return pieces[1] if pieces[0] == "trtspec" and len(pieces) > 1 else None


@pytest.mark.parametrize("path", PACKAGE_FILES, ids=name_of)
def test_imports_go_one_way(path: Path) -> None:
    home = path.relative_to(ROOT / "trtspec").with_suffix("").parts[0]
    if home == "__init__":
        return  # the package's front door names everything, lazily
    for node, module in imported(path):
        target = part(module)
        if target is not None:
            assert ORDER.index(target) <= ORDER.index(home), (
                f"{name_of(path)}:{node.lineno} ({home}) imports {module}, which lies to its right"
            )


@pytest.mark.parametrize("path", CONVERTER_FILES, ids=name_of)
def test_converters_know_only_errors_and_config(path: Path) -> None:
    for node, module in imported(path):
        target = part(module)
        assert target is None or target in CONVERTERS_MAY_IMPORT, f"line {node.lineno}: {module}"


def test_only_the_builder_knows_the_converters() -> None:
    users = {
        path.relative_to(ROOT / "trtspec").parts[0]
        for path in PACKAGE_FILES
        for _, module in imported(path)
        if module.split(".")[0] == "checkpoint_converters"
    }
    assert users <= {"builder"}


@pytest.mark.parametrize(
    "path", [p for p in PACKAGE_FILES + CONVERTER_FILES if WORKERS not in p.parents], ids=name_of
)
def test_imports_stand_at_the_top_and_name_core_packages(path: Path) -> None:
    tree = ast.parse(path.read_text())
    inside = {
        id(node)
        for function in ast.walk(tree)
        if isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef))
        for node in ast.walk(function)
    }
    known = {"trtspec", "checkpoint_converters", *CORE_PACKAGES, *sys.stdlib_module_names}
    for place, packages in EXTRA_PACKAGES.items():
        if name_of(path).startswith(place):
            known |= packages
    for node, module in imported(path):
        assert id(node) not in inside, f"line {node.lineno}: {module} is imported in a function"
        top = module.split(".")[0]
        assert top in known, f"line {node.lineno}: {module} is not a dependency of the core"


@pytest.mark.parametrize("path", PACKAGE_FILES + CONVERTER_FILES, ids=name_of)
def test_files_stay_readable(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= MAX_LINES
