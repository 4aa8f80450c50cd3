"""llama.cpp's server, in this process, through xllamacpp. ``model`` and ``draft``: GGUF files."""

import json
from concurrent.futures import ThreadPoolExecutor
from urllib.request import Request, urlopen

import xllamacpp
from protocol import main

TYPES = {
    "prompt_lookup": "NGRAM_SIMPLE",
    "draft_model": "DRAFT_SIMPLE",
    "eagle3": "DRAFT_EAGLE3",
    "dflash": "DRAFT_DFLASH",
}


def load(job):
    params = xllamacpp.CommonParams()
    params.model.path = job.model
    params.n_parallel = job.batch_size
    params.n_ctx = job.max_seq_len * job.batch_size
    params.n_gpu_layers = 0
    params.verbosity = 0
    pools = [params.cpuparams, params.cpuparams_batch]
    if job.mode != "plain":
        kinds = xllamacpp.common_speculative_type
        kind = getattr(kinds, f"COMMON_SPECULATIVE_TYPE_{TYPES[job.mode]}")
        params.speculative.types = [kind]
        params.speculative.ngram_simple.size_m = job.num_draft_tokens
    if job.draft is not None:
        draft = params.speculative.draft
        draft.mparams.path = job.draft
        draft.n_max = job.num_draft_tokens
        draft.n_gpu_layers = 0
        pools += [draft.cpuparams, draft.cpuparams_batch]
    for pool in pools:
        pool.n_threads = job.threads
    for name, value in job.options.items():
        setattr(params, name, value)
    server = xllamacpp.Server(params)
    together = ThreadPoolExecutor(job.batch_size)

    def complete(ids, max_tokens, seed):
        body = {
            "prompt": ids,
            "n_predict": max_tokens,
            "ignore_eos": not job.stop_ids,
            "temperature": job.temperature,
            "top_k": 0,
            "top_p": 1.0,
            "min_p": 0.0,
            "seed": seed,
            "cache_prompt": False,
            "return_tokens": True,
        }
        address = f"{server.listening_address}/completion"
        request = Request(address, json.dumps(body).encode(), {"Content-Type": "application/json"})
        with urlopen(request) as response:
            return json.load(response)["tokens"]

    def answer(prompts, max_tokens, seed):
        seeds = range(seed, seed + len(prompts))
        return list(together.map(complete, prompts, [max_tokens] * len(prompts), seeds))

    return f"xllamacpp {xllamacpp.__version__}", answer


main(load)
