"""A head that was trained by ModelOpt: exported, loaded, and accepted as often as it should be."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from trtspec import SamplingParams
from trtspec.builder.checkpoints import read_draft
from trtspec.builder.locate import assets_root
from trtspec.commands.train import main
from trtspec.config.tree_decoding import TreeDecodingConfig
from trtspec.speculative.hidden_states.files import write_hidden_states
from trtspec.speculative.options import parse_speculative_config
from trtspec.speculative.recipe import HeadRequest
from trtspec.speculative.registry import methods
from trtspec.train.modelopt_head import ModelOptHead
from trtspec.train.target import TrainingTarget
from trtspec.train.trainer import Trainer
from trtspec.train.windows import RecordedTexts, Window

from ..e2e.helpers import open_llm, tokens
from .toy_training import schedule

pytest.importorskip("modelopt", reason="needs nvidia-modelopt: pip install 'trtspec[train]'")
TARGET = assets_root() / "trtspec-tiny"


def head_of(method: str, draft_ids: torch.Tensor | None) -> tuple[ModelOptHead, TrainingTarget]:
    recipe = methods()[method].recipe
    assert recipe is not None
    target = TrainingTarget.open("trtspec-tiny")
    size = target.config.vocab_size if draft_ids is None else len(draft_ids)
    request = HeadRequest(target.config, size, recipe.depth, 3, 16)
    return ModelOptHead(recipe, request, target, draft_ids, seed=0), target


def window(states: int, columns: int = 16) -> Window:
    noise = torch.Generator().manual_seed(0)
    ids = torch.randint(4, 4096, (2, columns), generator=noise)
    features = torch.randn(2, columns, states * 256, generator=noise).to(torch.bfloat16)
    state = torch.randn(2, columns, 256, generator=noise).to(torch.bfloat16)
    return Window(ids, torch.ones_like(ids, dtype=torch.bool), features, state, True)


@pytest.mark.parametrize("method", ["eagle3", "dflash", "jetspec", "dspark"])
def test_export_is_read(tmp_path: Path, method: str) -> None:
    """Whole vocabulary and a part of it: its rows begin as the target's, d2t names them."""
    cuts: list[torch.Tensor | None] = [None]
    recipe = methods()[method].recipe
    assert recipe is not None
    if recipe.cuts_vocabulary:
        cuts.append(torch.arange(2, 4096, 5))
    for number, cut in enumerate(cuts):
        head, target = head_of(method, cut)
        loss, agreement = head.loss(window(len(recipe.capture_layers(target.config))), recipe.depth)
        loss.backward()  # type: ignore[no-untyped-call]
        assert torch.isfinite(loss)
        assert len(agreement) == (recipe.depth if recipe.depth_setting else 1)
        assert all(p.grad is not None for p in head.module.parameters() if p.requires_grad)
        folder = tmp_path / str(number)
        folder.mkdir()
        head.export(folder)
        draft = read_draft(folder, target.config)
        assert draft.config.capture_layers == recipe.capture_layers(target.config)
        assert draft.method == methods()[method].draft_method
        rows = {} if method != "jetspec" else {"num_draft_tokens": 128}
        depth = {"num_speculative_tokens": recipe.depth, **rows}
        speculation = parse_speculative_config({"method": method, "model": str(folder), **depth})
        assert isinstance(speculation, TreeDecodingConfig)
        speculation.network(draft.config)
        speculation.check_network(draft.config)
        assert draft.config.draft_vocab_size == (4096 if cut is None else len(cut))
        tensors = dict(draft.tensors)
        assert all(t.dtype in (torch.bfloat16, torch.int64) for t in tensors.values())
        if recipe.cuts_vocabulary:
            rows = target.head if cut is None else target.head[cut]
            assert torch.equal(tensors["head.weight"], rows.to(torch.bfloat16))
        if cut is not None:
            assert torch.equal(tensors["token_map"], cut)


def test_resumed_equals_uninterrupted(tmp_path: Path) -> None:
    """ModelOpt's network, Muon and AdamW go on bit for bit."""
    noise = torch.Generator().manual_seed(0)
    paths = []
    for number in range(8):
        rows = torch.randn(12, 4 * 256, generator=noise)
        paths.append(tmp_path / f"{number}.safetensors")
        write_hidden_states(paths[-1], list(range(number, number + 12)), [rows], [1, 3, 4, 8])
    texts = RecordedTexts(paths, [1, 3, 4], 8)
    plan = schedule(steps=6, depth=2)
    ends = []
    for name, cuts in (("whole", [None]), ("cut", [1, 4, None])):
        folder = tmp_path / name
        folder.mkdir()
        for until in cuts:
            head, _ = head_of("eagle3", torch.arange(0, 4096, 5))
            Trainer(head, texts, plan, folder).run(until)
        ends.append(head.module.state_dict())
    assert all(torch.equal(ends[1][key], value) for key, value in ends[0].items())


@pytest.mark.slow
def test_a_small_head(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """From nothing but the tiny target: 64 CPU seconds; in the engine of the tests it accepted 1.2
    drafts of 3 a step (at least 0.6 are asked), and the text is that without drafts."""
    head = tmp_path / "head"
    arguments = [
        "eagle3", "--model", str(TARGET), "--output", str(head), "--state", str(tmp_path / "s"),
        "--from_base", "--tokens", "12000", "--max_text_tokens", "128", "--window_tokens", "128",
        "--step_tokens", "1024", "--passes", "8", "--depth", "3", "--learning_rate", "0.02",
        "--vocabulary_rate", "0.004", "--backend", "eager", "--no_measure",
    ]  # fmt: skip
    assert main(arguments) == 0
    assert "agreement" in capfd.readouterr().err
    card = (head / "README.md").read_text()
    assert "fingerprint f003f016dd3b51361e341fff71a73374" in card and "--passes 8" in card
    assert json.loads((head / "config.json").read_text())["draft_vocab_size"] == 2048
    assert '"f003f016dd3b51361e341fff71a73374"' in (head / "made_for.json").read_text()
    assert main(arguments) == 1, "the folder exists now"
    assert "exists and is not empty" in capfd.readouterr().err
    prompts = ["def main(", "import os\n", "class Stack:\n    def push(self, item):\n"]
    params = SamplingParams(max_tokens=48)
    speculation = {"method": "eagle3", "model": str(head), "num_speculative_tokens": 3}
    with open_llm(TARGET, speculation, skip_tokenizer_init=False) as llm:
        drafted = tokens(llm.generate(prompts, params))
        assert llm.get_metrics()["acceptance_length"] > 1.6
    with open_llm(TARGET, skip_tokenizer_init=False) as plain:
        assert tokens(plain.generate(prompts, params)) == drafted
