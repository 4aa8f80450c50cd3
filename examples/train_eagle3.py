"""Train the EAGLE-3 head that ships inside trtspec for the target trtspec-tiny, with ModelOpt.

NVIDIA ModelOpt makes the head, computes its loss (the training-time test of the EAGLE-3 paper, with
the target's own distribution as the goal) and exports the checkpoint. The text is what the target
meets when it serves: standard library source, and continuations that it wrote itself from the
beginnings and the middles of those files, greedy and sampled.

    pip install 'trtspec[train]'
    python examples/train_eagle3.py --output trtspec/assets

The target is read from <output>/trtspec-tiny, the head is written to <output>/trtspec-tiny-eagle3.
With --hidden_states it trains on what was recorded while the target served, by the
method extract_hidden_states, and the target runs for the measurement alone.
Training is seeded and counts steps; different CPUs round differently, so the weights are
reproducible in quality, not bit for bit.
"""

from __future__ import annotations

import argparse
import json
import math
import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from recorded_states import RecordedStates, Window
from train_tiny import CONTEXT, batches, encode
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast, StaticCache
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding
from unrolled_attention import unrolled_attention

from trtspec.bench.corpus import standard_library
from trtspec.writable import check_folder

try:
    import modelopt.torch.speculative as mtsp
    from modelopt.torch.export import export_speculative_decoding
except ImportError as error:
    raise SystemExit(
        f"train_eagle3.py needs NVIDIA ModelOpt, whose import failed ({error}); "
        "run: pip install 'trtspec[train]'"
    ) from error

LENGTH = 256
ROWS = 8
TOKENS_PER_STEP = LENGTH * ROWS
LONG_EVERY = 16  # every 16th step reads windows of the full context
PROMPT_LENGTHS = (128, 16, 64)
TEMPERATURES = (0.0, 0.0, 0.7, 1.0)
LOSS_DECAY = 0.9
# ModelOpt's default for eight layers is 1, 3, 4. These are spread over the whole depth and do about
# as well: after 400 steps, unrolled once, 0.50 of held-out tokens agreed, and 0.52 with 1, 3, 4.
CAPTURE_LAYERS = (1, 4, 7)
HEAD_SHAPE = {
    "num_hidden_layers": 1,
    "intermediate_size": 704,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
}


