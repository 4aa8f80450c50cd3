"""What the benchmark program prints and writes, and the loads that it puts on an engine."""

from __future__ import annotations

import csv
import json
import re
import subprocess
from pathlib import Path

import pytest

from trtspec.engine.folder import EngineConfig

from ..compiled_engines import CHAIN
from ..tiny_config import attention_of
from .program import Program, Sample, write_samples

pytestmark = pytest.mark.slow

SAMPLES: list[Sample] = [([7 + i, 300, 41, 9 * i + 1] * 4, 12 + i) for i in range(5)]
SPREADS = (
    "sequence_latency(ms)", "time_to_first_token(ms)", "inter_token_latency(ms)",
    "user_tokens_per_second(tokens/sec/user)", "request_queueing_latency(ms)",
)  # fmt: skip


def printed(stdout: str) -> dict[str, str]:
    """The [BENCHMARK] lines; nothing else may be printed."""
    form = r"\[BENCHMARK\] (\w+(?:\(.+?\))?) (\S+|floor not measured)"
    lines = [re.fullmatch(form, line) for line in stdout.splitlines()]
    assert all(lines)
    found = {line[1]: line[2] for line in lines if line}
    assert len(found) == len(lines)
    return found


def test_figures(program: Program, chain_engine: Path, tmp_path: Path) -> None:
    result = program.run(chain_engine, SAMPLES, tmp_path, "--streaming")
    lines, figures = printed(result.stdout), result.figures
    tokens = sum(n for _, n in SAMPLES)
    assert (lines["num_samples"], lines["num_error_samples"]) == ("5", "0")
    assert lines["num_output_tokens"] == str(tokens)
    seconds = figures["total_latency"] / 1e3
    assert figures["token_throughput"] == pytest.approx(tokens / seconds)
    assert figures["seq_throughput"] == pytest.approx(5 / seconds)
    assert float(lines["token_throughput(token/sec)"]) == pytest.approx(tokens / seconds, abs=1e-4)
    # What the neighbours call a rate is a length; both names say the same.
    length = lines["avg_acceptance_rate(tokens/decoding steps)"]
    assert length == lines["acceptance_length(tokens/step)"] and float(length) >= 1
    for name in SPREADS:
        plain = name.partition("(")[0]
        low, middle, high, nearly_all, most, mean = (
            figures[f"{kind}_{plain}"] for kind in ("min", "p50", "p90", "p99", "max", "avg")
        )
        assert low <= middle <= high <= nearly_all <= most and low <= mean <= most
        assert float(lines[f"p50_{name}"]) == pytest.approx(middle, abs=1e-4)
    assert figures["max_sequence_latency"] == figures["total_latency"]
    parts = [figures[f"{part}_time"] for part in ("draft", "target", "host")]
    assert sum(parts) == pytest.approx(figures["step_time"])
    assert figures["host_share"] == pytest.approx(parts[2] / figures["step_time"])
    assert 0 < figures["num_verify_steps"] <= figures["num_engine_steps"]
    read = (figures["weights_read"] + figures["kv_read"]) / 1e3
    floor = 1e3 * read / figures["read_bandwidth"]
    share = floor / figures["verify_step_time"]
    if share > 1.05:  # so small a model lies in the caches
        assert figures["memory_floor"] is figures["memory_floor_share"] is None
        assert lines["memory_floor_share(floor/step)"] == "floor not measured"
    else:
        assert figures["memory_floor"] == pytest.approx(floor)
        assert figures["memory_floor_share"] == pytest.approx(share)
    with (tmp_path / "figures.csv").open() as file:
        rows = list(csv.reader(file))
    assert dict(zip(*rows, strict=True)) == lines
    report = result.report
    assert report["speculation"] == {"method": "draft_model", "max_draft_len": 4}
    assert report["engine"]["built_for"]["num_draft_tokens"] == 5
    assert report["engine"]["dtype"] == "float32" and report["flags"]["warm_up"] == 0
    assert report["machine"]["threads"] == 1 and report["command_line"][0] == str(program.path)


def test_threads(program: Program, chain_engine: Path, tmp_path: Path) -> None:
    report = program.run(chain_engine, [([5, 6, 7], 8)], tmp_path, "--num_threads", 2).report
    assert report["machine"]["threads"] == 2


def test_no_python(program: Program) -> None:
    """Nothing that the program is linked with brings an interpreter along."""
    libraries = subprocess.run(["ldd", program.path], capture_output=True, text=True, check=True)
    assert "libtorch_cpu" in libraries.stdout and "python" not in re.sub(
        r"/\S+/", "", libraries.stdout
    )


