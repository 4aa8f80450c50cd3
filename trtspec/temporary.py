"""Whether the temporary folder, where compilers work and compiled packages are unpacked and run, is
usable, and folder names that compilers can handle."""

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
"""Characters allowed in torch's command lines for C++ compilers, which it quotes only in part and
splits again. No colon, because it separates the entries of a path."""


def temporary_folder() -> Path:
    """The folder named by the environment, usable or not. Python would silently choose another one;
    torch and compilers would not."""
    named = (os.environ.get(name) for name in _VARIABLES)
    return Path(next((path for path in named if path), "/tmp")).absolute()


def temporary_trouble(room: int = 1) -> str | None:
    """Why programs cannot be compiled or run in the temporary folder, with the remedy, in one line:
    it is missing, read-only, mounted noexec, or has fewer than ``room`` bytes left. None if they
    can."""
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
    """Whether a name is safe in torch's command lines for compilers."""
    return _PLAIN.fullmatch(folder) is not None


def plain_folder(folder: str) -> str:
    """A path to a folder without spaces or other characters that break command lines: its own path,
    or a link to it. Links are created once, in a folder that belongs to the user.

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
