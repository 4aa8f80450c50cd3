"""MTP modules of the target's own checkpoint change no token, and are accepted where they are
right."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

import trtspec.speculative.mtp.checkpoint
from trtspec import LLM, SamplingParams
from trtspec.backends.packing import RowGroup
from trtspec.builder.build_engine import cached_engine
from trtspec.builder.plan import plan_build
from trtspec.config.build_config import BuildConfig
from trtspec.errors import CheckpointError, ConfigError
from trtspec.executor.step.request import Request
from trtspec.speculative.hidden_state_drafter import HiddenStateDrafter
from trtspec.speculative.mtp.shape import MtpConfig
from trtspec.speculative.options import parse_speculative_config

from .eagle_heads import V, cycling_target, known_text
from .helpers import TinyModels, assert_no_leak, open_llm, random_prompt, tokens, watch
from .mtp_modules import FORMATS, add_modules, mtp, random_module, right_module, save_right

PROMPTS = [random_prompt(360 + i, n) for i, n in enumerate((30, 1, 17, 40))]
PROMPTS += [random_prompt(370, 6) * 4]
GREEDY = SamplingParams(max_tokens=20)
SAMPLED = [SamplingParams(max_tokens=20, temperature=0.8, seed=i) for i in range(len(PROMPTS))]
CHAIN: dict[str, Any] = {"num_speculative_tokens": 3}
SHAPES: dict[str, dict[str, Any]] = {
    "chain": CHAIN,
    "tree": {"num_speculative_tokens": 3, "topk": 4, "num_draft_tokens": 14},
    "static": {"eagle_choices": [[0], [1], [0, 0], [0, 1], [0, 0, 0]]},
}
RIGHT_PROMPTS = [
    [i % 2, *(token + 2 for token in random_prompt(380 + i, n, V - 2))]
    for i, n in enumerate((20, 1, 4, 39))
]


@pytest.fixture(scope="module")
def checkpoint(
    models: TinyModels, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str, str], Path]:
    root = tmp_path_factory.mktemp("mtp")

    @cache
    def made(case: str, family: str) -> Path:
        module = random_module(models.hf(case))
        return add_modules(models.folder(case), root / f"{case}-{family}", [module], family)

    return made


@pytest.mark.parametrize(
    ("case", "family", "shape"),
    [("llama", "mimo", "chain"), ("llama", "mimo", "tree"), ("qwen3", "qwen3_next", "static")],
)
def test_same_tokens(
    models: TinyModels, checkpoint: Callable[[str, str], Path], case: str, family: str, shape: str
) -> None:
    """transformers' greedy text and the sampled text without speculation, eight at once in chunks,
    then over cached prefixes, and each alone."""
    folder, config = checkpoint(case, family), mtp(**SHAPES[shape])
    greedy = [models.greedy(case, prompt, 20) for prompt in PROMPTS]
    with open_llm(models.folder(case), max_batch_size=1) as llm:
        pairs = zip(PROMPTS, SAMPLED, strict=True)
        sampled = tokens([llm.generate(prompt, params) for prompt, params in pairs])
    with open_llm(folder, config, max_batch_size=8, max_num_tokens=60) as llm:
        steps = watch(llm)
        for _ in range(2):
            assert tokens(llm.generate(PROMPTS, GREEDY, use_tqdm=False)) == greedy
            assert tokens(llm.generate(PROMPTS, SAMPLED, use_tqdm=False)) == sampled
        metrics = llm.get_metrics()
        assert metrics["num_draft_tokens"] > 0 and any(step.draft_calls for step in steps)
        network = llm.config.drafts[0].network
        assert isinstance(network, MtpConfig) and network.norm_output
        assert_no_leak(llm)
    with open_llm(folder, config, max_batch_size=1) as llm:
        assert tokens([llm.generate(prompt, GREEDY) for prompt in PROMPTS]) == greedy


def test_formats_draft_alike(models: TinyModels, checkpoint: Callable[[str, str], Path]) -> None:
    """One module in both families' formats: the same drafts, so the same counts."""
    found = []
    for family in FORMATS:
        with open_llm(checkpoint("llama", family), mtp(**SHAPES["tree"])) as llm:
            outputs = llm.generate(PROMPTS, SAMPLED, use_tqdm=False)
            found.append([(o.outputs[0].token_ids, o.metrics.to_dict()) for o in outputs])
    assert found[0] == found[1]


# A module that is right, and one that is wrong somewhere.


