"""Engine folders with several drafts: what they hold, and what may be asked of them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from trtspec.builder.build_engine import build_engine
from trtspec.builder.plan import BuildPlan, plan_build
from trtspec.builder.target_drafts import TargetDrafts
from trtspec.config.build_config import BuildConfig
from trtspec.engine.folder import EngineConfig, is_engine_folder
from trtspec.errors import CheckpointError, ConfigError, EngineError
from trtspec.llmapi.engine_drafts import find_drafts
from trtspec.speculative.hybrid.options import HybridDecodingConfig
from trtspec.speculative.options import parse_speculative_config

from .. import inside
from ..e2e.eagle_heads import eagle, random_eagle1, random_eagle3
from ..e2e.helpers import GREEDY_24, TinyModels, chain, ngram, open_llm, random_prompt, tokens, tree
from ..e2e.hybrid_drafts import hybrid
from ..e2e.medusa_heads import idle_heads, medusa, write_heads

PROMPTS = [random_prompt(340, 20), random_prompt(341, 6) * 3]
BUILD = BuildConfig("float32", 2, 64, backend="eager")


class Networks:
    """Configs over drafts for the tiny llama."""

    def __init__(self, models: TinyModels, root: Path) -> None:
        hf, self.target, self.model = models.hf("llama"), models.folder("llama"), models.draft
        self.head = random_eagle3(hf, root / "eagle3", modelopt=False)
        self.other = random_eagle3(hf, root / "other", modelopt=False, seed=9)
        self.eagle3 = eagle(self.head, "eagle3", num_speculative_tokens=3, topk=2)
        self.second = eagle(self.other, "eagle3", num_speculative_tokens=4)
        self.eagle1 = eagle(random_eagle1(hf, root / "eagle1"), "eagle", num_speculative_tokens=2)
        self.draft_model = tree(models.draft("llama"), 2, 3, 6)
        self.medusa = medusa(write_heads(root / "medusa", idle_heads(2)), 2)

    def plan(self, *drafters: dict[str, Any], **options: Any) -> BuildPlan:
        config = parse_speculative_config(hybrid(*drafters, **options))
        return plan_build(self.target, BUILD, config)


@pytest.fixture(scope="module")
def networks(models: TinyModels, tmp_path_factory: pytest.TempPathFactory) -> Networks:
    return Networks(models, tmp_path_factory.mktemp("networks"))


@pytest.fixture(scope="module")
def folder(networks: Networks, tmp_path_factory: pytest.TempPathFactory) -> Path:
    plan = networks.plan({"method": "suffix"}, networks.draft_model, networks.eagle3, ngram(3))
    return build_engine(plan, tmp_path_factory.mktemp("built") / "engine")


@pytest.fixture(scope="module")
def texts(networks: Networks) -> list[list[int]]:
    with open_llm(networks.target) as llm:
        return tokens(llm.generate(PROMPTS, GREEDY_24, use_tqdm=False))


def test_the_plan(networks: Networks) -> None:
    plan = networks.plan(networks.draft_model, {"method": "suffix"}, networks.medusa)
    lines = plan.describe().splitlines()
    assert [line.split(" (")[0] for line in lines[:3]] == [
        f"target   {networks.target}",
        f"draft    {networks.draft_model['model']}",
        f"draft    {networks.medusa['model']}",
    ]
    drafts = [line for line in lines if line.startswith(("drafts", "hybrid"))]
    assert drafts[0] == "drafts   draft_model: top-k 2, 3 steps, 6 rows verified"
    assert drafts[1].startswith("drafts   medusa: ") and drafts[1].endswith(", a static tree")
    assert drafts[2] == "hybrid   draft_model, suffix, medusa: 25 rows of all verified"
    # K and V of target and draft model alone: 2 x 2 layers x 2 heads x 16 x 4 bytes each.
    assert any("K/V 1.0 KiB a token" in line for line in lines)


def test_fingerprints(networks: Networks) -> None:
    """Of every draft, of their order and of everything that the folder records."""
    n = networks
    plans = [
        n.plan(n.eagle3, n.second),
        n.plan(n.second, n.eagle3),
        n.plan(n.eagle3, n.draft_model),
        n.plan(n.eagle3, ngram(3)),
        n.plan(n.eagle3, ngram(4)),
        n.plan(n.eagle3, ngram(4), num_draft_tokens=5),
        plan_build(n.target, BUILD, parse_speculative_config(n.eagle3)),
        plan_build(n.target, BUILD, None),
    ]
    assert len({plan.fingerprint for plan in plans}) == len(plans)
    assert n.plan(n.eagle3, n.second).fingerprint == plans[0].fingerprint
    # Without a network there is nothing to build in: as for one such method alone.
    assert n.plan({"method": "suffix"}, ngram(3)).fingerprint == plans[-1].fingerprint


def test_contents(networks: Networks, folder: Path) -> None:
    files = {str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file()}
    assert files == {
        "config.json", "target/weights.safetensors", "draft/weights.safetensors",
        "draft_2/weights.safetensors", "tokenizer/config.json",
    }  # fmt: skip
    stored = [load_file(folder / name / "weights.safetensors") for name in ("draft", "draft_2")]
    assert ["embed.weight" in names for names in stored] == [True, False]  # the head borrows it
    engine = EngineConfig.read(folder)
    assert is_engine_folder(folder)
    data = json.loads((folder / "config.json").read_text())
    assert data["speculation"]["method"] == "hybrid"
    assert [draft["folder"] for draft in data["drafts"]] == ["draft", "draft_2"]
    assert {"draft", "draft_2", "target", "tokenizer", "engine"} == {*engine.fingerprints}
    assert EngineConfig.from_dict(json.loads(json.dumps(engine.to_dict()))) == engine
    assert isinstance(engine.speculation, HybridDecodingConfig)
    assert engine.speculation.num_rows == 25
    # Nothing says where it was built.
    assert str(networks.target.parent) not in (folder / "config.json").read_text()


def test_rows(networks: Networks) -> None:
    """Masks and block tables hold the union, and every rollout."""
    long = {"method": "suffix", "suffix_decoding_max_tree_depth": 100, "max_draft_len": 99}
    engine = networks.plan(long, networks.eagle3).engine
    assert (engine.speculation.num_rows, engine.speculative_rows) == (100, 100)
    assert engine.layout.mask_words == 2
    wide = eagle(networks.head, "eagle3", num_speculative_tokens=9, topk=16, num_draft_tokens=20)
    engine = networks.plan(networks.second, wide).engine
    assert (engine.speculative_rows, engine.layout.mask_words) == (1 + 8 * 16, 3)


def test_rows_between_the_built_ones_and_the_masks(networks: Networks, folder: Path) -> None:
    """Masks have room for whole words of rows, block tables have not."""
    long = {"method": "suffix", "suffix_decoding_max_tree_depth": 100, "max_draft_len": 99}
    engine = build_engine(networks.plan(long, networks.eagle3), folder.parent / "long")
    open_llm(engine, ngram(99)).shutdown()
    with pytest.raises(ConfigError, match="need 101 rows a step, the engine was built for 100"):
        open_llm(engine, ngram(100))


OPENED: dict[str, Any] = {
    "as_built": (None, {"suffix", "draft_model", "eagle3", "ngram"}),
    "off": (False, set()),
    "ngram": (ngram(4), {"ngram"}),
    "language_model": ({**chain(Path("draft"), 2), "topk": 2}, {"draft_model"}),
    "own_name": ({"method": "eagle3", "model": "draft", "topk": 2, "num_steps": 3}, {"eagle3"}),
    "folder": ({"method": "eagle3", "model": "draft_2", "topk": 2, "num_steps": 2}, {"eagle3"}),
    "other_hybrid": (
        hybrid(
            ngram(2),
            {"method": "eagle3", "model": "draft", "topk": 2, "num_steps": 3},
            {"method": "draft_model", "model": "draft", "topk": 2, "num_steps": 2},
        ),
        {"ngram", "eagle3", "draft_model"},
    ),
}


@pytest.mark.parametrize("how", OPENED)
def test_opened(networks: Networks, folder: Path, texts: list[list[int]], how: str) -> None:
    config, methods = OPENED[how]
    with open_llm(folder, config) as llm:
        found = {member.method for member in llm.speculation.members} if llm.speculation else set()
        assert found == methods
        assert tokens(llm.generate(PROMPTS, GREEDY_24, use_tqdm=False)) == texts
        num_engines = len(methods & {"draft_model", "eagle3"})
        assert len(inside.drafts(llm)) == len(inside.resources(llm).drafts) == num_engines
        assert all(draft.num_calls for draft in inside.drafts(llm))


def test_opened_by_checkpoints(networks: Networks, folder: Path, texts: list[list[int]]) -> None:
    """In another order than built, and by one of two drafts of a method."""
    config = hybrid(networks.eagle3, networks.draft_model)
    with open_llm(folder, config) as llm:
        assert tokens(llm.generate(PROMPTS, GREEDY_24, use_tqdm=False)) == texts
        wide, deep = (inside.hidden_width(draft) for draft in inside.drafts(llm))
        assert wide > deep == 0
    engine = networks.plan(networks.eagle3, networks.second, networks.eagle1).engine
    for speculation, folders in (
        (networks.second, ["draft_2"]),
        (networks.eagle3, ["draft"]),
        (hybrid(networks.second, networks.eagle3), ["draft_2", "draft"]),
        ({**networks.second, "model": "draft_2"}, ["draft_2"]),
        (hybrid(networks.eagle1, ngram(1), networks.second), ["draft_3", "draft_2"]),
    ):
        found = find_drafts(
            engine, parse_speculative_config(speculation), TargetDrafts(engine.target)
        )
        assert [draft.folder for draft in found] == folders


def test_what_a_folder_lacks(networks: Networks, folder: Path) -> None:
    n = networks
    for config, message in (
        (n.eagle1, r"method 'eagle' was asked for, the engine's drafts were built for "
                   r"'draft_model', 'eagle3'"),
        (hybrid(ngram(2), n.medusa), r"drafters\[1\] \(medusa\): method 'medusa' was asked for"),
        (hybrid(n.eagle3, n.second), r"drafters\[1\] \(eagle3\): the engine has 1 draft\(s\) for"),
        (hybrid(ngram(2), {**n.eagle3, "num_steps": 4, "num_speculative_tokens": None}),
         r"drafters\[1\] \(eagle3\): num_steps=4 was asked for, .* at most 3"),
        (hybrid(ngram(2), {**n.eagle3, "model": str(n.other)}),
         r"drafters\[1\] \(eagle3\): the draft model .*other .*is not the one"),
        (hybrid({"method": "suffix", "max_draft_len": 70, "suffix_decoding_max_tree_depth": 90},
                ngram(2)),
         "the drafts need 71 rows a step, the engine was built for 64"),
    ):  # fmt: skip
        with pytest.raises(ConfigError, match=message):
            open_llm(folder, config)
    with pytest.raises(CheckpointError, match="draft_7"):
        open_llm(folder, {**n.eagle3, "model": "draft_7"})


def test_drafts_that_do_not_fit(networks: Networks) -> None:
    """The message names the drafter."""
    n = networks
    with pytest.raises(ConfigError, match=r"drafters\[1\] \(eagle\): .*is not a draft for method"):
        n.plan(ngram(2), {**n.eagle3, "method": "eagle"})
    with pytest.raises(CheckpointError, match=r"drafters\[2\] \(draft_model\): .*nowhere"):
        n.plan(n.eagle3, ngram(2), chain(Path("nowhere"), 2))
    with pytest.raises(ConfigError, match=r"drafters\[0\] \(medusa\): drafts of 3 steps"):
        n.plan({**n.medusa, "num_medusa_heads": 3}, ngram(2))


def test_damaged_configs(folder: Path, tmp_path: Path) -> None:
    data = json.loads((folder / "config.json").read_text())
    file = tmp_path / "config.json"
    file.write_text(json.dumps({**data, "speculation": {"method": "suffix"}}))
    with pytest.raises(ConfigError, match="there are 2 drafts, but"):
        EngineConfig.read(tmp_path)
    data["drafts"][1].pop("network")
    file.write_text(json.dumps(data))
    with pytest.raises(EngineError, match="lacks 'network'; rebuild"):
        EngineConfig.read(tmp_path)


def test_blocks_of_every_cache(networks: Networks) -> None:
    """A budget of bytes for all, and room for each rollout on top."""
    options = {"max_batch_size": 2, "max_seq_len": 64, "tokens_per_block": 8}
    config = hybrid(networks.draft_model, networks.eagle3, ngram(9))
    with open_llm(networks.target, config, **options) as llm:
        blocks = [cache.num_blocks for cache in inside.resources(llm).all]
    base = 2 * 8 + 2
    # 9 nodes of the union; 2 x (3 - 1) rows of each rollout.
    assert blocks == [base + 2 * 2, base + 2, base + 2]


def test_one_draft_is_stored_as_several_are(networks: Networks) -> None:
    single = plan_build(networks.target, BUILD, parse_speculative_config(networks.eagle3)).engine
    data = single.to_dict()
    assert data["speculation"] is None
    (draft,) = data["drafts"]
    assert (draft["folder"], draft["network"]["kind"]) == ("draft", "eagle")
    assert draft["speculation"] == {
        "method": "eagle3", "topk": 2, "num_steps": 3, "num_draft_tokens": 7, "choices": None,
        "p_min": 0.0,
    }  # fmt: skip
    assert EngineConfig.from_dict(data) == replace(single, fingerprints=data["fingerprints"])
