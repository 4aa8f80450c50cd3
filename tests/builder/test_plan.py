"""What a plan says and refuses before anything is built."""

from __future__ import annotations

import copy
import json
import shutil
from pathlib import Path

import pytest
import torch

import checkpoint_converters
import trtspec.backends.base as base
import trtspec.backends.environment as environments
import trtspec.backends.tensorrt.backend as tensorrt
from trtspec.builder import plan
from trtspec.builder.plan import BuildPlan, plan_build
from trtspec.config.build_config import BuildConfig
from trtspec.errors import CheckpointError, ConfigError
from trtspec.models.causal_lm import CausalLM
from trtspec.speculative.options import parse_speculative_config

from ..e2e.helpers import TinyModels, chain, ngram, tree
from ..e2e.tiny_tokenizer import save_words


def plan_of(target: Path, draft: Path | None = None, **options: object) -> BuildPlan:
    speculation = None if draft is None else parse_speculative_config(chain(draft, 3))
    return plan_build(target, BuildConfig(backend="eager", **options), speculation)


def test_text(models: TinyModels) -> None:
    """What was resolved, why, and the memory it takes."""
    target, draft = models.folder("llama"), models.draft("llama")
    speculation = parse_speculative_config(tree(draft, 3, 4, 13))
    plan = plan_build(target, BuildConfig(max_batch_size=4), speculation)
    lines = plan.describe().splitlines()
    shape = "(LlamaForCausalLM, 2 layers, hidden 64, vocabulary 203, checkpoint float32)"
    # K and V of both models: 2 x 2 layers x 2 heads x 16 x 4 bytes each.
    assert lines == [
        f"target   {target} {shape}",
        f"draft    {draft} {shape}",
        "build    aoti, float32, max_batch_size 4, max_seq_len 128, max_num_tokens 512",
        "drafts   draft_model: top-k 3, 4 steps, 13 rows verified",
        "because  dtype float32: that of the checkpoint",
        "because  max_seq_len 128: the model's max_position_embeddings",
        "because  max_num_tokens 512: max_batch_size 4 prompts of max_seq_len 128",
        "because  draft: causal language model (LlamaForCausalLM, 2 layers of width 64)",
        "memory   weights 0.001 GiB, K/V 1.0 KiB a token (0.000 GiB for 4 x 128 tokens)",
        f"engine   {plan.fingerprint}",
    ]


