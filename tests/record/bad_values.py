"""Values that no config takes, by what is wrong with them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

KEYS: Mapping[str, dict[str, Any]] = {
    "a misspelt key": {"num_speculativ_tokens": 3},
    "no draft length": {"num_speculative_tokens": 0},
    "a draft length in words": {"num_speculative_tokens": "many"},
    "a wide tree": {"topk": 10**4},
    "rejection sampling": {"rejection_sample_method": "block"},
    "thresholds": {"speculative_accept_threshold_single": 0.5},
    "another method's key": {"prompt_lookup_max": 4, "medusa_choices": [[0]]},
    "a short max_model_len": {"max_model_len": 16},
    "no word for adaptive": {"adaptive": "often"},
}
"""Put into a config of every method."""

CONFIGS: Mapping[str, Any] = {
    "a number": 5,
    "True": True,
    "no method": {},
    "an unknown method": {"method": "egale3"},
    "a method of others": {"method": "lookahead"},
    "two methods": {"method": "ngram", "decoding_type": "Eagle"},
    "a hybrid of nothing": {"method": "hybrid"},
    "a hybrid of one": {"method": "hybrid", "drafters": [{"method": "ngram"}]},
    "a hybrid with a wrong member": {
        "method": "hybrid",
        "drafters": [{"method": "suffix"}, {"method": "ngram", "spam": 1}],
    },
    "a hybrid of hybrids": {
        "method": "hybrid",
        "drafters": [{"method": "suffix"}, {"method": "hybrid", "drafters": []}],
    },
    "ngram: a window that ends before it begins": {
        "method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_min": 5,
        "prompt_lookup_max": 2,
    },
    "ngram: no length": {"method": "ngram"},
    "ngram: a huge length": {"method": "ngram", "num_speculative_tokens": 10**6},
    "draft_model: tensor parallel drafts": {
        "model": "x", "num_speculative_tokens": 3, "draft_tensor_parallel_size": 0,
    },
    "suffix: a probability of 2": {"method": "suffix", "suffix_decoding_min_token_prob": 2.0},
    "draft_model: no model": {"method": "draft_model", "num_speculative_tokens": 3},
    "draft_model: an empty model": {"method": "draft_model", "model": ""},
    "draft_model: a tree of one": {
        "model": "x", "num_speculative_tokens": 3, "topk": 2, "num_draft_tokens": 1,
    },
    "draft_model: more rows than there are": {
        "model": "x", "num_speculative_tokens": 2, "topk": 2, "num_draft_tokens": 60,
    },
    "draft_model: a static tree": {"model": "x", "eagle_choices": [[0], [1]]},
    "eagle: choices without a parent": {
        "method": "eagle", "model": "x", "eagle_choices": [[0], [1, 0]],
    },
    "eagle: choices twice": {"method": "eagle", "model": "x", "eagle_choices": [[0], [0]]},
    "eagle: choices and topk": {
        "method": "eagle", "model": "x", "eagle_choices": [[0]], "topk": 4,
    },
    "medusa: no model": {"method": "medusa"},
    "medusa: wrong choices": {"method": "medusa", "model": "x", "medusa_choices": "many"},
    "dflash: a block of one": {"method": "dflash", "model": "x", "block_size": 1},
    "dflash: drafts that do not fit": {
        "method": "dflash", "model": "x", "block_size": 4, "num_speculative_tokens": 9,
    },
    "extract_hidden_states: no layers": {"method": "extract_hidden_states"},
}  # fmt: skip

OPTIONS: Mapping[str, dict[str, Any]] = {
    "an unknown one": {"spam": 1},
    "a misspelt one": {"max_batchsize": 4},
    "two names of one": {"max_batch_size": 4, "max_num_seqs": 5},
    "an unknown backend": {"backend": "aotii"},
    "a backend of others": {"backend": "openvino"},
    "an unknown device": {"device": "tpu"},
    "a numbered device": {"device": "cuda:1"},
    "an unknown dtype": {"dtype": "float8"},
    "two dtypes": {"dtype": "float32", "weight_dtype": "bfloat16"},
    "bfloat16 on onnx": {"dtype": "bfloat16", "backend": "onnx"},
    "int8 on onnx": {"weight_dtype": "int8", "backend": "onnx"},
    "a group without int8": {"weight_group_size": 32},
    "an odd block": {"tokens_per_block": 12},
    "no requests": {"max_batch_size": 0},
    "fewer rows than requests": {"max_batch_size": 8, "max_num_tokens": 4},
    "too long sequences": {"max_seq_len": 4096},
    "too short sequences": {"max_seq_len": 1},
    "tensor parallel": {"tensor_parallel_size": 2},
    "quantization": {"quantization": "awq"},
    "code of a checkpoint": {"trust_remote_code": True},
    "another cache dtype": {"kv_cache_dtype": "fp8"},
    "an unknown cache option": {"kv_cache_config": {"spam": 1}},
    "a cache of no tokens": {"kv_cache_config": {"max_tokens": 0}},
    "graphs and none": {"cuda_graph_config": True, "enforce_eager": True},
    "options of TensorRT": {"tensorrt_config": {"refit": True}},
}
"""Of `LLM`."""

SAMPLING: Mapping[str, dict[str, Any]] = {
    "a negative temperature": {"temperature": -1.0},
    "a temperature that is no number": {"temperature": float("nan")},
    "top_p of 0": {"top_p": 0.0},
    "min_p of 2": {"min_p": 2.0},
    "top_k of -3": {"top_k": -3},
    "no tokens": {"max_tokens": 0},
    "more min_tokens than max_tokens": {"max_tokens": 4, "min_tokens": 8},
    "no samples": {"n": 0},
    "too many samples": {"n": 1000},
    "too many logprobs": {"logprobs": 1000},
    "a penalty of 0": {"repetition_penalty": 0.0},
    "a presence penalty of 9": {"presence_penalty": 9.0},
    "a seed in words": {"seed": "one"},
    "an empty stop string": {"stop": [""]},
    "a bias in words": {"logit_bias": {"5": "much"}},
    "an empty bad word": {"bad_words": [[]]},
    "beam search": {"use_beam_search": True},
    "best_of": {"best_of": 4},
    "a grammar": {"guided_decoding": {"json": "{}"}},
    "a logits processor": {"logits_processors": [print]},
    "prompt logprobs": {"prompt_logprobs": 21},
    "a misspelt one": {"temprature": 1.0},
    "two names of one": {"max_tokens": 4, "max_new_tokens": 5},
}
