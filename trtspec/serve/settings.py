"""ServeSettings: the server's own settings, apart from the model's."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from pathlib import Path

from trtspec.config.strict import strict_config
from trtspec.errors import ConfigError
from trtspec.serve.tools.registry import AUTO, reasoning_parser, tool_parser


@strict_config()
@dataclass(frozen=True)
class ServeSettings:
    """Checked options of the server; ConfigError names a bad value. Times are in seconds.

    model_names: names that clients may use as ``model``; the first one is reported. api_keys: a
    client must send one of them as a bearer token; none: everybody is served. lora_dir: clients may
    load adapters from below this folder, and unload any; None: they may not. max_queue: sequences
    that may wait beyond a full batch before requests get 429. request_timeout: longer requests end
    with 504; None: no limit. drain_seconds: after SIGTERM or SIGHUP, how long /health answers 503
    before new requests are refused, so that load balancers notice first. drain_timeout: how long
    running requests may then take. keep_alive: idle connections are closed after this; it must
    exceed the clients' own timeout, or connections are reset while being reused. first_comment,
    comment_interval: how long a stream may be silent before it gets a comment, at first and later.
    step_timeout: an engine step that takes longer counts as hung: the server fails running requests
    and exits with code 1. max_failed_steps: after this many failed engine steps in a row, /health
    answers 503 with the reason, and the server fails running requests and exits with code 1.
    stay_after_failures: it stays instead, and is ready again after a successful step.
    max_body_bytes: larger request bodies get 413 before they are read. allowed_origins: origins of
    web pages whose scripts may call the server; none by default. metrics_prefix: prefix of metric
    names, before the colon. tool_call_parser, reasoning_parser: names of the parsers for answers;
    "auto": as the chat template indicates, "none": answers are not parsed. request_metrics: report
    speculation figures with every response, not only on request. log_requests, log_interval: log a
    line for each request; log a summary at this interval while there is work (0: never).
    """

    model_names: tuple[str, ...]
    host: str = "127.0.0.1"
    port: int = 8000
    api_keys: tuple[str, ...] = ()
    lora_dir: str | None = None
    max_queue: int = 256
    request_timeout: float | None = None
    drain_seconds: float = 3.0
    drain_timeout: float = 30.0
    keep_alive: float = 75.0
    first_comment: float = 1.0
    comment_interval: float = 15.0
    step_timeout: float = 300.0
    max_failed_steps: int = 10
    stay_after_failures: bool = False
    max_body_bytes: int = 8 * 2**20
    allowed_origins: tuple[str, ...] = ()
    metrics_prefix: str = "trtspec"
    tool_call_parser: str = AUTO
    reasoning_parser: str = AUTO
    request_metrics: bool = False
    log_requests: bool = True
    log_interval: float = 5.0
    root_path: str = ""
    ssl_certfile: str | None = None
    ssl_keyfile: str | None = None

    def __post_init__(self) -> None:
        if not self.model_names or not all(self.model_names):
            raise ConfigError("served_model_name must have at least one name, none of them empty")
        if any(not key for key in self.api_keys):
            raise ConfigError("api_key is empty, which every client would match; leave it out")
        if any(not key.isascii() or not key.isprintable() for key in self.api_keys):
            raise ConfigError("api_key may hold printable ASCII only, as an HTTP header carries it")
        if self.lora_dir is not None and not Path(self.lora_dir).expanduser().is_dir():
            raise ConfigError(f"lora_dir={self.lora_dir!r} is no folder; clients load from there")
        tool_parser(self.tool_call_parser, "")
        reasoning_parser(self.reasoning_parser, "")
        if not 0 <= self.port < 2**16:
            raise ConfigError(f"port={self.port} must be between 0 and 65535 (0: any free one)")
        if self.max_queue < 0:
            raise ConfigError(f"max_queue={self.max_queue} must be 0 or more")
        if self.max_failed_steps < 1:
            raise ConfigError(f"max_failed_steps={self.max_failed_steps} must be at least 1")
        if self.max_body_bytes < 1024:
            raise ConfigError(f"max_body_bytes={self.max_body_bytes} must be at least 1024")
        positive = ("request_timeout", "step_timeout", "keep_alive")
        for name in (*positive, "first_comment", "comment_interval"):
            value = getattr(self, name)
            if value is not None and not (math.isfinite(value) and value > 0):
                raise ConfigError(f"{name}={value!r} must be a number of seconds above 0")
        for name in ("drain_seconds", "drain_timeout", "log_interval"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= 0):
                raise ConfigError(f"{name}={value!r} must be a number of seconds, 0 or more")
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", self.metrics_prefix):
            raise ConfigError(
                f"metrics_prefix={self.metrics_prefix!r} must be letters, digits and _"
            )
        if self.root_path and not re.fullmatch(r"(/[^/?#]+)+", self.root_path):
            raise ConfigError(
                f"root_path={self.root_path!r} must begin with / and not end with it, as /api"
            )
        if (self.ssl_certfile is None) != (self.ssl_keyfile is None):
            raise ConfigError("ssl_certfile and ssl_keyfile go together; give both or neither")
