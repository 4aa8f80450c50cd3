"""The parser of a program: what all programs have."""

from __future__ import annotations

import argparse
from typing import Any

import torch

from trtspec.engine.folder import FORMAT_VERSION
from trtspec.version import __version__

VERSION = f"trtspec {__version__}, torch {torch.__version__}, engine format {FORMAT_VERSION}"


def program_parser(
    program: str, description: str | None, **options: Any
) -> argparse.ArgumentParser:
    """A parser with ``--version``; ``options``: further ones of `argparse.ArgumentParser`."""
    parser = argparse.ArgumentParser(prog=program, description=description, **options)
    parser.add_argument("--version", action="version", version=VERSION, help="say it, and end")
    return parser