def test_without_a_compiler(
    models: TinyModels, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing is compiled then, and it is said why; who names a compiler is taken at his word."""
    monkeypatch.setattr(shutil, "which", lambda name: None)
    monkeypatch.delenv("CXX", raising=False)
    plan = plan_build(models.folder("llama"), BuildConfig())
    assert plan.engine.build.backend == "eager"
    assert "because  backend eager: no C++ compiler found" in plan.describe()
    assert "install one, for example the Debian package g++" in caplog.text
    monkeypatch.setenv("CXX", "missing")
    assert plan_build(models.folder("llama"), BuildConfig()).engine.build.backend == "aoti"


def test_a_draft_for_another_target(models: TinyModels, tmp_path: Path) -> None:
    """It says itself what it was trained for: nothing is said of the right target, both
    fingerprints of another one; a damaged note is named."""
    target, draft = models.folder("llama"), tmp_path / "draft"
    shutil.copytree(models.draft("llama"), draft)
    own = plan_of(target, draft).engine.fingerprints["target"]
    facts = {"target": "spam", "fingerprint": own}
    (draft / "made_for.json").write_text(json.dumps(facts))
    assert "trained for" not in plan_of(target, draft).describe()
    (draft / "made_for.json").write_text(json.dumps({**facts, "fingerprint": "a1"}))
    said = plan_of(target, draft).describe()
    assert f"was trained for spam (fingerprint a1), this target's is {own}: the text stays" in said
    (draft / "made_for.json").write_text("{")
    with pytest.raises(CheckpointError, match=r"made_for\.json does not say a target"):
        plan_of(target, draft)


def test_given_values_are_kept_without_reasons(models: TinyModels) -> None:
    options = {"dtype": "bf16", "max_batch_size": 3, "max_seq_len": 50, "max_num_tokens": 20}
    plan = plan_of(models.folder("llama"), **options)
    assert "build    eager, bfloat16, max_batch_size 3, max_seq_len 50, max_num_tokens 20" in (
        plan.describe()
    )
    assert "because" not in plan.describe()
    assert "drafts" not in plan.describe()


def test_fingerprint_of_every_choice(models: TinyModels) -> None:
    target, draft = models.folder("llama"), models.draft("llama")
    plans = [
        plan_of(target),
        plan_of(target, dtype="bfloat16"),
        plan_of(target, max_batch_size=3),
        plan_of(target, max_seq_len=50),
        plan_of(target, tokens_per_block=8),
        plan_of(target, draft),
        plan_of(target, target),
        plan_of(draft),
        plan_build(target, BuildConfig()),
        plan_build(target, BuildConfig(backend="eager"), parse_speculative_config(chain(draft, 4))),
    ]
    assert len({plan.fingerprint for plan in plans}) == len(plans)
    assert plan_of(target).fingerprint == plans[0].fingerprint


def test_a_device_that_is_not_here(models: TinyModels, monkeypatch: pytest.MonkeyPatch) -> None:
    """No CUDA in torch, no device, no kernels of ours: each is said, with what to do."""
    asked = r"device 'cuda' was asked for, but"
    monkeypatch.setattr("torch.version.cuda", None)
    with pytest.raises(ConfigError, match=rf"{asked} torch .* has no CUDA; .*device 'cpu'"):
        plan_of(models.folder("llama"), device="cuda")
    assert plan_of(models.folder("llama"), device="auto").engine.build.device == "cpu"
    monkeypatch.setattr("torch.version.cuda", "13.0")
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(ConfigError, match=rf"{asked} torch .* finds no CUDA device; .*nvidia-smi"):
        plan_of(models.folder("llama"), device="cuda")
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("trtspec.ops.native.HAS_CUDA_OPS", False)
    with pytest.raises(ConfigError, match=rf"{asked} this installation .*libtrtspec_cuda_ops\.so"):
        plan_of(models.folder("llama"), device="auto")


def test_engines_of_other_gpus_are_other_engines(
    models: TinyModels, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The graphs and the engine are keyed by the device and its architecture; the plan names it."""
    target = models.folder("llama")
    plans = [plan_of(target)]
    monkeypatch.setattr(base, "device_problem", lambda device: None)
    for capability in ("8.0", "9.0"):
        monkeypatch.setattr(environments, "compute_capability", lambda c=capability: c)
        monkeypatch.setattr(environments, "gpu_name", lambda: "NVIDIA H200")
        plans.append(plan_of(target, device="cuda"))
    assert len({plan.fingerprint for plan in plans}) == 3
    assert "build    eager on cuda (NVIDIA H200, 9.0), float32" in plans[-1].describe()
    environment = plans[-1].engine.to_dict()["environment"]
    assert (environment["gpu"], environment["compute_capability"]) == ("NVIDIA H200", "9.0")


def test_engines_of_other_tensorrts_are_other_engines(
    models: TinyModels, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though their graphs are the same."""
    pytest.importorskip("onnxscript")
    monkeypatch.setattr(tensorrt, "check_compute_capability", lambda capability: None)
    monkeypatch.setattr(tensorrt, "decide_plugins", lambda options: (options, []))
    fingerprints = set()
    for version, capability in (("1.6", "8.9"), ("1.7", "8.9"), ("1.7", "9.0")):
        monkeypatch.setattr(tensorrt, "tensorrt_version", lambda v=version: v)
        monkeypatch.setattr(tensorrt, "device_problem", lambda *_, **__: None)
        monkeypatch.setattr(base, "total_memory", lambda device: 80 << 30)
        monkeypatch.setattr(environments, "compute_capability", lambda c=capability: c)
        monkeypatch.setattr(environments, "gpu_name", lambda: "a GPU")
        build = BuildConfig("float16", backend="tensorrt")
        fingerprints.add(plan_build(models.folder("llama"), build).fingerprint)
    assert len(fingerprints) == 3


def test_a_converter_that_changed_builds_other_engines(
    models: TinyModels, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    before = plan_of(models.folder("llama")).fingerprint
    changed = shutil.copytree(checkpoint_converters.__path__[0], tmp_path / "converters")
    (changed / "another.py").write_text("")
    monkeypatch.setattr(checkpoint_converters, "__path__", [str(changed)])
    assert plan_of(models.folder("llama")).fingerprint != before


def test_a_reader_of_drafts_that_changed_builds_other_engines(
    models: TinyModels, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    before = plan_of(models.folder("llama")).fingerprint
    same, changed = (Path(shutil.copytree(plan.METHODS, tmp_path / name)) for name in "ab")
    monkeypatch.setattr(plan, "METHODS", same)
    assert plan_of(models.folder("llama")).fingerprint == before
    reader = changed / "mtp" / "checkpoint.py"
    reader.write_text(reader.read_text() + "# changed\n")
    monkeypatch.setattr(plan, "METHODS", changed)
    assert plan_of(models.folder("llama")).fingerprint != before


def resized(models: TinyModels, vocab: int) -> Path:
    model = copy.deepcopy(models.hf("llama"))
    model.resize_token_embeddings(vocab)
    return models.save(model, f"llama-{vocab}")


def with_words(folder: Path, copy_to: Path, words: list[str], *added: str) -> Path:
    shutil.copytree(folder, copy_to)
    save_words(copy_to, words, *added)
    return copy_to


def never_drafted(plan: BuildPlan) -> list[int]:
    """By the bias of the draft's head."""
    (draft,) = plan.drafts
    assert plan.engine.drafts[0].network.head.bias == ("head.bias" in draft.tensors)
    if "head.bias" not in draft.tensors:
        return []
    return (draft.tensors["head.bias"] < -1e29).nonzero().flatten().tolist()


def test_vocabularies_must_agree(models: TinyModels) -> None:
    for vocab in (190, 210):
        with pytest.raises(ConfigError, match=rf"vocabulary of 203 tokens, the draft of {vocab}; "):
            plan_of(models.folder("llama"), resized(models, vocab))


def test_tokenizers_must_agree(models: TinyModels, tmp_path: Path) -> None:
    words = [f"w{i}" for i in range(180)]
    target = with_words(models.folder("llama"), tmp_path / "target", words)
    draft = models.draft("llama")
    assert plan_of(target, with_words(draft, tmp_path / "same", words)).drafts
    assert plan_of(target, draft).drafts[0].path == draft  # a draft without one: sizes decide

    swapped = [*words[:50], words[51], words[50], *words[52:]]
    with pytest.raises(ConfigError, match=r"token 50 is 'w50' there and 'w51' here \(2 such of"):
        plan_of(target, with_words(draft, tmp_path / "swapped", swapped))
    renamed = [*words[:50], "new", *words[51:]]
    with pytest.raises(ConfigError, match="token 50 is 'w50' there and 'new' here"):
        plan_of(target, with_words(draft, tmp_path / "renamed", renamed))

    (tmp_path / "same" / "tokenizer.json").write_text("{")
    with pytest.raises(CheckpointError, match=r"the tokenizer in .*same cannot be read"):
        plan_of(target, tmp_path / "same")


def test_pairs_that_share_most_tokens(models: TinyModels, tmp_path: Path) -> None:
    """Tokens of one of the two, renamed ones that no text makes, embeddings of other sizes: such
    tokens are never drafted, and another tokenizer makes another engine."""
    words = [f"w{i}" for i in range(180)]
    target = with_words(models.folder("llama"), tmp_path / "target", words, "<a>", "<b>")
    draft = models.draft("llama")
    assert never_drafted(plan_of(target, target)) == []
    prefix = plan_of(target, with_words(draft, tmp_path / "fewer", words[:170]))
    assert never_drafted(prefix) == list(range(170, 182))
    assert "12 of its 203 ids are never drafted" in prefix.describe()
    renamed = plan_of(target, with_words(draft, tmp_path / "renamed", words, "<a>", "<c>"))
    assert never_drafted(renamed) == [181]
    more = plan_of(target, with_words(draft, tmp_path / "more", words, "<a>", "<b>", "<c>"))
    assert never_drafted(more) == [182]
    assert len({plan.fingerprint for plan in (prefix, renamed, more)}) == 3
    # Paddings alone say nothing of tokens.
    smaller = with_words(resized(models, 190), tmp_path / "small", words, "<a>", "<b>")
    assert never_drafted(plan_of(target, smaller)) == []
    larger = with_words(resized(models, 210), tmp_path / "large", words, "<a>", "<b>")
    assert never_drafted(plan_of(target, larger)) == list(range(203, 210))


def test_a_cut_head_of_such_a_pair(models: TinyModels, tmp_path: Path) -> None:
    """The bias has the rows of the head; there is none where the cut leaves these tokens out."""
    words = [f"w{i}" for i in range(180)]
    target = with_words(models.folder("llama"), tmp_path / "target", words)
    draft = with_words(models.draft("llama"), tmp_path / "draft", words[:170])
    listed = tmp_path / "tokens.json"
    for ids, rows in (([5, 170, 9, 179], [1, 3]), ([5, 9], [])):
        listed.write_text(json.dumps(ids))
        asked = parse_speculative_config({**chain(draft, 3), "vocabulary": str(listed)})
        plan = plan_build(target, BuildConfig(backend="eager"), asked)
        assert never_drafted(plan) == rows
        (found,) = plan.drafts
        network = CausalLM(found.config, torch.float32)
        network.load_weights(found)
        logits = network.head(torch.ones(1, found.config.hidden_size))[0]
        assert (logits < -1e29).nonzero().flatten().tolist() == rows and len(logits) == len(ids)


def test_limits(models: TinyModels) -> None:
    target = models.folder("llama")
    with pytest.raises(ConfigError, match=r"max_seq_len=129 exceeds .*=128"):
        plan_of(target, max_seq_len=129)
    with pytest.raises(ConfigError, match="max_num_tokens=7 is below max_batch_size=8"):
        plan_of(target, models.draft("llama"), max_num_tokens=7)
    assert (
        "because  drafts shortened in full batches: max_num_tokens 31 is below max_batch_size 8 x "
        "4 rows of a verify step = 32"
    ) in plan_of(target, models.draft("llama"), max_num_tokens=31).describe()
    with pytest.raises(ConfigError, match=r"max_draft_len=8 .* window of 8 tokens"):
        plan_build(
            models.folder("mistral_window"), BuildConfig(), parse_speculative_config(ngram(8))
        )


def test_damaged_checkpoints(models: TinyModels, tmp_path: Path) -> None:
    def damaged(name: str) -> Path:
        return Path(shutil.copytree(models.folder("llama"), tmp_path / name))

    cut = damaged("cut")
    weights = cut / "model.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(CheckpointError, match=r"cut/model\.safetensors is truncated"):
        plan_of(cut)
    weights.write_bytes(b"")
    with pytest.raises(CheckpointError, match="truncated or no safetensors file"):
        plan_of(cut)
    weights.unlink()
    with pytest.raises(CheckpointError, match=r"neither model\.safetensors nor"):
        plan_of(cut)
    with pytest.raises(CheckpointError, match=r"neither model\.safetensors nor"):
        plan_of(models.folder("llama"), cut)

    other = damaged("other")
    config = json.loads((other / "config.json").read_text())
    (other / "config.json").write_text(json.dumps({**config, "architectures": ["GPT2LMHeadModel"]}))
    with pytest.raises(CheckpointError, match=r"'GPT2LMHeadModel' is not supported; supported:"):
        plan_of(other)
    (other / "config.json").write_text('{"architectures": ')
    with pytest.raises(CheckpointError, match="cannot be read as JSON"):
        plan_of(other)
