"""vLLM, its build for the CPU included."""

import os

from protocol import main


def load(job):
    os.environ.setdefault("OMP_NUM_THREADS", str(job.threads))
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "2")
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
    import vllm

    methods = {"prompt_lookup": "ngram", "draft_model": "draft_model", "eagle3": "eagle3"}
    speculation = None
    if job.mode != "plain":
        speculation = {
            "method": methods[job.mode],
            "num_speculative_tokens": job.num_draft_tokens,
        }
        if job.mode == "prompt_lookup":
            speculation |= {"prompt_lookup_min": 2, "prompt_lookup_max": 4}
        else:
            speculation["model"] = job.draft
    llm = vllm.LLM(
        job.model,
        dtype=job.dtype,
        max_model_len=job.max_seq_len,
        max_num_seqs=job.batch_size,
        enable_prefix_caching=False,
        speculative_config=speculation,
        skip_tokenizer_init=True,
        **job.options,
    )

    def answer(prompts, max_tokens, seed):
        params = [
            vllm.SamplingParams(
                max_tokens=max_tokens,
                temperature=job.temperature,
                seed=seed + i if job.temperature > 0 else None,
                ignore_eos=True,
                stop_token_ids=job.stop_ids,
                detokenize=False,
            )
            for i in range(len(prompts))
        ]
        given = [{"prompt_token_ids": ids} for ids in prompts]
        outputs = llm.generate(given, params, use_tqdm=False)
        return [output.outputs[0].token_ids for output in outputs]

    return vllm.__version__, answer


if __name__ == "__main__":  # its own processes import this file again
    main(load)
