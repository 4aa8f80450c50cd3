"""MTP modules inside the checkpoints of tiny targets: random ones, two that are right at every
depth, and such as are right at their own."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import PreTrainedModel
from transformers.modeling_layers import MtpLayer

from .eagle_heads import (
    _BIG,
    _LENGTH,
    MODE,
    ONE,
    OUT,
    H,
    V,
    _chooser,
    cycle,
    cycling_target,
    known_text,
)

FORMATS = ("mimo", "qwen3_next")
_WEIGHTS = "model.safetensors"
_MIMO = {
    "fc": "input_proj",
    "embedding_norm": "token_layernorm",
    "state_norm": "hidden_layernorm",
    "norm": "final_layernorm",
}
_QWEN = {
    "fc": "fc",
    "embedding_norm": "pre_fc_norm_embedding",
    "state_norm": "pre_fc_norm_hidden",
    "norm": "norm",
}

Module = dict[str, Tensor]
"""fc (the embedding's half first), embedding_norm, state_norm and norm; else ``self_attn.*``,
``mlp.*`` and the two norms of the layer, by their names in a layer, all without ``.weight``."""


def mtp(**shape: Any) -> dict[str, Any]:
    return {"method": "mtp", **shape}


def add_modules(target: Path, folder: Path, modules: Sequence[Module], family: str) -> Path:
    """A copy of a target's folder with modules more in its checkpoint. What Qwen3-Next's modules
    share is the first one's."""
    shutil.copytree(target, folder)
    tensors = load_file(folder / _WEIGHTS)
    for i, module in enumerate(modules):
        for name, weight in module.items():
            if family == "mimo":
                # MiMo reads the state first.
                tensor = torch.cat(weight.chunk(2, dim=1)[::-1], dim=1) if name == "fc" else weight
                full = f"model.mtp_layers.{i}.{_MIMO.get(name, name)}.weight"
            else:
                # Norms multiply by one more than their weight; all but the layers is shared.
                tensor = weight - 1 if name.endswith("norm") else weight
                if name in _QWEN and i:
                    continue
                full = f"mtp.{_QWEN[name]}" if name in _QWEN else f"mtp.layers.{i}.{name}"
                full += ".weight"
            tensors[full] = tensor.clone(memory_format=torch.contiguous_format)
    save_file(tensors, folder / _WEIGHTS, {"format": "pt"})
    return folder


def random_module(hf: PreTrainedModel, seed: int = 1) -> Module:
    config, noise = hf.config, torch.Generator().manual_seed(seed)
    hidden = config.hidden_size
    head_dim = getattr(config, "head_dim", None) or hidden // config.num_attention_heads
    queries, keys = (n * head_dim for n in (config.num_attention_heads, config.num_key_value_heads))
    shapes = {
        "fc": (hidden, 2 * hidden),
        "self_attn.q_proj": (queries, hidden),
        "self_attn.k_proj": (keys, hidden),
        "self_attn.v_proj": (keys, hidden),
        "self_attn.o_proj": (hidden, queries),
        "mlp.gate_proj": (48, hidden),
        "mlp.up_proj": (48, hidden),
        "mlp.down_proj": (hidden, 48),
    }
    module = {name: 0.15 * torch.randn(shape, generator=noise) for name, shape in shapes.items()}
    norms = dict.fromkeys(("embedding_norm", "state_norm", "norm", "input_layernorm"), hidden)
    norms["post_attention_layernorm"] = hidden
    if config.model_type == "qwen3":
        norms |= {"self_attn.q_norm": head_dim, "self_attn.k_norm": head_dim}
    return module | {n: 0.5 + torch.rand(size, generator=noise) for n, size in norms.items()}


def add_behind(hf: PreTrainedModel, folder: Path, modules: int = 1) -> Path:
    """A model's folder with modules behind its layers, as DeepSeek-V3 and GLM-4.5 store them: each
    a random decoder layer like the last one, beside copies of the embedding and the head."""
    hf.save_pretrained(folder)
    tensors, noise = load_file(folder / _WEIGHTS), torch.Generator().manual_seed(1)
    count, hidden = hf.config.num_hidden_layers, hf.config.hidden_size
    last = f"model.layers.{count - 1}."
    shapes = {n.removeprefix(last): t.shape for n, t in tensors.items() if n.startswith(last)}
    shapes |= {f"{name}.weight": (hidden,) for name in ("enorm", "hnorm", "shared_head.norm")}
    shapes["eh_proj.weight"] = (hidden, 2 * hidden)
    shared = {
        "embed_tokens.weight": tensors["model.embed_tokens.weight"],
        "shared_head.head.weight": tensors["lm_head.weight"],
    }
    for i in range(modules):
        made = {
            name: 0.15 * torch.randn(shape, generator=noise)
            if len(shape) > 1
            else 0.5 + torch.rand(shape, generator=noise)
            for name, shape in shapes.items()
        }
        made |= {name: tensor.clone() for name, tensor in shared.items()}
        tensors |= {f"model.layers.{count + i}.{name}": tensor for name, tensor in made.items()}
    save_file(tensors, folder / _WEIGHTS, {"format": "pt"})
    return folder


@torch.no_grad()
def behind_guesses(hf: PreTrainedModel, folder: Path, text: Sequence[int]) -> list[int]:
    """What the first module of `add_behind`, a dense one, guesses by transformers' own layer of
    such modules: entry j behind ``text[: j + 2]``."""
    root = f"model.layers.{hf.config.num_hidden_layers}."
    module = MtpLayer(hf.config, type(hf.model.layers[0]), type(hf.model.norm), 0).eval()
    own = ("eh_proj.", "enorm.", "hnorm.")
    state = {}
    for name, tensor in load_file(folder / _WEIGHTS).items():
        part = name.removeprefix(root)
        if part == name or part in ("embed_tokens.weight", "shared_head.head.weight"):
            continue
        part = part.replace("shared_head.norm", "post_norm")
        state[part if part.startswith((*own, "post_norm")) else f"mtp_block.{part}"] = tensor
    module.load_state_dict(state)
    return guesses_of(hf, module, text)


@torch.no_grad()
def guesses_of(hf: PreTrainedModel, module: MtpLayer, text: Sequence[int]) -> list[int]:
    """What a module guesses: entry j behind ``text[: j + 2]``."""
    ids = torch.tensor([text])
    states = hf.model(ids).last_hidden_state[:, :-1]
    positions = torch.arange(len(text) - 1)[None]
    embedded = hf.model.embed_tokens(ids[:, 1:])
    hidden = torch.full((len(text) - 1,) * 2, -torch.inf).triu(1)[None, None]
    turns = hf.model.rotary_emb(embedded, positions)
    out = module(embedded, states, turns, hidden, positions, None)
    guesses: list[int] = hf.lm_head(out)[0].argmax(-1).tolist()
    return guesses


def right_module(cached: bool) -> Module:
    """It computes what `cycling_target` does: token and constant come from the embedding, the mode
    from the state or, ``cached``, by attention from the first row of its own cache."""
    fc, marks = torch.zeros(H, 2 * H), [H - 2, H - 1]
    fc[range(V + 1), range(V + 1)] = 1
    q, k, v, o = (torch.zeros(H, H) for _ in "qkvo")
    if cached:
        fc[marks, [H, H + 1]] = 1  # the state is that of token 0 or 1
        q[7, ONE], k[7, marks], o[MODE, 0] = 40, 40, 1
        v[0, marks] = torch.tensor([1.0, -1.0]) / (H / 3) ** 0.5
    else:
        fc[MODE, H + MODE] = 1
    mlp = _chooser((H / 3) ** 0.5)
    if cached:  # the first row is fed its mark, which its MLP ignores
        assert not any(mlp[name][:, marks].any() for name in ("gate", "up"))
    return {
        "fc": fc,
        # Norms that leave an embedding (token, constant) and a finished state as they are.
        "embedding_norm": torch.full((H,), (2 / H) ** 0.5),
        "state_norm": torch.full((H,), _LENGTH / H**0.5),
        "input_layernorm": torch.ones(H),
        "self_attn.q_proj": q,
        "self_attn.k_proj": k,
        "self_attn.v_proj": v,
        "self_attn.o_proj": o,
        "post_attention_layernorm": torch.ones(H),
        **{f"mlp.{name}_proj": weight for name, weight in mlp.items()},
        "norm": torch.full((H,), _LENGTH / H**0.5),
    }


def save_right(root: Path, sharpness: float, family: str, cached: bool) -> Path:
    hf = cycling_target(sharpness)
    hf.save_pretrained(root / "target")
    return add_modules(root / "target", root / "mtp", [right_module(cached)], family)


DEPTHS = 3
ERRORS = (4, 5, 7)
"""Module i of `save_deep` guesses wrongly behind every ERRORS[i]-th token."""


def deep_module(error: int) -> Module:
    """It computes what `cycling_target` does, at whatever depth, but behind the multiples of
    ``error``; and it does so only if the token that its state ends with is the one that the row
    before it read, which it finds by attention to the position just before. Else it guesses 2.

    The first row has none before it; so what is made of that row is of no use to a deeper module.
    """
    fc = torch.zeros(H, 2 * H)
    fc[range(OUT, OUT + V), range(V)] = 1  # the embedding's token, where the next one will stand
    fc[ONE, ONE] = 1
    fc[range(V), range(H, H + V)] = 1  # the state's token
    fc[MODE, H + MODE] = 1
    q, k, v, o = (torch.zeros(H, H) for _ in "qkvo")
    turns = 1e6 ** (-2 * torch.arange(4) / 16)  # of the four fastest pairs of dimensions
    for head, count in ((0, 16), (1, V - 16)):
        first = 16 * head
        q[range(first, first + 4), ONE] = turns.cos()
        q[range(first + 8, first + 12), ONE] = -turns.sin()
        k[range(first, first + 4), ONE] = 1
        v[range(first, first + count), range(OUT + first, OUT + first + count)] = 1
        o[range(first, first + count), range(first, first + count)] = 1
    gate, up, down = torch.zeros(3 * V, H), torch.zeros(3 * V, H), torch.zeros(H, 3 * V)
    up[:, ONE] = 2 / _BIG  # a unit that is on gives 1
    for token in range(V):
        for mode in (0, 1):  # of the row's own token
            unit, after = mode * V + token, cycle(mode)[token]
            guess = cycle(mode)[after] if token % error == 0 else after
            gate[unit, [OUT + token, MODE, ONE]] = _BIG * torch.tensor([1, 1 - 2 * mode, -1.5])
            down[token, unit], down[OUT + token, unit] = 1, -1
            down[OUT + guess, unit] += 1
            down[OUT + 2, unit] += 1.5
        unit = 2 * V + token  # of the state's and the row's before, which make 2
        gate[unit, [token, ONE]] = _BIG * torch.tensor([1, -1.5])
        down[token, unit], down[OUT + 2, unit] = -2, -1.5
    plain = torch.full((H,), _LENGTH / H**0.5)
    return {
        "fc": fc,
        "embedding_norm": torch.full((H,), (2 / H) ** 0.5),
        "state_norm": plain,
        "input_layernorm": plain,
        "self_attn.q_proj": q,
        "self_attn.k_proj": k,
        "self_attn.v_proj": v,
        "self_attn.o_proj": o,
        "self_attn.q_norm": torch.full((16,), 8.0),
        "self_attn.k_norm": torch.full((16,), 8.0),
        "post_attention_layernorm": torch.full((H,), (7 / H) ** 0.5),
        "mlp.gate_proj": gate,
        "mlp.up_proj": up,
        "mlp.down_proj": down,
        "norm": plain,
    }


def save_deep(root: Path, family: str) -> Path:
    cycling_target(40.0).save_pretrained(root / "target")
    modules = [deep_module(error) for error in ERRORS]
    return add_modules(root / "target", root / "mtp", modules, family)


def deep_counts(prompt: Sequence[int], max_tokens: int, steps: int = DEPTHS) -> tuple[int, int]:
    """Draft tokens, and those accepted, of a request alone whose modules draft as `save_deep`'s."""
    text = known_text(prompt, max_tokens)
    emitted, drafted, accepted = 1, 0, 0
    while emitted < max_tokens:
        depth = min(steps, max_tokens - emitted - 1)
        right = 0
        while right < depth and text[emitted - 1 + right] % ERRORS[right]:
            right += 1
        emitted, drafted, accepted = emitted + right + 1, drafted + depth, accepted + right
    return drafted, accepted
