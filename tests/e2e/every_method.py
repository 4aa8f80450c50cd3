"""A target and a draft of every method, for the tests that hold for all of them: random ones, or
such as are sometimes right."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from .assistants import assistant, random_assistant, save
from .dflash_heads import dflash, random_dflash, random_dflash2, random_dspark
from .eagle_heads import eagle, random_eagle1, random_eagle3
from .families import family_model
from .helpers import TinyModels, chain, eight_prompts, ngram, tree
from .hybrid_drafts import hybrid
from .medusa_heads import fitted_heads, medusa, write_heads
from .mtp_modules import add_modules, mtp, random_module
from .parallel_drafts import p_eagle, pard, pard2, random_p_eagle, random_pard2, save_pard

PROMPTS = eight_prompts(560)
TREE = {"num_speculative_tokens": 3, "topk": 3, "num_draft_tokens": 10}
CHOICES = [[0], [1], [0, 0], [1, 0], [0, 0, 0]]
STATIC = {"eagle_choices": CHOICES}
LIMITS: dict[str, Any] = {"dtype": "float32", "max_batch_size": 8, "max_num_tokens": 80}
"""Of an engine of any of these: suites that build with the same limits share compiled graphs."""

GEMMA4 = "gemma4"
"""A target that shares K/V, of `families`."""

Speculation = dict[str, Any] | None
Made = tuple[Path, Speculation]


def _plain(models: TinyModels, root: Path) -> Made:
    return models.folder("mistral_window"), None


def _ngram(models: TinyModels, root: Path) -> Made:
    return models.folder("llama"), ngram(4)


def _chain(models: TinyModels, root: Path) -> Made:
    return models.folder("llama"), chain(models.draft("llama"), 3)


def _tree(models: TinyModels, root: Path) -> Made:
    return models.folder("llama"), tree(models.draft("llama"), 3, 3, 10)


def _eagle(models: TinyModels, root: Path) -> Made:
    return models.folder("llama"), eagle(random_eagle1(models.hf("llama"), root), "eagle", **STATIC)


def _eagle3(models: TinyModels, root: Path) -> Made:
    common = [token for text in _greedy(models, "llama") for token in text]
    heads = random_eagle3(models.hf("llama"), root, sorted(set(common)))
    return models.folder("llama"), eagle(heads, "eagle3", **TREE)


def _mtp(models: TinyModels, root: Path) -> Made:
    module = random_module(models.hf("qwen3"))
    folder = add_modules(models.folder("qwen3"), root / "qwen3-mtp", [module], "qwen3_next")
    return folder, mtp(num_speculative_tokens=3)


def _medusa(models: TinyModels, root: Path) -> Made:
    texts = [p + t for p, t in zip(PROMPTS, _greedy(models, "llama3_tied"), strict=True)]
    heads = write_heads(root, fitted_heads(models.hf("llama3_tied"), texts, 3))
    return models.folder("llama3_tied"), medusa(heads)


def _pard(models: TinyModels, root: Path) -> Made:
    draft = models.hf("llama").__class__.from_pretrained(models.draft("llama"))
    return models.folder("llama"), pard(save_pard(draft, root), **TREE)


def _pard2(models: TinyModels, root: Path) -> Made:
    draft = models.hf("llama").__class__.from_pretrained(models.draft("llama"))
    return models.folder("llama"), pard2(random_pard2(draft, models.hf("llama"), root), **TREE)


def _p_eagle(models: TinyModels, root: Path) -> Made:
    heads = random_p_eagle(models.hf("llama3_tied"), root, None, layers=2)
    return models.folder("llama3_tied"), p_eagle(heads, **TREE)


def _modules(models: TinyModels, root: Path) -> Made:
    modules = [random_module(models.hf("llama"), seed) for seed in range(3)]
    folder = add_modules(models.folder("llama"), root / "llama-mtp", modules, "mimo")
    return folder, mtp(num_speculative_tokens=3)


def _dflash(models: TinyModels, root: Path) -> Made:
    heads = random_dflash(models.hf("llama"), root / "dflash")
    return models.folder("llama"), dflash(heads, num_speculative_tokens=5)


def _ddtree(models: TinyModels, root: Path) -> Made:
    """Of two layers the second one is causal and has a sliding window."""
    heads = random_dflash(models.hf("qwen3"), root / "ddtree", swa_window_size=9)
    config = json.loads((heads / "config.json").read_text())
    config["layer_types"] = ["full_attention", "sliding_attention"]
    (heads / "config.json").write_text(json.dumps(config))
    shape = {"num_speculative_tokens": 5, "num_draft_tokens": 24}
    return models.folder("qwen3"), dflash(heads, "ddtree", **shape)


def _jetspec(models: TinyModels, root: Path) -> Made:
    heads = random_dflash(models.hf("llama"), root / "jetspec", causal_head=True)
    shape = {"tree_depth": 5, "tree_width": 7, "budget": 64}
    return models.folder("llama"), dflash(heads, "jetspec", **shape)


def _dspark(models: TinyModels, root: Path) -> Made:
    heads = random_dspark(models.hf("llama"), root / "dspark", "rnn")
    return models.folder("llama"), dflash(heads, "dspark", num_speculative_tokens=6)


def _dflash2(models: TinyModels, root: Path) -> Made:
    heads = random_dflash2(models.hf("llama"), root / "dflash2")
    return models.folder("llama"), dflash(heads, "dflash2", num_speculative_tokens=5)


def _assistant(models: TinyModels, root: Path) -> Made:
    target = family_model("gemma4")
    helper = save(random_assistant(target, 29), root / "assistant")
    return models.save(target, GEMMA4), assistant(helper, **TREE)


def _self(models: TinyModels, root: Path) -> Made:
    return models.folder("llama"), {"method": "self", "num_speculative_tokens": 3}


def _hybrid(models: TinyModels, root: Path) -> Made:
    folder, eagle3 = _eagle3(models, root)
    assert eagle3 is not None
    return folder, hybrid(eagle3, chain(models.draft("llama"), 3), ngram(3))


def _new_hybrid(models: TinyModels, root: Path) -> Made:
    folder, modules = _modules(models, root)
    _, block = _dflash(models, root)
    assert modules is not None and block is not None
    return folder, hybrid(modules, block)


def _greedy(models: TinyModels, case: str) -> list[list[int]]:
    return [models.greedy(case, prompt, 24) for prompt in PROMPTS]


METHODS: Mapping[str, Callable[[TinyModels, Path], Made]] = {
    "plain": _plain,
    "ngram": _ngram,
    "chain": _chain,
    "tree": _tree,
    "eagle": _eagle,
    "eagle3": _eagle3,
    "mtp": _mtp,
    "medusa": _medusa,
    "pard": _pard,
    "pard2": _pard2,
    "p_eagle": _p_eagle,
    "modules": _modules,
    "dflash": _dflash,
    "ddtree": _ddtree,
    "jetspec": _jetspec,
    "dspark": _dspark,
    "dflash2": _dflash2,
    "assistant": _assistant,
    "self": _self,
    "hybrid": _hybrid,
    "hybrid_of_blocks": _new_hybrid,
}
"""How each is made in a folder."""
CALLED = {"plain": "none", "chain": "draft_model", "tree": "draft_model", "modules": "mtp"}
"""The methods of entries that are not called after theirs."""
NOT_ON_ONNX = ("assistant", "self")
"""Refused there: one reads blocks of the target's caches, the other keeps weights of few bits."""
SELDOM_ON_ONNX = (
    *("ddtree", "eagle", "hybrid_of_blocks", "jetspec", "modules", "mtp", "p_eagle", "pard"),
)
"""Made of graphs that others export: of DFlash's network, of EAGLE-3's, of a draft model's and its
masks; `tests/cpp/test_onnx.py` runs all but `ddtree`, `jetspec`, `hybrid_of_blocks` and `mtp`."""


