"""EAGLE heads for the tiny targets: random ones, and one pair of models where they are right."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel

LAYER_IDS = "eagle_aux_hidden_state_layer_ids"


def eagle(folder: Path, method: str, **shape: Any) -> dict[str, Any]:
    return {"method": method, "model": str(folder), **shape}


def write(folder: Path, config: dict[str, Any], tensors: dict[str, Tensor]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    save_file({k: v.contiguous() for k, v in tensors.items()}, folder / "model.safetensors")
    return folder


def _sizes(hf: PreTrainedModel) -> dict[str, Any]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": hf.config.vocab_size,
        "hidden_size": hf.config.hidden_size,
        "intermediate_size": 48,
        "num_hidden_layers": 1,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "rms_norm_eps": 1e-5,
        "max_position_embeddings": 64,
        "hidden_act": "silu",
        "torch_dtype": "float32",
    }


def _layer(prefix: str, hidden: int, width: int, noise: torch.Generator) -> dict[str, Tensor]:
    shapes = {
        "self_attn.q_proj": (64, width),
        "self_attn.k_proj": (32, width),
        "self_attn.v_proj": (32, width),
        "self_attn.o_proj": (hidden, 64),
        "mlp.gate_proj": (48, hidden),
        "mlp.up_proj": (48, hidden),
        "mlp.down_proj": (hidden, 48),
    }
    norms = ["post_attention_layernorm"]
    norms += ["input_layernorm", "hidden_norm"] if width > hidden else []
    return {
        **{
            f"{prefix}{name}.weight": 0.15 * torch.randn(shape, generator=noise)
            for name, shape in shapes.items()
        },
        **{f"{prefix}{name}.weight": 0.5 + torch.rand(hidden, generator=noise) for name in norms},
    }


def random_eagle1(hf: PreTrainedModel, folder: Path, seed: int = 1) -> Path:
    """As yuhuili's EAGLE checkpoints: ``fc`` with a bias, no norms but one, the target's head."""
    noise, hidden = torch.Generator().manual_seed(seed), hf.config.hidden_size
    tensors = {
        "fc.weight": 0.1 * torch.randn(hidden, 2 * hidden, generator=noise),
        "fc.bias": 0.1 * torch.randn(hidden, generator=noise),
        **_layer("layers.0.", hidden, hidden, noise),
    }
    return write(folder, _sizes(hf) | {"bias": True}, tensors)


def random_eagle3(
    hf: PreTrainedModel,
    folder: Path,
    ids: Sequence[int] | None = None,
    modelopt: bool = True,
    seed: int = 3,
) -> Path:
    """An EAGLE-3 head over both layers of a tiny target, as ModelOpt exports it or as yuhuili's.

    ``ids``: the target's tokens that the head covers; all if None.
    """
    noise, hidden, vocab = torch.Generator().manual_seed(seed), hf.config.hidden_size, None
    vocab = hf.config.vocab_size
    covered = torch.arange(vocab) if ids is None else torch.tensor(sorted(ids))
    tensors = {
        "fc.weight": 0.1 * torch.randn(hidden, 2 * hidden, generator=noise),
        "norm.weight": 0.5 + torch.rand(hidden, generator=noise),
        "lm_head.weight": 0.3 * torch.randn(len(covered), hidden, generator=noise),
        **_layer("layers.0." if modelopt else "midlayer.", hidden, 2 * hidden, noise),
    }
    config = _sizes(hf) | {"draft_vocab_size": len(covered)}
    if ids is not None:
        tensors["d2t"] = covered - torch.arange(len(covered))
    if modelopt:
        config["architectures"] = ["LlamaForCausalLMEagle3"]
        config["eagle_config"] = {
            LAYER_IDS: [0, 1],
            "use_aux_hidden_state": True,
            "use_input_layernorm_in_first_layer": True,
            "use_last_layernorm": True,
        }
    else:
        config[LAYER_IDS] = [1, 2]  # inputs
        if ids is not None:
            tensors["t2d"] = torch.zeros(vocab, dtype=torch.bool).index_fill(0, covered, True)
    return write(folder, config, tensors)


# Models whose text is known: the next token is that of one of two cycles over the tokens 2 .. V-1,
# chosen by the *mode*, the token 0 or 1 with which the prompt begins.

V, H = 30, 64
ONE, MODE, OUT = V, V + 1, V + 2
"""Dimensions: the token (one-hot), a constant, the mode (+1 or -1), the next token (one-hot)."""

_LENGTH = 4.0**0.5
"""Of a finished state: token, constant, mode and next token, each 1."""
_BIG = 60.0


def with_norms(folder: Path) -> Path:
    """A head as EAGLE-3.1: each state is normed by itself, and a pass is fed the normed output."""
    config = json.loads((folder / "config.json").read_text())
    tensors = load_file(folder / "model.safetensors")
    hidden, joined = tensors["fc.weight"].shape
    noise = torch.Generator().manual_seed(31)
    for state in range(joined // hidden):
        tensors[f"fc_norm.{state}.weight"] = 0.5 + torch.rand(hidden, generator=noise)
    return write(folder, config | {"fc_norm": True, "norm_output": True}, tensors)


def cycle(mode: int) -> list[int]:
    """Token -> next token; two permutations of 2 .. V-1 of one cycle each."""
    order = torch.randperm(V - 2, generator=torch.Generator().manual_seed(40 + mode)) + 2
    following = [2] * V
    for token, after in zip(order.tolist(), order.roll(-1).tolist(), strict=True):
        following[token] = after
    return following


def known_text(prompt: Sequence[int], length: int) -> list[int]:
    following, text = cycle(prompt[0]), [prompt[-1]]
    for _ in range(length):
        text.append(following[text[-1]])
    return text[1:]


def _chooser(scale: float, again: bool = False) -> dict[str, Tensor]:
    """An MLP with a unit for every token and mode, which is on for one of them and then adds the
    next token. ``scale``: what the input's ones are multiplied by before it.

    ``again``: the input is a finished state; the state after it is written in its place.
    """
    gate, up, down = torch.zeros(2 * V, H), torch.zeros(2 * V, H), torch.zeros(H, 2 * V)
    on = _BIG * 0.5 * 1.0  # silu is the identity here, and 0 for what is off
    for mode in (0, 1):
        following = cycle(mode)
        for token in range(V):
            unit, after = mode * V + token, following[token]
            gate[unit, token] = _BIG
            gate[unit, MODE] = _BIG * (1 - 2 * mode)
            gate[unit, ONE] = -1.5 * _BIG
            up[unit, ONE] = 1.0
            if again:
                down[token, unit], down[OUT + after, unit] = -1 / on, -1 / on
                down[after, unit] = 1 / on
                down[OUT + following[after], unit] += 1 / on
            else:
                down[OUT + after, unit] = 1 / on
    return {"gate": gate / scale, "up": up / scale, "down": down}


def cycling_target(sharpness: float) -> LlamaForCausalLM:
    """``sharpness``: the logit of the next token; others have 0, the tokens 0 and 1 have -60."""
    config = LlamaConfig(
        vocab_size=V,
        hidden_size=H,
        intermediate_size=2 * V,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=4,
        head_dim=16,
        rope_theta=1e6,
        rms_norm_eps=1e-12,
        max_position_embeddings=256,
        attn_implementation="eager",
        bos_token_id=None,
        eos_token_id=None,
    )
    model = LlamaForCausalLM(config).eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            weight.fill_(1.0 if name.endswith("norm.weight") else 0.0)
        embed, (first, second) = model.model.embed_tokens.weight, model.model.layers
        embed[:, ONE] = 1
        embed[range(V), range(V)] = 1
        # Every row reads the mode off the first token: of all pairs of dimensions the last (7 and
        # 15 of 16) turns so slowly that positions hardly matter.
        ones = (H / 2) ** 0.5  # of a normed embedding
        attention = first.self_attn
        attention.q_proj.weight[7, ONE] = 40
        attention.k_proj.weight[7, [0, 1]] = 40
        attention.v_proj.weight[0, [0, 1]] = torch.tensor([1.0, -1.0]) / ones
        attention.o_proj.weight[MODE, 0] = 1
        for name, weight in _chooser((H / 3) ** 0.5).items():
            getattr(second.mlp, f"{name}_proj").weight.copy_(weight)
        # The final norm leaves a finished state as it is.
        model.model.norm.weight.fill_(_LENGTH / H**0.5)
        model.lm_head.weight[range(V), range(OUT, OUT + V)] = sharpness
        model.lm_head.weight[:2, ONE] = -60
    return model


@dataclass(frozen=True)
class RightHeads:
    """The cycling target and heads that compute what it computes. ``eagle1`` reads the mode off
    the state, ``eagle1_cached`` off the first row of its own cache, ``eagle3`` reads no token."""

    target: Path
    eagle1: Path
    eagle1_cached: Path
    eagle3: Path


def save_right_heads(root: Path, sharpness: float) -> RightHeads:
    hf = cycling_target(sharpness)
    hf.save_pretrained(root / "target")
    sizes = _sizes(hf) | {"intermediate_size": 2 * V, "rms_norm_eps": 1e-12, "rope_theta": 1e6}
    sizes["max_position_embeddings"] = hf.config.max_position_embeddings  # drafts end there
    idle = {
        "self_attn.q_proj.weight": torch.zeros(64, H),
        "self_attn.k_proj.weight": torch.zeros(32, H),
        "self_attn.v_proj.weight": torch.zeros(32, H),
        "self_attn.o_proj.weight": torch.zeros(H, 64),
        "post_attention_layernorm.weight": torch.ones(H),
    }

    def layer(mlp: dict[str, Tensor], **more: Tensor) -> dict[str, Tensor]:
        weights = {**idle, **{f"mlp.{k}_proj.weight": v for k, v in mlp.items()}, **more}
        return {f"layers.0.{name}": weight for name, weight in weights.items()}

    # EAGLE-1: token and constant from the embedding, mode from the state.
    fc = torch.zeros(H, 2 * H)
    fc[range(V + 1), range(V + 1)] = 1
    fc[MODE, H + MODE] = 1
    eagle1 = {"fc.weight": fc, **layer(_chooser((H / 3) ** 0.5))}
    # The same, but the mode comes from the row of the first token, by attention.
    cached_fc, marks = fc.clone(), [H - 2, H - 1]
    cached_fc[MODE] = 0
    cached_fc[marks, [H, H + 1]] = 1  # the state is that of token 0 or 1
    q, k, v, o = (torch.zeros_like(idle[f"self_attn.{n}_proj.weight"]) for n in "qkvo")
    q[7, ONE], k[7, marks], o[MODE, 0] = 40, 40, 1
    v[0, marks] = torch.tensor([1.0, -1.0])
    attention = {f"self_attn.{n}_proj.weight": w for n, w in zip("qkvo", (q, k, v, o), strict=True)}
    mlp = _chooser((H / 3) ** 0.5)
    eagle1_cached = {"fc.weight": cached_fc, **layer(mlp, **attention)}
    # EAGLE-3: the state as it is; tokens 0 and 1 are not in its vocabulary.
    wide = {
        name: torch.zeros(rows, 2 * H)
        for name, rows in (("self_attn.q_proj.weight", 64), ("self_attn.k_proj.weight", 32),
                           ("self_attn.v_proj.weight", 32))
    }  # fmt: skip
    norms = {f"{name}.weight": torch.ones(H) for name in ("input_layernorm", "hidden_norm")}
    head = torch.zeros(V - 2, H)
    head[range(V - 2), range(OUT + 2, OUT + V)] = sharpness
    eagle3 = {
        "fc.weight": torch.eye(H),
        "norm.weight": torch.full((H,), _LENGTH / H**0.5),
        "lm_head.weight": head,
        "d2t": torch.full((V - 2,), 2),
        **layer(_chooser((H / 4) ** 0.5, again=True), **wide, **norms),
    }
    nested = {"eagle_config": {LAYER_IDS: [1], "use_aux_hidden_state": True}}
    return RightHeads(
        root / "target",
        write(root / "eagle1", sizes | {"bias": False}, eagle1),
        write(root / "eagle1_cached", sizes | {"bias": False}, eagle1_cached),
        write(root / "eagle3", sizes | nested | {"draft_vocab_size": V - 2}, eagle3),
    )
