"""Call: a request on its way to a replica."""

from __future__ import annotations

from dataclasses import dataclass

from trtspec.serve.engine_client import GenerateRequest


@dataclass
class Call:
    """is_over: nobody waits for it any more; set where it was made, and read there by the router,
    as Ray does not always say that a cancelled call is completed."""

    request: GenerateRequest
    is_over: bool = False
