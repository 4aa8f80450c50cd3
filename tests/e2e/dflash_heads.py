"""DFlash networks for the tiny targets: random ones, and some that are right for a known text."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor
from transformers import PreTrainedModel

from .eagle_heads import MODE, ONE, OUT, H, V, cycle, cycling_target, write

MASK = 0
"""Begins prompts of the cycling target and is never their newest token."""
BLOCK = 5
_CONTEXT = H - 2  # the dimension that only context rows have
_WAITING = H - 1
_BIG = 60.0
_HEAD_DIM = 16


def dflash(folder: Path, method: str = "dflash", **shape: Any) -> dict[str, Any]:
    return {"method": method, "model": str(folder), **shape}


def _config(hf: PreTrainedModel, layers: int, block: int, **nested: Any) -> dict[str, Any]:
    return {
        "architectures": ["DFlashDraftModel"],
        "model_type": "qwen3",
        "vocab_size": hf.config.vocab_size,
        "hidden_size": hf.config.hidden_size,
        "num_hidden_layers": layers,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": _HEAD_DIM,
        "rms_norm_eps": 1e-5,
        "max_position_embeddings": 256,
        "torch_dtype": "float32",
        "num_target_layers": hf.config.num_hidden_layers,
        "block_size": block,
        "dflash_config": {"mask_token_id": MASK, "target_layer_ids": [0], **nested},
    }


def random_dflash(hf: PreTrainedModel, folder: Path, seed: int = 5, **nested: Any) -> Path:
    """Two layers with head norms over the first layer's states; blocks of 6."""
    noise, hidden = torch.Generator().manual_seed(seed), hf.config.hidden_size
    shapes = {
        "self_attn.q_proj": (64, hidden),
        "self_attn.k_proj": (32, hidden),
        "self_attn.v_proj": (32, hidden),
        "self_attn.o_proj": (hidden, 64),
        "mlp.gate_proj": (48, hidden),
        "mlp.up_proj": (48, hidden),
        "mlp.down_proj": (hidden, 48),
    }
    norms = {"input_layernorm": hidden, "post_attention_layernorm": hidden}
    norms |= {"self_attn.q_norm": _HEAD_DIM, "self_attn.k_norm": _HEAD_DIM}
    tensors = {"fc.weight": 0.2 * torch.randn(hidden, hidden, generator=noise)}
    for name in ("hidden_norm", "norm"):
        tensors[f"{name}.weight"] = 0.5 + torch.rand(hidden, generator=noise)
    for layer in (0, 1):
        for name, shape in shapes.items():
            weight = 0.15 * torch.randn(shape, generator=noise)
            tensors[f"layers.{layer}.{name}.weight"] = weight
        for name, size in norms.items():
            weight = 0.5 + torch.rand(size, generator=noise)
            tensors[f"layers.{layer}.{name}.weight"] = weight
    return write(folder, _config(hf, 2, 6, **nested) | {"intermediate_size": 48}, tensors)


def random_dspark(hf: PreTrainedModel, folder: Path, markov: str, sure: bool = True) -> Path:
    """`random_dflash` with heads of either kind, as DeepSpec writes them; blocks of 6 guess 6."""
    random_dflash(hf, folder)
    noise, rank = torch.Generator().manual_seed(6), 8
    hidden, vocab = hf.config.hidden_size, hf.config.vocab_size
    shapes = {
        "markov_head.markov_w1.weight": (vocab, rank),
        "markov_head.markov_w2.weight": (vocab, rank),
    }
    mixer = {"gated": ("gate_proj", 1, 1), "rnn": ("joint_proj", 3, 2)}.get(markov)
    if mixer is not None:
        name, makes, reads = mixer
        shapes[f"markov_head.{name}.weight"] = (makes * rank, reads * rank + hidden)
        shapes[f"markov_head.{name}.bias"] = (makes * rank,)
    if sure:
        shapes["confidence_head.proj.weight"] = (1, hidden + rank)
        shapes["confidence_head.proj.bias"] = (1,)
    more = {name: 0.3 * torch.randn(shape, generator=noise) for name, shape in shapes.items()}
    said = {"enable_confidence_head": sure, "confidence_head_with_markov": sure}
    return _as_dspark(folder, more, markov_head_type=markov, markov_rank=rank, **said)


