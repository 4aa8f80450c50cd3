"""Train the checkpoints that ship inside trtspec: a small Llama target and a smaller draft.

The data is the source of the Python standard library of the running interpreter, so nothing is
downloaded. Both models share one byte-level BPE tokenizer. The draft is distilled from the target:
its loss is the divergence between the two next-token distributions, the quantity that decides how
often a drafted token is accepted.

    python examples/train_tiny.py --output trtspec/assets              # everything
    python examples/train_tiny.py --output trtspec/assets --stages draft

Training is seeded and counts steps, not seconds; different CPUs still round differently, so the
weights are reproducible in quality, not bit for bit.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import torch
import torch.nn.functional as F
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from trtspec.bench.data.corpus import standard_library
from trtspec.writable import check_folder

VOCAB_SIZE = 4096
BOS, EOS, PAD, MASK = "<|bos|>", "<|eos|>", "<|pad|>", "<|mask|>"
CONTEXT = 1024
TOKENS_PER_STEP = 4096
STAGES = ("target", "context", "draft")
CHAT_TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}# {{ m['role'] }}: {{ m['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}# assistant: {% endif %}"
)
TARGET_SHAPE = {
    "hidden_size": 256,
    "intermediate_size": 704,
    "num_hidden_layers": 8,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
}
DRAFT_SHAPE = {
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
}


def train_tokenizer(texts: list[str]) -> PreTrainedTokenizerFast:
    """Byte-level BPE with 4,096 entries; ids 0 to 3 are bos, eos, pad and mask."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        special_tokens=[BOS, EOS, PAD, MASK],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{BOS} $A", pair=f"{BOS} $A {BOS} $B", special_tokens=[(BOS, 0)]
    )
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=BOS,
        eos_token=EOS,
        pad_token=PAD,
        mask_token=MASK,
        model_max_length=CONTEXT,
        clean_up_tokenization_spaces=False,
    )
    fast.chat_template = CHAT_TEMPLATE
    return fast


def encode(tokenizer: PreTrainedTokenizerFast, texts: list[str]) -> list[torch.Tensor]:
    """One int64 tensor a file: bos, the text, eos."""
    eos = tokenizer.eos_token_id
    encodings = tokenizer.backend_tokenizer.encode_batch(texts)
    return [torch.tensor([*encoding.ids, eos]) for encoding in encodings]


def batches(
    files: list[torch.Tensor], length: int, rows: int, generator: torch.Generator
) -> Iterator[torch.Tensor]:
    """Yield [rows, length + 1] windows of the shuffled, concatenated files, for ever."""
    while True:
        order = torch.randperm(len(files), generator=generator).tolist()
        stream = torch.cat([files[i] for i in order])
        stream = stream[int(torch.randint(length, (1,), generator=generator)) :]
        windows = stream[: (len(stream) - 1) // length * length + 1].unfold(0, length + 1, length)
        shuffled = windows[torch.randperm(len(windows), generator=generator)]
        for start in range(0, len(shuffled) - rows + 1, rows):
            yield shuffled[start : start + rows]


def new_model(shape: dict[str, int], tokenizer: PreTrainedTokenizerFast) -> LlamaForCausalLM:
    config = LlamaConfig(
        **shape,
        vocab_size=VOCAB_SIZE,
        max_position_embeddings=CONTEXT,
        rms_norm_eps=1e-5,
        tie_word_embeddings=True,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        attn_implementation="sdpa",
    )
    return LlamaForCausalLM(config)


class Optimizers:
    """Muon for the matrices of the layers, AdamW for embeddings and norms, one schedule."""

    def __init__(self, model: LlamaForCausalLM, steps: int, lr: float) -> None:
        body = [p for n, p in model.named_parameters() if p.ndim == 2 and "embed" not in n]
        rest = [p for n, p in model.named_parameters() if p.ndim != 2 or "embed" in n]
        muon = torch.optim.Muon(body, lr=lr, weight_decay=0.1, adjust_lr_fn="match_rms_adamw")
        adamw = torch.optim.AdamW(rest, lr=lr, betas=(0.9, 0.95), weight_decay=0.0)
        self._all = [muon, adamw]
        self._peak, self._steps = lr, steps

    def step(self, index: int) -> None:
        warmup = min(1.0, (index + 1) / 100)
        decay = 0.5 * (1 + math.cos(math.pi * index / self._steps))
        for optimizer in self._all:
            for group in optimizer.param_groups:
                group["lr"] = self._peak * warmup * max(decay, 0.01)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)


def next_token_loss(model: LlamaForCausalLM, window: torch.Tensor) -> torch.Tensor:
    logits = model(window[:, :-1]).logits.float()
    return F.cross_entropy(logits.flatten(0, 1), window[:, 1:].flatten())


def distillation_loss(
    model: LlamaForCausalLM, teacher: LlamaForCausalLM, window: torch.Tensor
) -> torch.Tensor:
    with torch.no_grad():
        wanted = F.log_softmax(teacher(window[:, :-1]).logits.float(), -1).flatten(0, 1)
    guessed = F.log_softmax(model(window[:, :-1]).logits.float(), -1).flatten(0, 1)
    return F.kl_div(guessed, wanted, reduction="batchmean", log_target=True)


