"""VerifyingSession: a target's session followed by ops that sample its logits and accept."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from trtspec.backends.inputs import EngineInputs
from trtspec.backends.session import Session
from trtspec.ops.acceptance import accept_trees
from trtspec.ops.sampling import sample


class VerifyingSession:
    """Samples and accepts within the call of a session that returns logits.

    The sampling inputs come to the device with the call's rows, and the ops are launched on its
    stream, without waiting: a CUDA graph of the call includes them.
    """

    def __init__(self, session: Session, width: int) -> None:
        """``session``: takes no columns, parents or row_start. ``width``: most rows of a tree."""
        self._session = session
        self._width = width

    def run(self, inputs: EngineInputs) -> list[Tensor]:
        """See `Session.run`. Returns the session's outputs, followed by ``sampled [R] i64``,
        ``accepted_rows [J, width] i32`` and ``num_emitted [J] i32``, as defined by `sample` and
        `accept_trees` for the J requests of ``row_start``; those without rows emit nothing."""
        if inputs.columns is None:  # nothing to verify: a replay
            return self._session.run(inputs)
        rows, wanted, columns = inputs.rows, inputs.logits_rows, inputs.columns
        parents, row_start = inputs.parents, inputs.row_start
        assert rows is not None and wanted is not None, "a target's call"
        assert parents is not None and row_start is not None, "a target that verifies is asked to"
        plain = inputs._replace(columns=None, parents=None, row_start=None)
        outputs = self._session.run(plain)
        sampled = sample(outputs[0], *columns)
        drafted = rows.input_ids[wanted]
        return [*outputs, sampled, *accept_trees(sampled, drafted, parents, row_start, self._width)]


def verifying(sessions: Mapping[str, Session], width: int) -> dict[str, Session]:
    """The sessions of a target, by name, made to verify trees of at most ``width`` rows."""
    return {name: VerifyingSession(session, width) for name, session in sessions.items()}
