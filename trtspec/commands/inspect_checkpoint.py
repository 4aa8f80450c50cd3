"""``python -m trtspec.commands.inspect_checkpoint DIR``: what a checkpoint resolves to."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from trtspec.builder.checkpoints import describe_draft, load_target, read_draft, target_config
from trtspec.errors import TrtspecError


def main(arguments: Sequence[str] | None = None) -> int:
    """Print decision, config and tensors and return 0; if something does not fit, say so in one
    line and return 1.

    For an EAGLE draft without a target, only the decision on its kind is printed.
    """
    program = "python -m trtspec.commands.inspect_checkpoint"
    parser = argparse.ArgumentParser(prog=program, description=__doc__)
    parser.add_argument("checkpoint_dir", type=Path, help="checkpoint folder")
    parser.add_argument("--target", type=Path, help="read the folder as a draft for this target")
    parser.add_argument("--token-map", type=Path, help="file of the target's token ids (FR-Spec)")
    args = parser.parse_args(arguments)
    if args.token_map is not None and args.target is None:
        parser.error("--token-map needs --target")
    try:
        if args.target is not None:
            draft = read_draft(args.checkpoint_dir, target_config(args.target), args.token_map)
            print("\n".join(draft.notes))
            _print(draft)
            return 0
        kind = describe_draft(args.checkpoint_dir)
        if kind is None:
            _print(load_target(args.checkpoint_dir))
        else:
            print(f"{kind}; --target DIR checks it against its target")
    except TrtspecError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


def _print(checkpoint: Any) -> None:
    """Print a target or a draft."""
    print(json.dumps(checkpoint.config.to_dict(), indent=2))
    headers = {name: checkpoint.tensors.headers[name] for name in checkpoint.tensors}
    wide = max(len(name) for name in headers)
    for name, header in headers.items():
        shape = "x".join(map(str, header.shape))
        print(f"{name:<{wide}}  {header.dtype:<4}  {shape:<14}  {header.name} ({header.file.name})")
    print(f"{len(headers)} tensors; ignored: {', '.join(checkpoint.ignored) or 'none'}")
    print(f"fingerprint {checkpoint.fingerprint}")


if __name__ == "__main__":
    sys.exit(main())