def random_dflash2(hf: PreTrainedModel, folder: Path) -> Path:
    """`random_dflash` with convolutions and a selector of 16 candidates."""
    random_dflash(hf, folder)
    noise, rank = torch.Generator().manual_seed(7), 8
    hidden, vocab = hf.config.hidden_size, hf.config.vocab_size
    more = _selector(
        0.3 * torch.randn(rank, hidden, generator=noise),
        torch.randn(vocab, rank, generator=noise),
        torch.randn(vocab, rank, generator=noise),
    )
    for name in _convolutions(2):
        more[f"{name}.base_kernel"] = 0.5 * torch.randn(2, 2, hidden, generator=noise)
        shape = 4 * hidden // 16, hidden
        more[f"{name}.kernel_projection.weight"] = 0.1 * torch.randn(shape, generator=noise)
    return _as_dflash2(folder, more, conv_group_size=16, selector_top_k=16)


def _convolutions(layers: int) -> list[str]:
    parts = ("attention_conv", "mlp_conv")
    return [f"layers.{layer}.{part}" for layer in range(layers) for part in parts]


def _selector(hidden: Tensor, before: Tensor, behind: Tensor) -> dict[str, Tensor]:
    return {
        "candidate_selector.hidden_projection.weight": hidden,
        "candidate_selector.predecessor_codebook": before,
        "candidate_selector.successor_codebook": behind,
    }


def _as_dflash2(folder: Path, more: dict[str, Tensor], **sizes: int) -> Path:
    """A DFlash folder as z-lab's DFlash2, with these tensors as well."""
    config = json.loads((folder / "config.json").read_text())
    rank = len(more["candidate_selector.hidden_projection.weight"])
    config["dflash_config"] |= {"conv_kernel_size": 2, "selector_rank": rank, **sizes}
    config["architectures"] = ["DFlash2DraftModel"]
    return write(folder, config, {**load_file(folder / "model.safetensors"), **more})


def _as_dspark(folder: Path, more: dict[str, Tensor], **said: Any) -> Path:
    """A DFlash folder as DeepSpec's DSpark, with these tensors as well."""
    config = json.loads((folder / "config.json").read_text())
    nested = config.pop("dflash_config")
    config |= {"architectures": ["Qwen3DSparkModel"], **nested, **said}
    return write(folder, config, {**load_file(folder / "model.safetensors"), **more})


def right_dflash(
    folder: Path,
    sharpness: float,
    strict: bool = False,
    anchor: bool = False,
    cached: bool = False,
    causal: bool = False,
) -> Path:
    """A network that computes what `cycling_target` does, for slot after slot.

    A slot is *empty*, a mask's embedding, or *filled* with a token, the mode and the token that
    follows. Layer 0 fills the root's: its token is its embedding's, the mode is that of the context
    row just before it, found by its distance. In every further layer the empty slot behind a filled
    one, again found by its distance, takes over the token that follows. A filled slot looks at
    empty ones, whose values are zero.

    strict: the context row before the root must also say that the root follows it. cached: the mode
    is read off the row of the prompt's first token instead, by what it holds. anchor: slots
    say the token that follows theirs, by the target's head; else their own, by one of their own.
    causal: no slot sees a later one, so that a filled one looks at context rows that hold nothing,
    as all but the marked one do where `cached`.
    """
    hf = cycling_target(sharpness)
    nested = {"causal_head": True} if causal else {}
    config = _config(hf, BLOCK, BLOCK, target_layer_ids=[1], sample_from_anchor=anchor, **nested)
    config |= {"num_key_value_heads": 4, "rms_norm_eps": 1e-12, "rope_theta": 1e6}
    fc = torch.zeros(H, H)
    if cached:  # the state of token 0 or 1
        fc[_CONTEXT, :2] = 1
        fc[MODE, :2] = torch.tensor([1.0, -1.0])
    else:
        fc[_CONTEXT, ONE] = fc[MODE, MODE] = 1
        fc[range(OUT, OUT + V), range(OUT, OUT + V)] = 1
    ones = 2 if cached else 3  # of a context row, which the norm leaves as they are
    tensors = {
        "fc.weight": fc,
        "hidden_norm.weight": torch.full((H,), (ones / H) ** 0.5),
        "norm.weight": torch.full((H,), (4 / H) ** 0.5),
    }
    for layer in range(BLOCK):
        weights = _first(strict, cached) if layer == 0 else _next(causal)
        for name in ("input_layernorm", "post_attention_layernorm"):
            weights[f"{name}.weight"] = torch.ones(H)
        tensors |= {f"layers.{layer}.{name}": weight for name, weight in weights.items()}
    if not anchor:
        head = torch.zeros(V, H)
        head[range(V), range(V)] = sharpness
        head[:2, ONE] = -60
        tensors["lm_head.weight"] = head
    return write(folder, config | {"intermediate_size": 2 * V}, tensors)


