"""Start the server, ask it with OpenAI's client, and end it: needs `pip install 'trtspec[serve]'
openai`."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request

import openai

SPECULATION = {"method": "suffix"}


def main() -> None:
    port = free_port()
    flags = ["--port", str(port), "--speculative-config", json.dumps(SPECULATION)]
    command = [sys.executable, "-m", "trtspec.commands.serve", "trtspec-tiny", *flags]
    server = subprocess.Popen(command)
    try:
        wait_for(f"http://127.0.0.1:{port}/health", server)
        ask(openai.OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="none"))
    finally:
        server.terminate()  # it drains: what runs is finished
        print(f"the server ended with {server.wait()}")


def ask(client: openai.OpenAI) -> None:
    """An answer as it comes, and a text without drafts."""
    asked = [{"role": "user", "content": "Write a function that opens a file."}]
    for chunk in client.chat.completions.create(
        model="trtspec-tiny", messages=asked, max_tokens=40, temperature=0, stream=True
    ):
        print(chunk.choices[0].delta.content or "", end="", flush=True)
    plain = client.completions.create(
        model="trtspec-tiny",
        prompt="def main(",
        max_tokens=16,
        extra_body={"speculative": {"num_speculative_tokens": 0}},
    )
    print(f"\n--- without drafts: {plain.usage.completion_tokens} tokens")


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def wait_for(url: str, server: subprocess.Popen[bytes]) -> None:
    """Until requests are served; the first use of a model compiles it."""
    while server.poll() is None:
        try:
            urllib.request.urlopen(url, timeout=5)
            return
        except (urllib.error.URLError, TimeoutError):
            time.sleep(0.2)
    raise SystemExit("the server did not start; it says why above")


if __name__ == "__main__":
    main()