def test_weights_read_a_step(program: Program, chain_engine: Path, tmp_path: Path) -> None:
    """Without speculation a step reads the target's weights once."""
    one: list[Sample] = [([5, 6, 7], 8)]
    result = program.run(chain_engine, one, tmp_path, "--speculative", "none")
    engine, figures = result.report["engine"], result.figures
    assert figures["num_verify_steps"] == 7
    assert figures["weights_read"] == pytest.approx(engine["target_weight_bytes"] / 1e6)
    target = EngineConfig.read(chain_engine).target
    mixer = attention_of(target)
    row = 2 * target.num_layers * mixer.num_kv_heads * mixer.head_dim * 4
    # The first of these steps sees 4 tokens, the last 10.
    assert figures["kv_read"] == pytest.approx(7 * row / 1e6)
    drafted = program.run(chain_engine, one, tmp_path).figures
    steps, calls = drafted["num_verify_steps"], drafted["num_draft_calls"] - 1  # and the prefill
    a_pass = engine["rollout_weight_bytes"] / CHAIN["num_speculative_tokens"]
    expected = engine["target_weight_bytes"] * steps + a_pass * calls
    assert drafted["weights_read"] == pytest.approx(expected / steps / 1e6)


def test_loads(program: Program, chain_engine: Path, tmp_path: Path) -> None:
    """Whatever the load, the texts are the same."""
    at_once = program.run(chain_engine, SAMPLES, tmp_path, "--temperature", 0.7)
    one = program.run(chain_engine, SAMPLES, tmp_path, "--temperature", 0.7, "--concurrency", 1)
    assert one.tokens == at_once.tokens
    assert one.figures["max_request_queueing_latency"] < one.figures["min_sequence_latency"]
    for delays in ((), ("--enable_exp_delays",)):
        rate = ("--temperature", 0.7, "--request_rate", 20, *delays)
        paced = program.run(chain_engine, SAMPLES, tmp_path, *rate)
        assert paced.tokens == at_once.tokens
        if not delays:
            assert paced.figures["total_latency"] >= 4 * 50
    other = program.run(chain_engine, SAMPLES, tmp_path, "--temperature", 0.7, "--random_seed", 1)
    assert other.tokens != at_once.tokens


def test_warm_up_leaves_no_trace(program: Program, chain_engine: Path, tmp_path: Path) -> None:
    """Neither in the figures nor, by cached prefixes, in the steps of the measurement."""
    cold = program.run(chain_engine, SAMPLES, tmp_path)
    counts = {k: v for k, v in cold.figures.items() if k.startswith("num_")}
    data = tmp_path / "samples.json"
    report = tmp_path / "warm.json"
    for engine_flags in (("--warm_up", 3), ()):
        done = program.call(
            "--engine_dir", chain_engine, "--dataset", data, "--output_json", report, *engine_flags
        )
        assert done.returncode == 0, done.stderr
        warm = json.loads(report.read_text())["figures"]
        assert {k: v for k, v in warm.items() if k.startswith("num_")} == counts


def test_a_failed_request(program: Program, chain_engine: Path, tmp_path: Path) -> None:
    """It is counted and named; the others go on."""
    long: Sample = ([3] * 60, 40)
    samples = [SAMPLES[0], long, SAMPLES[1]]
    result = program.run(chain_engine, samples, tmp_path, "--kv_cache_max_tokens", 64)
    assert printed(result.stdout)["num_error_samples"] == "1"
    assert result.stderr.startswith("trtspec_benchmark: sample 1 failed: 60 prompt tokens + 40")
    assert result.stderr.count("\n") == 1 and "64" in result.stderr
    failed = result.responses[1]
    assert failed["finish_reason"] == "error" and failed["tokens"] == []
    assert failed["error"] in result.stderr
    assert [len(text) for text in result.tokens] == [12, 0, 13]


def test_datasets_and_logs(program: Program, chain_engine: Path, tmp_path: Path) -> None:
    """A sample a line, the first ones of them, and a line for every iteration."""
    whole = program.run(chain_engine, SAMPLES, tmp_path)
    lines = write_samples(tmp_path / "samples.jsonl", SAMPLES)
    lines.write_text(lines.read_text().replace("output_len", "output_tokens") + "not read\n")
    nameless = tmp_path / "samples"  # no suffix that says what it holds
    nameless.write_bytes(lines.read_bytes())
    for data in (lines, nameless):
        responses = tmp_path / "some.json"
        done = program.call(
            "--engine-dir", chain_engine, "--dataset", data, "--max-num-samples=5",
            "--responses_json", responses, "--log_iteration_data", "--max_batch_size", 2,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        found = json.loads(responses.read_text())["responses"]
        assert [response["tokens"] for response in found] == whole.tokens
    iterations = [
        json.loads(line.removeprefix("[ITERATION] "))
        for line in done.stdout.splitlines()
        if line.startswith("[ITERATION] ")
    ]
    steps = re.search(r"num_engine_steps (\d+)", done.stdout)
    assert steps is not None and len(iterations) == int(steps[1])
    assert sum(entry["num_emitted_tokens"] for entry in iterations) == sum(map(len, whole.tokens))
    assert max(entry["num_scheduled"] for entry in iterations) == 2