@torch.inference_mode()
def own_text(
    target: LlamaForCausalLM, files: list[torch.Tensor], rows: int, seed: int, batch: int = 128
) -> torch.Tensor:
    """[rows, LENGTH] token ids: prompts of the files, continued by the target itself.

    Half the prompts are beginnings of files; of every four rows two are greedy, one is sampled at
    temperature 0.7 and one at 1.
    """
    generator = torch.Generator().manual_seed(seed)
    windows = batches(files, LENGTH, batch, generator)
    starts = [file for file in files if len(file) >= max(PROMPT_LENGTHS)]
    temperature = torch.tensor(TEMPERATURES).repeat(batch)[:batch, None]
    done: list[torch.Tensor] = []
    for index in range(math.ceil(rows / batch)):
        prompt_length = PROMPT_LENGTHS[index // 2 % len(PROMPT_LENGTHS)]
        if index % 2:
            prompts = next(windows)[:, :prompt_length]
        else:
            chosen = torch.randint(len(starts), (batch,), generator=generator).tolist()
            prompts = torch.stack([starts[i][:prompt_length] for i in chosen])
        cache = StaticCache(config=target.config, max_cache_len=LENGTH)
        parts = [prompts]
        for _ in range(LENGTH - prompt_length):
            out = target(parts[-1], past_key_values=cache, logits_to_keep=1)
            logits = out.logits[:, -1].float()
            noise = -torch.empty_like(logits).exponential_(generator=generator).log()
            parts.append((logits + temperature * noise).argmax(-1, keepdim=True))
        done.append(torch.cat(parts, 1))
        print(f"own text: {min(rows, len(done) * batch)}/{rows} rows", flush=True)
    return torch.cat(done)[:rows]


def cached_own_text(
    cache: Path | None, target_dir: Path, files: list[torch.Tensor], rows: int, seed: int
) -> torch.Tensor:
    """`own_text` in bfloat16, kept in the file ``cache`` between runs if one is named."""
    if cache is not None and cache.exists():
        return torch.load(cache, weights_only=True).long()
    writer = LlamaForCausalLM.from_pretrained(target_dir, dtype=torch.bfloat16).eval()
    text = own_text(writer, files, rows, seed, batch=min(128, rows))
    if cache is not None:
        torch.save(text.short(), cache)
    return text


def new_head(target: LlamaForCausalLM, capture_layers: Sequence[int], ttt_steps: int) -> None:
    """Convert the target in place: ModelOpt freezes it and adds ``eagle_module``, the head.

    It reads the outputs of the 0-based ``capture_layers``; its vocabulary head and last norm begin
    as the target's. The vocabulary is the whole one: its best half covers 93% of the text.
    """
    ALL_ATTENTION_FUNCTIONS.register("unrolled", unrolled_attention)
    theta = target.config.rope_parameters["rope_theta"]
    architecture = {
        **HEAD_SHAPE,
        "draft_vocab_size": target.config.vocab_size,
        "has_lm_head": True,
        # Sorted: ModelOpt joins the states in the order of the layers, whatever this list says.
        "eagle_aux_hidden_state_layer_ids": sorted(set(capture_layers)),
        "bos_token_id": target.config.bos_token_id,
        "eos_token_id": target.config.eos_token_id,
        "pad_token_id": target.config.pad_token_id,
        "rms_norm_eps": target.config.rms_norm_eps,
        "rope_theta": theta,
        "rope_scaling": {"rope_type": "default", "rope_theta": theta},
        "_attn_implementation": "unrolled",
    }
    config = {
        "eagle_architecture_config": architecture,
        "eagle_ttt_steps": ttt_steps,
        "eagle_loss_decay_factor": LOSS_DECAY,
        "eagle_use_torch_compile": False,
        # The default writes a yarn scaling into the checkpoint that the head never saw.
        "eagle_export_rope_scaling": {},
    }
    mtsp.convert(target, [("eagle", config)])
    head = target.eagle_module
    # ModelOpt would make it with an argument that newer transformers do not take.
    head.rotary_emb = LlamaRotaryEmbedding(target.eagle_config)
    head.lm_head.weight.data.copy_(target.lm_head.weight.data)
    head.norm.weight.data.copy_(target.model.norm.weight.data)


def compile_parts(model: LlamaForCausalLM) -> None:
    """Fuse what is memory-bound: the softmax, the argmax and the loss over the vocabulary."""
    for name in ("_prepare_eagle_inputs", "_eagle_loss"):
        setattr(model, name, torch.compile(getattr(model, name), dynamic=True))


class Optimizers:
    """Muon for the matrices, AdamW for the vocabulary head and the norms, one schedule."""

    def __init__(self, head: torch.nn.Module, steps: int, lr: float, head_lr: float) -> None:
        named = [(n, p) for n, p in head.named_parameters() if p.requires_grad]
        body = [p for n, p in named if p.ndim == 2 and "lm_head" not in n]
        rest = [p for n, p in named if p.ndim != 2 or "lm_head" in n]
        self._all = [
            torch.optim.Muon(body, lr=lr, weight_decay=0.1, adjust_lr_fn="match_rms_adamw"),
            torch.optim.AdamW(rest, lr=head_lr, betas=(0.9, 0.95), weight_decay=0.0),
        ]
        self._peaks, self._steps = (lr, head_lr), steps

    def step(self, index: int) -> None:
        warmup = min(1.0, (index + 1) / 50)
        decay = max(0.01, 1 - index / self._steps)
        for optimizer, peak in zip(self._all, self._peaks, strict=True):
            for group in optimizer.param_groups:
                group["lr"] = peak * warmup * decay
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)


