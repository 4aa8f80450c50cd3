"""Hugging Face transformers: generate, prompt lookup and assisted generation."""

import torch
import transformers
from protocol import main
from transformers import AutoModelForCausalLM, GenerationConfig


def load(job):
    torch.set_num_threads(job.threads)
    dtype = getattr(torch, job.dtype)
    model = AutoModelForCausalLM.from_pretrained(job.model, dtype=dtype).eval()
    extra = {}
    if job.mode == "prompt_lookup":
        extra["prompt_lookup_num_tokens"] = job.num_draft_tokens
    if job.mode == "draft_model":
        assistant = AutoModelForCausalLM.from_pretrained(job.draft, dtype=dtype).eval()
        assistant.generation_config.num_assistant_tokens = job.num_draft_tokens
        assistant.generation_config.num_assistant_tokens_schedule = "constant"
        assistant.generation_config.assistant_confidence_threshold = 0.0
        extra["assistant_model"] = assistant
    # Assisted generation takes one sequence at a time.
    size = 1 if extra else job.batch_size

    def answer(prompts, max_tokens, seed):
        torch.manual_seed(seed)
        config = GenerationConfig(
            max_new_tokens=max_tokens,
            min_new_tokens=None if job.stop_ids else max_tokens,
            eos_token_id=job.stop_ids or None,
            do_sample=job.temperature > 0,
            temperature=job.temperature if job.temperature > 0 else None,
            top_k=0 if job.temperature > 0 else None,
            pad_token_id=0,
        )
        tokens = []
        for first in range(0, len(prompts), size):
            part = prompts[first : first + size]
            width = max(map(len, part))
            ids = torch.tensor([[0] * (width - len(p)) + p for p in part])
            mask = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in part])
            with torch.inference_mode():
                found = model.generate(ids, attention_mask=mask, generation_config=config, **extra)
            tokens += found[:, width : width + max_tokens].tolist()
        return tokens

    return transformers.__version__, answer


main(load)
