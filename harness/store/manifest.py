"""What a run is, in one file with its results: `run_<subset>.json` (docs/design.md, section 5).

The sections are dictionaries with declared keys: whatever else a file has in them (of a later
version, or of a benchmark) is kept when the manifest is saved again, and compared in `differences`.
"""

from __future__ import annotations

import errno
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import (
    Annotated,
    Any,
    Literal,
    NamedTuple,
    NotRequired,
    Required,
    TypedDict,
    cast,
    get_args,
)

import msgspec
import orjson
from msgspec import Meta

from harness.benchmarks.files import DOCUMENT_MOST, content
from harness.benchmarks.tasks import typed
from harness.cost import Cost, Price
from harness.defaults import CONCURRENCY_MOST, REPEATS_MOST, RETRIES_MOST, SECONDS_MOST
from harness.errors import BadInput, FieldError, MachineError
from harness.model import JSON
from harness.reply_facts import ReplyFacts
from harness.store.atomic import write
from harness.store.disk import DISK, Disk
from harness.store.files import runs_in

FORMAT = 1
State = Literal["running", "stopped", "incomplete", "complete"]
Stream = Literal["auto", "on", "off"]
Durability = Literal["process", "power"]
RUNNING, STOPPED, INCOMPLETE, COMPLETE = get_args(State)

CHANGES_SHOWN = 3
"""Most differences that a refusal spells out; the command that accepts them names all."""

NAME_BYTES = 255
"""Longest file name that file systems take."""

LARGEST = 1e15
"""No moment, number of users or limit comes near it, and numbers beyond it are no longer whole."""

PART = r"^[1-9][0-9]{0,3}/[1-9][0-9]{0,3}\Z"
"""A part of a run, such as 2/4."""

Text = Annotated[str, Meta(min_length=1)]
Count = Annotated[int, Meta(ge=0)]
Number = Annotated[float, Meta(gt=-LARGEST, lt=LARGEST)]
Seconds = Annotated[float, Meta(gt=0, le=SECONDS_MOST)]
Slots = Annotated[int, Meta(ge=1, le=CONCURRENCY_MOST)]
Limit = Annotated[float, Meta(gt=0)]


class RoleIdentity(TypedDict):
    """The model of a role, and the parameters of the requests to it."""

    model: str
    sampling: JSON


class Identity(TypedDict):
    """What must be the same on resume. `files` are the SHA-256 of the kept files, by name."""

    benchmark: str
    prompt_version: NotRequired[Any]
    model: str
    sampling: JSON
    settings: JSON
    files: dict[str, str]
    roles: NotRequired[dict[str, RoleIdentity]]


class EndpointProvenance(TypedDict, total=False):
    """How an endpoint was named, for the command that goes on. `provider` is the one that was
    named, also where an address of the command sends the requests elsewhere."""

    endpoint: Required[Text]
    key_from: Required[str | None]
    provider: str | None
    providers_file: str | None
    headers: list[str]
    address_from: str | None
    ca_file: str | None
    quirks: list[str]


class PriceRole(TypedDict):
    """Whose price one is, if not that of the model under test."""

    role: str
    model: str


class Provenance(EndpointProvenance, total=False):
    """What is recorded; nothing relies on those that may be anything. `reused` counts replies of
    other runs by name.

    `price` is the first that was in force, `later_prices` those that followed: a reply's line has
    the place of its own. None is a price that is not known. `price_endpoints` are where each holds,
    if that is not always `endpoint`, and `price_roles` whose price each is, if the run has roles.
    """

    price: JSON | None
    primary: str | None
    html: bool
    later_prices: list[JSON | None]
    price_endpoints: list[Text]
    price_roles: list[PriceRole | None]
    roles: dict[str, EndpointProvenance]
    benchmark: Any
    data_set: Any
    source: str | None
    sources: dict[str, str]
    harness: Any
    parser_version: Any
    python: Any
    hash_seed: Any
    packages: Any
    git: Any
    quirks_used: list[str]
    allowed: list[str]
    reused: dict[str, Count]


