"""The key of a compiled graph covers all the code that makes it, and no other."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

import trtspec
from trtspec.backends.registry import backend_named
from trtspec.builder import graph_cache, sources
from trtspec.child_python import python_command, python_environment
from trtspec.speculative.registry import draft_kinds

PACKAGE = Path(trtspec.__path__[0])
MAKERS = graph_cache.graph_makers(backend_named("auto"))


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package's Python files, to be changed."""
    root = tmp_path_factory.mktemp("sources") / "trtspec"
    for path in PACKAGE.rglob("*.py"):
        target = root / path.relative_to(PACKAGE)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, target)
    return root


@pytest.fixture
def key_of(copy: Path) -> Callable[[], str]:
    """The key's part that is made of sources, by those in the copy."""
    return lambda: sources.hash_of(of(copy))


def of(package: Path, *homes: str) -> dict[str, Path]:
    return graph_cache.graph_sources((*MAKERS, *homes), package)


def loaded_with(*modules: str) -> list[str]:
    """What Python has imported once these are."""
    code = (
        "import sys, importlib\n"
        "for name in sys.argv[1:]: importlib.import_module(name)\n"
        "print(*(name for name in sys.modules if name.startswith('trtspec.')))"
    )
    command = python_command("-c", code, *modules)
    done = subprocess.run(
        command, env=python_environment(), capture_output=True, text=True, check=True
    )
    return done.stdout.split()


def file_of(package: Path, module: str) -> Path:
    path = package.joinpath(*module.split(".")[1:])
    return path.with_suffix(".py") if not path.is_dir() else path / "__init__.py"


@pytest.mark.slow
def test_all_that_is_imported_counts(copy: Path) -> None:
    homes = [kind.home for kind in draft_kinds().values()]
    modules = set(loaded_with(*homes, "trtspec.backends.aoti.compile"))
    modules -= {"trtspec.version"}  # `trtspec` itself imports that
    assert {"trtspec.config.model", "trtspec.config.tree", "trtspec.models.rope"} <= modules
    files = of(copy, *homes)
    before = sources.hash_of(files)
    for module in modules:
        path = file_of(copy, module)
        if not path.exists():  # a folder of modules
            continue
        assert path in files.values()
        text = path.read_text()
        path.write_text(text + "\n# changed\n")
        assert sources.hash_of(files) != before
        path.write_text(text)
    assert sources.hash_of(of(copy, *homes)) == before


@pytest.mark.slow
def test_a_method_counts_for_its_own_drafts(copy: Path) -> None:
    """Another method, or a new one, changes neither the target's graphs nor those of the others."""
    block = draft_kinds()["dflash"].home

    def keys() -> dict[str, str]:
        homes = {name: (kind.home,) for name, kind in draft_kinds().items()}
        found = {name: of(copy, *home) for name, home in {**homes, "target": ()}.items()}
        return {name: sources.hash_of(files) for name, files in found.items()}

    before = keys()
    (copy / "speculative" / "brand_new").mkdir()
    (copy / "speculative" / "brand_new" / "method.py").write_text("import trtspec.models.rope\n")
    registry = copy / "speculative" / "registry.py"
    registry.write_text(registry.read_text() + "\nimport trtspec.speculative.brand_new.method\n")
    assert keys() == before
    network = file_of(copy, block)
    network.write_text(network.read_text() + "\n# changed\n")
    assert {name for name, key in keys().items() if key != before[name]} == {"dflash"}


@pytest.mark.parametrize("folder", ["serve", "llmapi", "bench", "commands", "executor"])
def test_what_is_not_imported_does_not(copy: Path, key_of: Callable[[], str], folder: str) -> None:
    before = key_of()
    for path in (copy / folder).rglob("*.py"):
        path.write_text(path.read_text() + "\n# changed\n")
    (copy / folder / "new.py").write_text("import trtspec.models.rows\n")
    assert key_of() == before


@pytest.mark.slow
@pytest.mark.parametrize(
    "line",
    [
        "import trtspec.models.brand_new",
        "from trtspec.models import brand_new",
        "from trtspec.models.brand_new import (\n    something,\n)",
        "def later():\n    from trtspec.models.brand_new import something",
    ],
)
def test_a_new_file_counts_once_it_is_imported(
    copy: Path, key_of: Callable[[], str], line: str
) -> None:
    new, norm = copy / "models" / "brand_new.py", copy / "models" / "norm.py"
    before, text = key_of(), norm.read_text()
    new.write_text("from trtspec.serve import page\n")
    assert key_of() == before
    norm.write_text(f"{text}\n{line}\n")
    assert {new, copy / "serve" / "page.py"} <= set(of(copy).values())
    assert key_of() != before
    norm.write_text(text)
    new.unlink()


def test_a_name_counts_too(copy: Path) -> None:
    """Of two files that change places."""
    files = of(copy)
    before = sources.hash_of(files)
    a, b = (path for path in files.values() if path.name in ("decoder.py", "norm.py"))
    texts = a.read_text(), b.read_text()
    a.write_text(texts[1]), b.write_text(texts[0])
    assert sources.hash_of(files) != before
    a.write_text(texts[0]), b.write_text(texts[1])


def test_the_key_of_a_graph_is_made_of_them() -> None:
    assert graph_cache.source_hash(MAKERS) == sources.hash_of(of(PACKAGE))
