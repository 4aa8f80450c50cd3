"""One engine folder run by Python and by C++: what Python costs a step.

    python -m trtspec.bench.runtimes --engine_dir engine --program build/trtspec_benchmark

Held-out code at temperature 0, one request at a time, without speculation and with what the engine
was built for. Rounds alternate between the two runtimes; the figures are medians over rounds.
"""

from __future__ import annotations

import argparse
import json
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

from trtspec.bench.data.dataset import held_out_prompts
from trtspec.bench.data.prepare_dataset import Sample, text_samples, write_dataset
from trtspec.config.sampling import SamplingParams
from trtspec.engine.folder import TOKENIZER_FOLDER
from trtspec.errors import EngineError
from trtspec.llmapi.llm import LLM
from trtspec.llmapi.prompts import load_tokenizer

PYTHON, CPP = "Python", "C++"
NONE, AS_BUILT = "none", "as built"
WARM_UP = 2


@dataclass(frozen=True)
class RuntimeRound:
    """Speed, and milliseconds of a step and of its time outside the engines."""

    tokens_per_second: float
    step_ms: float
    host_ms: float
    tokens: list[list[int]]


def run_python(engine: Path, method: str, samples: Sequence[Sample]) -> RuntimeRound:
    """The samples through `LLM`."""
    speculation: Any = False if method == NONE else None
    options: dict[str, Any] = {"kv_cache_config": {"enable_block_reuse": False}}
    prompts = [list(sample.input_ids) for sample in samples]
    params = [SamplingParams(sample.output_len, ignore_eos=True, seed=0) for sample in samples]
    with LLM(engine, speculation, skip_tokenizer_init=True, max_batch_size=1, **options) as llm:
        llm.generate(prompts[:WARM_UP], params[:WARM_UP], use_tqdm=False)
        before = llm.get_metrics()
        began = perf_counter()
        outputs = llm.generate(prompts, params, use_tqdm=False)
        seconds = perf_counter() - began
        after = llm.get_metrics()
    tokens = [list(output.outputs[0].token_ids) for output in outputs]
    times = {name: after[name] - before[name] for name in ("target_ms", "draft_ms", "host_ms")}
    steps = after["num_engine_steps"] - before["num_engine_steps"]
    speed = sum(map(len, tokens)) / seconds
    return RuntimeRound(speed, sum(times.values()) / steps, times["host_ms"] / steps, tokens)


def run_cpp(program: Path, engine: Path, method: str, data: Path, folder: Path) -> RuntimeRound:
    """The data set through trtspec_benchmark.

    Raises:
        EngineError: it failed, with its message.
    """
    report, responses = folder / "report.json", folder / "responses.json"
    command: list[Any] = [program, "--engine_dir", engine, "--dataset", data]
    command += ["--concurrency", 1, "--max_batch_size", 1, "--temperature", 0]
    command += ["--enable_kv_cache_reuse=false", "--warm_up", WARM_UP]
    command += ["--output_json", report, "--responses_json", responses]
    command += ["--speculative", NONE] if method == NONE else []
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True)
    if done.returncode:
        raise EngineError(f"{program} failed: {done.stderr.strip()}")
    found = json.loads(report.read_text())
    metrics, steps = found["metrics"], found["metrics"]["num_engine_steps"]
    tokens = [response["tokens"] for response in json.loads(responses.read_text())["responses"]]
    speed = found["figures"]["token_throughput"]
    return RuntimeRound(speed, metrics["step_ms"], metrics["host_ms"] / steps, tokens)


def compare(
    engine: Path, program: Path, samples: Sequence[Sample], rounds: int
) -> dict[tuple[str, str], list[RuntimeRound]]:
    """The measurements of each runtime, by method and runtime."""
    found: dict[tuple[str, str], list[RuntimeRound]] = {}
    with TemporaryDirectory() as name:
        folder = Path(name)
        data = folder / "samples.json"
        write_dataset(data, samples, {})
        for _ in range(rounds):
            for method in (NONE, AS_BUILT):
                python = run_python(engine, method, samples)
                found.setdefault((method, PYTHON), []).append(python)
                cpp = run_cpp(program, engine, method, data, folder)
                found.setdefault((method, CPP), []).append(cpp)
    return found


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    add = parser.add_argument
    add("--engine_dir", type=Path, required=True)
    add("--program", type=Path, default=Path("build/trtspec_benchmark"))
    add("--num_prompts", type=int, default=12)
    add("--prompt_tokens", type=int, default=128)
    add("--max_tokens", type=int, default=128)
    add("--rounds", type=int, default=3)
    args = parser.parse_args(argv)
    tokenizer = load_tokenizer(args.engine_dir / TOKENIZER_FOLDER)
    prompts = held_out_prompts(tokenizer, args.num_prompts, args.prompt_tokens)
    samples = text_samples(prompts, args.max_tokens)
    found = compare(args.engine_dir, args.program, samples, args.rounds)
    print(f"{'method':10} {'runtime':8} {'tokens/s':>9} {'step ms':>8} {'host ms':>8} {'host':>6}")
    for (method, runtime), rounds in found.items():
        speed, step, host = (
            median(getattr(each, name) for each in rounds)
            for name in ("tokens_per_second", "step_ms", "host_ms")
        )
        print(f"{method:10} {runtime:8} {speed:9.1f} {step:8.3f} {host:8.3f} {host / step:6.1%}")
    texts = {tuple(map(tuple, each.tokens)) for rounds in found.values() for each in rounds}
    print("the same tokens everywhere" if len(texts) == 1 else "TOKENS DIFFER")


if __name__ == "__main__":
    main()