class Tuning(TypedDict, total=False):
    """What may change freely; times in seconds. `learned_limit` is what `auto` has found. Features
    add their own."""

    concurrency: Slots | None
    start: Slots
    floor: Slots
    ceiling: Slots
    rpm: Limit | None
    tpm: Limit | None
    timeout: Seconds
    stall: Seconds
    stream: Stream
    max_retries: Annotated[int, Meta(ge=0, le=RETRIES_MOST)]
    max_outage: Seconds
    wait: Annotated[float, Meta(ge=0, le=SECONDS_MOST)]
    durability: Durability
    learned_limit: Slots


class Tasks(TypedDict):
    path: str
    sha256: str
    users: Count
    truth: NotRequired[Any]


class Selection(TypedDict):
    """Which users: a share of them, or the first `limit`, in the order that the seed draws; of
    these every n-th from the i-th on, if it is `part` i/n; each played `repeats` times, if that is
    more than once. A part `by` lines has every n-th task of the file, from the i-th on."""

    ratio: Annotated[float, Meta(gt=0, le=1)]
    sample_seed: Count
    limit: NotRequired[Annotated[int, Meta(ge=1)]]
    part: NotRequired[Annotated[str, Meta(pattern=PART)]]
    by: NotRequired[Literal["lines"]]
    repeats: NotRequired[Annotated[int, Meta(ge=1, le=REPEATS_MOST)]]


def share(selection: Selection, users: int) -> float:
    """Return the share that a selection is of so many users."""
    ratio = selection["ratio"]
    limit = selection.get("limit")
    if limit is not None:
        ratio = min(1.0, limit / max(1, users))
    _, count = part_of(selection)
    return ratio / count


def whole_of(name: str, part: str | None) -> str | None:
    """Return the name of the run that a run with this name is a part of; None if it is whole, or
    has a name of its own."""
    if not part:
        return None
    ending = f".part{part.replace('/', 'of')}"
    return name.removesuffix(ending) if name.endswith(ending) else None


def part_of(selection: Selection) -> tuple[int, int]:
    """Return which part of how many a selection is, from 1; (1, 1) without parts."""
    number, count = selection.get("part", "1/1").split("/")
    return int(number), int(count)


WHOLE = 1, 1
"""The only part of one."""


def slice_of(selection: Selection) -> tuple[int, int]:
    """Return which slice of the tasks file holds a selection's users; `WHOLE` if they are anywhere
    in it."""
    return part_of(selection) if selection.get("by") else WHOLE


class Counts(TypedDict, total=False):
    """Users. `torn_lines` are those that the last session set aside."""

    users: Count
    done: Any
    failed: Count
    torn_lines: Any


class Times(TypedDict, total=False):
    """Moments in ISO 8601, UTC; `seconds` of all sessions, `schedule` of the last one
    (`Progress.schedule`)."""

    created: Required[str]
    updated: str
    seconds: Number
    schedule: JSON | None
    reevaluated: Any


OF_SESSION = frozenset(
    {"subset", "identity", "provenance", "tuning", "tasks", "selection", "format"}
)


def parameters_set(sampling: JSON) -> JSON:
    """Return the parameters that are in a request's body."""
    return {name: value for name, value in sampling.items() if value not in (None, {})}


class Priced(NamedTuple):
    """A price, None if it is not known, of the requests that go to an endpoint for the model of a
    role; an empty role and model are those of the model under test."""

    price: Price | None
    endpoint: str
    role: str = ""
    model: str = ""


def other_currency(price: Price, priced: Iterable[Priced], role: str) -> str | None:
    """Return a currency other than that of a price that a role has, too; None if there is none."""
    others = set()
    for entry in priced:
        if entry.role == role and entry.price and entry.price.currency != price.currency:
            others.add(entry.price.currency)
    return min(others, default=None)


