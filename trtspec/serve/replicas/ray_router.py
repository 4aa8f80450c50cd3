"""RayRouter: a `Balancer` in the place of Ray Serve's own router. Ray imports it by name."""

from __future__ import annotations

from asyncio import Future
from collections.abc import Callable, Mapping, Sequence

from ray.serve.request_router import PendingRequest, ReplicaID, RequestRouter, RunningReplica

from trtspec.serve.engine_client import GenerateRequest
from trtspec.serve.replicas.balancer import Balancer
from trtspec.serve.replicas.prefix_index import block_hashes


class RayRouter(RequestRouter):  # type: ignore[misc]  # mypy does not read Ray
    """Routes the calls of one handle. Ray decides which replicas there are: it drops dead ones and
    those that end, asks the next best one where one is full, and holds calls while there is none.

    The first argument of a call is its `GenerateRequest` with token ids; a call without one goes to
    who is least busy.
    """

    def initialize_state(self, policy: str) -> None:
        """Called by Ray with the ``request_router_kwargs`` of the deployment."""
        self._balancer = Balancer(policy)

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
        ranked = self._balancer.rank(_blocks(_asked(pending_request)))
        if pending_request is not None:
            pending_request.routing_context.should_backoff = True  # before all are asked again
            # Counted at once, so that those which are chosen for in the same moment see it.
            self._count(pending_request, ranked[0])
            pending_request.future.add_done_callback(self._forget(pending_request))
        by_name = {str(each.replica_id): each for each in candidate_replicas}
        return [[by_name[name]] for name in ranked if name in by_name]

    def on_request_routed(
        self, pending_request: PendingRequest, replica_id: ReplicaID, result: object
    ) -> None:
        if self._balancer.is_under_way(pending_request.metadata.internal_request_id):
            self._count(pending_request, str(replica_id))  # else it has ended before this is said

    def on_request_completed(self, replica_id: ReplicaID, internal_request_id: str) -> None:
        self._balancer.ended(internal_request_id)

    def _count(self, call: PendingRequest, name: str) -> None:
        request = _asked(call)
        if request is not None:
            sequences = len(request.prompts) * request.params.n
            self._balancer.began(
                call.metadata.internal_request_id, name, _blocks(request), sequences
            )

    def _forget(self, call: PendingRequest) -> Callable[[Future[RunningReplica]], None]:
        """What to do when a replica was found: nothing, unless nobody waits for one any more."""

        def settled(found: Future[RunningReplica]) -> None:
            if found.cancelled():
                self._balancer.ended(call.metadata.internal_request_id)

        return settled

    def _know(self) -> None:
        self._balancer.update(str(each) for each in self.curr_replicas)


def _asked(call: PendingRequest | None) -> GenerateRequest | None:
    if call is None or not call.args or not isinstance(call.args[0], GenerateRequest):
        return None
    return call.args[0]


def _blocks(request: GenerateRequest | None) -> Sequence[int]:
    """Of the first prompt: all go where one goes."""
    if request is None:
        return ()
    first = request.prompts[0]
    assert isinstance(first, Mapping), "GenerateRequest.in_tokens"
    return block_hashes(first["prompt_token_ids"], request.adapter or "")
