"""The words of the harness, each with its unit. Source: docs/design.md, sections 2 and 3."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from msgspec import Struct

JSON = dict[str, Any]
"""One decoded JSON object."""


class Where(NamedTuple):
    """A line of an input file, for error messages. Lines count from 1."""

    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.file}, line {self.line}"


@dataclass(frozen=True, slots=True)
class Message:
    role: str
    content: str


@dataclass(frozen=True, slots=True)
class Request:
    """One chat call as a benchmark asks for it; model and sampling parameters are the run's."""

    messages: tuple[Message, ...]
    json_object: bool = True


@dataclass(frozen=True, slots=True)
class Completion:
    """What an endpoint answered to one request.

    `finish_reason` is the endpoint's own word, in OpenAI's where it means the same, except for three of ours:
    `content_filter` (its input filter) and `context_length` (prompt or body too long) stand for a request that it would
    not take, and `only_thinking` for a reply cut off before its answer began, all its tokens gone into thoughts.
    Token counts are `None` where the endpoint reports none. `reasoning` is what a thinking model thought, where the
    endpoint hands it out apart from the text.
    """

    text: str
    finish_reason: str | None = "stop"
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    model: str | None = None
    refusal: str | None = None
    reasoning: str | None = None

    @property
    def shown(self) -> str:
        """Return the text, or what there is instead."""
        return self.text or self.refusal or f"(no text; finish_reason {self.finish_reason})"


@dataclass(frozen=True, slots=True)
class Reply:
    """A settled request: `seconds` of the try that succeeded, `tries` in all, and who answered.

    `first_token` is the seconds until the first piece of a streamed reply, None for one that came whole.
    """

    completion: Completion
    seconds: float
    tries: int
    endpoint: str
    first_token: float | None = None


LARGEST_COUNT = 2**40
"""Tokens; no reply has that many, and sums of what is below stay far inside the 64 bits that files hold."""

NEVER_ANSWERED = frozenset({"content_filter", "context_length"})
"""Finish reasons of requests that no model may have seen, so that no tokens are missing from the reported usage."""

Ask = Callable[[Request], Awaitable[Completion]]
Baseline = Callable[[Sequence[Mapping[str, Any]], int], str]
"""Answers the messages of a chat request, contents as strings, by them and a seed alone."""


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens and requests that one user's completions cost; retries of failed sends are not in it.

    `untold` are the answered requests for which the endpoint reported no usage.
    """

    prompt_tokens: int = 0
    completion_tokens: int = 0
    requests: int = 0
    untold: int = 0

    def plus(self, completion: Completion) -> Usage:
        return Usage(
            self.prompt_tokens + (completion.prompt_tokens or 0),
            self.completion_tokens + (completion.completion_tokens or 0),
            self.requests + 1,
            self.untold + (completion.prompt_tokens is None and completion.finish_reason not in NEVER_ANSWERED),
        )

    @property
    def data(self) -> JSON:
        """As records have it; `untold` only where there is any."""
        counts = {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "requests": self.requests,
        }
        return counts | {"untold": self.untold} if self.untold else counts


@dataclass(frozen=True, slots=True)
class Record:
    """One completed user: `data` is the object that its line in the results file holds."""

    key: str
    data: JSON


@dataclass(frozen=True, slots=True)
class Failure:
    """A user given up on: which boundary failed (`endpoint`, `benchmark`, `agent`), how, after how many tries."""

    key: str
    boundary: str
    kind: str
    detail: str
    tries: int


class _Block(Struct, frozen=True, tag_field="block", tag=True):
    """A part of a report, stored in JSON with the name of its class under the key `block`."""


class Heading(_Block, frozen=True):
    text: str


class Paragraph(_Block, frozen=True):
    text: str


class Table(_Block, frozen=True):
    """Cells are text, ready to print; the first column is set left, the others right."""

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


class Verbatim(_Block, frozen=True):
    """Lines that another program reads: never wrapped."""

    text: str


class Quote(_Block, frozen=True):
    """A quoted text of any length, with its own line ends; pages fold it unless it is `open`.

    A `private` one is a user's own text: pages leave it out unless such texts are requested.
    """

    label: str
    text: str
    open: bool = False
    private: bool = False


class Tags(_Block, frozen=True):
    """Short texts in a row, each with the kind that gives it its colour: `hit`, `missed`, `wrong`, or a finer one."""

    label: str
    tags: tuple[tuple[str, str], ...]


class Series(Struct, frozen=True):
    """Of a chart: a value at each `x`, None where it is undefined; `low` and `high` bound it, empty for no bounds."""

    name: str
    values: tuple[int | float | None, ...]
    low: tuple[int | float | None, ...] = ()
    high: tuple[int | float | None, ...] = ()


class Chart(_Block, frozen=True):
    """A picture of what tables say in numbers, for pages; text leaves it out.

    `curve`: lines over numbers, bounds as bands. `intervals`: a row for each name in `x`, a dot with its bounds for
    each series. `histogram`: `x` are the edges, one more than there are values. `ribbon`: shares that add up to 1,
    stacked, over `x`. Values are fractions where `percent` says so.
    """

    kind: Literal["curve", "intervals", "histogram", "ribbon"]
    title: str
    x: tuple[int | float | str, ...]
    x_label: str
    y_label: str
    series: tuple[Series, ...]
    percent: bool = True


class Sketch(_Block, frozen=True):
    """Places on a plane, in metres east and north: by name of their kind, and paths over them."""

    title: str
    places: Mapping[str, tuple[tuple[float, float], ...]]
    paths: tuple[tuple[tuple[float, float], ...], ...] = ()


Block = Heading | Paragraph | Table | Verbatim | Quote | Tags | Chart | Sketch
"""What reports and pages are made of; `report.text` leaves out pictures."""


class Tile(NamedTuple):
    """A large figure at the top of a page, as text; `within` is its bounds, or what it covers."""

    name: str
    value: str
    within: str = ""


@dataclass(frozen=True, slots=True)
class Page:
    """What a page says of one report. `warning` is what must be read before any number, empty for nothing."""

    title: str
    warning: str
    tiles: tuple[Tile, ...]
    blocks: tuple[Block, ...]


@dataclass(frozen=True, slots=True)
class Card:
    """One user of a page's browser: what the list shows of them (`figures`), and what is shown once they are picked."""

    key: str
    figures: tuple[str, ...]
    blocks: tuple[Block, ...]