class Manifest(msgspec.Struct, kw_only=True):
    """`state` is `running` (or died), `stopped` (by a signal or the endpoint), `incomplete` (all
    played, some users failed) or `complete`; `results_sha256` is set with the last. `cost` is that
    of all sessions (`harness.cost.Cost`), None for a baseline and before a session has ended;
    `replies` is what all saved replies say (`harness.reply_facts.ReplyFacts`). A session brings
    what `OF_SESSION` names, and continues the rest."""

    subset: str
    identity: Identity
    provenance: Provenance
    tuning: Tuning
    tasks: Tasks
    selection: Selection
    state: State
    counts: Counts
    times: Times
    results_sha256: str | None = None
    cost: JSON | None = None
    replies: JSON = {}
    format: int = FORMAT

    @property
    def priced(self) -> list[Priced]:
        """Return the prices that were in force, by their places in `harness.cost.Rate`: one at
        least, unknown if the first is not known."""
        provenance = self.provenance
        prices = [provenance.get("price"), *provenance.get("later_prices", ())]
        endpoints = provenance.get("price_endpoints") or [provenance["endpoint"]] * len(prices)
        roles = provenance.get("price_roles") or [None] * len(prices)
        priced: list[Priced] = []
        for data, endpoint, role in zip(prices, endpoints, roles, strict=True):
            entry = Priced(msgspec.convert(data, Price | None), endpoint)
            if role:
                entry = entry._replace(role=role["role"], model=role["model"])
            priced.append(entry)
        return priced

    @property
    def prices(self) -> list[Price | None]:
        """Return the prices of `priced`."""
        return [priced.price for priced in self.priced]

    def price_place(self, endpoint: str, role: str = "") -> int | None:
        """Return the place of a role's last price at an endpoint, or at replicas that include it;
        None if none was."""
        addresses = set(endpoint.split())
        model = self._role_model(role)
        last: int | None = None
        for place, priced in enumerate(self.priced):
            is_there = addresses <= set(priced.endpoint.split())
            if is_there and priced.role == role and priced.model == model:
                last = place
        return last

    def price_at(self, endpoint: str, role: str = "") -> Price | None:
        """Return a role's last price at an endpoint, None if none is known."""
        place = self.price_place(endpoint, role)
        return None if place is None else self.prices[place]

    def endpoint_of(self, role: str) -> str:
        """Return where the requests of a role go; of an empty one, those to the model under
        test."""
        return self.provenance["roles"][role]["endpoint"] if role else self.provenance["endpoint"]

    def _role_model(self, role: str) -> str:
        """Return the model of a role; empty for the model under test, which never changes."""
        return self.identity["roles"][role]["model"] if role else ""

    def take_price(self, price: Price | None, role: str = "") -> int:
        """Note that a price is in force now at the endpoint of a role, by default of the model
        under test, None for the last one there; return its place.

        Replies of before any price was known there have it, too. Raise `BadInput` for one in
        another currency.
        """
        priced = self.priced
        endpoint = self.endpoint_of(role)
        place = self.price_place(endpoint, role)
        if place is not None and price in (None, priced[place].price):
            return place
        currency = other_currency(price, priced, role) if price else None
        if price and currency:
            model = self._role_model(role) or self.identity["model"]
            raise BadInput(
                f"{model} is priced in {price.currency} now, and this run's replies are in"
                f" {currency}: a run has one currency; correct the providers file, or give all its"
                " replies the new price with `reeval --new-prices`"
            )
        if place is not None and priced[place].price is None:
            priced[place] = priced[place]._replace(price=price)
        else:
            place = len(priced)
            priced.append(Priced(price, endpoint, role, self._role_model(role)))
        self.set_prices(priced)
        return place

    def set_prices(self, priced: Sequence[Priced]) -> None:
        """Record the prices, each with its endpoint and its role."""
        provenance = self.provenance
        for name in ("later_prices", "price_endpoints", "price_roles"):
            cast(JSON, provenance).pop(name, None)
        prices: list[JSON | None] = []
        endpoints: list[str] = []
        roles: list[PriceRole | None] = []
        for price, endpoint, role, model in priced:
            prices.append(msgspec.to_builtins(price))
            endpoints.append(endpoint)
            roles.append({"role": role, "model": model} if role else None)
        # Runs of one endpoint without roles have the members that earlier versions wrote.
        provenance["price"] = prices[0]
        if len(prices) > 1:
            provenance["later_prices"] = prices[1:]
        if set(endpoints) != {provenance["endpoint"]}:
            provenance["price_endpoints"] = endpoints
        if any(roles):
            provenance["price_roles"] = roles

    @property
    def role_models(self) -> JSON | None:
        """Return the models of roles as each record names them, with the parameters that are set;
        None without roles."""
        roles = self.identity.get("roles")
        if roles is None:
            return None
        models: JSON = {}
        for role, identity in roles.items():
            models[role] = {"model": identity["model"], **parameters_set(identity["sampling"])}
        return models

    @property
    def is_without_pages(self) -> bool:
        """Return whether the run was begun without pages."""
        return self.provenance.get("html") is False

    @property
    def repeats(self) -> int:
        """Return how many times each user is played."""
        return self.selection.get("repeats", 1)

    def go_on(self, old: Manifest) -> dict[str, tuple[Any, Any]]:
        """Take up the run so far, whose manifest is `old`, with its prices and limits, and note
        what was allowed to differ. Return what differs of the provenance, which was not asked."""
        provenance, before = self.provenance, old.provenance
        changed = differences(before, provenance)
        accepted = changes(differences(old.identity, self.identity))
        provenance["allowed"] = [*before.get("allowed", ()), *accepted]
        self.set_prices(old.priced)
        quirks_used = {*provenance["quirks_used"], *before.get("quirks_used", ())}
        provenance["quirks_used"] = sorted(quirks_used)
        # What is chosen once, before the first request, holds for all sessions.
        if before.get("primary"):
            provenance["primary"] = before["primary"]
        if old.is_without_pages:
            provenance["html"] = False
        if "data_set" in before and self.tasks["sha256"] == old.tasks["sha256"]:
            provenance.setdefault("data_set", before["data_set"])
        if old.tuning.get("learned_limit"):
            self.tuning["learned_limit"] = old.tuning["learned_limit"]
        for name in self.__struct_fields__:
            if name not in OF_SESSION:
                setattr(self, name, getattr(old, name))
        return changed

    @property
    def reply_facts(self) -> ReplyFacts:
        return msgspec.convert(self.replies, ReplyFacts)

    def save(self, path: Path, disk: Disk = DISK) -> None:
        data = msgspec.structs.asdict(self)
        if not self.replies:
            del data["replies"]
        write(path, orjson.dumps(data, option=orjson.OPT_INDENT_2) + b"\n", disk=disk)


