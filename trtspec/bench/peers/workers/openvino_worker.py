"""OpenVINO GenAI on the CPU. ``model``: a folder that optimum-cli exported, or a GGUF file;
``draft``: such a folder."""

import numpy as np
import openvino as ov
import openvino_genai as genai
from protocol import main, one_by_one


def load(job):
    properties = {"INFERENCE_NUM_THREADS": job.threads, **job.options}
    if job.dtype == "float32":
        properties["INFERENCE_PRECISION_HINT"] = "f32"
    if job.batch_size > 1 or job.mode in ("draft_model", "eagle3"):
        scheduler = genai.SchedulerConfig()
        scheduler.max_num_seqs = job.batch_size
        scheduler.enable_prefix_caching = False
        scheduler.cache_size = 2
        properties["scheduler_config"] = scheduler
    if job.mode in ("draft_model", "eagle3"):
        try:
            properties["draft_model"] = genai.draft_model(job.draft, "CPU")
        except RuntimeError as error:
            if not job.draft.endswith(".gguf"):
                raise
            raise ValueError("OpenVINO GenAI reads no GGUF file as a draft") from error
    if job.mode == "prompt_lookup":
        properties["prompt_lookup"] = True
    pipeline = genai.LLMPipeline(job.model, "CPU", **properties)

    def config_of(max_tokens, seed):
        config = genai.GenerationConfig()
        config.max_new_tokens = max_tokens
        config.ignore_eos = not job.stop_ids
        config.stop_token_ids = set(job.stop_ids)
        config.apply_chat_template = False
        if job.temperature > 0:
            config.do_sample = True
            config.temperature = job.temperature
            config.rng_seed = seed
        if job.mode != "plain":
            config.num_assistant_tokens = job.num_draft_tokens
        if job.mode == "prompt_lookup":
            config.max_ngram_size = 3
        return config

    def alone(ids, max_tokens, seed):
        config = config_of(max_tokens, seed)
        return pipeline.generate(ov.Tensor(np.array([ids], np.int64)), config).tokens[0]

    def together(prompts, max_tokens, seed):
        width = max(map(len, prompts))
        ids = np.array([[0] * (width - len(p)) + p for p in prompts], np.int64)
        mask = np.array([[0] * (width - len(p)) + [1] * len(p) for p in prompts], np.int64)
        inputs = genai.TokenizedInputs(ov.Tensor(ids), ov.Tensor(mask))
        return pipeline.generate(inputs, config_of(max_tokens, seed)).tokens

    def in_batches(prompts, max_tokens, seed):
        size, tokens = job.batch_size, []
        for first in range(0, len(prompts), size):
            tokens += together(prompts[first : first + size], max_tokens, seed)
        return tokens

    answer = in_batches if job.batch_size > 1 else one_by_one(alone)
    return genai.__version__, answer


main(load)
