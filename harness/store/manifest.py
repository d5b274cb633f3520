"""What a run is, in one file with its results: `run_<subset>.json` (docs/design.md, section 5)."""

from __future__ import annotations

import errno
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import orjson

from harness.benchmarks.files import DOCUMENT_MOST, content
from harness.defaults import BITS_64, CONCURRENCY_MOST, RETRIES_MOST, SECONDS_MOST, STREAMS
from harness.errors import BadInput, MachineError
from harness.model import JSON
from harness.store.atomic import write
from harness.store.disk import DISK, Disk

FORMAT = 1
STATES = RUNNING, STOPPED, INCOMPLETE, COMPLETE = "running", "stopped", "incomplete", "complete"


@dataclass(slots=True)
class Manifest:
    """`identity` must match on resume, `provenance` is recorded, `tuning` is free; `state` is one of
    `running` (or died), `stopped` (by a signal or the endpoint), `incomplete` (all played,
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

    def save(self, path: Path, disk: Disk = DISK) -> None:
        write(path, orjson.dumps(asdict(self), option=orjson.OPT_INDENT_2) + b"\n", disk=disk)


def load(path: Path) -> Manifest | None:
    """None where there is none. Raises `BadInput` for one that cannot be used, naming file and field."""
    try:
        data: Any = orjson.loads(content(path, DOCUMENT_MOST))
    except FileNotFoundError:
        return None
    except OSError as error:
        kind = BadInput if error.errno == errno.EFBIG else MachineError
        raise kind(f"cannot read {path}: {error.strerror}") from error
    except ValueError:
        raise BadInput(f"{path} is not JSON: put back a copy, or move the folder aside") from None
    if type(data) is not dict or data.get("format") != FORMAT:
        raise BadInput(f"{path}: field format: expected {FORMAT}; another version of the harness wrote it")
    if wrong := _wrong(data):
        raise BadInput(f"{path}: field {wrong}")
    try:
        orjson.dumps(data)
    except TypeError:
        raise BadInput(f"{path}: nested too deep: put back a copy, or move the folder aside") from None
    known = {f.name for f in fields(Manifest)}
    return Manifest(**{name: value for name, value in data.items() if name in known})


NAME_BYTES = 255
"""Of a file's name, which is what file systems take."""

LARGEST = 1e15
"""What no moment, number of users or limit comes near, and beyond which numbers are no longer whole."""

MISSING: Any = object()
"""What a field holds that is not there."""


def _is_text(value: Any) -> bool:
    return type(value) is str


def _is_text_or_null(value: Any) -> bool:
    return value is None or type(value) is str


def _is_natural(value: Any) -> bool:
    return type(value) is int and 0 <= value < BITS_64


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and abs(value) < LARGEST


def _is_object(value: Any) -> bool:
    return type(value) is dict


def _are_seconds(value: Any) -> bool:
    return _is_number(value) and 0 < value <= SECONDS_MOST


def _is_limit(value: Any) -> bool:
    return value is None or (type(value) in (int, float) and value > 0)


def _are_slots(value: Any) -> bool:
    return type(value) is int and 0 < value <= CONCURRENCY_MOST


def _is_schedule(value: Any) -> bool:
    """What `Progress.schedule` tells of a session, None for one that played nobody."""
    if value is None:
        return True
    if type(value) is not dict or not all(_is_number(value.get(name)) for name in SCHEDULE):
        return False
    ratio = value.get("ratio", MISSING)
    return (ratio is None or _is_number(ratio)) and type(value.get("runs", 1)) is int


def is_file_name(name: str) -> bool:
    """Whether a prompt or agent can be kept under a name in the run's folder, and nowhere else."""
    return 0 < len(name.encode()) <= NAME_BYTES and not name.startswith(".") and not {"/", "\\", "\0"} & set(name)


def _are_hashes(value: Any) -> bool:
    return type(value) is dict and all(is_file_name(name) and _is_text(digest) for name, digest in value.items())


def _are_texts(value: Any) -> bool:
    return type(value) is dict and all(map(_is_text, value.values()))


def _are_names(value: Any) -> bool:
    return type(value) is list and all(map(_is_text, value))


@dataclass(frozen=True, slots=True)
class _Field:
    """What other modules rely on: a dotted name, what may stand there, and the words for that."""

    name: str
    fits: Callable[[Any], bool]
    expected: str
    may_lack: bool = False