@dataclass(frozen=True, slots=True)
class RunFacts:
    """What a report says of the run; scorers know only records.

    `run` is what was run, as plain values by name: settings, sampling parameters, tasks file, share, versions, date.
    """

    subset: str
    model: str
    name: str
    prompt: str
    expected_users: int
    failed_users: int
    notes: tuple[str, ...] = ()
    schedule: JSON | None = None
    run: JSON = field(default_factory=dict)


RUN_FACTS = frozenset(
    {"files", "tasks", "tasks_sha256", "users_in_tasks", "ratio", "sample_seed", "endpoint", "harness", "created"}
)
"""Names in `RunFacts.run` that are no settings."""


@dataclass(frozen=True, slots=True)
class Published:
    """Scores that were published: data to be shown with runs, never ranked with them.

    `figures` is metric -> model -> column (a subset, or `Avg.`) -> value as metrics have it, models in the order of
    the `source`'s table; `note` is what a reader must know of them.
    """

    source: str
    note: str
    figures: Mapping[str, Mapping[str, Mapping[str, float]]]


@dataclass(frozen=True, slots=True)
class SubsetProgress:
    """One subset of a run. `scores` are running figures, `units` those of them that are no shares."""

    subset: str
    users: int
    done: int
    failed: int
    steps: int
    steps_done: int
    scores: Mapping[str, float | None] = field(default_factory=dict)
    scored_users: int = 0
    units: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Warned:
    """Something a user should know of: `age` is the seconds since it last came, `times` how often it has."""

    text: str
    age: float
    times: int = 1


@dataclass(frozen=True, slots=True)
class AtRisk:
    """What a loss of power could take now: users whose records no sync has covered yet, and the seconds since the last.

    `synced` says that the run syncs at all (`--durability power`); without, the seconds are those since it began to
    save, and when the system writes is its own business. The death of the process takes no record in either.
    """

    users: int = 0
    seconds: float = 0.0
    synced: bool = False


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The state of one run at one moment, for displays. Times in seconds, tokens and requests as counts.

    True concurrency: `requested` is what the user asked for (None for auto), `limit` what is admitted now, `in_flight`
    what is on the wire, and `held_by` why that is less than would be ready to go. `outage` is its age, 0 without one,
    `silence` the seconds since the last answer, or since the start; `waiting` how many requests of this run wait for
    one; `lag` is how late the event loop ran, and `slowest_write` how long the disk took at worst, since the last
    snapshot.

    `rate` is in steps, `token_rates` are in tokens of prompts and of completions, a second. `eta` is the seconds to go
    at that rate, or those of the longest user's chain where that takes longer, which `chain_bound` says; None where
    unknown. `latency` is the median and the 95th percentile of a reply. `faults` are the tries that failed and
    `failures` the users given up on, by kind, the most frequent first. Tokens are those of this session, and
    `projected_tokens` what they may come to by its end. `warnings` are the last ones, the newest first. `over` says
    that the run has ended, one way or another. `others_in_flight` are the requests of other runs on the same slots.
    """

    name: str
    model: str
    seconds: float
    subsets: tuple[SubsetProgress, ...]
    requested: int | None
    limit: int
    in_flight: int
    held_by: str | None
    outage: float
    lag: float
    slowest_write: float
    waiting: int
    backing_off: int
    requests: int
    replayed: int
    retries: int
    prompt_tokens: int
    completion_tokens: int
    rate: float
    eta: float | None
    stopping: str | None = None
    chain_bound: bool = False
    token_rates: tuple[float, float] = (0.0, 0.0)
    latency: tuple[float, float] | None = None
    faults: tuple[tuple[str, int], ...] = ()
    failures: tuple[tuple[str, int], ...] = ()
    projected_tokens: tuple[int, int] | None = None
    warnings: tuple[Warned, ...] = ()
    at_risk: AtRisk = AtRisk()
    silence: float = 0.0
    over: bool = False
    others_in_flight: int = 0


Snapshots = tuple[Snapshot, ...]
"""One of each run, at the same moment."""
