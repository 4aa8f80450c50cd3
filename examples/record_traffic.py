"""Record the target's hidden states while it serves, for `trtspec-train --hidden_states`.

python examples/record_traffic.py states
"""

from __future__ import annotations

import sys
from pathlib import Path

from safetensors.torch import load_file

from trtspec import LLM, SamplingParams

PROMPTS = ["def read(", "class Reader", "import os\n"]


def main() -> None:
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "states")
    config = {
        "method": "extract_hidden_states",
        "capture_layers": "eagle3",  # the layers that such a head of this target would read
        "shared_storage_path": str(folder),
    }
    with LLM("trtspec-tiny", speculative_config=config) as llm:
        outputs = llm.generate(PROMPTS, SamplingParams(max_tokens=24, temperature=0.8, seed=3))
        paths = [output.kv_transfer_params["hidden_states_path"] for output in outputs]
    for path in paths:
        held = {name: tuple(tensor.shape) for name, tensor in load_file(path).items()}
        print(f"{Path(path).name}: {held}")


if __name__ == "__main__":
    main()
