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
MAX_FILE_BYTES = 1 << 20
"""Bytes of a file."""


@dataclass(frozen=True, slots=True)
class Document:
    """A configuration file, and what it says."""

    path: Path
    content: JSON


def user_folder(environment: Mapping[str, str], variable: str, default: str) -> Path | None:
    """Return this application's folder by the XDG base directory specification, which ignores
    relative ones."""
    base = Path(environment.get(variable) or "")
    home = Path(environment.get("HOME") or "")
    if not base.is_absolute():
        base = home / default
    if base.is_absolute():
        return base / APPLICATION
    return None


def read(file: str, named: Path | None, environment: Mapping[str, str]) -> Document | None:
    """Return the `named` file, else the one called `file` in the current folder if it is allowed,
    else the user's own.

    Return None if there is none of them. Raise `BadInput` with file and line.
    """
    configured = user_folder(environment, "XDG_CONFIG_HOME", ".config")
    user_path = None
    if configured:
        user_path = configured / file
    # In the configuration folder itself the file is the user's own and needs no record.
    if named is None and os.path.isfile(file) and user_path != Path(file).absolute():
        data = _allowed(Path(file), environment)
        if data is not None:
            return document(Path(file), data)
    path = named or user_path
    if path and (named or os.path.isfile(path)):
        return document(path)
    return None


def document(path: Path, data: bytes | None = None) -> Document:
    """Return what a TOML file says, or its bytes if given. Raise `BadInput` with file and line."""
    try:
        text = content(path, MAX_FILE_BYTES) if data is None else data
        return Document(path, tomllib.loads(text.decode("utf-8-sig")))
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


def read_private(path: Path, max_bytes: int) -> bytes | None:
    """Return the bytes of a file of at most `max_bytes`, None if another user can have written it,
    or can read it."""
    try:
        # A link could lead to another file of this user, and a pipe would block until somebody
        # writes.
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        # Of the open file: a moment later the path may lead to another one.
        status = os.fstat(fd)
        is_own = stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid()
        if not is_own or status.st_mode & 0o077 or status.st_size > max_bytes:
            return None
        return os.read(fd, max_bytes)
    finally:
        os.close(fd)


def write_private(path: Path, data: bytes) -> None:
    """Write a file for this user alone, whole or not at all. Raise `OSError`."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    new = path.with_name(f"{path.name}.{secrets.token_hex(8)}")
    # O_EXCL: a file or link that is there already is never written to.
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
    digest = digest_of(path, environment)
    if digest is not None:
        try:
            data = content(path, MAX_FILE_BYTES)
        except OSError:
            data = b""
        # The bytes that were hashed, not read again: the file may change in between.
        if sha256(data).hexdigest() == digest:
            return data
    _say_ignored(path.absolute(), has_changed=digest is not None)
    return None


@functools.lru_cache
def _say_ignored(path: Path, *, has_changed: bool) -> None:
    """Print once why a file does not count."""
    why = "was found in the current folder"
    if has_changed:
        why = "has changed since you allowed it"
    logger.warning("%s %s and is ignored: `harness trust` shows it and allows it", path.name, why)


def digest_of(path: Path, environment: Mapping[str, str]) -> str | None:
    """Return the SHA-256 with which a file was allowed, None if it was not."""
    record = record_of(path, environment)
    text = None
    if record:
        text = read_private(record, 1 << 16)
    if text:
        return text.partition(b" ")[0].decode("ascii", "replace")
    return None


def record_of(path: Path, environment: Mapping[str, str]) -> Path | None:
    """Return where the record of a file is. A link at the path is another file than the one that it
    leads to."""
    folder = trusted_folder(environment)
    if folder:
        return folder / sha256(os.fsencode(path.absolute())).hexdigest()
    return None


def trusted_folder(environment: Mapping[str, str]) -> Path | None:
    """Return the folder of the records of what this user trusts."""
    folder = user_folder(environment, "XDG_STATE_HOME", ".local/state")
    if folder:
        return folder / "trusted"
    return None
