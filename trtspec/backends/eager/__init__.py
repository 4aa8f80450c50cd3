"""The modules themselves, uncompiled: for tests and debugging."""

from __future__ import annotations

from trtspec.backends.eager.backend import EagerBackend as EagerBackend
