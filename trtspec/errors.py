"""Errors that users can cause; each message names what was wrong, both numbers and the remedy."""

from __future__ import annotations


class TrtspecError(Exception):
    """Base of every error that trtspec raises on purpose."""


class ConfigError(TrtspecError, ValueError):
    """A configuration value, or a pair of them, cannot be honoured."""


class CheckpointError(TrtspecError):
    """A checkpoint is missing, truncated, of an unknown kind, or does not fit."""


class BuildError(TrtspecError):
    """Compiling an engine or the native library failed or is not possible here."""


class EngineError(TrtspecError):
    """An engine folder is incomplete, of another version, or does not fit the request."""


class RequestError(TrtspecError, ValueError):
    """One request is invalid; the others of its batch are not affected."""


class PromptTooLongError(RequestError):
    """The prompt leaves no room for an output token."""


class TrainingError(TrtspecError):
    """A training cannot go on; what it has so far is kept, and the message says where."""