def mixed_batches(
    files: list[torch.Tensor], written: torch.Tensor, seed: int
) -> Iterator[torch.Tensor]:
    """Windows for ever: [ROWS, LENGTH], half read and half self-written, sometimes long ones."""
    generator = torch.Generator().manual_seed(seed)
    half = ROWS // 2
    read = batches(files, LENGTH, ROWS - half, generator)
    long = batches(files, CONTEXT, TOKENS_PER_STEP // CONTEXT, generator)
    order: list[int] = []
    index = 0
    while True:
        index += 1
        if index % LONG_EVERY == 0:
            yield next(long)[:, :-1]
            continue
        while len(order) < half:
            order += torch.randperm(len(written), generator=generator).tolist()
        picked, order = order[:half], order[half:]
        yield torch.cat([next(read)[:, :-1], written[picked]])


def forward(
    model: LlamaForCausalLM, window: torch.Tensor | Window
) -> tuple[torch.Tensor, list[float]]:
    """ModelOpt's loss (nats, summed over the steps) and the agreement of every unrolled step."""
    recorded = isinstance(window, Window)
    model.eagle_offline = recorded  # whether the target's states are given
    with torch.autocast("cpu", torch.bfloat16):
        out = model(**window.inputs()) if recorded else model(input_ids=window)
    model.eagle_offline = False
    return out.loss, [float(x) for x in out.train_acc[0]]


def train(
    model: LlamaForCausalLM,
    windows: Iterator[torch.Tensor] | Iterator[Window],
    steps: int,
    lr: float,
    head_lr: float,
    save_every: int,
    output: Path,
) -> None:
    """Train the head in place; export it every ``save_every`` steps."""
    optimizers = Optimizers(model.eagle_module, steps, lr, head_lr)
    parameters = [p for p in model.eagle_module.parameters() if p.requires_grad]
    model.train()
    began = time.monotonic()
    losses: list[float] = []
    hits: list[list[float]] = []
    unrolled = model.eagle_ttt_steps
    for index in range(steps):
        # The first position teaches most, and a step costs as much as it unrolls: begin with one.
        model.eagle_ttt_steps = 1 + unrolled * index // steps
        loss, agreement = forward(model, next(windows))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizers.step(index)
        losses.append(loss.item())
        hits.append(agreement)
        if index % 50 == 49 or index == steps - 1:
            mean = sum(losses) / len(losses)
            hits = [h for h in hits if len(h) == len(agreement)]  # those unrolled as often
            rates = " ".join(f"{sum(h) / len(h):.3f}" for h in zip(*hits, strict=True))
            speed = (index + 1) * TOKENS_PER_STEP / (time.monotonic() - began)
            print(
                f"step {index + 1}/{steps} loss {mean:.3f} agreement {rates} {speed:.0f} tokens/s",
                flush=True,
            )
            losses.clear()
            hits.clear()
        if (index + 1) % save_every == 0:
            export(model, output)
    model.eagle_ttt_steps = unrolled


@torch.no_grad()
def held_out(
    model: LlamaForCausalLM, files: list[torch.Tensor], rows: int
) -> tuple[float, list[float]]:
    """(loss in nats, acceptance of every position) over ``rows`` windows of held-out files.

    Teacher-forced: position s counts how often the head's choice is the target's, given that the
    s tokens before were the text's own.
    """
    stream = torch.cat(files)
    windows = stream[: len(stream) // LENGTH * LENGTH].view(-1, LENGTH)
    if not len(windows):
        raise SystemExit(f"the held-out files have fewer than {LENGTH} tokens")
    model.train()  # ModelOpt unrolls only then; there is no dropout
    results = [forward(model, window) for window in windows[:rows].split(ROWS)]
    loss = sum(loss.item() for loss, _ in results) / len(results)
    rates = [sum(r) / len(r) for r in zip(*(rates for _, rates in results), strict=True)]
    return loss, rates


def export(model: LlamaForCausalLM, folder: Path) -> None:
    """Write config.json and model.safetensors (bfloat16) with ModelOpt; replaces the old ones."""
    head = model.eagle_module
    trained = {name: parameter.data for name, parameter in head.named_parameters()}
    fresh = folder.with_name(folder.name + ".new")
    try:
        for parameter in head.parameters():
            parameter.data = parameter.data.to(torch.bfloat16)
        export_speculative_decoding(model, export_dir=fresh)
    finally:
        for name, parameter in head.named_parameters():
            parameter.data = trained[name]
    replace_checkpoint(fresh, folder)


def replace_checkpoint(fresh: Path, folder: Path) -> None:
    """Move what an export wrote into ``fresh`` to its folder, in place of an older one."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("config.json", "model.safetensors"):
        (fresh / name).chmod(0o644)
        (fresh / name).replace(folder / name)
    shutil.rmtree(fresh)


def write_card(
    folder: Path, target: str, steps: int, data: str, loss: float, rates: list[float]
) -> None:
    layers = json.loads((folder / "config.json").read_text())["eagle_config"][
        "eagle_aux_hidden_state_layer_ids"
    ]
    accepted = ", ".join(f"{rate:.3f}" for rate in rates)
    (folder / "README.md").write_text(
        f"""# {folder.name}

The EAGLE-3 head of {target}, in the layout of NVIDIA ModelOpt's export: one Llama layer that reads
the outputs of the target's layers {layers}, with a vocabulary head of its own; bfloat16. The
embedding is the target's.

| | |
|---|---|
| Data | {data} |
| Tokens seen | {steps * TOKENS_PER_STEP:,} in {steps:,} steps |
| Held-out loss | {loss:.3f} nats, {len(rates)} unrolled steps weighted {LOSS_DECAY}^s |
| Held-out acceptance | {accepted} (positions 1 to {len(rates)}, teacher-forced, greedy) |
| Command | `python examples/train_eagle3.py --output trtspec/assets` |
| Licence | weights Apache-2.0; the data is under the PSF License Agreement |
"""
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--output", type=Path, required=True, help="folder of the checkpoints")
    add("--target", type=Path, help="checkpoint of the target (<output>/trtspec-tiny)")
    add("--steps", type=int, default=3200)
    add("--capture_layers", type=int, nargs="+", default=CAPTURE_LAYERS, help="0-based")
    add("--ttt_steps", type=int, default=5, help="unrolled steps: how deep the head may draft")
    add("--lr", type=float, default=2e-2, help="of the head's layer")
    add("--head_lr", type=float, default=4e-3, help="of its vocabulary head and norms")
    add("--own_rows", type=int, default=6400, help=f"self-written windows of {LENGTH} tokens")
    add("--own_text", type=Path, help="file that keeps the self-written text between runs")
    add("--hidden_states", type=Path, help="folder of recorded states to train on instead")
    add("--held_out_rows", type=int, default=256, help="held-out windows to measure")
    add("--save_every", type=int, default=200, help="steps between two exports")
    add("--max_files", type=int, help="read fewer files, for a trial")
    add("--no_compile", action="store_true", help="do not compile the loss")
    add("--seed", type=int, default=0)
    args = parser.parse_args()

    check_folder(args.output)  # before hours of training
    torch.manual_seed(args.seed)
    target_dir = args.target or args.output / "trtspec-tiny"
    folder = args.output / "trtspec-tiny-eagle3"
    if not (target_dir / "config.json").exists():
        raise SystemExit(f"no target checkpoint in {target_dir}; train it with train_tiny.py")
    tokenizer = PreTrainedTokenizerFast.from_pretrained(target_dir)
    files, held_out_files = (
        encode(tokenizer, texts[: args.max_files]) for texts in standard_library()
    )
    windows: Iterator[torch.Tensor] | Iterator[Window]
    if args.hidden_states is None:
        written = cached_own_text(args.own_text, target_dir, files, args.own_rows, args.seed)
        windows, own_tokens = mixed_batches(files, written, args.seed + 1), written.numel()
        print(f"tokens: {sum(map(len, files)):,} read, {own_tokens:,} self-written", flush=True)
    else:
        recorded = RecordedStates(args.hidden_states, args.capture_layers, target_dir)
        windows, own_tokens = recorded.windows(LENGTH, ROWS, args.seed), recorded.num_tokens
        print(f"tokens: {own_tokens:,} recorded in {len(recorded)} files", flush=True)

    model = LlamaForCausalLM.from_pretrained(target_dir, dtype=torch.float32)
    # The CPU's fused attention kernel is the slower one for short windows (measured: twice).
    model.set_attn_implementation("eager")
    new_head(model, args.capture_layers, args.ttt_steps)
    size = sum(p.numel() for p in model.eagle_module.parameters())
    print(f"head: {size:,} parameters", flush=True)
    if not args.no_compile:
        compile_parts(model)
    train(model, windows, args.steps, args.lr, args.head_lr, args.save_every, folder)
    loss, rates = held_out(model, held_out_files, args.held_out_rows)
    accepted = " ".join(f"{rate:.3f}" for rate in rates)
    print(f"{folder.name}: held-out loss {loss:.3f}, acceptance by position {accepted}", flush=True)
    export(model, folder)
    name, version = target_dir.name, ".".join(map(str, sys.version_info[:3]))
    source = f"standard library source of CPython {version}, 1 file in 32 held out"
    data = f"{source}; {own_tokens:,} tokens written by {name} from prompts of the other files"
    if args.hidden_states is not None:
        data = f"{own_tokens:,} tokens recorded while {name} served; measured on {source}"
    write_card(folder, name, args.steps, data, loss, rates)


if __name__ == "__main__":
    main()
