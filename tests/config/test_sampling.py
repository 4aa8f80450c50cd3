"""SamplingParams: what is accepted, and how the rest is refused."""

from __future__ import annotations

from typing import Any

import pytest

from trtspec.config.sampling import SamplingParams, draw_seed, seed_to_int64
from trtspec.errors import RequestError, TrtspecError

NAN, INF = float("nan"), float("inf")


def test_defaults_are_greedy() -> None:
    params = SamplingParams()
    assert params.temperature == 0.0 and params.max_tokens == 32 and params.n == 1
    assert params == SamplingParams(top_k=-1) == SamplingParams(temperature=None, top_p=None)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"temperature": NAN}, "temperature=nan must be between"),
        ({"temperature": INF}, "temperature=inf"),
        ({"temperature": -0.1}, "temperature=-0.1 must be between 0.0"),
        ({"temperature": 1e-30}, "temperature=1e-30 must be 0"),
        ({"top_p": 0.0}, "top_p=0.0"),
        ({"top_p": 1.5}, "top_p=1.5 must be between 0.0 and 1.0"),
        ({"top_p": NAN}, "top_p=nan"),
        ({"top_k": -2}, "top_k=-2 must be between -1"),
        ({"min_p": -0.5}, "min_p=-0.5"),
        ({"min_p": INF}, "min_p=inf"),
        ({"max_tokens": 0}, "max_tokens=0 must be between 1"),
        ({"max_tokens": -5}, "max_tokens=-5"),
        ({"min_tokens": -1}, "min_tokens=-1"),
        ({"min_tokens": 40}, "min_tokens=40 must not exceed max_tokens=32"),
        ({"seed": 2**64}, "seed="),
        ({"repetition_penalty": 0.0}, "repetition_penalty=0.0"),
        ({"repetition_penalty": -1.0}, "repetition_penalty=-1.0"),
        ({"presence_penalty": 2.5}, "presence_penalty=2.5 must be between -2.0 and 2.0"),
        ({"frequency_penalty": NAN}, "frequency_penalty=nan"),
        ({"n": 0}, "n=0 must be between 1"),
        ({"logprobs": 21}, "logprobs=21 must be between 0 and 20"),
        ({"logprobs": True}, "`logprobs` must be int or None"),
        ({"logit_bias": {3: NAN}}, "logit_bias of token 3 is nan"),
        ({"logit_bias": {-3: 1.0}}, "token id -3"),
        ({"logit_bias": {"x": 1.0}}, "logit_bias key 'x' must be a token id"),
        ({"stop": [""]}, "empty string"),
        ({"stop": "a", "detokenize": False}, "detokenize=False"),
        ({"stop_token_ids": [-1]}, "token id -1"),
        ({"bad_words": [[]]}, "empty entry"),
        ({"bad_words_ids": [[1, -2]]}, "token id -2"),
        ({"best_of": 3}, "`best_of`=3 is refused"),
        ({"use_beam_search": True}, "`use_beam_search`=True is refused"),
        ({"length_penalty": 2.0}, "`length_penalty`=2.0 is refused"),
        ({"guided_decoding": {"json": "x"}}, "guided"),
        ({"lookahead_config": [3, 3, 3]}, "lookahead"),
        ({"return_context_logits": True}, "return_context_logits"),
        ({"speculative": False}, "`speculative` must be RequestSpeculation or None"),
        ({"speculative": {}}, "`speculative`: .*missing option `num_speculative_tokens`"),
        ({"speculative": {"num_speculative_tokens": -1}}, "num_speculative_tokens=-1 must be betw"),
        ({"speculative": {"num_speculative_tokens": 1.5}}, "must be int or None, got float"),
        ({"speculative": {"num_drafts": 1}}, "unknown option `num_drafts`"),
        ({"disable_spec_decode": True}, "write speculative={'num_speculative_tokens': 0}"),
        ({"temprature": 1.0}, "unknown option `temprature`; did you mean `temperature`"),
    ],
)
def test_refused(options: dict[str, Any], message: str) -> None:
    for make in (SamplingParams.from_dict, lambda o: SamplingParams(**o)):
        with pytest.raises(RequestError, match=message) as caught:
            make(options)
        assert isinstance(caught.value, TrtspecError) and isinstance(caught.value, ValueError)


def test_accepted_spellings() -> None:
    params = SamplingParams.from_dict(
        {
            "stop": "\n",
            "bad": ["foo", [4, 5]],
            "bad_words_ids": [[6], [4, 5]],
            "logit_bias": {"7": -100},
            "n": 2,
            "best_of": 2,
            "use_beam_search": False,
            "end_id": None,
            "top_k": None,
            "prompt_logprobs": None,
            "random_seed": -1,
        }
    )
    assert params.stop_strings == ("\n",)
    assert params.bad_words == ("foo", (4, 5)) and params.banned_sequences == ((6,), (4, 5))
    assert params.token_biases == {7: -100.0} and params.n == 2 and params.seed == -1


@pytest.mark.parametrize(
    ("asked", "depth"),
    [(None, 4), ({"num_speculative_tokens": None}, 0), ({"num_speculative_tokens": 0}, 0),
     ({"max_draft_len": 2}, 2), ({"num_assistant_tokens": 4}, 4)],
)  # fmt: skip
def test_depth_of_drafts(asked: Any, depth: int) -> None:
    assert SamplingParams(speculative=asked).max_draft_len(4) == depth


def test_deeper_drafts_than_there_are() -> None:
    params = SamplingParams.from_dict({"speculative": {"num_speculative_tokens": 5}})
    assert params.max_draft_len(5) == 5
    with pytest.raises(RequestError, match=r"5} was asked .* at most 4 deep; lower it"):
        params.max_draft_len(4)
    with pytest.raises(RequestError, match="nothing is drafted here; give 0"):
        params.max_draft_len(0)


def test_vocabulary() -> None:
    SamplingParams(stop_token_ids=(9,)).check_vocabulary(10)
    for options in ({"stop_token_ids": (10,)}, {"logit_bias": {10: 1.0}}, {"bad_words": [[1, 10]]}):
        with pytest.raises(RequestError, match="token id 10, but the vocabulary has 10"):
            SamplingParams(**options).check_vocabulary(10)  # type: ignore[arg-type]


def test_lengths_and_seeds() -> None:
    assert SamplingParams(max_tokens=5).max_output_tokens(10, 100) == 5
    assert SamplingParams(max_tokens=5).max_output_tokens(98, 100) == 2
    assert SamplingParams(max_tokens=None).max_output_tokens(10, 100) == 90
    assert 0 <= draw_seed() < 2**63
    assert [seed_to_int64(s) for s in (5, -1, 2**63, 2**64 - 1)] == [5, -1, -(2**63), -1]
