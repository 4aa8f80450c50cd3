"""The folder for temporary files, where compilers work and compiled packages are unpacked and run:
whether it is fit for that. And names of folders that are fit for compilers."""

from __future__ import annotations

import hashlib
import os
import re
import secrets
from pathlib import Path

from trtspec.errors import BuildError
from trtspec.writable import check_folder

_VARIABLES = ("TMPDIR", "TMP", "TEMP", "TEMPDIR")
_PLAIN = re.compile(r"[A-Za-z0-9@%+=,._/-]+")
"""What torch's command lines for C++ compilers may hold: it does not quote all that it puts there,
and takes others apart. No colon, which parts the entries of a path."""


def temporary_folder() -> Path:
    """The one that the environment names, whether or not it can be used. Python's own choice would
    be another one then, but that of torch and of compilers would not."""
    named = (os.environ.get(name) for name in _VARIABLES)
    return Path(next((path for path in named if path), "/tmp")).absolute()


def temporary_trouble(room: int = 1) -> str | None:
    """Why programs can be neither compiled nor run in the temporary folder, or None: it is missing,
    read-only, mounted noexec, or has not ``room`` bytes left. With the remedy, in one line."""
    folder = temporary_folder()
    remedy = "name another folder in TMPDIR"
    try:
        if not folder.is_dir():
            return f"the temporary folder {folder} does not exist; make it, or {remedy}"
        check_folder(folder)
        status = os.statvfs(folder)
        free = status.f_bavail * status.f_frsize
        if free < room:
            return (
                f"the temporary folder {folder} is full: {free / 2**20:.1f} MiB are free; make "
                f"room, or {remedy}"
            )
    except OSError as error:
        reason = error.strerror or error
        return f"the temporary folder {folder} cannot be written ({reason}); {remedy}"
    if status.f_flag & os.ST_NOEXEC:
        return (
            f"the temporary folder {folder} lies on a file system mounted noexec, so nothing that "
            f"was compiled can run from it; {remedy}"
        )
    return None


def is_plain(folder: str) -> bool:
    """Whether torch's command lines for compilers can hold a name."""
    return _PLAIN.fullmatch(folder) is not None


def plain_folder(folder: str) -> str:
    """A name of a folder that holds neither spaces nor anything else that command lines break at:
    its own, or that of a link to it. Links are made once, in a folder that is the user's alone.

    Raises:
        BuildError: there is no place for a link.
    """
    if is_plain(folder):
        return folder
    name = hashlib.blake2b(os.fsencode(folder), digest_size=8).hexdigest()
    tried = []
    for base in dict.fromkeys((str(temporary_folder()), "/tmp", "/var/tmp", "/dev/shm")):
        if not is_plain(base):
            continue
        link = Path(base, f"trtspec-links-{os.getuid()}", name)
        try:
            _link(link, folder)
        except OSError as error:
            tried.append(f"{link.parent}: {error.strerror or error}")
            continue
        return str(link)
    raise BuildError(
        f"C++ compilers cannot work with the folder {folder!r} because of its name, and no link to "
        f"it can be made ({'; '.join(tried)}); move it, or name a folder that can be written in "
        "TMPDIR"
    )


def _link(link: Path, folder: str) -> None:
    parent = link.parent
    parent.mkdir(mode=0o700, exist_ok=True)
    status = parent.lstat()
    if status.st_uid != os.getuid() or status.st_mode & 0o022:
        raise PermissionError(f"{parent} is not this user's alone")
    if link.is_symlink() and os.readlink(link) == folder:
        return
    fresh = parent / secrets.token_hex(8)
    fresh.symlink_to(folder)
    fresh.replace(link)
