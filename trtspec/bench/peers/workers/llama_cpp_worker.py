"""llama.cpp through llama-cpp-python. ``model``: a GGUF file."""

from itertools import islice

import llama_cpp
from llama_cpp.llama_speculative import LlamaPromptLookupDecoding
from protocol import main, one_by_one


def load(job):
    draft = None
    if job.mode == "prompt_lookup":
        draft = LlamaPromptLookupDecoding(num_pred_tokens=job.num_draft_tokens)
    llm = llama_cpp.Llama(
        job.model,
        n_ctx=job.max_seq_len,
        n_threads=job.threads,
        n_threads_batch=job.threads,
        draft_model=draft,
        logits_all=draft is not None,
        verbose=False,
        **job.options,
    )

    def answer(ids, max_tokens, seed):
        llm.reset()
        llm.set_seed(seed)
        sampled = llm.generate(
            ids, top_k=0, top_p=1.0, min_p=0.0, temp=job.temperature, repeat_penalty=1.0
        )
        return list(islice(sampled, max_tokens))

    return "llama.cpp", llama_cpp.__version__, one_by_one(answer)


main(load)
