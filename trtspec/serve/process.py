"""run_server: runs the server in this process, from binding the port to the exit code."""

from __future__ import annotations

import contextlib
import math
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType

import uvicorn

from trtspec.builder.scratch import remove_scratch
from trtspec.errors import ConfigError
from trtspec.log import logger
from trtspec.serve.app import make_app
from trtspec.serve.engine_client import EngineClient
from trtspec.serve.lifecycle import Lifecycle
from trtspec.serve.logs import set_up_logs
from trtspec.serve.service import Status
from trtspec.serve.settings import ServeSettings

_CLOSING_SECONDS = 5
# Threads that run Python hand the interpreter over after this long. The engine's thread needs it
# for microseconds at a time between kernels, and must not wait 5 ms (the default) for the loop's.
_SWITCH_SECONDS = 0.0005


class DrainingServer(uvicorn.Server):
    """uvicorn, except that a signal drains first, and signals are not raised again at the end, so
    that the exit code is ours."""

    def __init__(self, config: uvicorn.Config, lifecycle: Lifecycle) -> None:
        super().__init__(config)
        self._lifecycle = lifecycle
        lifecycle.on_stop = self._stop

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """uvicorn's signals, and SIGHUP unless the process ignores it (nohup)."""
        with super().capture_signals():
            in_main = threading.current_thread() is threading.main_thread()
            if not in_main or signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
                yield
                return
            before = signal.signal(signal.SIGHUP, self.handle_exit)
            try:
                yield
            finally:
                signal.signal(signal.SIGHUP, before)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        # Nobody balances load over a server that is ended from the keyboard.
        self._lifecycle.drain(announced=sig != signal.SIGINT)

    def _stop(self) -> None:
        self.should_exit = True


def serve(settings: ServeSettings, log_json: bool, open_engine: Callable[[], EngineClient]) -> int:
    """`run_server`, logging to standard error."""
    set_up_logs(log_json)
    return run_server(settings, open_engine)


def run_server(settings: ServeSettings, open_engine: Callable[[], EngineClient]) -> int:
    """Serve until a signal or a failure; returns the exit code.

    The port is bound first, so that a taken port is reported before a long build, and probes can
    see an engine that is still being built: /live answers 200, /health and requests 503.

    Raises:
        ConfigError: the port cannot be bound.
    """
    sys.setswitchinterval(_SWITCH_SECONDS)
    listener = listen(settings.host, settings.port)
    app, lifecycle = make_app(settings, open_engine)
    config = uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        server_header=False,
        lifespan="on",
        root_path=settings.root_path,
        ssl_certfile=settings.ssl_certfile,
        ssl_keyfile=settings.ssl_keyfile,
        timeout_graceful_shutdown=_CLOSING_SECONDS,
        timeout_keep_alive=math.ceil(settings.keep_alive),
    )
    scheme = "https" if settings.ssl_certfile else "http"
    shown = f"[{settings.host}]" if ":" in settings.host else settings.host
    logger.info("listening on %s://%s:%d", scheme, shown, listener.getsockname()[1])
    DrainingServer(config, lifecycle).run(sockets=[listener])
    service = lifecycle.service
    if lifecycle.hung or lifecycle.loading:
        # A thread is inside the engine, or builds one, and nobody can wait for it.
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        _end_children()
        remove_scratch()
        os._exit(lifecycle.exit_code)
    logger.info("stopped%s", "" if service.status is not Status.FAILED else " after a failure")
    return lifecycle.exit_code


def listen(host: str, port: int) -> socket.socket:
    """A listening socket; ConfigError if the port cannot be bound."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listener = socket.create_server((host, port), family=family, backlog=2048)
    except OSError as error:
        raise ConfigError(
            f"cannot listen on {host}:{port}: {error.strerror or error}; choose another --host or "
            "--port"
        ) from error
    # Connections inherit it. asyncio sets it only on sockets that were made with the protocol's
    # number; without it a reply's second packet waits for an acknowledgement, 40 ms on Linux.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listener


def _end_children() -> None:
    """End the processes that a build has started (Linux), since nobody would use their results."""
    for path in Path("/proc/self/task").glob("*/children"):
        with contextlib.suppress(OSError):
            for pid in path.read_text().split():
                os.kill(int(pid), signal.SIGTERM)