def train(
    model: LlamaForCausalLM,
    files: list[torch.Tensor],
    steps: int,
    lr: float,
    seed: int,
    long_share: float,
    teacher: LlamaForCausalLM | None = None,
) -> None:
    """Train in place: windows of 256 tokens, then ``long_share`` of the steps with 1,024."""
    generator = torch.Generator().manual_seed(seed)
    optimizers = Optimizers(model, steps, lr)
    short = batches(files, 256, TOKENS_PER_STEP // 256, generator)
    long = batches(files, CONTEXT, TOKENS_PER_STEP // CONTEXT, generator)
    model.train()
    loss_of = torch.compile(next_token_loss if teacher is None else distillation_loss)
    inputs = (model,) if teacher is None else (model, teacher)
    began, running = time.monotonic(), float("nan")
    # The CPU's fused attention kernel is the slower one for short windows (measured: twice).
    model.set_attn_implementation("eager")
    for index in range(steps):
        is_short = index < steps * (1 - long_share)
        if not is_short:
            model.set_attn_implementation("sdpa")
        window = next(short if is_short else long)
        with torch.autocast("cpu", torch.bfloat16):
            loss = loss_of(*inputs, window)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizers.step(index)
        value = loss.item()
        running = value if math.isnan(running) else 0.98 * running + 0.02 * value
        if index % 50 == 0 or index == steps - 1:
            speed = (index + 1) * TOKENS_PER_STEP / (time.monotonic() - began)
            print(f"step {index}/{steps} loss {running:.3f} {speed:.0f} tokens/s", flush=True)


@torch.inference_mode()
def held_out_loss(model: LlamaForCausalLM, files: list[torch.Tensor]) -> float:
    """Mean nats/token over the held-out files, in windows of the full context, in float32."""
    model = model.float().eval()
    stream = torch.cat(files)
    total = count = 0.0
    for start in range(0, len(stream) - 1, CONTEXT):
        window = stream[start : start + CONTEXT + 1]
        if len(window) > 1:
            total += next_token_loss(model, window[None]).item() * (len(window) - 1)
            count += len(window) - 1
    return total / count


def write_card(folder: Path, role: str, loss: float, steps: int) -> None:
    version = ".".join(map(str, sys.version_info[:3]))
    command = "python examples/train_tiny.py --output trtspec/assets"
    (folder / "README.md").write_text(
        f"""# {folder.name}

{role} Llama architecture, {VOCAB_SIZE}-token byte-level BPE, context {CONTEXT}, bfloat16.
It completes Python code a little; it exists so that trtspec can be run and tested anywhere.

| | |
|---|---|
| Data | standard library source of CPython {version}, tests included; 1 file in 32 held out |
| Tokens seen | {steps * TOKENS_PER_STEP:,} in {steps:,} steps |
| Held-out loss | {loss:.3f} nats/token (bfloat16 weights, float32 arithmetic) |
| Command | `{command}` |
| Licence | weights Apache-2.0; the data is under the PSF License Agreement |
"""
    )


def save(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, folder: Path) -> None:
    model.to(torch.bfloat16).save_pretrained(folder)
    (folder / "model.safetensors").chmod(0o644)
    tokenizer.save_pretrained(folder)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, required=True, help="folder of the checkpoints")
    parser.add_argument("--stages", nargs="+", choices=STAGES, default=STAGES)
    parser.add_argument("--target_steps", type=int, default=3000)
    parser.add_argument("--context_steps", type=int, default=600)
    parser.add_argument("--draft_steps", type=int, default=3000)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    check_folder(args.output)  # before hours of training
    torch.manual_seed(args.seed)
    train_texts, held_out_texts = standard_library()
    target_dir, draft_dir = args.output / "trtspec-tiny", args.output / "trtspec-tiny-draft"
    if "target" in args.stages:
        tokenizer = train_tokenizer(train_texts)
    else:
        tokenizer = PreTrainedTokenizerFast.from_pretrained(target_dir)
    files, held_out = encode(tokenizer, train_texts), encode(tokenizer, held_out_texts)
    sizes = {"train": sum(map(len, files)), "held_out": sum(map(len, held_out))}
    print(f"tokens: {json.dumps(sizes)}", flush=True)

    def finish(model: LlamaForCausalLM, folder: Path, role: str, steps: int) -> None:
        save(model, tokenizer, folder)
        loss = held_out_loss(model, held_out)
        print(f"{folder.name}: held-out loss {loss:.4f} nats/token", flush=True)
        write_card(folder, role, loss, steps)

    role = "The embedded target of trtspec."
    if "target" in args.stages:
        target = new_model(TARGET_SHAPE, tokenizer)
        print(f"target: {target.num_parameters():,} parameters", flush=True)
        train(target, files, args.target_steps, 3e-3, args.seed, long_share=0.1)
        finish(target, target_dir, role, args.target_steps)
    if "context" in args.stages:
        # The tenth above comes when the rate is nearly 0: far positions need a stage of their own.
        target = LlamaForCausalLM.from_pretrained(target_dir, dtype=torch.float32)
        train(target, files, args.context_steps, 1.5e-3, args.seed + 1, long_share=1.0)
        finish(target, target_dir, role, args.target_steps + args.context_steps)
    if "draft" in args.stages:
        teacher = LlamaForCausalLM.from_pretrained(target_dir, dtype=torch.float32).eval()
        draft = new_model(DRAFT_SHAPE, tokenizer)
        print(f"draft: {draft.num_parameters():,} parameters", flush=True)
        train(draft, files, args.draft_steps, 5e-3, args.seed + 2, 0.2, teacher)
        role = "The embedded draft of trtspec-tiny, distilled from it."
        finish(draft, draft_dir, role, args.draft_steps)


if __name__ == "__main__":
    main()
