"""Train the DFlash head that ships inside trtspec for the target trtspec-tiny, with ModelOpt.

NVIDIA ModelOpt makes the head, samples the anchors of its blocks, computes its loss (the target's
own distribution as the goal, positions weighted by D-PACE, arXiv 2605.18810) and exports the
checkpoint. The text is that of train_eagle3.py: standard library source, and continuations that the
target wrote itself.

    pip install 'trtspec[train]'
    python examples/train_dflash.py --output trtspec/assets

The target is read from <output>/trtspec-tiny, the head is written to <output>/trtspec-tiny-dflash.
Training is seeded and counts steps; different CPUs round differently, so the weights are
reproducible in quality, not bit for bit.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import torch
from train_eagle3 import (
    LENGTH,
    TOKENS_PER_STEP,
    Optimizers,
    cached_own_text,
    mixed_batches,
    replace_checkpoint,
)
from train_tiny import encode
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast
from transformers.models.qwen3.modeling_qwen3 import Qwen3RotaryEmbedding

from trtspec.bench.corpus import standard_library
from trtspec.writable import check_folder

try:
    import modelopt.torch.speculative as mtsp
    from modelopt.torch.export import export_speculative_decoding
except ImportError as error:
    raise SystemExit(
        f"train_dflash.py needs NVIDIA ModelOpt, whose import failed ({error}); "
        "run: pip install 'trtspec[train]'"
    ) from error

BLOCK = 8
ANCHORS = 32  # blocks of a window of LENGTH tokens: as many draft rows as target rows
# The outputs of the target that the head reads, ModelOpt's own choice for two layers out of eight.
TARGET_LAYERS = (1, 5)
HEAD_SHAPE = {
    "num_hidden_layers": 2,
    "intermediate_size": 416,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
}
MEASURED_AT = (64, 128, 192, 240)


def new_head(target: LlamaForCausalLM, mask_token: int, anchors: int) -> None:
    """Convert the target in place: ModelOpt freezes it and adds ``dflash_module``, the head.

    Embedding and vocabulary head are the target's; the last norm begins as the target's.
    """
    architecture = {
        **HEAD_SHAPE,
        "target_layer_ids": list(TARGET_LAYERS),
        "rms_norm_eps": target.config.rms_norm_eps,
        # Of transformers 5 ModelOpt would take it from here; what it exports is the target's.
        "rope_parameters": target.config.rope_parameters,
    }
    config = {
        "dflash_block_size": BLOCK,
        "dflash_num_anchors": anchors,
        "dflash_mask_token_id": mask_token,
        "dflash_use_torch_compile": False,
        "dflash_architecture_config": architecture,
    }
    mtsp.convert(target, [("dflash", config)])
    head = target.dflash_module
    # ModelOpt would make it with an argument that newer transformers do not take.
    head.rotary_emb = Qwen3RotaryEmbedding(target.dflash_config)
    head.norm.weight.data.copy_(target.model.norm.weight.data)


def forward(model: LlamaForCausalLM, window: torch.Tensor) -> tuple[torch.Tensor, float]:
    """ModelOpt's loss (nats, weighted) and how often a slot's choice is the text's token."""
    with torch.autocast("cpu", torch.bfloat16):
        out = model(input_ids=window)
    return out.loss, float(out.train_acc[0][0])


def train(
    model: LlamaForCausalLM,
    windows: Iterator[torch.Tensor],
    steps: int,
    lr: float,
    norm_lr: float,
    save_every: int,
    output: Path,
) -> float:
    """Train the head in place, export it every ``save_every`` steps; the mean loss at the end."""
    optimizers = Optimizers(model.dflash_module, steps, lr, norm_lr)
    parameters = [p for p in model.dflash_module.parameters() if p.requires_grad]
    model.train()
    began = time.monotonic()
    losses: list[float] = []
    hits: list[float] = []
    mean = 0.0
    for index in range(steps):
        loss, agreement = forward(model, next(windows))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizers.step(index)
        losses.append(loss.item())
        hits.append(agreement)
        if index % 50 == 49 or index == steps - 1:
            mean = sum(losses) / len(losses)
            speed = (index + 1) * TOKENS_PER_STEP / (time.monotonic() - began)
            print(
                f"step {index + 1}/{steps} loss {mean:.3f} agreement {sum(hits) / len(hits):.3f} "
                f"{speed:.0f} tokens/s",
                flush=True,
            )
            losses.clear()
            hits.clear()
        if (index + 1) % save_every == 0:
            export(model, output)
    return mean


