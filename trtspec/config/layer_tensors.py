"""The tensors that a spec asks a checkpoint for, by internal name, as data.

A converter maps them to a family's own names, and the blocks of `trtspec.models` load them: which
tensors exist follows from the spec alone.
"""

from __future__ import annotations

from trtspec.config.layer import LayerSpec
from trtspec.config.model import ModelConfig
from trtspec.config.norm_spec import Shape
from trtspec.errors import ConfigError

EMBEDDING = "embed.weight"
HEAD = "head.weight"
HEAD_BIAS = "head.bias"
PER_LAYER = "per_layer."


def model_tensors(config: ModelConfig) -> dict[str, Shape]:
    """Shapes by name: ``embed.weight [V, H]``, the tensors of each layer with the prefix
    ``layers.{i}.``, ``norm.weight [H]`` (and ``norm.bias``) and, unless the head is tied,
    ``head.weight [V, H]``; ``head.bias [V]`` if the head has one; both with ``V_d`` rows if the
    head is reduced; with a per-layer embedding of P elements and L layers, ``per_layer.embed.weight
    [V, L * P]``, ``per_layer.projection.weight [L * P, H]`` and ``per_layer.norm.weight [P]``.

    Raises:
        ConfigError: see `layer_tensors`.
    """
    hidden = config.hidden_size
    tensors: dict[str, Shape] = {EMBEDDING: (config.embedding_rows, hidden)}
    for index, spec in enumerate(config.layers):
        own = layer_tensors(spec, hidden)
        tensors |= {f"layers.{index}.{name}": shape for name, shape in own.items()}
    tensors |= _per_layer(config)
    tensors |= config.norm.tensors("norm", (hidden,))
    if not config.head.tied:
        tensors[HEAD] = (config.head_rows, hidden)
    if config.head.bias:
        tensors[HEAD_BIAS] = (config.draft_vocab_size,)
    return tensors


def layer_tensors(
    spec: LayerSpec, hidden: int, width: int | None = None, input_norm: bool = True
) -> dict[str, Shape]:
    """Shapes by name for one layer of a model of width ``hidden``. ``width``: the input width of q,
    k and v, if different; ``input_norm``: whether there is a norm before the mixer.

    Raises:
        ConfigError: a part has no tensor names here.
    """
    mixer = dict(spec.mixer.tensors(hidden, width or hidden))
    if spec.ffn is None:
        raise ConfigError("the tensors of a layer without feed-forward have no names")
    before, after = spec.norm_place != "after", spec.norm_place != "before"
    norms = {
        "input_norm": before and input_norm,
        "attn_out_norm": after,
        "post_attention_norm": before and not spec.parallel,
        "mlp_out_norm": after,
    }
    tensors: dict[str, Shape] = {}
    for name, exists in norms.items():
        tensors |= spec.norm.tensors(name, (hidden,)) if exists else {}
    tensors |= mixer
    tensors |= dict(spec.ffn.tensors(hidden))
    if spec.per_layer is not None:
        tensors[PER_LAYER + "gate.weight"] = (spec.per_layer.size, hidden)
        tensors[PER_LAYER + "out.weight"] = (hidden, spec.per_layer.size)
        tensors |= spec.norm.tensors(PER_LAYER + "norm", (hidden,))
    if spec.output_scale:
        tensors["output_scale"] = (1,)
    return tensors


def _per_layer(config: ModelConfig) -> dict[str, Shape]:
    given = config.embedding.per_layer
    if given is None:
        return {}
    rows = config.num_layers * given.size
    tensors: dict[str, Shape] = {
        PER_LAYER + EMBEDDING: (given.rows or config.vocab_size, rows),
        PER_LAYER + "projection.weight": (rows, config.hidden_size),
    }
    return tensors | given.norm.tensors(PER_LAYER + "norm", (given.size,))


def is_matrix(name: str, shape: Shape) -> bool:
    """Whether a tensor is a matrix that rows are multiplied with; norm weights may also have two
    dimensions."""
    return len(shape) == 2 and not name.endswith(("_norm.weight", "_norm.bias"))