SCHEDULE = ("seconds", "slots", "lower_bound_seconds")
PLACES = ("provider", "providers_file", "ca_file", "address_from", "key_check", "origin")
SECTIONS = ("identity", "provenance", "tuning", "tasks", "selection", "counts", "times")
FIELDS = (
    *(_Field(name, _is_object, "an object") for name in SECTIONS),
    _Field("subset", _is_text, "a name"),
    _Field("state", lambda value: value in STATES, f"one of {', '.join(STATES)}"),
    _Field("results_sha256", _is_text_or_null, "a hash or null", may_lack=True),
    _Field("identity.benchmark", _is_text, "a name"),
    _Field("identity.model", _is_text, "a name"),
    _Field("identity.sampling", _is_object, "an object"),
    _Field("identity.settings", _is_object, "an object"),
    _Field("identity.files", _are_hashes, "an object of file names without separators, each with a hash"),
    _Field("provenance.endpoint", lambda value: _is_text(value) and value != "", "an address"),
    _Field("provenance.key_from", _is_text_or_null, "a name or null"),
    _Field("provenance.source", _is_text_or_null, "a path or null", may_lack=True),
    _Field("provenance.sources", _are_texts, "an object of paths", may_lack=True),
    *(_Field(f"provenance.{name}", _is_text_or_null, "a name or null", True) for name in PLACES),
    *(
        _Field(f"provenance.{name}", _are_names, "a list of names", True)
        for name in ("quirks", "quirks_used", "headers", "allowed")
    ),
    *(
        _Field(f"tuning.{name}", _are_slots, f"a whole number from 1 to {CONCURRENCY_MOST}", may_lack=True)
        for name in ("learned_limit", "start", "floor", "ceiling")
    ),
    _Field(
        "tuning.concurrency",
        lambda value: value is None or _are_slots(value),
        f"a whole number from 1 to {CONCURRENCY_MOST} or null",
        may_lack=True,
    ),
    *(_Field(f"tuning.{name}", _is_limit, "a number above 0 or null", True) for name in ("rpm", "tpm")),
    *(
        _Field(f"tuning.{name}", _are_seconds, "seconds above 0 and at most a year", True)
        for name in ("timeout", "stall", "max_outage")
    ),
    _Field("tuning.stream", lambda value: value in STREAMS, f"one of {', '.join(STREAMS)}", may_lack=True),
    _Field(
        "tuning.max_retries",
        lambda value: _is_natural(value) and value <= RETRIES_MOST,
        f"a whole number from 0 to {RETRIES_MOST}",
        may_lack=True,
    ),
    _Field("tuning.durability", lambda value: value in ("process", "power"), "process or power", may_lack=True),
    _Field("tasks.path", _is_text, "a path"),
    _Field("tasks.sha256", _is_text, "a hash"),
    _Field("tasks.users", _is_natural, "a number from 0"),
    _Field("selection.ratio", lambda value: _is_number(value) and 0 < value <= 1, "a number above 0 and at most 1"),
    _Field("selection.sample_seed", _is_natural, "a whole number from 0"),
    _Field("counts.users", _is_natural, "a number from 0", may_lack=True),
    _Field("counts.failed", _is_natural, "a number from 0", may_lack=True),
    _Field("times.created", _is_text, "a moment"),
    _Field("times.updated", _is_text, "a moment", may_lack=True),
    _Field("times.seconds", _is_number, "a number", may_lack=True),
    _Field("times.schedule", _is_schedule, "what a session took, or null", may_lack=True),
)

SAMPLING: dict[str, tuple[type, ...]] = {
    "temperature": (float, int, type(None)),
    "top_p": (float, int, type(None)),
    "seed": (int, type(None)),
    "max_tokens": (int, type(None)),
    "extra_body": (dict,),
}
"""Sampling parameters of requests, and the types of their values."""


def _wrong(data: JSON) -> str | None:
    """The first field that is not as it must be, and what was expected; None where all are."""
    for known in FIELDS:
        section, _, name = known.name.rpartition(".")
        value = (data[section] if section else data).get(name, MISSING)
        if not known.fits(value) and not (known.may_lack and value is MISSING):
            return f"{known.name}: expected {known.expected}"
    for name, value in data["identity"]["sampling"].items():
        if name not in SAMPLING:
            return f"identity.sampling.{name}: not a parameter of this version of the harness"
        if type(value) not in SAMPLING[name]:
            return f"identity.sampling.{name}: expected another type of value"
    return None


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


def same_identity(old: Manifest | None, identity: JSON, allowed: frozenset[str], where: Path) -> None:
    """Refuses, field by field, to go on with a run as another configuration."""
    differing = differences(old.identity, identity) if old else {}
    found = {name: pair for name, pair in differing.items() if name not in allowed}
    if found:
        changes = "; ".join(f"{name} was {shown(a)}, is now {shown(b)}" for name, (a, b) in found.items())
        raise BadInput(
            f"{where} holds a run of another configuration: {changes}. Give this one a --name of its own, "
            f"move the old one aside with --restart, or accept a difference with --allow {next(iter(found))}"
        )


def shown(value: Any) -> str:
    """A value of a manifest in a sentence."""
    text = orjson.dumps(value).decode()
    return text if len(text) <= 60 else text[:56] + "..." + text[-1]
