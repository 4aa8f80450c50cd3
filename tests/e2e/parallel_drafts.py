"""PARD and P-EAGLE drafts for the tiny targets: random ones, and two that are right.

The right ones guess the text of `cycling_target` three tokens deep, and need every row of theirs
for it. Row j behind the root (0: the root's own) reads by attention the token *before* the root,
j + 1 rows back, knows j by where the masks begin, and reads the mode off the first row of all.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel

from .eagle_heads import LAYER_IDS, MODE, ONE, OUT, H, V, cycle, random_eagle3, write

STEPS = 3
MASK = 1
"""Its token, which the text of no cycle has."""


def pard(folder: Path, **shape: Any) -> dict[str, Any]:
    return {"method": "pard", "model": str(folder), **shape}


def p_eagle(folder: Path, **shape: Any) -> dict[str, Any]:
    return {"method": "p_eagle", "model": str(folder), **shape}


def save_pard(hf: PreTrainedModel, folder: Path, mask_token: int = MASK) -> Path:
    hf.save_pretrained(folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"pard_token": mask_token}))
    return folder


def pard2(folder: Path, **shape: Any) -> dict[str, Any]:
    return {"method": "pard2", "model": str(folder), **shape}


def save_pard2(hf: PreTrainedModel, folder: Path, projection: Tensor, **said: Any) -> Path:
    """As AMD's converter writes it. ``projection [H_d, n * H_t]``: in the order of the layers."""
    save_pard(hf, folder)
    config = json.loads((folder / "config.json").read_text())
    config |= {"pard2": True, "spd_type": "pard2", "pard2_proj_bias": False, **said}
    (folder / "config.json").write_text(json.dumps(config))
    torch.save({"target_proj.weight": projection}, folder / "warp_model.bin")
    return folder


def random_pard2(draft: PreTrainedModel, target: PreTrainedModel, folder: Path) -> Path:
    """Over the target's last state and its embeddings, in this order."""
    width = 2 * target.config.hidden_size
    noise = torch.Generator().manual_seed(11)
    projection = torch.randn(draft.config.hidden_size, width, generator=noise)
    return save_pard2(draft, folder, projection, pard2_target_layers=[-1, 0], pard2_scale=0.02)


