"""check_images.py <library> <architecture>...: does every CUDA source hold an image for each?

Architectures are spelled as CMake's CUDA_ARCHITECTURES: 90-real is machine code (ELF), 90-virtual
PTX, 90 both. Read is the format of fatbinary, which has not changed for years: a container for each
source, and in it images with their kind and architecture.
"""

import struct
import sys
from pathlib import Path

MAGIC = struct.pack("<I", 0xBA55ED50)
CONTAINER = struct.Struct("<4sHHQ")  # magic, version, bytes of this header, bytes behind it
IMAGE = struct.Struct("<HHIQ12xI")  # kind, version, bytes of this header, bytes behind it, -, arch
KINDS = {1: "virtual", 2: "real"}


def containers(data: bytes) -> list[set[str]]:
    found = []
    begin = data.find(MAGIC)
    while begin >= 0:
        _, _, header, size = CONTAINER.unpack_from(data, begin)
        at, end = begin + header, begin + header + size
        images = set()
        while at < end:
            kind, _, header, size, architecture = IMAGE.unpack_from(data, at)
            images.add(f"{architecture}-{KINDS.get(kind, kind)}")
            at += header + size
        found.append(images)
        begin = data.find(MAGIC, end)
    return found


def main(library: str, *architectures: str) -> int:
    wanted = set()
    for architecture in architectures:
        both = "-" not in architecture
        wanted |= {f"{architecture}-{kind}" for kind in KINDS.values()} if both else {architecture}
    found = containers(Path(library).read_bytes())
    missing = [wanted - images for images in found]
    print(f"{len(found)} sources with images {', '.join(sorted(set().union(*found)))}")
    for images in filter(None, missing):
        print(f"a source lacks {', '.join(sorted(images))}")
    return 1 if any(missing) or not found else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
