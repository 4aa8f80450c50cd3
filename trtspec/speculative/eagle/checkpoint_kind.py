"""Which EAGLE draft a folder holds, judging by its config and tensor headers, never by its name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from checkpoint_converters.containers.safetensors_files import TensorHeader
from checkpoint_converters.draft_checkpoint import DraftFolder
from checkpoint_converters.draft_fields import architectures, nested
from checkpoint_converters.draft_names import D2T, FC, OUT, Q
from checkpoint_converters.hf_config import HfConfig

# What ModelOpt writes into eagle_config besides the two keys that SpecForge knows.
_MODELOPT_KEYS = {
    "use_input_layernorm_in_first_layer",
    "use_last_layernorm",
    "use_mtp_layernorm",
    "next_layer_regular",
    "parallel_draft_step",
}

MASK_HIDDEN = "mask_hidden"
"""The learned state for rows whose tokens are not known yet."""


@dataclass(frozen=True)
class EagleKind:
    """``version``: 1 or 3; ``format``: who wrote it, for messages; ``evidence``: the sign.
    ``variant``: the name of a network of that version that another method extends."""

    version: int
    format: str
    evidence: str
    variant: str | None = None

    @property
    def name(self) -> str:
        return self.variant or f"EAGLE-{self.version}"

    def describe(self) -> str:
        """The decision: ``draft: EAGLE-3 (tensor fc.weight [256, 768], ...), ModelOpt export``."""
        return f"draft: {self.name} ({self.evidence}), {self.format}"


def refuse_relatives(folder: DraftFolder) -> None:
    """Raise CheckpointError if config.json shows an unsupported relative."""
    eagle = eagle_config(folder.hf)
    if eagle.get("parallel_draft_step") not in (None, 0, 1):
        raise folder.not_run("an EAGLE draft with parallel heads (parallel_draft_step)")
    for key in ("eh_proj_before_attn", "use_mtp_layernorm"):
        if eagle.get(key):
            raise folder.not_run(f"an EAGLE draft with eagle_config.{key}")


def detect(hf: HfConfig, headers: Mapping[str, TensorHeader]) -> EagleKind | None:
    """The EAGLE draft that (common) tensor names and shapes show; None for a causal LM.

    First match wins: EAGLE-3 by its format, ``mask_hidden`` (P-EAGLE), ``d2t``,
    ``draft_vocab_size``, ``eagle_config`` or a first layer that reads twice its width; EAGLE-1 by
    ``fc`` reading twice its width. Raises CheckpointError for kinds that this version does not run,
    and if config and tensors disagree.
    """
    fc, q, o = (headers.get(name) for name in (FC, Q, OUT))
    clue = _eagle3_clue(hf, headers)
    if q is None or o is None or not len(q.shape) == len(o.shape) == 2:
        if clue or fc:
            raise hf.refuse(f"{clue or FC} says EAGLE, but there are no matrices {Q} and {OUT}")
        return None
    hidden, reads = o.shape[0], q.shape[-1]
    shape = f"tensor {FC} {list(fc.shape)}, q_proj reads" if fc else "q_proj reads"
    if reads == 2 * hidden:
        shape = f"tensor {MASK_HIDDEN}, {shape}" if MASK_HIDDEN in headers else shape
        return EagleKind(3, _format(hf, 3), f"{shape} 2 x {hidden}")
    first = fc is not None and fc.shape == (hidden, 2 * hidden)
    no_states = eagle_config(hf).get("use_aux_hidden_state") is False
    if clue == "eagle_config" and (fc is None or (no_states and not first)):
        raise hf.refuse(
            "ModelOpt's export without auxiliary hidden states (eagle_config."
            f"use_aux_hidden_state {eagle_config(hf).get('use_aux_hidden_state')}, no {FC}) reads "
            "no token embeddings and is no EAGLE-1 model; this version does not run it; train and "
            "export with use_aux_hidden_state true"
        )
    if clue and not (no_states and first):
        raise hf.refuse(
            f"{clue} says EAGLE-3, but {Q} reads {reads} inputs; that of EAGLE-3 reads the "
            f"embedding and the state, 2 x {hidden} = {2 * hidden}"
        )
    if first:
        return EagleKind(1, _format(hf, 1), f"{shape} {reads}")
    if fc is not None:
        raise hf.refuse(
            f"{FC} is {list(fc.shape)}: EAGLE-1 has [{hidden}, {2 * hidden}], and EAGLE-3 a "
            f"{Q} that reads {2 * hidden} inputs, not {reads}"
        )
    return None


def eagle_config(hf: HfConfig) -> Mapping[str, Any]:
    """The nested settings of ModelOpt and SpecForge; empty if there are none."""
    return nested(hf.get("eagle_config"))


def _eagle3_clue(hf: HfConfig, headers: Mapping[str, TensorHeader]) -> str | None:
    if hf.get("speculators_model_type") is not None:
        return "speculators_model_type"
    if MASK_HIDDEN in headers:
        return f"tensor {MASK_HIDDEN}"
    if eagle_config(hf):
        return "eagle_config"
    if D2T in headers:
        return "tensor d2t"
    rows = hf.get("draft_vocab_size")
    return "draft_vocab_size" if rows not in (None, hf.get("vocab_size")) else None


def _format(hf: HfConfig, version: int) -> str:
    if hf.get("speculators_model_type") is not None:
        return "speculators export"
    if _MODELOPT_KEYS & set(eagle_config(hf)):
        return "ModelOpt export"
    if version == 3 and "LlamaForCausalLMEagle3" in architectures(hf):
        return "SpecForge export"
    return "EAGLE checkpoint"
