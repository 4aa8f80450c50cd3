"""RayRouter: a `Balancer` in the place of Ray Serve's own router. Ray imports it by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ray.serve.request_router import PendingRequest, ReplicaID, RequestRouter, RunningReplica

from trtspec.serve.replicas.balancer import Balancer
from trtspec.serve.replicas.call import Call
from trtspec.serve.replicas.prefix_index import block_hashes


class RayRouter(RequestRouter):  # type: ignore[misc]  # mypy does not read Ray
    """Routes the calls of one handle. Ray decides which replicas there are: it drops dead ones and
    those that end, asks the next best one where one is full, and holds calls while there is none.

    The first argument is a `Call` whose request has token ids; what has none goes to who is least
    busy.
    """

    def initialize_state(self, policy: str) -> None:
        """Called by Ray with the ``request_router_kwargs`` of the deployment."""
        self._balancer = Balancer(policy)
        self._calls: dict[str, Call] = {}  # those that are counted

    def update_replicas(self, replicas: list[RunningReplica]) -> None:
        super().update_replicas(replicas)
        self._know()

    def on_replica_actor_died(self, replica_id: ReplicaID) -> None:
        super().on_replica_actor_died(replica_id)
        self._know()

    async def choose_replicas(
        self,
        candidate_replicas: list[RunningReplica],
        pending_request: PendingRequest | None = None,
    ) -> list[list[RunningReplica]]:
        for request, call in list(self._calls.items()):
            if call.is_over:
                self._ended(request)
        ranked = self._balancer.rank(_blocks(_call(pending_request)))
        if pending_request is not None:
            pending_request.routing_context.should_backoff = True  # before all are asked again
            # Counted at once, so that those which are chosen for in the same moment see it.
            self._count(pending_request, ranked[0])
        by_name = {str(each.replica_id): each for each in candidate_replicas}
        return [[by_name[name]] for name in ranked if name in by_name]

    def on_request_routed(
        self, pending_request: PendingRequest, replica_id: ReplicaID, result: object
    ) -> None:
        if pending_request.metadata.internal_request_id in self._calls:
            self._count(pending_request, str(replica_id))  # else it has ended before this is said

    def on_request_completed(self, replica_id: ReplicaID, internal_request_id: str) -> None:
        self._ended(internal_request_id)

    def _count(self, pending: PendingRequest, name: str) -> None:
        call = _call(pending)
        if call is not None:
            request = pending.metadata.internal_request_id
            self._calls[request] = call
            sequences = len(call.request.prompts) * call.request.params.n
            self._balancer.began(request, name, _blocks(call), sequences)

    def _ended(self, request: str) -> None:
        self._calls.pop(request, None)
        self._balancer.ended(request)

    def _know(self) -> None:
        self._balancer.update(str(each) for each in self.curr_replicas)


def _call(pending: PendingRequest | None) -> Call | None:
    if pending is None or not pending.args or not isinstance(pending.args[0], Call):
        return None
    return pending.args[0]


def _blocks(call: Call | None) -> Sequence[int]:
    """Of the first prompt: all go where one goes."""
    if call is None:
        return ()
    first = call.request.prompts[0]
    assert isinstance(first, Mapping), "GenerateRequest.in_tokens"
    return block_hashes(first["prompt_token_ids"], call.request.adapter or "")
