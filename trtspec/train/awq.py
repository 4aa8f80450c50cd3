"""quantise_by_awq: a 4-bit copy of a float checkpoint, made with NVIDIA ModelOpt's AWQ."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path

import torch
from torch import Tensor

from trtspec.builder.checkpoints import (
    Checkpoint,
    QuantisedLayer,
    load_target,
    require_copyable,
    write_quantised,
)
from trtspec.builder.locate import cache_root, require_cache
from trtspec.builder.scratch import scratch_folder
from trtspec.builder.sources import hash_of
from trtspec.builder.tokenizer import save_tokenizer, tokenizer_files, tokenizer_fingerprint
from trtspec.config.feed_forwards.dense import DenseSpec
from trtspec.config.layer import LayerSpec
from trtspec.config.mixers.attention import AttentionSpec
from trtspec.config.model import ModelConfig
from trtspec.errors import BuildError, ConfigError
from trtspec.formats.stored import read_tensor
from trtspec.log import logger, progress
from trtspec.models.loading import FUSED
from trtspec.ops.linear_quantised import round_weights
from trtspec.train.awq_scales import require_modelopt, search_scales
from trtspec.train.calibration import given_windows, require_tokenizer, written_windows
from trtspec.train.data import key_of_facts

AWQ_BITS = 4
_REMEDY = "give --quantize rtn"


def quantise_by_awq(
    source: Path, group_size: int, text: Path | None = None, tokenizer: Path | None = None
) -> Path:
    """A copy of a checkpoint's folder in the user's cache folder, with the decoder's linear layers
    in 4 bits, ``group_size`` inputs to a scale. It is calibrated on ``text``, or on what the target
    writes, with its tokenizer or the one in ``tokenizer``. An existing copy is reused.

    Raises:
        ConfigError: ModelOpt is not installed, or the checkpoint, group size or text is unsuitable.
        CheckpointError: a tensor cannot be read.
        BuildError: the copy cannot be written. Nothing is left behind then.
    """
    require_modelopt()
    checkpoint = load_target(source)
    require_copyable(checkpoint)
    _require_known(checkpoint.config, group_size)
    require_tokenizer(checkpoint, tokenizer)
    windows = None if text is None else given_windows(checkpoint, text, tokenizer)
    read = None if windows is None else [window.tolist() for window in windows]
    made_by = hash_of({path.name: path for path in Path(__file__).parent.glob("*.py")})
    # The copy holds one of its own.
    own = hash_of({str(p.relative_to(source)): p for p in tokenizer_files(source)})
    made_with = version("nvidia-modelopt")
    facts: list[object] = [checkpoint.fingerprint, own, group_size, read, made_with, made_by]
    if tokenizer is not None and text is None:
        facts.append(tokenizer_fingerprint(tokenizer))
    folder = cache_root() / "quantised" / f"{source.name}-awq-{key_of_facts(facts)}"
    if folder.is_dir():
        logger.info("quantise by awq: reused %s", folder)
        return folder
    require_cache()
    if windows is None:
        with progress("write texts to quantise over"):
            windows = written_windows(checkpoint, tokenizer)
    tokens = sum(map(len, windows))
    try:
        with scratch_folder(folder) as scratch:
            with progress(f"quantise by awq over {tokens} tokens"):
                scales = search_scales(checkpoint, windows, group_size)
                layers, floats = quantised_layers(checkpoint, scales, group_size)
                save_tokenizer(source, scratch)  # first: it takes config.json along
                write_quantised(checkpoint, layers, floats, scratch)
            load_target(scratch)  # what cannot be read is refused now
            if not folder.is_dir():
                scratch.rename(folder)
    except OSError as error:
        raise BuildError(f"{folder} cannot be written: {error}") from error
    return folder


def _require_known(config: ModelConfig, group_size: int) -> None:
    """Raise ConfigError for layers or groups that are not supported."""
    for spec in config.layers:
        mixer, ffn, found = AttentionSpec.maybe(spec.mixer), DenseSpec.maybe(spec.ffn), None
        if mixer is None:
            found = "a mixer that is no plain attention"
        elif ffn is None:
            found = "a mixture of experts"
        elif spec.per_layer is not None:
            found = "per-layer embeddings"
        if found is not None:
            raise ConfigError(
                f"--quantize awq: {config.architecture} has {found}, which it does not quantise; "
                f"{_REMEDY}"
            )
        assert mixer is not None and ffn is not None
        sizes = {
            config.hidden_size,
            mixer.num_heads * mixer.head_dim,
            ffn.intermediate_size,
        }
        for size in sorted(sizes):
            if not group_size or size % group_size:
                raise ConfigError(
                    f"--quantize awq with --weight_group_size {group_size}: groups have to divide "
                    f"the {size} inputs of its layers; give another size, or {_REMEDY}"
                )


def quantised_layers(
    checkpoint: Checkpoint, factors: Mapping[str, Tensor], group_size: int
) -> tuple[dict[str, QuantisedLayer], dict[str, Tensor]]:
    """The layers in 4 bits, and the float tensors that change with them, by internal names.
    ``factors``: the input scales of each layer, see `search_scales`. They are folded into the norm
    before a layer, or into the outputs of ``up``, if these feed nothing else."""
    tensors = checkpoint.tensors
    layers: dict[str, QuantisedLayer] = {}
    floats: dict[str, Tensor] = {}
    for i, spec in enumerate(checkpoint.config.layers):
        at = f"layers.{i}."
        ffn = DenseSpec.of(spec.ffn)
        outputs: dict[str, Tensor] = {}
        if ffn.gated:
            outputs["mlp.up"] = factors[f"{at}mlp.down"]
            if ffn.bias:
                name = f"{at}mlp.up.bias"
                floats[name] = read_tensor(tensors, name).float() * outputs["mlp.up"]
        own = {name.removeprefix(at): f for name, f in factors.items() if name.startswith(at)}
        for name, by in own.items():
            inputs: Tensor | None = by
            norm = _norm_before(spec, name)
            if norm is not None:
                weight = read_tensor(tensors, f"{at}{norm}.weight")
                scaled, by = _scaled_norm(weight, by, spec.norm.one_plus)
                floats[f"{at}{norm}.weight"], inputs = scaled, None
            elif name == "mlp.down" and ffn.gated:
                inputs = None
            parent, _, last = name.rpartition(".")
            for part in (f"{parent}.{each}" for each in FUSED.get(last, (last,))):
                weight = read_tensor(tensors, f"{at}{part}.weight").float()
                if part in outputs:
                    weight = weight * outputs[part][:, None]
                values, scales = round_weights(weight / by, AWQ_BITS, group_size, torch.float16)
                layers[at + part] = QuantisedLayer(values, scales, inputs)
    return layers, floats


def _norm_before(spec: LayerSpec, name: str) -> str | None:
    """The norm that feeds only this layer, so that its weights can absorb the scales."""
    if spec.parallel or spec.norm_place == "after" or spec.norm.kind != "rms":
        return None
    if name in ("mlp.gate_up", "mlp.up"):
        return "post_attention_norm"
    return "input_norm" if name.startswith("attn.") and name != "attn.o" else None


def _scaled_norm(weight: Tensor, by: Tensor, one_plus: bool) -> tuple[Tensor, Tensor]:
    """A norm's weights with scaled outputs, and the effective scales after rounding to the weights'
    dtype."""
    more = float(one_plus)
    was = weight.float() + more
    scaled = (was * by - more).to(weight.dtype)
    return scaled, torch.where(was == 0, by, (scaled.float() + more) / was)
