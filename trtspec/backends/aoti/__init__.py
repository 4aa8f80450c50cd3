"""AOTInductor packages: compiled for one processor, or for one kind of GPU."""

from __future__ import annotations

from trtspec.backends.aoti.backend import AotiBackend as AotiBackend
