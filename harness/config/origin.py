"""Whether a run is this user's own, and whether its code may be run (docs/design.md, section 7).

A run's folder may come from somebody else, who wrote every byte of it. So each manifest that `run` or `resume` writes
has a seal: HMAC-SHA256 with a secret of this user's own, over what decides where requests, keys and trust go and which
code is run. The secret is outside the results, in `$XDG_STATE_HOME` (or `~/.local/state`) `/behavior-harness/key`.

- A run with a valid seal was started or resumed by this user; also a copy of its folder on the same machine.
- A run without a seal, with a seal by another secret, or with a changed part that the seal covers, was not.
- The secret also seals the cached indexes of tasks files (`harness/store/tasks.py`).
- Not covered: tuning, counts, times and the path of the tasks; replies and records, which `verify` checks.
"""

from __future__ import annotations

import functools
import hmac
import os
import secrets
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import orjson

from harness.config.user_files import read_private, user_folder, write_private
from harness.errors import BadInput
from harness.store.manifest import Manifest
from harness.ui.streams import can_ask, tell

SHARED = (
    "endpoint",
    "key_from",
    "source",
    "sources",
    "provider",
    "providers_file",
    "headers",
    "address_from",
    "ca_file",
)
"""Parts of the provenance that decide where requests and keys go; the same for all runs of one plan."""
SEALED = (*SHARED, "key_check", "benchmark")
"""Parts of the provenance that a seal covers, with subset, identity and selection."""
LATER = ("sources", "benchmark")
"""Those that manifests of 0.1.0 do not have, so that their seals do not cover them."""

SECRET_BYTES = 32
UNKNOWN = "nothing shows that this run was made by you on this machine"


def seal(manifest: Manifest, environment: Mapping[str, str]) -> str | None:
    """Return the seal of a manifest, None if this user's secret can be neither read nor made."""
    own = secret(environment)
    return _sealed(manifest, own) if own else None


def secret(environment: Mapping[str, str]) -> bytes | None:
    """Return this user's secret, None if it can be neither read nor made."""
    path = _path(environment)
    return (_read(path) or _made(path)) if path else None


def is_own(manifest: Manifest, environment: Mapping[str, str]) -> bool:
    """Return whether a manifest has the seal that this user's secret gives it."""
    path, found = _path(environment), manifest.provenance.get("origin")
    own = _read(path) if path and found else None
    return bool(own and hmac.compare_digest(_sealed(manifest, own).encode(), str(found).encode()))


def where_secret_is_missing(environment: Mapping[str, str]) -> str:
    """Return the note for a run that could not be sealed."""
    return (
        f"your secret cannot be kept in {_path(environment) or '~/.local/state'}, so later nothing shows that this run "
        "is yours: `resume` needs --name, --api-url if the command gave the address, and --trust for code"
    )


def check_trust(run: str, folder: Path, files: Mapping[str, str], *, trust: bool) -> None:
    """Ask once, on a terminal, whether the code in a run's folder may be run. Raise `BadInput` if it may not."""
    if trust:
        return
    why = f"its prompt or agent in {folder} is code, and {UNKNOWN}"
    if not can_ask():
        raise BadInput(f"{why}: read it, and give --trust to run it")
    if not _agreed(f"{run}: {why}. Run it? [y/N]", tuple(files.items())):
        raise BadInput(f"{why}: it was not run")


@functools.lru_cache
def _agreed(question: str, files: tuple[tuple[str, str], ...]) -> bool:
    """Return the user's answer; ask only once for the same `files` of a folder."""
    tell(question)
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def _sealed(manifest: Manifest, own: bytes) -> str:
    found: Mapping[str, object] = manifest.provenance
    provenance = {name: found.get(name) for name in SEALED if name in found or name not in LATER}
    covered = [manifest.subset, manifest.identity, provenance, manifest.selection]
    return hmac.new(own, orjson.dumps(covered, option=orjson.OPT_SORT_KEYS), "sha256").hexdigest()


def _path(environment: Mapping[str, str]) -> Path | None:
    """Return the file of the secret."""
    folder = user_folder(environment, "XDG_STATE_HOME", ".local/state")
    return folder / "key" if folder else None


def _read(path: Path) -> bytes | None:
    """Return the secret, None if others than this user can have written or read its file."""
    found = read_private(path, SECRET_BYTES)
    return found if found and len(found) == SECRET_BYTES else None


def _made(path: Path) -> bytes | None:
    """Make a secret, atomically, and return it, or the one of another process that was first; replace no file."""
    try:
        with suppress(FileExistsError):
            write_private(path, secrets.token_bytes(SECRET_BYTES), os.link)
    except OSError:
        return None
    return _read(path)
