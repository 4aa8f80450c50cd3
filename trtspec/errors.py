"""Errors that users can cause. Each message names what was wrong, the numbers involved and the
remedy."""

from __future__ import annotations


class TrtspecError(Exception):
    """Base of every error that trtspec raises on purpose."""


class ConfigError(TrtspecError, ValueError):
    """A configuration value, or a combination of values, cannot be honoured."""


class CheckpointError(TrtspecError):
    """A checkpoint is missing, truncated, of an unknown kind, or does not fit."""


class BuildError(TrtspecError):
    """Compiling an engine or the native library failed or is not possible here."""


class EngineError(TrtspecError):
    """An engine folder is incomplete, has another version, or does not fit the request."""


class RequestError(TrtspecError, ValueError):
    """One request is invalid; the others in its batch are not affected."""


class PromptTooLongError(RequestError):
    """The prompt leaves no room for an output token."""


class TrainingError(TrtspecError):
    """Training cannot continue. What it has so far is kept, and the message says where."""
