"""trtspec itself. mode: any; ``options["speculative_config"]`` says what speculates."""

from protocol import main

import trtspec
from trtspec import LLM, SamplingParams


def load(job):
    llm = LLM(
        job.model,
        job.options["speculative_config"] or False,
        max_batch_size=job.batch_size,
        kv_cache_config={"enable_block_reuse": False},
    )

    def answer(prompts, max_tokens, seed):
        params = [
            SamplingParams(
                max_tokens=max_tokens,
                temperature=job.temperature,
                seed=seed + i,
                ignore_eos=True,
                stop_token_ids=job.stop_ids,
            )
            for i in range(len(prompts))
        ]
        outputs = llm.generate(prompts, params, use_tqdm=False)
        for output in outputs:
            if output.error is not None:
                raise output.error
        return [output.outputs[0].token_ids for output in outputs]

    return trtspec.__version__, answer


main(load)
