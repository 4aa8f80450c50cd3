"""What another package's method is made of counts for its own engines and graphs, for no others."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from trtspec.builder import graph_cache, sources
from trtspec.builder.plan import BuildPlan, plan_build
from trtspec.config.build_config import BuildConfig
from trtspec.engine.graphs import graph_names
from trtspec.speculative import registry
from trtspec.speculative.options import parse_speculative_config

from ..e2e.helpers import chain
from ..other_package import installer
from ..speculative.toy_heads import save_pair, toy

THEIRS = Path(__file__).parent.parent / "speculative" / "toy_method"
PACKAGE = "outside_toy"
AUXILIARY = "AUXILIARY = replace(TOY, in_target=AuxiliaryWeights(lambda names, layers: set()))"
"""The toy, as if it could have a part in a target's checkpoint."""


@pytest.fixture
def site(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> Iterator[Path]:
    """A folder where the toy is installed: its graphs' files, and in a folder beside them those
    that read its checkpoints."""

    def forget() -> None:
        registry.methods.cache_clear()
        registry.draft_kinds.cache_clear()
        graph_cache.source_hash.cache_clear()

    root = tmp_path / "site"
    package = shutil.copytree(THEIRS, root / PACKAGE, ignore=shutil.ignore_patterns("__pycache__"))
    (package / "reading").mkdir()
    text = (package / "checkpoint.py").read_text().replace("from .", "from ..")
    (package / "reading" / "checkpoint.py").write_text(text)
    (package / "checkpoint.py").unlink()
    method = package / "method.py"
    text = method.read_text().replace("from .check", "from .reading.check")
    method.write_text(
        f"{text}\nfrom checkpoint_converters import AuxiliaryWeights\n\n{AUXILIARY}\n"
    )
    install = installer(root, monkeypatch, registry.ENTRY_POINTS, forget)
    install(f"{PACKAGE}.method:{getattr(request, 'param', 'TOY')}")
    yield package
    monkeypatch.undo()
    forget()
    for name in [name for name in sys.modules if name.partition(".")[0] == PACKAGE]:
        del sys.modules[name]  # another test has another one


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return save_pair(tmp_path_factory.mktemp("pair"))


Keys = dict[str, str]


@pytest.fixture
def keys(pair: tuple[Path, Path], site: Path) -> Callable[[], Keys]:
    """Fingerprints of engines and keys of their graphs."""
    target, draft = pair
    configs = {"toy": toy(draft), "other": chain(target, 3), "none": None}

    def plan(name: str) -> BuildPlan:
        return plan_build(target, BuildConfig("float32"), parse_speculative_config(configs[name]))

    def found() -> Keys:
        graph_cache.source_hash.cache_clear()
        plans = {name: plan(name) for name in configs}
        graphs = {
            f"{name} {graph}": graph_cache.graph_key(each.engine, graph)
            for name, each in plans.items()
            for graph in graph_names(each.engine)
        }
        return {**{name: each.fingerprint for name, each in plans.items()}, **graphs}

    return found


def changed(before: Keys, after: Keys) -> set[str]:
    return {name for name, key in after.items() if before[name] != key}


@pytest.mark.slow
def test_what_it_is_made_of(site: Path, keys: Callable[[], Keys]) -> None:
    before = keys()
    assert {"toy draft/rollout.pt2", "toy target/model.pt2"} <= set(before)
    of_graphs = {"graphs.py", "network.py", "rollout.py", "shape.py"}
    for path in site.rglob("*.py"):
        text = path.read_text()
        path.write_text(f"{text}\n# changed\n")
        wanted = {"toy", "toy draft/rollout.pt2"} if path.name in of_graphs else {"toy"}
        assert changed(before, keys()) == wanted, path
        path.write_text(text)
    (site / "unused.py").write_text("import trtspec.models.rope\n")
    assert keys() == before


@pytest.mark.slow
@pytest.mark.parametrize("site", ["AUXILIARY"], indirect=True)
def test_what_may_lie_in_a_target_counts_for_all(site: Path, keys: Callable[[], Keys]) -> None:
    before = keys()
    reader = site / "reading" / "checkpoint.py"
    reader.write_text(reader.read_text() + "\n# changed\n")
    assert changed(before, keys()) == {"toy", "other", "none"}


def test_what_it_uses_of_ours(site: Path, tmp_path: Path) -> None:
    """A change of what only this method's graphs import of the package changes their key."""
    copy = tmp_path / "trtspec"
    for path in sources.PACKAGE.rglob("*.py"):
        place = copy / path.relative_to(sources.PACKAGE)
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, place)
    home = registry.draft_kinds()["toy"].home

    def hashes() -> list[str]:
        found = (graph_cache.graph_sources(makers, copy) for makers in ((), (home,)))
        return [sources.hash_of(files) for files in found]

    (copy / "speculative" / "toy_levels.py").write_text("")
    rollout = site / "rollout.py"
    rollout.write_text(f"{rollout.read_text()}\nfrom trtspec.speculative import toy_levels\n")
    before = hashes()
    (copy / "speculative" / "toy_levels.py").write_text("# changed\n")
    after = hashes()
    assert after[0] == before[0] and after[1] != before[1]