def right_dspark(folder: Path, sharpness: float, shifted: bool = False) -> Path:
    """The same whose head guesses nothing: what follows a token in its slot's mode is said by the
    bias alone, which is gated by that mode. shifted: of the token one further."""
    right_dflash(folder, sharpness, anchor=True)
    one_hot = torch.eye(V).repeat(1, 2)  # of either mode
    gate = torch.zeros(2 * V, H + 2 * V)
    gate[:V, MODE], gate[V:, MODE] = _BIG, -_BIG
    after = torch.zeros(V, 2 * V)
    for mode in (0, 1):
        following = torch.tensor(cycle(mode)).roll(int(shifted))
        after[following, mode * V + torch.arange(V)] = sharpness
    head = torch.zeros(V, H)
    head[:2, ONE] = -60
    more = {
        "lm_head.weight": head,
        "markov_head.markov_w1.weight": one_hot,
        "markov_head.markov_w2.weight": after,
        "markov_head.gate_proj.weight": gate,
        "markov_head.gate_proj.bias": torch.zeros(2 * V),
        "confidence_head.proj.weight": torch.zeros(1, H),
        "confidence_head.proj.bias": torch.tensor([3.0]),
    }
    said = {"enable_confidence_head": True, "markov_rank": 2 * V, "markov_head_type": "gated"}
    return _as_dspark(folder, more, **said)


def right_dflash2(folder: Path, sharpness: float, shifted: bool = False) -> Path:
    """The same whose head guesses nothing: all tokens are candidates, and the pair scores of a
    slot's mode say which follows. shifted: of the token one further."""
    right_dflash(folder, sharpness)
    mode = torch.zeros(2 * V, H)
    mode[:, ONE], mode[:V, MODE], mode[V:, MODE] = 0.5, 0.5, -0.5
    behind = torch.zeros(V, 2 * V)
    for index in (0, 1):
        following = torch.tensor(cycle(index)).roll(int(shifted))
        behind[following, index * V + torch.arange(V)] = sharpness
    head = torch.zeros(V, H)
    head[:2, ONE] = -60
    more = {"lm_head.weight": head, **_selector(mode, torch.eye(V).repeat(1, 2), behind)}
    for name in _convolutions(BLOCK):  # which change nothing
        more[f"{name}.base_kernel"] = torch.tensor([1.0, 0.0]).view(1, 2, 1).repeat(2, 1, H)
        more[f"{name}.kernel_projection.weight"] = torch.zeros(4, H)
    return _as_dflash2(folder, more, conv_group_size=H, selector_top_k=V)


def _heads(rows: Tensor) -> Tensor:
    """The same 16 rows for each of four heads."""
    return rows.repeat(4, 1)