@torch.no_grad()
def held_out(model: LlamaForCausalLM, files: list[torch.Tensor], rows: int) -> list[float]:
    """How often the first i drafts of a block are all the target's own greedy tokens, for every
    i from 1: over ``rows`` windows of held-out files, at several places of each."""
    stream = torch.cat(files)
    windows = stream[: len(stream) // LENGTH * LENGTH].view(-1, LENGTH)[:rows]
    if not len(windows):
        raise SystemExit(f"the held-out files have fewer than {LENGTH} tokens")
    model.eval()
    accepted = []
    for length in MEASURED_AT:
        prefix = windows[:, :length]
        root, drafts = model.pseudo_speculative_generate(prefix, steps=BLOCK - 1)
        logits = model(input_ids=torch.cat([prefix, root, drafts], 1)).logits
        right = logits[:, length:-1].argmax(-1) == drafts
        accepted.append(right.long().cumprod(1).float().mean(0))
    model.train()
    rates: list[float] = torch.stack(accepted).mean(0).tolist()
    return rates


def export(model: LlamaForCausalLM, folder: Path) -> None:
    """Write config.json and model.safetensors (bfloat16) with ModelOpt; replaces the old ones."""
    fresh = folder.with_name(folder.name + ".new")
    export_speculative_decoding(model, dtype=torch.bfloat16, export_dir=fresh)
    replace_checkpoint(fresh, folder)


def write_card(
    folder: Path, target: str, steps: int, anchors: int, data: str, loss: float, rates: list[float]
) -> None:
    accepted = ", ".join(f"{rate:.3f}" for rate in rates)
    seen = f"{steps * TOKENS_PER_STEP:,} in {steps:,} steps"
    layers = HEAD_SHAPE["num_hidden_layers"]
    (folder / "README.md").write_text(
        f"""# {folder.name}

The DFlash head of {target}, in the layout of NVIDIA ModelOpt's export: {layers} Qwen3 layers that
read the outputs of the target's layers {list(TARGET_LAYERS)} and draft blocks of {BLOCK}, which see
each other whole; bfloat16. The embedding and the vocabulary head are the target's.

| | |
|---|---|
| Data | {data} |
| Tokens seen | {seen}, {anchors} blocks in each {LENGTH} tokens |
| Loss at the end | {loss:.3f} nats, weighted by D-PACE |
| Held-out acceptance | {accepted} (of the first 1 to {len(rates)} drafts, all of them, greedy) |
| Command | `python examples/train_dflash.py --output trtspec/assets` |
| Licence | weights Apache-2.0; the data is under the PSF License Agreement |
"""
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--output", type=Path, required=True, help="folder of the checkpoints")
    add("--target", type=Path, help="checkpoint of the target (<output>/trtspec-tiny)")
    add("--steps", type=int, default=2200)
    add("--anchors", type=int, default=ANCHORS, help=f"blocks of a window of {LENGTH} tokens")
    add("--lr", type=float, default=2e-2, help="of the head's matrices")
    add("--norm_lr", type=float, default=4e-3, help="of its norms")
    add("--own_rows", type=int, default=6400, help=f"self-written windows of {LENGTH} tokens")
    add("--own_text", type=Path, help="file that keeps the self-written text between runs")
    add("--held_out_rows", type=int, default=256, help="held-out windows to measure")
    add("--save_every", type=int, default=200, help="steps between two exports")
    add("--max_files", type=int, help="read fewer files, for a trial")
    add("--no_compile", action="store_true", help="do not compile the loss")
    add("--seed", type=int, default=0)
    args = parser.parse_args()

    check_folder(args.output)  # before hours of training
    torch.manual_seed(args.seed)
    target_dir = args.target or args.output / "trtspec-tiny"
    folder = args.output / "trtspec-tiny-dflash"
    if not (target_dir / "config.json").exists():
        raise SystemExit(f"no target checkpoint in {target_dir}; train it with train_tiny.py")
    tokenizer = PreTrainedTokenizerFast.from_pretrained(target_dir)
    files, held_out_files = (
        encode(tokenizer, texts[: args.max_files]) for texts in standard_library()
    )
    written = cached_own_text(args.own_text, target_dir, files, args.own_rows, args.seed)
    print(f"tokens: {sum(map(len, files)):,} read, {written.numel():,} self-written", flush=True)

    model = LlamaForCausalLM.from_pretrained(target_dir, dtype=torch.float32)
    new_head(model, tokenizer.mask_token_id, args.anchors)
    size = sum(p.numel() for p in model.dflash_module.parameters())
    print(f"head: {size:,} parameters", flush=True)
    if not args.no_compile:  # the softmaxes over the vocabulary are memory-bound: fuse them
        model._compute_loss = torch.compile(model._compute_loss, dynamic=True)
    windows = mixed_batches(files, written, args.seed + 1)
    loss = train(model, windows, args.steps, args.lr, args.norm_lr, args.save_every, folder)
    export(model, folder)
    rates = held_out(model, held_out_files, args.held_out_rows)
    accepted = " ".join(f"{rate:.3f}" for rate in rates)
    print(f"{folder.name}: loss {loss:.3f}, held-out acceptance {accepted}", flush=True)
    name, version = target_dir.name, ".".join(map(str, sys.version_info[:3]))
    source = f"standard library source of CPython {version}, 1 file in 32 held out"
    data = f"{source}; {written.numel():,} tokens written by {name} from prompts of the other files"
    write_card(folder, name, args.steps, args.anchors, data, loss, rates)


if __name__ == "__main__":
    main()