class _Sampling(msgspec.Struct, forbid_unknown_fields=True):
    """Sampling parameters of requests."""

    temperature: float | None = None
    top_p: float | None = None
    seed: int | None = None
    max_tokens: int | None = None
    extra_body: JSON = {}


class _Schedule(msgspec.Struct):
    seconds: Number
    slots: Number
    lower_bound_seconds: Number
    ratio: Number | None
    runs: int = 1
    event_loop: Number | None = None


# Two threads in which msgspec looks at a type for the first time end the interpreter.
for _kind in (Manifest, _Sampling, _Schedule, Price, Cost, ReplyFacts):
    msgspec.json.Decoder(_kind)


def manifests(folder: Path) -> dict[str, Manifest]:
    """Return the manifests of the runs of one name, by subset. Raise as `load` does."""
    by_subset: dict[str, Manifest] = {}
    for files in runs_in(folder):
        manifest = load(files.manifest)
        if manifest is not None:
            by_subset[files.subset] = manifest
    return by_subset


def load(path: Path) -> Manifest | None:
    """Return a manifest, None if there is none. Raise `BadInput` with file and field for one that
    cannot be used."""
    try:
        data: object = orjson.loads(content(path, DOCUMENT_MOST))
    except FileNotFoundError:
        return None
    except OSError as error:
        kind = BadInput if error.errno == errno.EFBIG else MachineError
        raise kind(f"cannot read {path}: {error.strerror}") from error
    except ValueError:
        raise BadInput(f"{path} is not JSON: put back a copy, or move the folder aside") from None
    if type(data) is not dict or data.get("format") != FORMAT:
        raise BadInput(
            f"{path}: field format: expected {FORMAT}; another version of the harness wrote it"
        )
    try:
        orjson.dumps(data)
    except TypeError:
        raise BadInput(
            f"{path}: nested too deep: put back a copy, or move the folder aside"
        ) from None
    try:
        _check_fields(data)
    except FieldError as error:
        raise BadInput(f"{path}: {error}") from None
    return Manifest(**{name: data[name] for name in Manifest.__struct_fields__ if name in data})


