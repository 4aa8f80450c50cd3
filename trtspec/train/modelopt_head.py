"""ModelOptHead: a head created, trained and exported with NVIDIA ModelOpt."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from trtspec.config.rope import RopeConfig
from trtspec.models.rope import inverse_frequencies
from trtspec.optional import import_optional
from trtspec.speculative.recipe import ATTENTION, HeadRequest, TrainingRecipe
from trtspec.train.products import product_dtype
from trtspec.train.target import TrainingTarget
from trtspec.train.teacher import Teacher
from trtspec.train.windows import Window


class Rotary(nn.Module):
    """Plain rotary embedding of heads of ``head_dim`` elements. Its frequencies are not part of a
    checkpoint."""

    inv_freq: Tensor

    def __init__(self, theta: float, head_dim: int) -> None:
        super().__init__()
        frequencies, _ = inverse_frequencies(RopeConfig(theta), head_dim)
        self.register_buffer("inv_freq", frequencies, persistent=False)

    def forward(self, x: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
        """Cos and sin ``[B, T, head_dim]`` of ``position_ids [B, T] i64``, in the dtype of x."""
        with torch.autocast(x.device.type, enabled=False):
            half = position_ids[..., None].float() * self.inv_freq
            angles = torch.cat((half, half), -1)
            return angles.cos().to(x.dtype), angles.sin().to(x.dtype)


_PURPOSE, _EXTRA = "training a draft", "'trtspec[train]'"
_WEIGHTS, _CONFIG = "model.safetensors", "config.json"


def require_modelopt() -> Any:
    """ModelOpt's speculative package; ConfigError naming the extra if it is not installed."""
    return import_optional("modelopt.torch.speculative", _PURPOSE, _EXTRA)


class ModelOptHead:
    """A head over recorded hidden states: ModelOpt's offline mode, which only needs the target's
    embedding and head, so any target that the engine runs will do.

    ``draft_ids``: the tokens ``[n] i64`` that the head may propose, ascending; None: all. Weights
    are initialised with ``seed``; a norm and vocabulary head of its own start as copies of the
    target's. ``compiles``: fuse passes over the vocabulary, which takes a minute to compile.

    Raises:
        ConfigError: ModelOpt is not installed.
    """

    def __init__(
        self,
        recipe: TrainingRecipe,
        request: HeadRequest,
        target: TrainingTarget,
        draft_ids: Tensor | None,
        seed: int,
        device: str = "cpu",
        compiles: bool = False,
    ) -> None:
        speculative = require_modelopt()
        if recipe.attention is not None:
            ALL_ATTENTION_FUNCTIONS.register(ATTENTION, recipe.attention)
        torch.manual_seed(seed)
        model = _base(target)
        with redirect_stdout(io.StringIO()):  # it tells where it found what it was given
            speculative.convert(model, [(recipe.algorithm, recipe.settings(request))])
        self.module: nn.Module = getattr(model, recipe.module)
        self._model, self._recipe, self._device = model, recipe, device
        self._teacher = Teacher(target, draft_ids, device)
        self._halves = product_dtype(device) == torch.bfloat16
        self._begin_as_target(request, target, draft_ids)
        model.to(device).train()  # ModelOpt unrolls in training alone; there is no dropout
        if draft_ids is not None:
            # The teacher's logits are those of the draft's tokens already.
            model._map_logits_to_draft_vocab = lambda logits: logits
        for name in recipe.memory_bound if compiles else ():
            setattr(model, name, torch.compile(getattr(model, name), dynamic=True))

    def _begin_as_target(
        self, request: HeadRequest, target: TrainingTarget, draft_ids: Tensor | None
    ) -> None:
        head: Any = self.module
        with torch.no_grad():
            head.norm.weight.copy_(target.norm)
            if hasattr(head, "lm_head"):
                head.lm_head.weight.copy_(
                    target.head if draft_ids is None else target.head[draft_ids]
                )
            if draft_ids is not None:
                head.d2t.copy_(draft_ids - torch.arange(len(draft_ids)))
        attention = head.layers[0].self_attn
        # ModelOpt would make its own with an argument that newer transformers do not take.
        head.rotary_emb = Rotary(request.target.ropes[0].theta, attention.head_dim)

    def loss(self, window: Window, depth: int) -> tuple[Tensor, Sequence[float]]:
        """See `Head`."""
        if self._recipe.depth_setting is not None:
            setattr(self._model, self._recipe.depth_setting, depth)
        window = window.to(self._device)
        # Recorded in 16 bits; without autocast, products do not convert their operands.
        state, features = (
            states if self._halves else states.float() for states in (window.state, window.features)
        )
        outputs = {
            "base_model_hidden_states": state,
            "aux_hidden_states": features,
            "base_model_logits": self._teacher.logits(window.state, window.normed),
        }
        with torch.autocast(self._device, torch.bfloat16, enabled=self._halves):
            out = self._model(
                input_ids=window.tokens, loss_mask=window.valid, base_model_outputs=outputs
            )
        return out.loss, [float(rate) for rate in out.train_acc[0]]

    def export(self, folder: Path) -> None:
        """The checkpoint in ModelOpt's layout, bfloat16."""
        export = import_optional("modelopt.torch.export", _PURPOSE, _EXTRA)
        export.export_speculative_decoding(self._model, export_dir=folder)
        tensors = load_file(folder / _WEIGHTS)
        floats = {n: t.to(torch.bfloat16) for n, t in tensors.items() if t.is_floating_point()}
        save_file({**tensors, **floats}, folder / _WEIGHTS, metadata={"format": "pt"})
        config = json.loads((folder / _CONFIG).read_text())
        config["torch_dtype"] = "bfloat16"
        (folder / _CONFIG).write_text(json.dumps(config, indent=2) + "\n")


def _base(target: TrainingTarget) -> Any:
    """The target without its layers, in the form that ModelOpt needs when hidden states are
    given."""
    fake = import_optional("modelopt.torch.speculative.plugins.modeling_fakebase", _PURPOSE, _EXTRA)
    shape = target.config
    config = fake.FakeBaseConfig(
        num_hidden_layers=shape.num_layers,
        hidden_size=shape.hidden_size,
        vocab_size=shape.vocab_size,
        max_position_embeddings=shape.max_position_embeddings,
        dtype=torch.float32,
        rms_norm_eps=shape.norm.eps,
        rope_theta=shape.ropes[0].theta,
        num_attention_heads=1,
        intermediate_size=shape.hidden_size,
    )
    with torch.device("meta"):
        model = fake.FakeBaseModel(config)
    model.embed_tokens.weight = nn.Parameter(target.embedding, requires_grad=False)
    model.lm_head.weight = nn.Parameter(target.head, requires_grad=False)
    return model
