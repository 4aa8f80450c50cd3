"""A target verified in its own call gives what one gives whose logits the host verifies."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

import trtspec.backends.aoti.backend as aoti
from trtspec import LLM, SamplingParams
from trtspec.backends.aoti import AotiBackend
from trtspec.backends.eager import EagerBackend
from trtspec.backends.inputs import EngineInputs
from trtspec.backends.verifying import VerifyingSession
from trtspec.config.kv import CacheLayout
from trtspec.errors import EngineError
from trtspec.executor.engines.buckets import Bucket, extend, no_rows, pad
from trtspec.executor.step import sampler, sampling_rows
from trtspec.ops.sampling import COLUMN_DTYPES, SamplingColumns

from .. import inside
from ..e2e.helpers import (
    PLAIN_METHODS,
    TinyModels,
    assert_no_leak,
    open_llm,
    plain_methods,
    tree,
)
from ..e2e.poison import GOOD, POISON, save_poisoned

LAYOUT = CacheLayout(tokens_per_block=4, blocks_per_sequence=6, mask_words=1)
VOCAB = 9


class Table:
    """A session that finds the next id the likeliest behind each row's. Its states are the ids."""

    def run(self, inputs: EngineInputs) -> list[Tensor]:
        assert inputs.columns is inputs.parents is inputs.row_start is None
        assert inputs.rows is not None and inputs.logits_rows is not None
        ids = inputs.rows.input_ids
        logits = torch.zeros(len(inputs.logits_rows), VOCAB)
        logits[torch.arange(len(logits)), (ids[inputs.logits_rows] + 1) % VOCAB] = 9.0
        return [logits, ids[:, None].float()]


def asked(
    ids: Sequence[int],
    wanted: Sequence[int],
    parents: Sequence[int],
    row_start: Sequence[int],
    bucket: Bucket,
) -> EngineInputs:
    """A call in the size of a bucket, greedy."""
    rows = no_rows(LAYOUT)._replace(input_ids=torch.tensor(ids))
    count = bucket.logits
    columns = (torch.zeros(count, dtype=kind) for kind in COLUMN_DTYPES)
    starts = torch.tensor(row_start, dtype=torch.int32)
    return EngineInputs(
        pad(rows, bucket),
        logits_rows=extend(torch.tensor(wanted, dtype=torch.int64), count, 0),
        columns=SamplingColumns(*columns),
        parents=extend(torch.tensor(parents, dtype=torch.int32), count, 0),
        row_start=extend(starts, bucket.requests + 1, row_start[-1]),
    )


def test_a_call() -> None:
    """Two trees behind rows of a prompt whose logits nobody wants; padding decides nothing."""
    ids, wanted = [3, 5, 1, 2, 2, 3, 0, 4, 7], range(2, 9)
    parents, row_start = [-1, 0, 0, 1, -1, 0, 0], [0, 4, 7]
    for bucket in (Bucket(2, 9, 7), Bucket(4, 12, 12)):
        inputs = asked(ids, wanted, parents, row_start, bucket)
        logits, states, sampled, accepted, emitted = VerifyingSession(Table(), 5).run(inputs)
        assert logits.shape == (bucket.logits, VOCAB) and len(states) == bucket.rows
        assert sampled[:7].tolist() == [2, 3, 3, 4, 1, 5, 8]
        assert accepted.dtype == emitted.dtype == torch.int32
        assert accepted[:2].tolist() == [[0, 1, 3, -1, -1], [0, -1, -1, -1, -1]]
        assert emitted.tolist() == [3, 1] + [0] * (bucket.requests - 2)
        assert (accepted[2:] == -1).all()


def test_a_call_in_which_nothing_is_verified() -> None:
    inputs = asked([3, 5], [], [], [0], Bucket(2, 4, 2))
    *_, accepted, emitted = VerifyingSession(Table(), 5).run(inputs)
    assert emitted.tolist() == [0, 0] and (accepted == -1).all()


def test_targets_verify_on_cuda_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their packages do, and no draft's."""
    monkeypatch.setattr(aoti, "AotiSession", lambda *given: SimpleNamespace(given=given))
    graph = SimpleNamespace(name="model", file="a.pt2")
    for device, is_target in (("cpu", True), ("cuda", False), ("cuda", True)):
        engine: Any = SimpleNamespace(device=device, rows=7)
        for backend in (AotiBackend(), EagerBackend()):
            assert backend.verifies(engine) == (device == "cuda")
        network: Any = SimpleNamespace(graphs=[graph], is_target=is_target)
        opened = AotiBackend().open(Path("folder"), engine, network, {})
        assert isinstance(opened["model"], VerifyingSession) == (device == "cuda" and is_target)