def _before(rows: Tensor, pairs: range, weights: dict[int, float]) -> None:
    """A query that, of keys with a one in these pairs, is nearest to the one just before it."""
    for pair in pairs:
        angle = 1e6 ** (-2 * pair / _HEAD_DIM)
        for dimension, weight in weights.items():
            rows[pair, dimension] = weight * math.cos(angle)
            rows[pair + _HEAD_DIM // 2, dimension] = -weight * math.sin(angle)


def _first(strict: bool, cached: bool) -> dict[str, Tensor]:
    """The root's slot takes the mode off the newest context row, or off the marked one."""
    q, k = torch.zeros(_HEAD_DIM, H), torch.zeros(_HEAD_DIM, H)
    v, o = torch.zeros(64, H), torch.zeros(H, 64)
    if cached:
        q[6, ONE], q[6, MASK], k[6, _CONTEXT] = 40, -40, 40
    else:
        _before(q, range(1, 4), {ONE: 40.0, MASK: -40.0})
        k[1:4, _CONTEXT] = 40
    q[7, MASK] = k[7, MASK] = 40  # masks look at masks
    v[V, MODE], o[MODE, V] = 1, 1
    count = 3.0
    if strict:
        v[range(V), range(OUT, OUT + V)] = 1
        o[range(V), range(V)] = 1
        count = 6.0  # the token is there twice
    mlp = _following((H / count) ** 0.5, 0.5 if strict else 1.0)
    if strict:
        # The mode waits elsewhere, so that no later layer completes what was refused here.
        o[[_WAITING, MODE], V] = torch.tensor([1.0, 0.0])
        gate, down = mlp["mlp.gate_proj.weight"], mlp["mlp.down_proj.weight"]
        gate[:, [_WAITING, MODE]] = gate[:, [MODE, _WAITING]]
        for unit in range(2 * V):
            mode = 1 - 2 * (unit // V)
            down[unit % V, unit] = -2 / _BIG
            down[[MODE, _WAITING], unit] = torch.tensor([2 * mode / _BIG, -2 * mode / _BIG])
    return {**_attention(_heads(q), _heads(k), v, o), **mlp}


def _next(causal: bool) -> dict[str, Tensor]:
    """The slot behind a filled one takes over the token that follows."""
    q, k = torch.zeros(_HEAD_DIM, H), torch.zeros(_HEAD_DIM, H)
    v, o = torch.zeros(64, H), torch.zeros(H, 64)
    filled = (H / 4) ** 0.5  # what the norm multiplies a filled slot's ones by
    _before(q, range(1), {MASK: 40.0})
    k[0, ONE] = 40
    q[7, ONE], q[7, MASK], k[7, MASK] = 40, -40, 40
    if causal:
        k[7, ONE] = k[7, _CONTEXT] = -40
    v[range(V), range(OUT, OUT + V)] = 1 / filled
    v[V, MODE] = v[V + 1, OUT : OUT + V] = 1 / filled
    o[range(V), range(V)] = 1
    o[MODE, V], o[MASK, V + 1] = 1, -1
    return {**_attention(_heads(q), _heads(k), v, o), **_following((H / 3) ** 0.5, 1.0)}


def _attention(q: Tensor, k: Tensor, v: Tensor, o: Tensor) -> dict[str, Tensor]:
    return {f"self_attn.{n}_proj.weight": w for n, w in zip("qkvo", (q, k, v, o), strict=True)}


def _following(scale: float, token_weight: float) -> dict[str, Tensor]:
    """An MLP that adds the token that follows, where it is not there yet. ``scale``: what the
    norm multiplies the slot's ones by."""
    gate, up, down = torch.zeros(2 * V, H), torch.zeros(2 * V, H), torch.zeros(H, 2 * V)
    for mode in (0, 1):
        following = cycle(mode)
        for token in range(V):
            unit = mode * V + token
            gate[unit, token] = 2 * _BIG * token_weight
            gate[unit, MODE] = 0.5 * _BIG * (1 - 2 * mode)
            gate[unit, ONE] = -2 * _BIG
            gate[unit, OUT : OUT + V] = -_BIG
            up[unit, ONE] = 1
            down[OUT + following[token], unit] = 2 / _BIG
    weights = {"gate": gate / scale, "up": up / scale, "down": down}
    return {f"mlp.{name}_proj.weight": weight for name, weight in weights.items()}
