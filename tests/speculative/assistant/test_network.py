"""An assistant's drafts over its target's K/V are those of transformers' candidate generator."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers.generation.candidate_generator import SinglePositionMultiTokenCandidateGenerator

from checkpoint_converters import load_checkpoint
from checkpoint_converters.draft_checkpoint import DraftFolder
from trtspec.config.kv import CacheLayout
from trtspec.config.tree import TreeShape
from trtspec.engine.graphs import own_state, with_borrowed
from trtspec.errors import CheckpointError
from trtspec.models.causal_lm import CausalLM
from trtspec.models.layer_facts import cache_places
from trtspec.models.signature import rollout_signature
from trtspec.ops.sampling import COLUMN_DTYPES, SamplingColumns
from trtspec.speculative.assistant.checkpoint import ASSISTANT_READER
from trtspec.speculative.assistant.network import Assistant
from trtspec.speculative.assistant.rollout import FrozenRollout

from ...e2e.assistants import WINDOW, random_assistant, save
from ...e2e.families import VOCAB, family_model
from ...e2e.helpers import random_prompt
from ...models.paged import BLOCK, Feed, PagedModel

STEPS = 4


def theirs(target: Any, assistant: Any, prompt: list[int]) -> tuple[int, list[int]]:
    """The root that follows the prompt, and transformers' drafts behind it."""
    ids = torch.tensor([prompt])
    with torch.no_grad():
        outputs = target(ids, output_hidden_states=True, return_shared_kv_states=True)
    root = outputs.logits[:, -1:].argmax(-1)
    assistant.generation_config.num_assistant_tokens = STEPS
    target.generation_config.max_length = 100
    generator = SinglePositionMultiTokenCandidateGenerator(
        assistant, target.get_input_embeddings(), target.generation_config
    )
    found, _ = generator.get_candidates(torch.cat([ids, root], 1), {}, outputs, False, 0)
    return int(root), found[0, len(prompt) + 1 :].tolist()


def greedy(count: int) -> SamplingColumns:
    values = [0, 0, 1, 0, 0, 0, 0]
    pairs = zip(values, COLUMN_DTYPES, strict=True)
    return SamplingColumns(*(torch.full((count,), value, dtype=kind) for value, kind in pairs))


def export(rollout: FrozenRollout, config: Any, paged: PagedModel) -> Any:
    """The rollout as a compiler is given it."""
    layout = CacheLayout(BLOCK, paged.tables.shape[1], 1)
    width = config.target_hidden_size
    sign = rollout_signature(config.read_caches, torch.float32, layout, width)
    program = torch.export.export(rollout, sign.args, dynamic_shapes=sign.dims, strict=False)
    return program.module()


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any]:
    """transformers' model and its checkpoint as it is read."""
    model, folder = family_model("gemma4"), tmp_path_factory.mktemp("target")
    model.save_pretrained(folder)
    return model, load_checkpoint(folder)


@pytest.mark.slow
@pytest.mark.parametrize("clusters", [0, 29])
def test_drafts_are_those_of_transformers(target: Any, clusters: int, tmp_path: Path) -> None:
    model, checkpoint = target
    # Its masks reach two keys further than a row of the target's at the root.
    helper = random_assistant(model, clusters, WINDOW - 2)
    folder = DraftFolder.open(save(helper, tmp_path), "", ())
    assert ASSISTANT_READER.recognises(folder)
    found = ASSISTANT_READER.read(folder, checkpoint.config, None)
    # Layers 3 to 5 of the target read K/V of layers 1 and 2.
    assert found.config.target_layers == (1, 2) and found.config.sources == (2, 2, 1)
    ours = CausalLM(checkpoint.config, torch.float32, found.config.capture_layers)
    ours.load_weights(checkpoint)
    network = Assistant(found.config, checkpoint.config, torch.float32)
    network.load_weights(found)
    own = own_state(network)
    network.load_state_dict(with_borrowed(network, own, ours.state_dict()))
    rollout = FrozenRollout(network, TreeShape(1, STEPS, STEPS + 1), BLOCK)

    prompts = [random_prompt(1, 30, VOCAB), random_prompt(2, 5, VOCAB)]
    expected = [theirs(model, helper, prompt) for prompt in prompts]
    paged = PagedModel(ours)
    fed = {i: Feed(prompt, 0) for i, prompt in enumerate(prompts)}
    with torch.no_grad():
        _, states = ours(*paged.arguments(fed), paged.caches)
        ends = torch.tensor([len(prompts[0]), len(prompts[0]) + len(prompts[1])]) - 1
        roots = {i: Feed([expected[i][0]], len(prompts[i])) for i in fed}
        ids, rows, last = paged.arguments(roots)
        places = [cache_places(checkpoint.config)[layer] for layer in found.config.target_layers]
        caches = [paged.caches[i] for i in places]
        before = [[cache.clone() for cache in each] for each in caches]
        arguments = (ids, rows, last, greedy(2), states[ends], caches)
        tokens, parents, scores = rollout(*arguments)
        exported = export(rollout, found.config, paged)(*arguments)
    assert tokens.tolist() == [drafts for _, drafts in expected]
    assert parents.tolist() == [[-1, 0, 1, 2]] * 2
    assert all(map(torch.equal, exported, (tokens, parents, scores)))
    for each, kept in zip(caches, before, strict=True):
        assert all(map(torch.equal, each, kept)), "the target's caches are not written"


def test_what_does_not_fit_is_refused(target: Any, tmp_path: Path) -> None:
    model, checkpoint = target
    folder = DraftFolder.open(save(random_assistant(model), tmp_path, WINDOW + 1), "", ())
    with pytest.raises(CheckpointError, match=r"window 10; layer 2 of the target, .* window 9"):
        ASSISTANT_READER.read(folder, checkpoint.config, None)