def _check_fields(data: JSON) -> None:
    """Raise `FieldError` for a field that is not as declared."""
    manifest = typed(data, Manifest)
    identity, provenance = manifest.identity, manifest.provenance
    roles = identity.get("roles", {})
    later_prices = provenance.get("later_prices", [])
    sections: dict[str, tuple[Any, Any]] = {
        "identity.sampling": (identity["sampling"], _Sampling),
        "times.schedule": (manifest.times.get("schedule"), _Schedule | None),
        "provenance.price": (provenance.get("price"), Price | None),
        "provenance.later_prices": (later_prices, list[Price | None]),
        "cost": (manifest.cost, Cost | None),
        "replies": (manifest.replies, ReplyFacts),
    }
    for role, of_role in roles.items():
        sections[f"identity.roles.{role}.sampling"] = of_role["sampling"], _Sampling
    for field, (value, kind) in sections.items():
        typed(value, kind, field)
    for name in ("price_endpoints", "price_roles"):
        entries = cast(JSON, provenance).get(name)
        if entries and len(entries) != 1 + len(later_prices):
            raise FieldError(f"provenance.{name}", "one for each price")
    priced = manifest.priced
    for entry in priced:
        if entry.price and other_currency(entry.price, priced, entry.role):
            raise FieldError("provenance.later_prices", "prices in the currency of the first")
    if roles.keys() != provenance.get("roles", {}).keys():
        raise FieldError("provenance.roles", "an endpoint for each role of identity.roles")
    number, count = part_of(manifest.selection)
    if number > count:
        raise FieldError("selection.part", f"a part among {count}", str(number))
    if not all(map(is_file_name, identity["files"])):
        raise FieldError(
            "identity.files", "an object of file names without separators, each with a hash"
        )


def is_file_name(name: str) -> bool:
    """Return whether a prompt or agent can be kept under a name in the run's folder, and nowhere
    else."""
    has_separator = not {"/", "\\", "\0"}.isdisjoint(name)
    if name.startswith(".") or has_separator:
        return False
    return 0 < len(name.encode()) <= NAME_BYTES


def differences(
    old: Mapping[str, Any], new: Mapping[str, Any], prefix: str = ""
) -> dict[str, tuple[Any, Any]]:
    """Return fields that differ, by dotted name, with both values; a missing one is None."""
    changed: dict[str, tuple[Any, Any]] = {}
    for name in dict.fromkeys((*old, *new)):
        old_value = old.get(name)
        new_value = new.get(name)
        if isinstance(old_value, dict) and isinstance(new_value, dict):
            changed |= differences(old_value, new_value, f"{prefix}{name}.")
        elif old_value != new_value:
            changed[prefix + name] = (old_value, new_value)
    return changed


def same_identity(
    old: Manifest | None, identity: Identity, allowed: frozenset[str], where: Path
) -> None:
    """Raise `BadInput`, field by field, where a run would go on as another configuration."""
    if old is None:
        return
    changed = differences(old.identity, identity)
    if "benchmark" in changed:
        raise BadInput(
            f"{where} holds a run of the benchmark {old.identity['benchmark']}: give"
            " this one another name with --name"
        )
    refused = {name: pair for name, pair in changed.items() if not _is_allowed(name, allowed)}
    if not refused:
        return
    sentences = changes(refused)
    if len(sentences) > CHANGES_SHOWN:
        sentences[CHANGES_SHOWN:] = [f"{len(sentences) - CHANGES_SHOWN} more"]
    options = " ".join([f"--allow {name}" for name in refused])
    raise BadInput(
        f"{where} holds a run of another configuration: {'; '.join(sentences)}. Give this one"
        f" another name with --name. (Or accept what differs: {options}; or move the old run"
        " aside: --restart.)"
    )


def _is_allowed(name: str, allowed: frozenset[str]) -> bool:
    """Return whether a field, or an object that it is in, is among those allowed."""
    return name in allowed or any(name.startswith(f"{outer}.") for outer in allowed)


def changes(differing: Mapping[str, tuple[Any, Any]]) -> list[str]:
    """Return `differences` as main clauses."""
    return [
        f"{name} was {value_text(old)}, is now {value_text(new)}"
        for name, (old, new) in differing.items()
    ]


def value_text(value: object) -> str:
    """Return a value of a manifest for a sentence."""
    text = orjson.dumps(value).decode()
    return text if len(text) <= 60 else text[:56] + "..." + text[-1]
