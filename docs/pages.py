"""What the site is made of: the pages in markdown where they lie, what they link to, and a page for
each method and for the API.

mkdocs calls `on_files`. Files keep their paths below the repository's root, so a link leads to the
same place on the site as in the repository.
"""

from __future__ import annotations

import atexit
import inspect
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.plugins import event_priority
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "docs")]  # this checkout, whatever is installed

from pictures import PICTURES, svg  # noqa: E402

import trtspec  # noqa: E402
from trtspec.config.tree_decoding import LEFT_OUT  # noqa: E402
from trtspec.speculative.base import DraftMethod  # noqa: E402
from trtspec.speculative.registry import methods  # noqa: E402

FOLDERS = (
    *("docs", "examples", "container", "trtspec", "checkpoint_converters", "cpp", "plugins"),
    "tests",
)
METHODS, API = "docs/methods", "docs/api.md"


@event_priority(100)  # mkdocstrings reads its options after this
def on_config(config: MkDocsConfig) -> None:
    """Give mkdocstrings a copy of the package whose folders all have an ``__init__.py``: it reads
    no others."""
    copy = Path(tempfile.mkdtemp(prefix="trtspec-docs-"))
    atexit.register(shutil.rmtree, copy, ignore_errors=True)
    for source in (ROOT / "trtspec").rglob("*.py"):
        target = copy / source.relative_to(ROOT)
        target.parent.mkdir(parents=True, exist_ok=True)
        (target.parent / "__init__.py").touch()
        shutil.copyfile(source, target)
    config.plugins["mkdocstrings"].config.handlers["python"]["paths"] = [str(copy)]


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Those of the theme, and ours in the place of what lies in `docs`."""
    site = Files([each for each in files if each.src_dir != config.docs_dir])
    pages = [*ROOT.glob("*.md"), *(p for name in FOLDERS for p in (ROOT / name).rglob("*.md"))]
    linked = (target for page in pages for target in _linked(page))
    for path in sorted({*pages, *linked, *(ROOT / "docs").glob("*.css")}):
        name = path.relative_to(ROOT).as_posix()
        site.append(File(name, str(ROOT), config.site_dir, config.use_directory_urls))
    for name, content in _made():
        site.append(File.generated(config, name, content=content))
    return site


def _linked(page: Path) -> Iterator[Path]:
    """Files that are no pages: pictures, and sources that are shown as they are."""
    for link in re.findall(r"\]\((?!https?:)([^)#\s]+)", page.read_text()):
        target = (page.parent / link).resolve()
        if target.is_file() and target.suffix != ".md":
            yield target


def _made() -> Iterator[tuple[str, str]]:
    """Name and content of what is made from the code."""
    front, options = ROOT / "README.md", ROOT / "trtspec/speculative/README.md"
    needs, notes = _rows(front, "Methods"), _rows(options, "Options")
    for name, method in methods().items():
        if name not in PICTURES:
            raise PluginError(f"docs/pictures.py has no picture of the method {name}")
        yield f"{METHODS}/{name}.svg", svg(PICTURES[name])
        yield f"{METHODS}/{name}.md", _method_page(method, needs[name], notes[name])
    lines = [f"| [`{name}`]({name}.md) | {method.title} |" for name, method in methods().items()]
    yield f"{METHODS}/README.md", "\n".join(["# Methods", "", "| | |", "|---|---|", *lines, ""])
    configs = {method.options.__name__ for method in methods().values()}
    shown = [name for name in trtspec.__all__ if name in trtspec._HOMES and name not in configs]
    entries = [f"::: {trtspec._HOMES[name]}.{name}" for name in shown]
    yield API, "\n\n".join(["# API", "What `from trtspec import ...` offers.", *entries]) + "\n"


def _rows(page: Path, section: str) -> Mapping[str, list[str]]:
    """The other cells of a section's table, by each of the names in the first one."""
    text = page.read_text().split(f"\n## {section}\n")[1].split("\n## ")[0]
    found = {}
    for line in re.findall(r"^\|(.*)\|$", text, flags=re.MULTILINE):
        first, *others = [cell.strip() for cell in line.split(" | ")]
        # Where it stands on the site: a page below METHODS.
        linked = [_moved(cell, page) for cell in others]
        found.update(dict.fromkeys(re.findall(r"`(\w+)`", first), linked))
    return found


def _moved(text: str, page: Path) -> str:
    """Links of ``text`` as a page of METHODS has them."""

    def target(match: re.Match[str]) -> str:
        link, place = match[1], page.relative_to(ROOT).parent.as_posix()
        link = page.name + link if link.startswith("#") else link
        return f"](../../{place}/{link})"

    return re.sub(r"\]\((?!https?:)([^)]+)\)", target, text)


def _method_page(method: DraftMethod, needs: list[str], notes: list[str]) -> str:
    """What it is, how it drafts, when it pays, and its options."""
    summary = (inspect.getdoc(method.options) or "").split("\n\n")[0].replace("\n", " ")
    summary = re.sub(r" Options: see `\w+`\.", "", summary)  # they are listed below
    needed, pays = needs
    lines = [
        f"# `{method.name}`: {method.title}", "", summary, "",
        f"![how {method.name} drafts]({method.name}.svg)", "",
        f"**What it needs:** {needed}.", "", f"**When it pays:** {pays}.", "",
        "## Options", "", f"Mostly used: {notes[0]}.", "",
        *([f"{notes[1]}.", ""] if len(notes) > 1 and notes[1] else []),
        "| option | default | meaning |", "|---|---|---|",
        *_option_rows(method.options), "",
        "[Keys of other engines](../../trtspec/speculative/COMING_FROM.md)", "",
    ]  # fmt: skip
    return "\n".join(lines)


def _option_rows(options: type[Any]) -> Iterator[str]:
    """A row for each field, with what the docstrings of its class and bases say of it."""
    names = [each.name for each in fields(options) if each.init]
    said: dict[str, str] = {}
    for cls in reversed(options.__mro__):
        text = " ".join((cls.__dict__.get("__doc__") or "").split())
        parts = re.split(rf"((?:(?:{'|'.join(names)})(?:, )?)+): ", text)
        for heads, meaning in zip(parts[1::2], parts[2::2], strict=True):
            said.update(dict.fromkeys(heads.split(", "), meaning.strip()))
    for each in fields(options):
        if each.init:
            default = "" if each.default in (MISSING, LEFT_OUT) else f"`{each.default!r}`"
            meaning = said.get(each.name, "").replace("|", "&#124;")
            yield f"| `{each.name}` | {default} | {meaning} |"