def random_p_eagle(hf: PreTrainedModel, folder: Path, ids: list[int] | None, layers: int) -> Path:
    """An EAGLE-3 head of several layers, with a mask."""
    random_eagle3(hf, folder, ids)
    config = json.loads((folder / "config.json").read_text())
    tensors = load_file(folder / "model.safetensors")
    noise = torch.Generator().manual_seed(6)
    for name in [name for name in tensors if name.startswith("layers.0.")]:
        for layer in range(1, layers):
            weight = tensors[name]
            if "hidden_norm" in name:
                continue
            if name.endswith(("q_proj.weight", "k_proj.weight", "v_proj.weight")):
                weight = weight[:, : weight.shape[1] // 2]
            shuffled = weight[torch.randperm(len(weight), generator=noise)]
            tensors[name.replace("layers.0.", f"layers.{layer}.")] = shuffled
    width = tensors["fc.weight"].shape[1]
    tensors["mask_hidden"] = torch.randn(1, 1, width, generator=noise)
    return write(folder, config | {"num_hidden_layers": layers, "ptd_token_id": 5}, tensors)


# Dimensions of a right draft's rows: the token (one-hot; at a P-EAGLE row that after its state),
# a constant and the mode; the tokens 1, 2 and 3 rows back; the guess.
WIDTH, HEAD_DIM, HEADS = 160, 32, 1 + STEPS
D_ONE, D_MODE, D_NEAR, D_OUT = V, V + 1, V + 2, V + 2 + STEPS * V
_BIG = 60.0
_FED = (WIDTH / 2) ** 0.5
"""What a 1 of a row fed becomes by its norm: token and constant are 1."""
_READ = 3 + STEPS
"""Ones of a row that has attended; one more makes a finished one."""


def _near(back: int, token: int) -> int:
    """Dimension of ``token`` being ``back`` rows back; 0: the row's own."""
    return D_NEAR + (back - 1) * V + token if back else token


def _attention(first: float) -> dict[str, Tensor]:
    """Head 0 reads the mode off the row of token 0, whose 1 counts ``first``, or else finds none;
    head d copies the token d rows back, which its rotation tells."""
    q, k, v = (torch.zeros(HEADS * HEAD_DIM, WIDTH) for _ in "qkv")
    o = torch.zeros(WIDTH, HEADS * HEAD_DIM)
    slow = HEAD_DIM // 2 - 1  # turns so slowly that positions hardly matter
    q[slow, D_ONE] = k[slow, 0] = 40
    v[0, D_ONE], v[0, 0], o[D_MODE, 0] = -1 / _FED, (1 + first) / _FED, 1
    pairs = torch.arange(HEAD_DIM // 2)
    speed = 1e6 ** (-pairs / (HEAD_DIM // 2))
    for back in range(1, HEADS):
        rows = back * HEAD_DIM + pairs
        q[rows, D_ONE] = 400 * torch.cos(back * speed) / _FED
        q[rows + HEAD_DIM // 2, D_ONE] = -400 * torch.sin(back * speed) / _FED
        k[rows, D_ONE] = 1 / _FED
        v[back * HEAD_DIM + torch.arange(V), range(V)] = 1 / _FED
        o[[_near(back, token) for token in range(V)], back * HEAD_DIM + torch.arange(V)] = 1
    return {"q": q, "k": k, "v": v, "o": o}


def _guesses() -> dict[str, Tensor]:
    """A unit for every depth, mode and token before the root, on for one of them."""
    units = [(j, m, t) for j in range(STEPS) for m in (0, 1) for t in range(2, V)]
    gate, up = torch.zeros(len(units), WIDTH), torch.zeros(len(units), WIDTH)
    down = torch.zeros(WIDTH, len(units))
    for unit, (j, mode, token) in enumerate(units):
        gate[unit, _near(j + 1, token)] = 1
        gate[unit, D_MODE] = 1 - 2 * mode
        gate[unit, _near(j, MASK)] = -1  # the root is no mask, the row behind it is one
        if j:
            gate[unit, _near(j - 1, MASK)] = 1
        gate[unit, D_ONE] = -1.75 - bool(j)  # half a token is none
        up[unit, D_ONE] = 1
        after = token
        for _ in range(j + 2):
            after = cycle(mode)[after]
        down[D_OUT + after, unit] = 1 / (0.25 * _BIG)  # silu is the identity there
    scale = (WIDTH / _READ) ** 0.5
    return {"gate": _BIG * gate / scale, "up": up / scale, "down": down}


def _embedding() -> Tensor:
    embed = torch.zeros(V, WIDTH)
    embed[range(V), range(V)] = 1
    embed[:, D_ONE] = 1
    return embed


def right_pard(sharpness: float) -> LlamaForCausalLM:
    config = LlamaConfig(
        vocab_size=V,
        hidden_size=WIDTH,
        intermediate_size=2 * STEPS * (V - 2),
        num_hidden_layers=1,
        num_attention_heads=HEADS,
        num_key_value_heads=HEADS,
        head_dim=HEAD_DIM,
        rope_theta=1e6,
        rms_norm_eps=1e-12,
        max_position_embeddings=256,
        bos_token_id=None,
        eos_token_id=None,
    )
    model = LlamaForCausalLM(config).eval()
    (layer,) = model.model.layers
    with torch.no_grad():
        for weight in model.parameters():
            weight.fill_(1.0 if weight.dim() == 1 else 0.0)
        model.model.embed_tokens.weight.copy_(_embedding())
        for name, weight in _attention(first=1.0).items():
            getattr(layer.self_attn, f"{name}_proj").weight.copy_(weight)
        for name, weight in _guesses().items():
            getattr(layer.mlp, f"{name}_proj").weight.copy_(weight)
        model.model.norm.weight.fill_(((_READ + 1) / WIDTH) ** 0.5)
        model.lm_head.weight[range(V), range(D_OUT, D_OUT + V)] = sharpness
        model.lm_head.weight[:2, D_ONE] = -60
    return model


def forgetful_pard(target: LlamaForCausalLM) -> LlamaForCausalLM:
    """For `forgetful_target`: no guess but the distribution of the mode."""
    model, head = right_pard(0.0), target.lm_head.weight
    with torch.no_grad():
        model.model.layers[0].mlp.down_proj.weight.zero_()
        # As much as the target makes of a constant that one of its four ones is missing beside.
        model.model.norm.weight.fill_((_READ / WIDTH * 4 / 3) ** 0.5)
        model.lm_head.weight.zero_()
        model.lm_head.weight[:, D_ONE] = head[:, ONE]
        model.lm_head.weight[:, D_MODE] = head[:, MODE]
    return model


def save_right_p_eagle(folder: Path, sharpness: float) -> Path:
    """The same layer over the states of `cycling_target`: a row is half its token, half what its
    state says is next, which is the same."""
    fc = torch.zeros(WIDTH, H)
    fc[range(1, V), range(OUT + 1, OUT + V)] = 1
    fc[0, 0] = fc[D_ONE, ONE] = 1
    mask_hidden = torch.zeros(H)
    mask_hidden[[OUT + MASK, ONE]] = 1
    # The row of token 0 has three ones.
    attention = _attention(first=1.5**0.5)
    wide = {name: torch.cat((torch.zeros_like(w), w), dim=1) for name, w in attention.items()}
    copied = attention["v"][HEAD_DIM:] / 2
    wide["v"][HEAD_DIM:] = torch.cat((copied, copied), dim=1)
    head = torch.zeros(V - 2, WIDTH)
    head[range(V - 2), range(D_OUT + 2, D_OUT + V)] = sharpness
    norms = ("input_layernorm", "hidden_norm", "post_attention_layernorm")
    tensors = {
        "fc.weight": fc,
        "mask_hidden": mask_hidden,
        "embed_tokens.weight": _embedding(),
        "norm.weight": torch.full((WIDTH,), ((_READ + 1) / WIDTH) ** 0.5),
        "lm_head.weight": head,
        "d2t": torch.full((V - 2,), 2),
        **{f"layers.0.self_attn.{n}_proj.weight": wide[n] for n in "qkv"},
        "layers.0.self_attn.o_proj.weight": attention["o"],
        **{f"layers.0.mlp.{name}_proj.weight": w for name, w in _guesses().items()},
        **{f"layers.0.{name}.weight": torch.ones(WIDTH) for name in norms},
    }
    config = {
        "architectures": ["LlamaForCausalLMEagle3"],
        "vocab_size": V,
        "draft_vocab_size": V - 2,
        "hidden_size": WIDTH,
        "intermediate_size": 2 * STEPS * (V - 2),
        "num_hidden_layers": 1,
        "num_attention_heads": HEADS,
        "num_key_value_heads": HEADS,
        "head_dim": HEAD_DIM,
        "rope_theta": 1e6,
        "rms_norm_eps": 1e-12,
        "max_position_embeddings": 256,
        "mask_token_id": MASK,
        "eagle_config": {LAYER_IDS: [1], "use_aux_hidden_state": True},
    }
    return write(folder, config, tensors)


def save_right_pard2(folder: Path, sharpness: float, shifted: bool = False) -> Path:
    """A model of two guesses that knows no token, but that a row is a mask: its token and the mode
    are what the state before it foretells. shifted: as another one."""
    own, mask, mode, out = V, V + 1, V + 2, V + 3
    width = out + V
    units = [(j, m, t) for j in (0, 1) for m in (0, 1) for t in range(2, V)]
    config = LlamaConfig(
        vocab_size=V,
        hidden_size=width,
        intermediate_size=len(units),
        num_hidden_layers=1,
        num_attention_heads=1,
        num_key_value_heads=1,
        head_dim=16,
        rms_norm_eps=1e-12,
        max_position_embeddings=256,
        bos_token_id=None,
        eos_token_id=None,
    )
    model = LlamaForCausalLM(config).eval()
    (layer,) = model.model.layers
    gate, up = torch.zeros(len(units), width), torch.zeros(len(units), width)
    down = torch.zeros(width, len(units))
    for unit, (j, which, token) in enumerate(units):
        gate[unit, token], gate[unit, mode] = 1, 1 - 2 * which
        gate[unit, mask], gate[unit, own] = 2 * j - 1, -1.5 - j
        up[unit, own] = 1
        after = cycle(which)[token]
        scale = (width / (3 + j)) ** 0.5  # of the norm, by the ones of a row
        down[out + (cycle(which)[after] if j else after), unit] = 2 / (_BIG * scale**2)
    with torch.no_grad():
        for weight in model.parameters():
            weight.fill_(1.0 if weight.dim() == 1 else 0.0)
        model.model.embed_tokens.weight[:, own] = 1
        model.model.embed_tokens.weight[MASK, mask] = 1
        for name, weight in {"gate": _BIG * gate, "up": up, "down": down}.items():
            getattr(layer.mlp, f"{name}_proj").weight.copy_(weight)
        model.lm_head.weight[range(V), range(out, out + V)] = sharpness
        model.lm_head.weight[:2, own] = -60
    projection = torch.zeros(width, H)
    projection[range(V), range(OUT, OUT + V)] = 50
    projection[mode, MODE] = 50
    if shifted:
        projection[:V] = projection[:V].roll(1, 0)
    layers = {"pard2_target_layers": [2], "pard2_scale": 0.02}
    return save_pard2(model, folder, projection, **layers)
