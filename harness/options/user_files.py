"""The user's own folders, and which configuration files count (docs/design.md, section 7, "Found
files").

A file that an option names counts, and so does one in the user's configuration folder. One that
lies in the current folder may be somebody else's: it counts only if this user has allowed it at
this path with these bytes (`harness trust`). Otherwise nothing of it is read.

The record of an allowed file is in the user's state folder: its path and the SHA-256 of its
content. It covers neither files that the content names nor what lies next to it.
"""

from __future__ import annotations

import functools
import logging
import os
import re
import secrets
import stat
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from harness.benchmarks.files import content
from harness.errors import BadInput
from harness.model import JSON

logger = logging.getLogger(__name__)

APPLICATION = "behavior-harness"
"""The folder of the user's own files, below those that the XDG base directory specification
names."""
SETTINGS = "harness.toml"
LARGEST = 1 << 20
"""Bytes of a file."""


@dataclass(frozen=True, slots=True)
class Document:
    """A configuration file, and what it says."""

    path: Path
    content: JSON


def user_folder(environment: Mapping[str, str], variable: str, default: str) -> Path | None:
    """Return this application's folder by the XDG base directory specification, which ignores
    relative ones."""
    base, home = Path(environment.get(variable) or ""), Path(environment.get("HOME") or "")
    if not base.is_absolute():
        base = home / default
    return base / APPLICATION if base.is_absolute() else None


def read(file: str, named: Path | None, environment: Mapping[str, str]) -> Document | None:
    """Return the `named` file, else the one called `file` in the current folder if it is allowed,
    else the user's own.

    Return None if there is none of them. Raise `BadInput` with file and line.
    """
    configured = user_folder(environment, "XDG_CONFIG_HOME", ".config")
    own = configured / file if configured else None
    if named is None and os.path.isfile(file) and own != Path(file).absolute():
        data = _allowed(Path(file), environment)
        if data is not None:
            return document(Path(file), data)
    path = named or own
    return document(path) if path and (named or os.path.isfile(path)) else None


def document(path: Path, data: bytes | None = None) -> Document:
    """Return what a TOML file says, or its bytes if given. Raise `BadInput` with file and line."""
    try:
        found = content(path, LARGEST) if data is None else data
        return Document(path, tomllib.loads(found.decode("utf-8-sig")))
    except OSError as error:
        raise BadInput(f"cannot read {path}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        message = str(error) if isinstance(error, tomllib.TOMLDecodeError) else ""
        place = re.search(r"\bat (line \d+|end)\b", message)
        where = f", {place[1]}" if place else ""
        reason = message.partition(" (at ")[0]
        # A quoted part is the file's own text, which may be a key.
        why = f" ({reason.lower()})" if reason and "'" not in reason and '"' not in reason else ""
        raise BadInput(f"{path}{where}: expected TOML in UTF-8{why}") from None


def read_private(path: Path, most: int) -> bytes | None:
    """Return the bytes of a file of at most `most` bytes, None if another user can have written it,
    or can read it."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        found = os.fstat(fd)
        private = (
            stat.S_ISREG(found.st_mode)
            and found.st_uid == os.geteuid()
            and not found.st_mode & 0o077
        )
        return os.read(fd, most) if private and found.st_size <= most else None
    finally:
        os.close(fd)


def write_private(path: Path, data: bytes) -> None:
    """Write a file for this user alone, whole or not at all. Raise `OSError`."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    new = path.with_name(f"{path.name}.{secrets.token_hex(8)}")
    fd = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with open(fd, "wb") as file:  # noqa: PTH123, a descriptor
            file.write(data)
            file.flush()
            os.fsync(fd)
        new.replace(path)
    finally:
        new.unlink(missing_ok=True)


def _allowed(path: Path, environment: Mapping[str, str]) -> bytes | None:
    """Return the content of a file that its user has allowed. Otherwise print that it is left out,
    and return None."""
    if (digest := digest_of(path, environment)) is not None:
        try:
            data = content(path, LARGEST)
        except OSError:
            data = b""
        if sha256(data).hexdigest() == digest:
            return data
    _say_ignored(path.absolute(), has_changed=digest is not None)
    return None


@functools.lru_cache
def _say_ignored(path: Path, *, has_changed: bool) -> None:
    """Print once why a file does not count."""
    why = "has changed since you allowed it" if has_changed else "was found in the current folder"
    logger.warning("%s %s and is ignored: `harness trust` shows it and allows it", path.name, why)


def digest_of(path: Path, environment: Mapping[str, str]) -> str | None:
    """Return the SHA-256 with which a file was allowed, None if it was not."""
    record = record_of(path, environment)
    found = read_private(record, 1 << 16) if record else None
    return found.partition(b" ")[0].decode("ascii", "replace") if found else None


def record_of(path: Path, environment: Mapping[str, str]) -> Path | None:
    """Return where the record of a file is. A link at the path is another file than the one that it
    leads to."""
    folder = trusted_folder(environment)
    return folder / sha256(os.fsencode(path.absolute())).hexdigest() if folder else None


def trusted_folder(environment: Mapping[str, str]) -> Path | None:
    """Return the folder of the records of what this user trusts."""
    folder = user_folder(environment, "XDG_STATE_HOME", ".local/state")
    return folder / "trusted" if folder else None
