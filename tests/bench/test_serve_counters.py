"""Acceptance from the counters of a server, trtspec's or vLLM's."""

from __future__ import annotations

import pytest

from trtspec.bench.serving.counters import SpeculationCounters, acceptance, read_counters

VLLM = """\
# HELP vllm:spec_decode_num_drafts_total Number of spec decoding drafts.
# TYPE vllm:spec_decode_num_drafts_total counter
vllm:spec_decode_num_drafts_total{engine="0",model_name="a {b} \\"c\\" 9"} 100.0
vllm:spec_decode_num_drafts_total{engine="1",model_name="m"} 1.1e+01
vllm:spec_decode_num_drafts_created{engine="0",model_name="m"} 1.7e+09
vllm:spec_decode_num_draft_tokens_total{engine="0",model_name="m"} 400.0 1700000000000
vllm:spec_decode_num_accepted_tokens_total{engine="0",model_name="m"} 150.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="m",position="0"} 90.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="m",position="1"} 60.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="m",position="x"} 7.0
vllm:spec_decode_num_draft_tokens_per_pos_total{engine="0",position="0"} 8.0
vllm:other_spec_decode_num_drafts_total 5.0
vllm:generation_tokens_total 5000.0
"""
OURS = """\
trtspec:spec_decode_num_drafts_total{model_name="m"} 6.0
trtspec:spec_decode_num_draft_tokens_total{model_name="m"} 24.0
trtspec:spec_decode_num_accepted_tokens_total{model_name="m"} 10.0
trtspec:spec_decode_num_accepted_tokens_per_pos_total{model_name="m",position="0"} 4.0
trtspec:spec_decode_num_accepted_tokens_per_pos_total{model_name="m",position="1"} 4.0
trtspec:spec_decode_num_accepted_tokens_per_pos_total{model_name="m",position="2"} 2.0
trtspec:spec_decode_steps_total{accepted="0",model_name="m"} 4.0
trtspec:spec_decode_steps_total{accepted="1",model_name="m"} 0.0
trtspec:spec_decode_steps_total{accepted="2",model_name="m"} 2.0
trtspec:spec_decode_steps_total{accepted="3",model_name="m"} 2.0
"""
ZERO = SpeculationCounters(0, 0, 0)


def test_counters_are_summed_and_others_left_alone() -> None:
    assert read_counters(VLLM) == SpeculationCounters(111, 400, 150, {0: 90, 1: 60})
    assert read_counters(OURS.replace("trtspec:", "")) == read_counters(OURS)


@pytest.mark.parametrize("text", [None, "", "python_info 1\n", "<html></html>", "a:b_total NaN"])
def test_no_counters(text: str | None) -> None:
    assert read_counters(text) is None


def test_lengths_per_verify_step_where_steps_are_counted() -> None:
    figures = acceptance(ZERO, read_counters(OURS))
    assert figures == {
        "acceptance_length": 18 / 8,  # as the executor's own metrics have it for these steps
        "acceptance_length_per": "step",
        "acceptance_rate": 10 / 24,
        "num_steps": 8,
        "num_drafts": 6,
        "num_draft_tokens": 24,
        "num_accepted_tokens": 10,
        "num_accepted_tokens_per_pos": [4, 4, 2],
        "acceptance_rate_per_pos": [4 / 6, 4 / 6, 2 / 6],
        "histogram": [4, 0, 2, 2],
    }


def test_lengths_per_draft_elsewhere_and_only_what_is_new() -> None:
    before = SpeculationCounters(11, 300, 50, {0: 40})
    figures = acceptance(before, read_counters(VLLM))
    assert figures is not None
    assert (figures["acceptance_length"], figures["acceptance_length_per"]) == (2.0, "draft")
    assert (figures["num_draft_tokens"], figures["acceptance_rate"]) == (100, 1.0)
    assert figures["num_accepted_tokens_per_pos"] == [50, 60]
    assert figures["num_steps"] is None and figures["histogram"] is None


def test_no_figures_without_drafts_or_after_a_restart() -> None:
    some = SpeculationCounters(5, 20, 9, {0: 5, 1: 4})
    assert acceptance(None, some) is acceptance(some, None) is acceptance(some, some) is None
    assert acceptance(some, ZERO) is None
    assert acceptance(some, SpeculationCounters(6, 30, 8, {0: 8})) is None
    assert acceptance(some, SpeculationCounters(6, 30, 10, {0: 8, 1: 2})) is None
