"""Adapters by request: one prompt with two adapters and without, in one batch, with drafts.

Give a folder of your own in PEFT's format; without one, random adapters are made here.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

import torch
from safetensors.torch import save_file

from trtspec import LLM, LoRARequest, SamplingParams

RANK, HIDDEN, LAYERS = 8, 256, 8
"""HIDDEN and LAYERS are those of trtspec-tiny."""


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        paths = sys.argv[1:] or [str(make_adapter(Path(folder, f"random-{n}"), n)) for n in (1, 2)]
        adapters = [LoRARequest(Path(path).name, n, path) for n, path in enumerate(paths, start=1)]
        room = {"enable_lora": True, "max_loras": len(adapters), "max_lora_rank": RANK}
        with LLM("trtspec-tiny", speculative_config={"method": "suffix"}, **room) as llm:
            asked = [None, *adapters]
            params = SamplingParams(max_tokens=24, temperature=0)
            outputs = llm.generate(["def main("] * len(asked), params, lora_request=asked)
            for adapter, output in zip(asked, outputs, strict=True):
                print(f"--- {adapter.lora_name if adapter else 'no adapter'}")
                print(output.prompt + output.outputs[0].text)


def make_adapter(folder: Path, seed: int) -> Path:
    """A random adapter of the attention's output, as PEFT writes one."""
    folder.mkdir()
    config = {"peft_type": "LORA", "r": RANK, "lora_alpha": RANK, "target_modules": ["o_proj"]}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    noise = torch.Generator().manual_seed(seed)
    tensors = {}
    for layer in range(LAYERS):
        name = f"base_model.model.model.layers.{layer}.self_attn.o_proj"
        for part, shape in (("lora_A", (RANK, HIDDEN)), ("lora_B", (HIDDEN, RANK))):
            tensors[f"{name}.{part}.weight"] = torch.randn(shape, generator=noise) / 8
    save_file(tensors, folder / "adapter_model.safetensors")
    return folder


if __name__ == "__main__":
    main()