def _with(name: str, **options: Any) -> Callable[[TinyModels, Path], Made]:
    """Another use of the target and the draft of an entry in `METHODS`, whose tree is left out."""

    def make(models: TinyModels, root: Path) -> Made:
        folder, speculation = METHODS[name](models, root)
        kept = {k: v for k, v in (speculation or {}).items() if k not in {*TREE, *STATIC}}
        return folder, {**kept, **options}

    return make


def _adaptive(name: str) -> Callable[[TinyModels, Path], Made]:
    def make(models: TinyModels, root: Path) -> Made:
        folder, speculation = METHODS[name](models, root)
        assert speculation is not None
        return folder, {**speculation, "adaptive": True}

    return make


def _on_llama(**speculation: Any) -> Callable[[TinyModels, Path], Made]:
    """A method that needs no draft."""
    return lambda models, root: (models.folder("llama"), speculation)


def _auto_with_draft(models: TinyModels, root: Path) -> Made:
    return models.folder("llama"), {"method": "auto", "model": str(models.draft("llama"))}


def _extract(models: TinyModels, root: Path) -> Made:
    where = {"capture_layers": [1, -1], "shared_storage_path": str(root / "states")}
    return models.folder("llama"), {"method": "extract_hidden_states", **where}


def _token_map(models: TinyModels, root: Path) -> Made:
    folder, speculation = METHODS["eagle"](models, root)
    common = sorted({token for text in _greedy(models, "llama") for token in text})
    torch.save(torch.tensor(common), root / "tokens.pt")
    shape = {"num_speculative_tokens": 3, "topk": 2, "num_draft_tokens": 8}
    cut = {"speculative_token_map": str(root / "tokens.pt")}
    return folder, eagle(Path((speculation or {})["model"]), "eagle", **shape, **cut)


VARIANTS: Mapping[str, Callable[[TinyModels, Path], Made]] = {
    "suffix": _on_llama(method="suffix"),
    "eagle chain": _with("eagle", num_speculative_tokens=3),
    "eagle tree": _with("eagle", **TREE),
    "eagle token map": _token_map,
    "eagle3 chain": _with("eagle3", num_speculative_tokens=3),
    "eagle3 static": _with("eagle3", **STATIC),
    "mtp tree": _with("mtp", **TREE),
    "mtp static": _with("mtp", **STATIC),
    "modules, the first alone": _with("modules", use_mtp_vanilla=False, num_speculative_tokens=3),
    "medusa static": _with("medusa", medusa_choices=CHOICES),
    "medusa tree": _with("medusa", **TREE),
    "medusa typical": _with("medusa", lossy_typical_acceptance={}),
    "pard chain": _with("pard", num_speculative_tokens=3),
    "pard static": _with("pard", **STATIC),
    "pard2 chain": _with("pard2", num_speculative_tokens=3),
    "p_eagle chain": _with("p_eagle", num_speculative_tokens=3),
    "p_eagle static": _with("p_eagle", **STATIC),
    "dflash tree": _with("dflash", num_speculative_tokens=5, topk=2, num_draft_tokens=10),
    "dspark tree": _with("dspark", **TREE),
    "dflash2 tree": _with("dflash2", **TREE),
    "dflash static": _with("dflash", choices=CHOICES),
    "adaptive": _adaptive("tree"),
    "adaptive hybrid": _adaptive("hybrid"),
    "auto": _on_llama(method="auto"),
    "auto with a draft": _auto_with_draft,
    "extract_hidden_states": _extract,
}
"""Other trees and uses of these methods, and methods that draft nothing of an engine's."""
