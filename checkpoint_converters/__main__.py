"""``python -m checkpoint_converters DIR``: what a checkpoint resolves to, and its tensors."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from checkpoint_converters.checkpoint import load_checkpoint
from trtspec.errors import TrtspecError


def main(arguments: Sequence[str] | None = None) -> int:
    """Print config and tensor table and return 0; or say in one line what does not fit: 1."""
    parser = argparse.ArgumentParser(prog="python -m checkpoint_converters", description=__doc__)
    parser.add_argument("checkpoint_dir", type=Path, help="Hugging Face folder with safetensors")
    folder = parser.parse_args(arguments).checkpoint_dir
    try:
        checkpoint = load_checkpoint(folder)
    except TrtspecError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(json.dumps(checkpoint.config.to_dict(), indent=2))
    headers = {name: checkpoint.tensors.header(name) for name in checkpoint.tensors}
    wide = max(len(name) for name in headers)
    for name, header in headers.items():
        shape = "x".join(map(str, header.shape))
        print(f"{name:<{wide}}  {header.dtype:<4}  {shape:<14}  {header.name} ({header.file.name})")
    print(f"{len(headers)} tensors; ignored: {', '.join(checkpoint.ignored) or 'none'}")
    print(f"fingerprint {checkpoint.fingerprint}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
