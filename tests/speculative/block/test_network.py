"""DFlash networks against a dense reference and against ModelOpt, over every way of feeding the
cache."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.models.qwen3.modeling_qwen3 import Qwen3RotaryEmbedding

from checkpoint_converters import load_checkpoint
from trtspec.builder.checkpoints import read_draft
from trtspec.config.model import ModelConfig
from trtspec.config.tree import TreeShape
from trtspec.engine.graphs import own_state, with_borrowed
from trtspec.errors import CheckpointError, ConfigError
from trtspec.models.causal_lm import CausalLM
from trtspec.models.loading import load_linear
from trtspec.models.rows import Caches
from trtspec.speculative.block.backbone import BlockDraft
from trtspec.speculative.block.dflash import DFlashConfig
from trtspec.speculative.block.rollout import BlockRollout

from ...models.paged import BLOCK as PAGE
from ...models.paged import Feed, PagedModel
from ..eagle.eagle_reference import random_target
from ..tree_reference import columns
from .dflash_reference import (
    BLOCK,
    CASES,
    TARGET,
    TIED,
    DenseDFlash,
    H,
    V,
    dflash,
    random_checkpoint,
)

LENGTH = 26
GREEDY = (0.0, 0, 1.0, 0.0, 0, 0, 0)


def packed_target(config: ModelConfig, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    model = CausalLM(config, torch.float32)
    if model.embed is not None:
        model.embed.weight.copy_(tensors["embed.weight"])
    load_linear(model.lm_head, tensors, ["head" if "head.weight" in tensors else "embed"])
    return model.state_dict()


class PagedBlocks:
    """A network, its rollout of a chain over all slots, and caches for two requests."""

    def __init__(self, draft: BlockDraft) -> None:
        self.draft = draft
        steps = draft.config.max_draft_len
        self.rollout = BlockRollout(draft, draft.config, TreeShape(1, steps, steps + 1), PAGE)
        decoder = SimpleNamespace(config=draft.config.decoder, dtype=draft.dtype)
        self.paged = PagedModel(decoder)

    @property
    def caches(self) -> Caches:
        return self.paged.caches

    @torch.no_grad()
    def prefill(self, request: int, first: int, states: Tensor) -> None:
        ids, rows, _ = self.paged.arguments({request: Feed([0] * len(states), first)})
        self.draft(ids, rows, states, self.caches)

    @torch.no_grad()
    def roll_out(
        self, feeds: Sequence[tuple[int, int, Tensor, int]], padding: int = 0
    ) -> tuple[Tensor, tuple[Tensor, Tensor, Tensor]]:
        """For each (request, first row, its states, root) the logits ``[B, D, V_d]`` that the head
        gave, and the trees."""
        made = {r: Feed([*[7] * (len(x) - 1), root], at) for r, at, x, root in feeds}
        ids, rows, _ = self.paged.arguments(made, padding)
        states = torch.cat([x for _, _, x, _ in feeds])
        states = torch.cat((states, states.new_zeros(padding, states.shape[1])))
        seen: list[Tensor] = []
        head = self.draft.head
        self.draft.head = lambda hidden: seen.append(head(hidden)) or seen[-1]  # type: ignore
        sampling = columns(*[GREEDY] * len(feeds))
        last_rows = rows.query_start[1:].long() - 1
        try:
            tree = self.rollout(ids, rows, last_rows, sampling, states, self.caches)
        finally:
            del self.draft.head
        return seen[0].view(len(feeds), -1, seen[0].shape[1]), tree


@dataclass
class Pair:
    draft: BlockDraft
    dense: DenseDFlash
    states: Tensor

    def expected(self, count: int, root: int) -> Tensor:
        first = 0 if self.draft.config.anchor_predicts else 1
        return self.dense.logits(self.states[:count], root)[first:]


def loaded(config: DFlashConfig, target: ModelConfig) -> tuple[BlockDraft, DenseDFlash]:
    checkpoint, tensors = random_checkpoint(config), random_target(target)
    draft = BlockDraft(config, target, torch.float32)
    for name, buffer in draft.named_buffers():
        if name != "rotary.inv_freq":
            buffer.fill_(-1 if name == "token_map" else float("nan"))
    draft.load_weights(checkpoint, {})
    for name, tensor in own_state(draft).items():
        assert not tensor.isnan().any(), f"{name} was not filled"
    weights = packed_target(target, tensors)
    draft.load_state_dict(with_borrowed(draft, own_state(draft), weights), assign=True)
    return draft, DenseDFlash(config, checkpoint.tensors, tensors)


@pytest.fixture(
    scope="module",
    params=[(case, target) for case in CASES for target in (TARGET, TIED)],
    ids=lambda p: f"{p[0]}-{'tied' if p[1].head.tied else 'untied'}",
)
def pair(request: pytest.FixtureRequest) -> Iterator[Pair]:
    case, target = request.param
    draft, dense = loaded(CASES[case], target)
    noise = torch.Generator().manual_seed(3)
    yield Pair(draft, dense, 2 * torch.randn(LENGTH, draft.config.hidden_in, generator=noise))


def assert_close(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=0, atol=3e-5 * float(expected.abs().max()))


@pytest.mark.parametrize("cuts", [[], [1], [9, 10, 20], [25]], ids=str)
def test_blocks_behind_chunks(pair: Pair, cuts: list[int]) -> None:
    """The context in chunks, of which the last comes with the block: the reference's values, and
    the same bits whatever the chunks."""
    blocks = PagedBlocks(pair.draft)
    for begin, end in zip([0, *cuts], cuts, strict=False):
        blocks.prefill(1, begin, pair.states[begin:end])
    rest = cuts[-1] if cuts else 0
    found, _ = blocks.roll_out([(1, rest, pair.states[rest:], 33)])
    assert_close(found[0], pair.expected(LENGTH, 33))
    whole, _ = PagedBlocks(pair.draft).roll_out([(0, 0, pair.states, 33)])
    assert torch.equal(found, whole)


def test_blocks_leave_nothing_behind(pair: Pair) -> None:
    """A block's keys and values are written over by the target's rows of what was accepted; other
    requests and padding change no bit."""
    blocks = PagedBlocks(pair.draft)
    blocks.roll_out([(0, 0, pair.states[:8], 40)])
    feeds = [(1, 0, pair.states[:13], 5), (0, 8, pair.states[8:11], 41)]
    found, (tokens, parents, scores) = blocks.roll_out(feeds, padding=3)
    for row, (count, root) in enumerate([(13, 5), (11, 41)]):
        expected = pair.expected(count, root)
        assert_close(found[row], expected)
        alone, _ = PagedBlocks(pair.draft).roll_out([(1, 0, pair.states[:count], root)])
        assert torch.equal(alone[0], found[row])
        best = expected.argmax(-1)
        ids = pair.draft.token_map
        assert tokens[row].tolist() == (best if ids is None else ids[best]).tolist()
        gains = expected.log_softmax(-1).max(-1).values
        torch.testing.assert_close(scores[row], gains.cumsum(0), rtol=0, atol=1e-4)
    steps = pair.draft.config.max_draft_len
    assert parents.tolist() == [list(range(-1, steps - 1))] * 2


def test_causal_slots_do_not_see_later_ones() -> None:
    """A mask by another name at the end of the block changes the last slot alone."""
    for case, others in (("causal", True), ("plain", False)):
        draft, _ = loaded(CASES[case], TARGET)
        states = torch.randn(9, draft.config.hidden_in)
        found, _ = PagedBlocks(draft).roll_out([(0, 0, states, 4)])
        embedding = draft.target.embedding

        def changed(ids: Tensor, embedding: Any = embedding) -> Tensor:
            rows: Tensor = embedding(ids)
            rows[BLOCK - 1] += 1
            return rows

        draft.target.embedding = changed  # type: ignore[method-assign]
        other, _ = PagedBlocks(draft).roll_out([(0, 0, states, 4)])
        assert torch.equal(found[0, :-1], other[0, :-1]) == others
        assert not torch.equal(found[0, -1], other[0, -1])


def test_another_checkpoint() -> None:
    checkpoint = random_checkpoint(CASES["plain"])
    with pytest.raises(CheckpointError, match="is not the network's"):
        BlockDraft(CASES["causal"], TARGET, torch.float32).load_weights(checkpoint, {})
    del checkpoint.tensors["hidden_norm.weight"]
    with pytest.raises(CheckpointError, match=r"no tensor hidden_norm\.weight"):
        BlockDraft(CASES["plain"], TARGET, torch.float32).load_weights(checkpoint, {})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"block_size": 1}, "block_size=1 counts the root"),
        ({"block_size": 65}, "must be between 2 and 64"),
        ({"mask_token_id": V}, f"mask_token_id={V} is no token of the vocabulary of {V}"),
        ({"causal_layers": (True,)}, "causal_layers names 1 layers, the network has 2"),
        ({"capture_layers": (1, 1)}, r"capture_layers=\[1, 1\] must name"),
        ({"draft_vocab_size": V + 1}, f"draft_vocab_size={V + 1} must be between 1"),
        ({"target_hidden_size": 2 * H}, "cannot borrow the embedding or head"),
    ],
)
def test_configs(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        DFlashConfig.from_dict(CASES["plain"].to_dict() | changes)


def test_a_window_narrower_than_a_block() -> None:
    with pytest.raises(ConfigError, match="a sliding window of 5 tokens cuts blocks of 6"):
        dflash({"windows": 5})


def test_config_round_trip() -> None:
    for config in CASES.values():
        assert DFlashConfig.from_dict(config.to_dict()) == config
    assert (CASES["plain"].max_draft_len, CASES["anchor"].max_draft_len) == (5, 6)
    assert CASES["plain"].for_steps(5) == CASES["plain"]
    with pytest.raises(ConfigError, match=r"drafts of 6 tokens .* guesses 5; lower"):
        CASES["plain"].for_steps(6)


@pytest.mark.parametrize("attention", ["bidirectional", "causal"])
@pytest.mark.parametrize("window", [None, 8])
def test_what_modelopt_computes(tmp_path: Path, attention: str, window: int | None) -> None:
    """ModelOpt's export is read as ModelOpt runs it: layers, positions, masks and all."""
    speculative = pytest.importorskip("modelopt.torch.speculative")
    export = pytest.importorskip("modelopt.torch.export").export_speculative_decoding
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 4, "head_dim": 8}
    sizes |= {"num_key_value_heads": 2}
    config = LlamaConfig(**sizes, num_hidden_layers=5, vocab_size=60, max_position_embeddings=128)
    hf = LlamaForCausalLM(config).eval()
    with torch.no_grad():
        for weight in hf.parameters():
            weight.add_(0.3 * torch.randn_like(weight))
    hf.save_pretrained(tmp_path / "target")
    architecture = {
        **sizes,
        "num_hidden_layers": 2,
        "target_layer_ids": [0, 3],
        "rope_parameters": hf.config.rope_parameters,
    }
    settings = {
        "dflash_block_size": 6,
        "dflash_mask_token_id": 59,
        "dflash_draft_attention": attention,
        "dflash_swa_window_size": window,
        "dflash_use_torch_compile": False,
        "dflash_architecture_config": architecture,
    }
    speculative.convert(hf, [("dflash", settings)])
    module = hf.dflash_module
    module.rotary_emb = Qwen3RotaryEmbedding(hf.dflash_config)
    with torch.no_grad():
        for weight in module.parameters():
            weight.add_(0.2 * torch.randn_like(weight))
    export(hf, export_dir=tmp_path / "draft")

    target = load_checkpoint(tmp_path / "target")
    found = read_draft(tmp_path / "draft", target.config)
    model = CausalLM(target.config, torch.float32, found.config.capture_layers)
    model.load_weights(target)
    draft = BlockDraft(found.config, target.config, torch.float32)
    draft.load_weights(found, {})
    weights = with_borrowed(draft, own_state(draft), model.state_dict())
    draft.load_state_dict(weights, assign=True)

    prompt = torch.randint(58, (1, 21))
    paged = PagedModel(model)
    ids, rows, wanted = paged.arguments({0: Feed(prompt[0].tolist(), 0)})
    with torch.no_grad():
        logits, states = model(ids, rows, wanted, paged.caches)
    root = int(logits[-1].argmax())
    blocks = PagedBlocks(draft)
    blocks.prefill(1, 0, states[:13])
    ours, (tokens, _, _) = blocks.roll_out([(1, 13, states[13:], root)])

    theirs: list[Tensor] = []
    head = hf.get_submodule(hf.base_model_lm_head_path)
    head.register_forward_hook(lambda _module, _inputs, output: theirs.append(output))
    base, drafts = hf.pseudo_speculative_generate(prompt, steps=5)
    assert base.item() == root
    bound = 1e-5 * max(1.0, float(theirs[-1].abs().max()))
    torch.testing.assert_close(ours[0], theirs[-1][0], rtol=0, atol=bound)
    assert tokens[0].tolist() == drafts[0].tolist()
