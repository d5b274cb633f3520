"""What this user has run or named on this machine before (docs/design.md, section 7, "Folders from
others").

A run's folder may come from somebody else, who wrote every byte of it. So some of what it names is
used only if a command of this user has used the very same before: code of a benchmark, prompt or
agent, with its settings, and an endpoint file. A record is a file in `$XDG_STATE_HOME` (or
`~/.local/state`) `/behavior-harness/trusted/`, called by the SHA-256 of what it is about; others
can neither write nor read it. Where none can be kept, nothing is known.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Any

import orjson

from harness.options.user_files import read_private, trusted_folder, write_private
from harness.store.manifest import Manifest

RECORD_LIMIT = 1 << 24
"""Bytes."""
NAMED_FILES = ("benchmark", "source", "sources")
"""Parts of the provenance that name files of this machine with code or a prompt."""


def remember(facts: Sequence[Any], environment: Mapping[str, str]) -> None:
    """Record that this user has used something; without a place for records nothing happens."""
    record = _record(facts, environment)
    if record is not None and not remembers(facts, environment):
        # A home folder that cannot be written must not end a run: `resume` then needs --trust.
        with suppress(OSError):
            write_private(record, _encoded(facts))


def remembers(facts: Sequence[Any], environment: Mapping[str, str]) -> bool:
    """Return whether this user has used the very same before."""
    record = _record(facts, environment)
    return record is not None and read_private(record, RECORD_LIMIT) == _encoded(facts)


def code_of(manifest: Manifest) -> list[Any]:
    """Return what decides which code a run plays: its files by their hashes, its settings, and
    where files are from."""
    identity = manifest.identity
    provenance = {**manifest.provenance}
    named = [provenance.get(name) for name in NAMED_FILES]
    return ["code", identity["benchmark"], identity["settings"], identity["files"], *named]


def remember_code(manifest: Manifest, environment: Mapping[str, str]) -> None:
    """Record the code of a run that begins or goes on, if any file was named for it."""
    if not set(NAMED_FILES).isdisjoint(
        name for name, value in manifest.provenance.items() if value
    ):
        remember(code_of(manifest), environment)


def _encoded(facts: Sequence[Any]) -> bytes:
    # Sorted: settings in another order are the same settings.
    return orjson.dumps(facts, option=orjson.OPT_SORT_KEYS)


def _record(facts: Sequence[Any], environment: Mapping[str, str]) -> Path | None:
    folder = trusted_folder(environment)
    if folder:
        return folder / sha256(_encoded(facts)).hexdigest()
    return None
