"""The tables of MEASUREMENTS.md: which rows of which result files they show, and how."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any


@dataclass(frozen=True)
class Table:
    """A table of one result file (see `trtspec.bench.report.result_file.rows`).

    lines: keys that distinguish its lines, one column each, which may join several. across: the key
    that distinguishes its columns; columns: their values, in order; empty: all. cell: formats of a
    figure, of which those apply that the row has values for. only: wanted values of keys.
    """

    file: str
    title: str
    lines: tuple[str, ...]
    cell: tuple[str, ...] = ("{tokens_per_second:,.1f}", " ({decode_tokens_per_second:,.1f})")
    across: str = "method"
    columns: tuple[str, ...] = ()
    only: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)

    def takes(self, row: Mapping[str, Any]) -> bool:
        return all(row[key] in values for key, values in self.only.items()) and (
            not self.columns or row[self.across] in self.columns
        )


POINT = ("batch, temperature", "engine")
_SPEED_UP = ("{tokens_per_second:,.1f}", " ({speed_up:.2f})")

_BY_KIND = ("{tokens_per_second:,.1f} ", "({speed_up:.2f})")
_KINDS = ("write", "edit", "chat", "summarise")

PAIR = Table(
    "pair",
    "Temperature 0, tokens/s (times trtspec's plain decoding)",
    ("engine", "method"),
    _BY_KIND,
    across="category",
    columns=_KINDS,
    only={"temperature": (0.0,)},
)
PAIR_SAMPLED = replace(
    PAIR, file="pair-sampled", title="Temperature 1, likewise", only={"temperature": (1.0,)}
)
FRONT = (
    replace(PAIR_SAMPLED, title="The same pair at temperature 1: times plain decoding"),
    Table(
        "h100-steps",
        "A synthetic checkpoint of an 8B model's cost with an EAGLE-3 tree, tokens/s",
        ("batch",),
        ("{tokens_per_second:,.0f}",),
        only={"batch": (1,)},
    ),
)

SECTIONS: tuple[tuple[str, str, tuple[Table, ...]], ...] = (
    (
        "A real pair: Qwen2.5-Coder",
        "Qwen2.5-Coder-1.5B-Instruct with the 0.5B as its draft, both the official q4_k_m files; "
        "write and edit code, chat, summarise, 128 new tokens at most, batch 1, prefills included, "
        "interleaved by prompts. OpenVINO GenAI reads no GGUF file as a draft.",
        (PAIR, PAIR_SAMPLED),
    ),
    (
        "Real text: SmolLM2",
        "SmolLM2-135M-Instruct from the 4 bits of its file, 48 Spec-Bench questions of all 13 "
        "categories, 64 new tokens each, one round, interleaved. Plain decoding is at 1.5 to 1.7 "
        "of OpenVINO's on Zen 4; suffixes and `auto` gain at temperature 0 and batch 1, and hardly "
        "anything pays at temperature 1 or batch 8. Adaptive, but for EAGLE-3 and the hybrid at "
        "batch 1.",
        (
            Table("smollm2-zen4", "4 bits, AVX-512", POINT),
            Table("smollm2-zen3", "4 bits, AVX2 alone", POINT),
            Table("smollm2-bfloat16", "bfloat16, always drafting", POINT),
            Table("smollm2-bfloat16-batch8", "bfloat16, adaptive", POINT),
            Table(
                "smollm2-categories",
                "Speed-up over no speculation by category, all 480 questions, adaptive",
                ("temperature", "method"),
                ("{speed_up:.2f}",),
                across="category",
            ),
            Table(
                "smollm2-acceptance",
                "Acceptance length of its EAGLE-3 head, chain and tree",
                ("method",),
                ("{acceptance_length:.2f}",),
                across="category",
            ),
            Table(
                "smollm2-steps",
                "What a step is made of: tokens a step; ms, of these target, draft and host; "
                "speed-up",
                ("method",),
                (
                    "{acceptance_length:.2f}; ",
                    "{step_ms:.2f} = ",
                    "{target_ms:.2f} + ",
                    "{draft_ms:.2f} + ",
                    "{host_ms:.2f}; ",
                    "{speed_up:.2f}",
                ),
                across="batch",
            ),
        ),
    ),
    (
        "On an H100",
        "A synthetic checkpoint with an 8B model's cost (7.0 G parameters) and the embedded "
        "EAGLE-3 head in trees of 24 rows, `aoti`, bfloat16, CUDA graphs, 96 tokens, all texts the "
        "same. A tree is worth 2.58 at batch 1 and 8; at 64 its 1,536 rows are limited by "
        "arithmetic. Tests for GPUs passed in that session, and compute-sanitizer found nothing. "
        "TensorRT was not run.",
        (
            Table(
                "h100-steps",
                "Tokens/s; step ms, of these target, draft and host",
                ("batch",),
                (
                    "{tokens_per_second:,.0f}; ",
                    "{step_ms:.2f} = ",
                    "{target_ms:.2f} + ",
                    "{draft_ms:.2f} + ",
                    "{host_ms:.2f}",
                ),
            ),
            Table(
                "h100-attention",
                "Attention of one layer (32 heads, 8 of K/V, 128 wide) by context, us",
                ("engine", "batch", "rows"),
                ("{us:.0f}", "{or_more}"),
                across="context",
            ),
        ),
    ),
    (
        "Beside other engines, with AMX",
        "Synthetic checkpoints, held-out code. On AMX 16 rows cost 1.2 times as much as one, so "
        "drafts pay more than elsewhere, and trees do.",
        (
            Table(
                "amx-peers",
                "Batch 1 (some rows are of other commits, which they name)",
                ("model, temperature", "commit", "engine"),
            ),
            Table("amx-batch8", "Batch 8, of no speculation", ("model", "temperature"), _SPEED_UP),
        ),
    ),
    (
        "Calls of the engine",
        "What a call costs by rows. Without AMX one row costs memory, and 16 rows and more cost "
        "arithmetic. K/V of 8 bits take 12.0 KiB a token of SmolLM2-135M's sizes in place of 22.5; "
        "their times differ by less than runs do.",
        (
            Table("amx-calls", "ms by rows, AMX", ("model", "method"), ("{ms:.1f}",), "rows"),
            Table("epyc-calls", "ms by rows, AVX-512", ("model", "method"), ("{ms:.1f}",), "rows"),
            Table(
                "jetspec-calls",
                "A JetSpec tree of 128 rows, processor ms of two threads together, by rows",
                ("model", "method"),
                ("{processor_ms:.0f}",),
                "rows",
            ),
            Table(
                "kv-8bit-zen5",
                "Synthetic, of SmolLM2-135M's sizes, with an EAGLE-3 head: ms by tokens of context "
                "(slowest over fastest run)",
                ("call", "method"),
                ("{ms:.1f}", " ({spread:.2f})"),
                "context",
            ),
        ),
    ),
    (
        "Batch 8 at temperature 1",
        "The hardest case for drafts: steps with one draft a request take 1.48 times as long for "
        "1.57 times the tokens, and requests that start together do not end together. The "
        "controller leaves them out; with AMX it need not.",
        (Table("epyc-batch8", "Of no speculation", ("temperature",), _SPEED_UP),),
    ),
    (
        "Hybrids",
        "Acceptance lengths of a union beside its members, on the embedded target.",
        (Table("hybrids", "By workload", ("workload",), ("{acceptance_length:.2f}",)),),
    ),
    (
        "The controller",
        "Forced acceptance: `adaptive` finds the best fixed length or none. Over a mixture of "
        "experts and latent attention no cell is below 0.97 of no speculation.",
        (
            Table(
                "controller-epyc",
                "Synthetic 300m: tokens/s, and the share of the best fixed setting",
                ("batch", "acceptance"),
                ("{tokens_per_second:.1f}", " ({share_of_best:.2f})"),
            ),
            Table(
                "controller-zen3",
                "Of no speculation, medians and quartiles",
                ("model", "batch", "acceptance"),
                ("{speed_up:.2f}", " ({quartiles[0]:.2f} to {quartiles[1]:.2f})"),
            ),
        ),
    ),
    (
        "Accuracy",
        "KL divergence from the floats that a file's weights stand for, over 1,829 positions. Each "
        "engine rounds the inputs of products to 8 bits; here those of the head are not, and "
        "groups of `_K` types are smaller than llama.cpp's.",
        (
            Table(
                "accuracy-zen5",
                "Nats a token (the same most probable token)",
                ("model",),
                ("{kl_divergence:.2e}", " ({same_first_choice:.1%})"),
                across="engine",
            ),
        ),
    ),
    (
        "Native ops",
        "Products of four layers of the 1b shape; a mixture's experts beside reading them; latent "
        "attention over rows of a prompt, absorbed (as all rows are computed) and expanded.",
        (
            Table("products-zen4", "Products, ms", ("method",), ("{ms:.1f}",), "rows"),
            Table(
                "experts-zen4",
                "Experts of Qwen3-30B-A3B's sizes, ms (reading)",
                ("method",),
                ("{ms:.2f}", " ({memory_floor_ms:.2f})"),
                "rows",
            ),
            Table(
                "latent-prompts-zen5",
                "Latents of DeepSeek-V2-Lite's sizes, ms",
                ("rows", "context"),
                ("{ms:.0f}",),
            ),
        ),
    ),
    (
        "Backends",
        "A rollout of an EAGLE-3 tree (4, 5, 24) over the embedded models in float32.",
        (Table("backends-epyc", "ms by new rows", ("rows",), ("{ms:.1f}",)),),
    ),
    (
        "Replicas",
        "Prompt tokens found in caches, of 64 growing conversations of 8 groups over two replicas, "
        "and what one cache without bounds would find. The machine was loaded, which moves "
        "requests between replicas, not what a policy prefers.",
        (
            Table(
                "replica-routing",
                "Hit rate (possible)",
                ("replicas",),
                ("{hit_rate:.1%}", " ({possible_hit_rate:.1%})"),
            ),
        ),
    ),
    (
        "Python and C++",
        "One engine folder run by both, the same tokens.",
        (
            Table(
                "runtimes-epyc",
                "Tokens/s; host of a step, ms",
                ("model", "method"),
                ("{tokens_per_second:,.1f}; ", "{host_ms:.2f} of ", "{step_ms:.2f}"),
                across="engine",
            ),
        ),
    ),
)
