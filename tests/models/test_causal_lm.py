"""Every architecture and rope type against transformers, over every way of feeding the cache."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from checkpoint_converters import load_checkpoint
from trtspec.config.norm_spec import NormSpec
from trtspec.errors import CheckpointError
from trtspec.models.causal_lm import CausalLM

from .paged import Feed, PagedModel
from .tiny_hf import CASES, VOCAB, tiny_model

PROMPT = torch.randint(VOCAB, (40,), generator=torch.Generator().manual_seed(1)).tolist()


@dataclass
class Pair:
    """A Hugging Face model and ours over the same weights."""

    hf: PreTrainedModel
    ours: CausalLM

    @torch.no_grad()
    def expected(self, tokens: Sequence[int]) -> Tensor:
        return self.hf(torch.tensor([tokens])).logits[0]

    @cached_property
    def expected_prompt(self) -> Tensor:
        return self.expected(PROMPT)


@pytest.fixture(scope="module", params=CASES)
def pair(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Pair]:
    folder = tmp_path_factory.mktemp(request.param)
    hf = tiny_model(request.param)
    # Two cases are sharded, in as many files as fit.
    hf.save_pretrained(folder, max_shard_size="60KB" if request.param.endswith("tied") else "1GB")
    checkpoint = load_checkpoint(folder)
    assert (len(checkpoint.files) > 2) == request.param.endswith("tied")
    ours = CausalLM(checkpoint.config, torch.float32)
    for buffer in ours.layers.buffers():
        buffer.fill_(float("nan"))  # whatever stays unfilled shows
    ours.load_weights(checkpoint)
    yield Pair(hf, ours)


def assert_close(found: Tensor, expected: Tensor) -> None:
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, expected, rtol=0, atol=2e-5 * float(expected.abs().max()))


def test_whole_prompt(pair: Pair) -> None:
    logits = PagedModel(pair.ours).run({0: Feed(PROMPT, 0)}, padding=3)
    assert_close(logits, pair.expected_prompt)


def test_token_by_token(pair: Pair) -> None:
    paged = PagedModel(pair.ours)
    rows = [paged.run({1: Feed(PROMPT[:9], 0)})]
    rows += [paged.run({1: Feed([PROMPT[i]], i)}) for i in range(9, len(PROMPT))]
    assert_close(torch.cat(rows), pair.expected_prompt)


def test_chunked_prefill_gives_the_same_bits(pair: Pair) -> None:
    whole = PagedModel(pair.ours).run({0: Feed(PROMPT, 0)})
    paged = PagedModel(pair.ours)
    cuts = [0, 7, 20, 21, len(PROMPT)]
    rows = [paged.run({0: Feed(PROMPT[a:b], a)}) for a, b in pairwise(cuts)]
    assert torch.equal(torch.cat(rows), whole)


@pytest.mark.parametrize("capture", [(), (0,), (-1, 1), (2, 0)], ids=str)
def test_rows_nobody_asks_for_leave_the_last_layer_early(
    pair: Pair, capture: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pair.ours, "capture_layers", capture)
    every, some = PagedModel(pair.ours), PagedModel(pair.ours)
    ids, rows, all_rows = every.arguments({0: Feed(PROMPT, 0)}, padding=2)
    wanted = torch.tensor([len(PROMPT) - 1, 3, 3])
    widths: list[int] = []
    hook = pair.ours.layers[-1].mlp.register_forward_hook(
        lambda module, inputs, out: widths.append(len(out))
    )
    with torch.no_grad(), hook:
        whole = pair.ours(ids, rows, all_rows, every.caches)
        cut = pair.ours(ids, rows, wanted, some.caches)
    assert torch.equal(cut[0], whole[0][wanted])
    torch.testing.assert_close(cut[1:], whole[1:], rtol=0, atol=0)  # states of all rows
    torch.testing.assert_close(some.caches, every.caches, rtol=0, atol=0)
    captures_last = max(capture, default=-1) >= len(pair.ours.layers) - 1
    assert widths[1] == (len(ids) if captures_last else len(wanted))


def test_tree_beside_a_prefill(pair: Pair) -> None:
    committed = 22
    tree = [PROMPT[committed], 5, 9, 5, 77, 9, 130]
    parents = [-1, 0, 0, 1, 1, 3, 2]
    paged = PagedModel(pair.ours)
    paged.run({0: Feed(PROMPT[:committed], 0)})
    feeds = {1: Feed(PROMPT[:11], 0), 0: Feed(tree, committed, parents)}
    prefill, verified = paged.run(feeds, padding=2).split([11, len(tree)])
    assert_close(prefill, pair.expected_prompt[:11])
    for leaf in (4, 5, 6):
        path = [leaf]
        while parents[path[0]] >= 0:
            path.insert(0, parents[path[0]])
        expected = pair.expected(PROMPT[:committed] + [tree[row] for row in path])
        assert_close(verified[path], expected[committed:])


def test_a_chain_as_a_tree_gives_the_same_bits(pair: Pair) -> None:
    paged = PagedModel(pair.ours)
    paged.run({0: Feed(PROMPT[:30], 0)})
    causal = paged.run({0: Feed(PROMPT[30:35], 30)})
    tree = paged.run({0: Feed(PROMPT[30:35], 30, parents=range(-1, 4))})
    assert torch.equal(causal, tree)
    alone = [paged.run({0: Feed([PROMPT[i]], i)}) for i in range(30, 35)]
    assert torch.equal(causal, torch.cat(alone))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision(pair: Pair, dtype: torch.dtype, tmp_path: Path) -> None:
    pair.hf.save_pretrained(tmp_path)
    checkpoint = load_checkpoint(tmp_path)
    model = CausalLM(checkpoint.config, dtype)
    model.load_weights(checkpoint)
    assert {buffer.dtype for buffer in model.buffers()} == {torch.float32, dtype}
    whole = PagedModel(model).run({0: Feed(PROMPT, 0)})
    error = (whole - pair.expected_prompt).pow(2).mean() / pair.expected_prompt.pow(2).mean()
    assert float(error.sqrt()) < 8 * torch.finfo(dtype).eps
    paged = PagedModel(model)
    rows = [paged.run({0: Feed(PROMPT[a : a + 8], a)}) for a in range(0, len(PROMPT), 8)]
    assert torch.equal(torch.cat(rows), whole)


def test_weights_of_another_config_are_refused(pair: Pair) -> None:
    config = pair.ours.config
    source = SimpleNamespace(config=config, tensors={})
    with pytest.raises(CheckpointError, match=r"no tensor embed\.weight"):
        CausalLM(config, torch.float32).load_weights(source)
    other = replace(config, norm=NormSpec(0.5))
    with pytest.raises(CheckpointError, match="is not the model's"):
        CausalLM(other, torch.float32).load_weights(source)