@pytest.fixture(scope="module", params=[("mimo", True), ("qwen3_next", False)])
def right(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    family, cached = request.param
    return save_right(tmp_path_factory.mktemp(family), 40.0, family, cached)


def rate(folder: Path, **options: Any) -> float:
    params = SamplingParams(max_tokens=24)
    with open_llm(folder, mtp(**CHAIN), **options) as llm:
        for _ in range(2):  # cold, and over cached prefixes
            outputs = llm.generate(RIGHT_PROMPTS, params, use_tqdm=False)
            assert tokens(outputs) == [known_text(prompt, 24) for prompt in RIGHT_PROMPTS]
        metrics = llm.get_metrics()
        assert metrics["num_draft_tokens"] > 100
        value: float = metrics["acceptance_rate"]
        return value


@pytest.mark.parametrize(
    "options", [{}, {"max_batch_size": 4, "max_num_tokens": 24}], ids=["plain", "chunked"]
)
def test_a_right_module_is_always_accepted(right: Path, options: dict[str, Any]) -> None:
    assert rate(right, **options) >= 0.99


def test_a_right_module_guesses_the_noise(tmp_path: Path) -> None:
    """Sampled texts that nobody could foresee: the draft's noise is the target's."""
    folder = save_right(tmp_path, 3.0, "qwen3_next", True)
    params = [SamplingParams(40, temperature=1.0, seed=i) for i in range(len(RIGHT_PROMPTS))]
    with open_llm(folder, mtp(**SHAPES["tree"])) as llm:
        found = tokens(llm.generate(RIGHT_PROMPTS, params, use_tqdm=False))
        assert llm.get_metrics()["acceptance_length"] > 3.5
    with open_llm(folder) as llm:
        assert tokens(llm.generate(RIGHT_PROMPTS, params, use_tqdm=False)) == found


def test_shifted_tokens_are_noticed(right: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def group(self: HiddenStateDrafter, request: Request, start: int, count: int) -> RowGroup:
        blocks = self._cache.block_table(request)
        return RowGroup(request.tokens[start : start + count], start, blocks)

    monkeypatch.setattr(HiddenStateDrafter, "_group", group)
    assert rate(right) < 0.1


def test_the_wrong_state_is_noticed(right: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read = trtspec.speculative.mtp.checkpoint._config

    def embeddings(*args: Any) -> MtpConfig:
        return replace(read(*args), capture_layers=(-1,))

    monkeypatch.setattr(trtspec.speculative.mtp.checkpoint, "_config", embeddings)
    # The cached module wants the first token off the state, which its embedding tells as well.
    wanted = (0.99, 1.0) if "mimo" in str(right) else (0.0, 0.7)
    assert wanted[0] <= rate(right) <= wanted[1]


@pytest.mark.parametrize(
    ("family", "flaw"), [*[(f, "order") for f in FORMATS], (FORMATS[1], "one")]
)
def test_tensors_read_wrongly_are_noticed(tmp_path: Path, family: str, flaw: str) -> None:
    """The halves of the projection in the other family's order; norms whose 1 is not added."""
    module = right_module(cached=False)
    if flaw == "order":
        module["fc"] = torch.cat(module["fc"].chunk(2, dim=1)[::-1], dim=1)
    else:
        module |= {name: weight - 1 for name, weight in module.items() if name.endswith("norm")}
    cycling_target(40.0).save_pretrained(tmp_path / "target")
    assert rate(add_modules(tmp_path / "target", tmp_path / "mtp", [module], family)) < 0.1


# Where the modules lie.


def test_an_explicit_model(models: TinyModels, checkpoint: Callable[[str, str], Path]) -> None:
    """The modules of another folder serve a target that has none itself; as a draft model the
    folder is a language model."""
    folder, plain = checkpoint("llama", "mimo"), models.folder("llama")
    expected = [models.greedy("llama", prompt, 20) for prompt in PROMPTS]
    for config in (mtp(model=str(folder), **CHAIN), {"model": str(folder), **CHAIN}):
        with open_llm(plain, config) as llm:
            assert tokens(llm.generate(PROMPTS, GREEDY, use_tqdm=False)) == expected
            rates = llm.get_metrics()["acceptance_rate"]
            assert (rates == 1.0) == ("method" not in config)
    with pytest.raises(CheckpointError, match=r"no MTP modules.*mtp\.fc\.weight"):
        open_llm(plain, mtp(**CHAIN))


def test_a_token_map_cuts_the_targets_head(
    models: TinyModels, checkpoint: Callable[[str, str], Path], tmp_path: Path
) -> None:
    torch.save(torch.arange(5, 60), tmp_path / "map.pt")
    config = mtp(speculative_token_map=str(tmp_path / "map.pt"), **CHAIN)
    with open_llm(checkpoint("llama", "mimo"), config) as llm:
        assert llm.config.drafts[0].network.to_dict()["draft_vocab_size"] == 55
        expected = [models.greedy("llama", prompt, 20) for prompt in PROMPTS]
        assert tokens(llm.generate(PROMPTS, GREEDY, use_tqdm=False)) == expected


def test_a_folder_knows_its_modules_by_any_name(
    models: TinyModels, checkpoint: Callable[[str, str], Path]
) -> None:
    """Of the method; and it refuses what it was not built for."""
    speculation = parse_speculative_config(mtp(**SHAPES["tree"]))
    build = BuildConfig("float32", backend="eager")
    engine = cached_engine(plan_build(checkpoint("llama", "qwen3_next"), build, speculation))
    smaller = {"num_speculative_tokens": 2, "topk": 4, "num_draft_tokens": 6}
    with LLM(engine, {"method": "qwen3_next_mtp", **smaller}, skip_tokenizer_init=True) as llm:
        greedy = [models.greedy("llama", prompt, 20) for prompt in PROMPTS]
        assert tokens(llm.generate(PROMPTS, GREEDY, use_tqdm=False)) == greedy
    (draft,) = json.loads((engine / "config.json").read_text())["drafts"]
    assert draft["network"]["kind"] == "mtp"
    with pytest.raises(ConfigError, match="num_steps=5 was asked for"):
        LLM(engine, mtp(num_speculative_tokens=5, topk=4), skip_tokenizer_init=True)
