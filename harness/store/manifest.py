"""What a run is, in one file beside its results: `run_<subset>.json` (docs/design.md, section 5)."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import orjson

from harness.errors import BadInput, MachineError
from harness.model import JSON
from harness.store.atomic import write

FORMAT = 1
STATES = RUNNING, STOPPED, INCOMPLETE, COMPLETE = "running", "stopped", "incomplete", "complete"


@dataclass(slots=True)
class Manifest:
    """`identity` must match on resume, `provenance` is recorded, `tuning` is free; `state` is one of
    `running` (or died), `stopped` (by a signal, the endpoint or the machine), `incomplete` (all played,
    some users failed), `complete`. `results_sha256` is set with the last. Times are ISO 8601, UTC."""

    subset: str
    identity: JSON
    provenance: JSON
    tuning: JSON
    tasks: JSON
    selection: JSON
    state: str = RUNNING
    counts: JSON = field(default_factory=dict)
    times: JSON = field(default_factory=dict)
    results_sha256: str | None = None
    format: int = FORMAT

    def save(self, path: Path) -> None:
        write(path, orjson.dumps(asdict(self), option=orjson.OPT_INDENT_2) + b"\n")


def load(path: Path) -> Manifest | None:
    """None where there is none. Raises `BadInput` for one that cannot be used."""
    try:
        data: Any = orjson.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    except OSError as error:
        raise MachineError(f"cannot read {path}: {error.strerror}") from error
    except ValueError:
        raise BadInput(f"{path} is not JSON: put back a copy, or move the folder aside") from None
    known = {f.name for f in fields(Manifest)}
    if type(data) is not dict or data.get("format") != FORMAT:
        raise BadInput(f"{path}: field format: expected {FORMAT}; another version of the harness wrote it")
    objects = ("identity", "provenance", "tuning", "tasks", "selection", "counts", "times")
    for name in objects:
        if type(data.get(name)) is not dict:
            raise BadInput(f"{path}: field {name}: expected an object")
    if type(data.get("subset")) is not str:
        raise BadInput(f"{path}: field subset: expected a name")
    if data.get("state") not in STATES:
        raise BadInput(f"{path}: field state: expected one of {', '.join(STATES)}")
    if type(data.get("results_sha256")) not in (str, type(None)):
        raise BadInput(f"{path}: field results_sha256: expected a hash or null")
    return Manifest(**{name: value for name, value in data.items() if name in known})


def differences(old: JSON, new: JSON, prefix: str = "") -> dict[str, tuple[Any, Any]]:
    """Fields that differ, dotted names of nested ones, with both values; a missing one is None."""
    found: dict[str, tuple[Any, Any]] = {}
    for name in dict.fromkeys((*old, *new)):
        before, after = old.get(name), new.get(name)
        if isinstance(before, dict) and isinstance(after, dict):
            found |= differences(before, after, f"{prefix}{name}.")
        elif before != after:
            found[prefix + name] = (before, after)
    return found
