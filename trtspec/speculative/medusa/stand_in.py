"""MarginalsNetwork: heads made of a lowered graph."""

from __future__ import annotations

from torch import Tensor, nn

from trtspec.backends.session import GraphSession


class MarginalsNetwork(nn.Module):
    """A draft network without K/V, for a rollout (see `trtspec.speculative.medusa.rollout`)."""

    token_map: Tensor | None = None

    def __init__(self, session: GraphSession) -> None:
        super().__init__()
        self._session = session

    def marginals(self, hidden: Tensor) -> Tensor:
        """See `MarginalNetwork.marginals`."""
        return self._session.run([hidden.contiguous()])[0]
