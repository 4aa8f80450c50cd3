"""Checks, before anything is built, whether a draft fits its target."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from checkpoint_converters import DraftCheckpoint
from checkpoint_converters.content_hash import hash_files
from trtspec.builder.digest_memory import DigestMemory
from trtspec.builder.target_drafts import TargetDrafts
from trtspec.builder.tokenizer import find_tokenizer
from trtspec.config.decoding import DecodingConfig
from trtspec.config.model import ModelConfig
from trtspec.config.tree_decoding import OWN_MODULES, TreeDecodingConfig
from trtspec.engine.engine_draft import FIRST_DRAFT, EngineDraft
from trtspec.engine.folder import DEFAULT_TREE_ROWS, EngineConfig
from trtspec.errors import ConfigError
from trtspec.speculative.registry import drafter_needs, method_of

OWN_DRAFT = FIRST_DRAFT
"""By this name a speculative config refers to the draft inside an engine folder: the only one, or
the first for its method. Each of several drafts also has the name of its folder."""


def fit_pair(
    tokenizer_dir: Path, target: ModelConfig, found: DraftCheckpoint, skip_damaged: bool = False
) -> tuple[DraftCheckpoint, list[int]]:
    """A draft model adapted to a target with nearly the same tokens (those of the tokenizer in
    ``tokenizer_dir``), and the ids that it never proposes: tokens that mean something else to the
    target, or nothing. As in llama.cpp, tokenizers may differ in tokens that one of them lacks, and
    in the names of tokens that no text produces: added and reserved ones. Embeddings may be padded
    differently. ``skip_damaged``: see `find_tokenizer`.

    Raises:
        ConfigError: the tokenizers differ, or, without both, the sizes; both values are named.
    """
    draft = found.config
    tokenizers = [find_tokenizer(folder, skip_damaged) for folder in (tokenizer_dir, found.path)]
    if None in tokenizers:
        if draft.vocab_size != target.vocab_size:
            raise ConfigError(
                f"the target has a vocabulary of {target.vocab_size} tokens, the draft of "
                f"{draft.vocab_size}; a draft model must share its target's vocabulary, or both "
                "need a tokenizer to tell which tokens they share"
            )
        return found, []
    theirs, ours = (_by_id(tokenizer) for tokenizer in tokenizers)
    added = [getattr(tokenizer, "added_tokens_decoder", {}) for tokenizer in tokenizers]
    others = {i for i in ours.keys() & theirs.keys() if ours[i] != theirs[i]}
    wrong = sorted(i for i in others if not all(i in names for names in added))
    if wrong or len(ours.keys() & theirs.keys()) <= len(others):
        id = min(wrong, default=0)
        raise ConfigError(
            f"the draft's tokenizer differs from the target's: token {id} is {theirs.get(id)!r} "
            f"there and {ours.get(id)!r} here ({len(wrong)} such of {len(theirs)} tokens there and "
            f"{len(ours)} here); a draft model must share its target's tokenizer"
        )
    others |= ours.keys() ^ theirs.keys()
    never = [i for i in range(draft.vocab_size) if i in others or i >= target.vocab_size]
    return found.without(never) if never else found, never


def check_draft_kind(speculative: TreeDecodingConfig, draft: DraftCheckpoint) -> None:
    """Refuse a checkpoint for another method.

    Raises:
        ConfigError: names the requested method and the one that fits.
    """
    fits = draft.method
    if (speculative.draft_method or speculative.method) != fits:
        wanted = speculative.method
        reader = method_of(speculative).reader
        sign = f"; {reader.sign}" if reader and reader.sign else ""
        raise ConfigError(
            f"{draft.path} is not a draft for method {wanted!r}: {draft.notes[0]}{sign}; "
            f"write method {fits!r}, or give another checkpoint"
        )


def check_engine_draft(
    engine: EngineConfig, draft: EngineDraft, speculative: TreeDecodingConfig, at_hand: TargetDrafts
) -> None:
    """Refuse drafts other than this one in an engine folder.

    Raises:
        ConfigError: the config names neither the draft nor the checkpoint that it was built from,
            or asks for another use of the draft.
        CheckpointError: the checkpoint that the config names cannot be found or read.
    """
    require_passes(speculative, engine)
    require_window(speculative, draft, engine)
    speculative.check_network(draft.network)
    require_ranks(speculative, draft)
    speculative.weights.check_built(draft.weights)
    model = str(speculative.speculative_model)
    is_own = model in (OWN_DRAFT, OWN_MODULES, draft.folder)
    cut, known = speculative.cut, draft.folder
    if cut is not None and (is_own or cut.words is not None):
        cut.check_built(draft.vocabulary)
        # Its tokens were counted when it was built: told apart is the checkpoint that was cut.
        speculative, known = speculative.uncut(), whole_fingerprint(draft.folder)
    if is_own:
        return
    found = at_hand.open(speculative)
    asked = hash_files(found.content, DigestMemory.of_user().digest)
    built = engine.fingerprints.get(known)
    if asked != built:
        raise ConfigError(
            f"the draft model {model} (fingerprint {asked}) is not the one in the engine folder "
            f"({built}); leave speculative_config out or name the model {OWN_DRAFT!r} to use that "
            "one, or rebuild the engine"
        )


def require_passes(speculative: TreeDecodingConfig, engine: EngineConfig) -> None:
    """Raise ConfigError for drafts that end between passes, if the engine makes all passes in one
    call."""
    if speculative.least_probability and speculative.steps_by_pass and not engine.by_pass:
        raise ConfigError(
            f"p_min={speculative.least_probability} ends drafts between the passes of a draft, but "
            f"backend {engine.build.backend} on {engine.build.device} drafts as built; leave it "
            "out, or build the engine for a CPU with another backend"
        )


def require_window(
    speculative: TreeDecodingConfig, draft: EngineDraft, engine: EngineConfig
) -> None:
    """Raise ConfigError for a draft whose attention cannot be limited to a window."""
    if speculative.window is None:
        return
    asked, decoder = f"draft_window={speculative.window.size}", draft.network.decoder
    if decoder is None:
        raise ConfigError(f"{asked}: the draft keeps no K/V of its own; leave it out")
    own = max(layer.window for layer in decoder.layers)
    if own:
        raise ConfigError(
            f"{asked}: layers of the draft have sliding windows, of up to {own} tokens, which they "
            "were trained with; leave it out"
        )
    if engine.layout.is_slots:
        raise ConfigError(
            f"{asked}: backend {engine.build.backend} keeps K/V in slots, of which no rows are let "
            "go; leave it out, or build the engine with another backend"
        )


def require_ranks(speculative: TreeDecodingConfig, draft: EngineDraft) -> None:
    """ConfigError for a draft that was built for another number of ranks than is asked for."""
    asked, built = speculative.draft_tensor_parallel_size, draft.network.ranks
    if asked not in (None, built):
        raise ConfigError(
            f"draft_tensor_parallel_size={asked} was asked for, the draft was built for {built}; "
            "leave it out or rebuild the engine"
        )


def whole_fingerprint(folder: str) -> str:
    """The key, among an engine's fingerprints, for the checkpoint of the draft in a folder before
    its head was cut to counted or numbered tokens."""
    return f"{folder}, whole"


def check_draft_depth(target: ModelConfig, speculative: DecodingConfig) -> None:
    """Refuse drafts as deep as the target's sliding window.

    Tree rows always see their own branch up to the root. At a depth of the window or more the root
    would have left the window, and speculation would change the text.

    Raises:
        ConfigError: names the draft length and the window.
    """
    windows = [layer.window for layer in target.layers if layer.window]
    if windows and speculative.max_draft_len >= min(windows):
        raise ConfigError(
            f"max_draft_len={speculative.max_draft_len} reaches past the target's sliding window "
            f"of {min(windows)} tokens; lower it to {min(windows) - 1} or less"
        )


def check_rows_without_draft(speculative: DecodingConfig) -> None:
    """Refuse more drafts per step than an engine without a draft network has rows for.

    Raises:
        ConfigError: names both numbers.
    """
    most = drafter_needs(speculative).max_nodes
    if most + 1 > DEFAULT_TREE_ROWS:
        raise ConfigError(
            f"method {speculative.method!r} would draft up to {most} tokens a step, "
            f"{most + 1} rows with the root; beside no draft network at most {DEFAULT_TREE_ROWS} "
            f"are verified: lower num_speculative_tokens to {DEFAULT_TREE_ROWS - 1}"
        )


def _by_id(tokenizer: Any) -> dict[int, str]:
    return {i: text for text, i in tokenizer.get_vocab().items()}