# -- whole engines ------------------------------------------------------------------------------

BAD = [1, 2, POISON, 3]
OPTIONS: dict[str, Any] = {
    "max_batch_size": 6,
    "max_num_tokens": 24,  # so that prompts come in chunks, beside rows that are verified
    "kv_cache_config": {"enable_block_reuse": False},
}
LENGTHS = (24, 9, 17)


@pytest.fixture(scope="module")
def poisoned(models: TinyModels) -> Path:
    return save_poisoned(models)


def open_verifying(folder: Path, config: Any, graphs: Any, **options: Any) -> LLM:
    """Its target verifies in its own calls, as on CUDA."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(EagerBackend, "verifies", lambda self, engine: True)
        llm = open_llm(folder, config, cuda_graph_config=graphs, **{**OPTIONS, **options})
    assert isinstance(inside.session(inside.target(llm)), VerifyingSession)
    assert not any(
        isinstance(session, VerifyingSession)
        for draft in inside.drafts(llm)
        for session in inside.sessions(draft)
    )
    return llm


def refuse(*given: Any) -> Any:
    raise AssertionError("what the call has verified is verified once more")


@pytest.mark.parametrize("graphs", [True, False], ids=["padded", "plain"])
@pytest.mark.parametrize("method", PLAIN_METHODS)
def test_texts_counts_and_failures(
    models: TinyModels, poisoned: Path, method: str, graphs: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Greedy and sampled requests in one batch; the fourth has the NaN's token in its prompt, the
    last one samples it in mid-text."""
    config = plain_methods(models.draft("llama"))[method]
    prompts = [*GOOD, BAD, *GOOD]
    params = [
        *(SamplingParams(length) for length in LENGTHS),
        SamplingParams(9),
        *(
            SamplingParams(length, temperature=1.1, top_p=0.95, seed=i, logprobs=2)
            for i, length in enumerate((60, 60, 60))
        ),
    ]
    with open_llm(poisoned, config, **OPTIONS) as plain:
        expected = plain.generate(prompts, params, use_tqdm=False)
        counts = figures(plain)
    with open_verifying(poisoned, config, graphs) as llm:
        with monkeypatch.context() as patch:
            for name in ("sample", "accept"):
                patch.setattr(sampler, name, refuse)
            patch.setattr(sampling_rows, "verify", refuse)
            found = llm.generate(prompts, params, use_tqdm=False)
        assert [described(output) for output in found] == [described(o) for o in expected]
        for failed, first in ((found[3], 0), (found[6], 11)):
            assert isinstance(failed.error, EngineError)
            assert f"at output token {first}" in str(failed.error)
        assert figures(llm) == counts
        assert (counts["num_accepted_tokens"] > 0) == (method != "none")
        assert_no_leak(llm)


def test_options_that_change_logits(models: TinyModels) -> None:
    """They are verified behind the call, in steps beside those that are verified in it."""
    config = tree(models.draft("llama"), 2, 3, 7)
    params = [
        SamplingParams(length, temperature=0.8, seed=i, repetition_penalty=1.3 if i == 1 else 1.0)
        for i, length in enumerate(LENGTHS)
    ]
    with open_llm(models.folder("llama"), config, **OPTIONS) as plain:
        expected = [described(o) for o in plain.generate(GOOD, params, use_tqdm=False)]
    with open_verifying(models.folder("llama"), config, True) as llm:
        verified: list[int] = []
        verify = inside.target(llm).verify

        def watched(packed: Any, asked: Any) -> Any:
            verified.append(len(packed.rows.context_lens))
            return verify(packed, asked)

        inside.target(llm).verify = watched
        found = llm.generate(GOOD, params, use_tqdm=False)
        assert [described(output) for output in found] == expected
        assert 0 < len(verified) < llm.get_metrics()["num_target_calls"]
        assert_no_leak(llm)


def described(output: Any) -> Any:
    """All that a request came to."""
    sequence = output.outputs[0]
    return (
        sequence.token_ids,
        sequence.finish_reason,
        sequence.logprobs,
        str(output.error),
        output.metrics.to_dict(),
    )


def figures(llm: LLM) -> dict[str, Any]:
    """What is counted and not timed."""
    metrics = llm.get_metrics()
    names = ("num_target_calls", "num_draft_calls", "num_accepted_tokens", "num_draft_tokens")
    return {name: metrics[name] for name in names}
