"""Define the protocol of all benchmarks: those that ship and plug-ins.

A class needs `name`, `subsets`, `metrics`, `parse`, `play` and `measure`; every other member has a
default. The harness derives saved replies, live scores, reports, tables, comparisons and pages.
Contract: docs/design.md, section 2. Complete example: `examples/star_rating/`.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol

from harness.benchmarks import settings as own_settings
from harness.benchmarks.files import in_any_format
from harness.benchmarks.user_code import guarded
from harness.chat import ASKING, Asking, Chat
from harness.defaults import TASKS_FOLDER, TEMPERATURE
from harness.document import Block
from harness.errors import BadInput
from harness.model import JSON, Baseline, Completion, Published, Where

if TYPE_CHECKING:
    import numpy as np
    from _typeshed import DataclassInstance
    from numpy.typing import NDArray

    from harness.scoring.reports import Scored

VALID = "valid"
"""The outcome of a usable answer; every other outcome is the kind of an `InvalidReply`."""


ROUNDING = 1e-9
"""The relative error by which a value may miss a bound."""


@dataclass(frozen=True, slots=True)
class Metric:
    """Declare a figure of a report. Without a `unit` it is a share from 0 to 1, shown in percent.

    `bounds` are the lowest and highest value of one user, None for no bound. `definition` is one
    phrase that Excel files and reports show. `ranked_by` names another metric by which runs are
    ranked and compared in place of this one: a metric that equals this one if a run keeps the rules
    of the task, and that answers against the rules cannot win. `unranked` is the reason why runs
    are never ranked by this metric. `leaves_out` names kinds of `breaches`: a metric with any is
    over the other valid answers alone, so runs with too few of these have no place in its table.
    Raise `ValueError` for another `better`, or for bounds that are not a lower and a higher number.
    """

    name: str
    _: KW_ONLY
    better: Literal["higher", "lower"] = "higher"
    unit: str | None = None
    bounds: tuple[float | None, float | None] | None = None
    definition: str = ""
    ranked_by: str = ""
    unranked: str = ""
    leaves_out: Sequence[str] = ()

    def __post_init__(self) -> None:
        if self.better not in ("higher", "lower"):
            raise ValueError(
                f'metric {self.name}: better is "higher" or "lower", got {self.better!r}'
            )
        if self.bounds is None:
            # The class is frozen, and this default depends on the unit.
            object.__setattr__(self, "bounds", (0.0, 1.0) if self.unit is None else (None, None))
        try:
            low, high = (bound if bound is None else float(bound) for bound in self.bounds or ())
            ordered = low is None or high is None or low < high
        except (TypeError, ValueError):
            ordered = False
        if not ordered:
            raise ValueError(
                f"metric {self.name}: bounds are the lowest and the highest value, got"
                f" {self.bounds!r}"
            )

    @property
    def lower_is_better(self) -> bool:
        return self.better == "lower"

    @property
    def scale(self) -> float:
        """Return the factor that a value is multiplied by before it is shown."""
        return 100.0 if self.unit is None else 1.0

    @property
    def decimals(self) -> int:
        return 2 if self.unit is None else 3

    @property
    def shown_unit(self) -> str:
        return "%" if self.unit is None else self.unit

    @property
    def difference_unit(self) -> str:
        """Return the unit of a difference of two values; `points` are percentage points."""
        return "points" if self.unit is None else self.unit

    @property
    def title(self) -> str:
        """Return the heading of a table of this metric."""
        title = f"{self.name}, {self.shown_unit}"
        if self.lower_is_better:
            title += " (lower is better)"
        return title

    @property
    def ranking(self) -> str:
        """Return the name of the metric by which runs are ranked: this one's own by default."""
        return self.ranked_by or self.name

    def shown(self, value: float) -> float:
        """Return a value scaled and rounded for tables, so that values that look equal are
        equal."""
        return round(self.scale * value, self.decimals)

    def text(self, value: float | None, *, signed: bool = False) -> str:
        """Return a value as text, without its unit; `n/a` for None and NaN."""
        if value is None or math.isnan(value):
            return "n/a"
        sign = "+" if signed else ""
        # `z` writes a negative value that is rounded to 0 without its sign.
        return f"{self.scale * value:{sign}z.{self.decimals}f}"

    def span(
        self, interval: Sequence[float] | None, *, signed: bool = False, approximate: bool = False
    ) -> str:
        """Return an interval as text in brackets, without its unit; `n/a` for None. `~` marks an
        approximate one."""
        if interval is None:
            return "n/a"
        ends = ", ".join([self.text(end, signed=signed) for end in interval])
        return f"{'~' * approximate}[{ends}]"

    def within(self, value: float) -> float | None:
        """Return the value if one user can have it, else None. One that misses a bound by rounding
        is set to it."""
        low, high = self.bounds or (None, None)
        for bound in (low, high):
            # A sum of shares that ends at 1.0000000000000002 is no mistake of the author's.
            if bound is not None and abs(value - bound) <= ROUNDING * max(1.0, abs(bound)):
                value = bound
        return value if self.admits(value) else None

    def admits(self, value: float) -> bool:
        """Return whether the value is finite and within `bounds`."""
        low, high = self.bounds or (None, None)
        if not math.isfinite(value):
            return False
        return (low is None or value >= low) and (high is None or value <= high)

    @property
    def data(self) -> JSON:
        """Return the metric as reports save it, so that readers of a report do not need the
        benchmark."""
        data: JSON = {
            "better": self.better,
            "unit": self.unit,
            "bounds": list(self.bounds or (None, None)),
        }
        texts = {name: getattr(self, name) for name in ("definition", "ranked_by", "unranked")}
        data |= {name: text for name, text in texts.items() if text}
        if self.leaves_out:
            data["leaves_out"] = list(self.leaves_out)
        return data


@dataclass(frozen=True, slots=True)
class Task:
    """Describe one user. Only `given` is passed to `play`; `truth` is for `measure`.

    `key` is text or a whole number. `steps` is the expected number of sequential requests.
    `synthetic` marks a user that is not real.
    """

    key: str
    _: KW_ONLY
    given: Any = None
    truth: Any = None
    steps: int = 1
    synthetic: bool = False


@dataclass(frozen=True)
class NoSettings:
    """Stand in for the settings of a benchmark without any."""


@dataclass(frozen=True, slots=True)
class Origin:
    """Record the source of a plug-in.

    `spec` is `FILE.py` (by its absolute path) or `package.module:Name`. `content` is the bytes of
    its file; the run's folder keeps them under the name `kept`.
    """

    spec: str
    kept: str
    content: bytes

    @property
    def digest(self) -> str:
        return sha256(self.content).hexdigest()


@dataclass(frozen=True, kw_only=True)
class About:
    """What reports, notes and checks say of a benchmark.

    `title` is the name in headings, by default `name`; `user` the noun for one user. `invalid_as`
    says in a sentence how invalid answers are scored, `synthetic` what a report on synthetic tasks
    must say (by default a sentence). `language` is that of the note that is added to a prompt after
    an unusable reply. `floor` is the baseline that `run --demo` plays if no model is named, by
    default the first of `baselines`. `parser_version` is recorded in the provenance: a difference
    is reported, and the run can be continued. `waived` names checks of `check-benchmark` that may
    fail, each with the reason, which is printed.
    """

    title: str = ""
    user: str = "user"
    invalid_as: str = "Invalid answers are measured as no answer"
    synthetic: str = ""
    language: Literal["en", "zh"] = "en"
    floor: str = ""
    parser_version: str = "1"
    waived: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Role:
    """Another model that a benchmark asks, such as a judge or a simulated user: what it does, in a
    few words. A run must name the model of a `required` one."""

    task: str
    required: bool = True


class Importer(Protocol):
    """Reads the results files of another program: one line per user, which `rescore` accepts as a
    saved record."""

    def record(self, line: bytes, where: Where) -> JSON:
        """Return the record of one line, with its `user_id`. Raise `BadInput` with file, line and
        field."""

    def is_partial(self, task: Task, record: JSON) -> bool:
        """Return whether a record lacks answers to its task, and so cannot be scored."""

    def has_failed(self, record: JSON) -> bool:
        """Return whether a scored record has an answer that is a failure of the endpoint, not a
        model's answer."""

    def notes(self, outcomes: Mapping[str, int]) -> Sequence[str]:
        """Return what a report says about such answers, from the number of answers by outcome."""


@dataclass(frozen=True, kw_only=True)
class TaskFiles:
    """Where tasks files are, and what their index and a run's manifest have of them.

    `key_field` is the field of a task line that identifies its user. `data_files` are files in the
    tasks folder that every subset needs in addition to its tasks file. `data_set` is `owner/name`
    of a data set on the Hugging Face Hub that contains all of these: `fetch` finds each by its
    name. `version` is that of the rules that validate task lines, by default that of the benchmark
    and the hash of a plug-in; another version rebuilds the index. `truth_sha256` is the SHA-256 of
    the ground truth, empty if the tasks contain it.
    """

    key_field: str = "user_id"
    data_files: Sequence[str] = ()
    data_set: str = ""
    version: str = ""
    truth_sha256: str = ""

    def file_in(self, folder: Path, name: str) -> Path:
        """Return the path of a tasks file or data file in a tasks folder, whether it exists or not.

        A tasks file may have any of the formats that the harness reads, with their endings.
        """
        return in_any_format(folder / name)

    def outline(self, line: JSON, subset: str) -> tuple[Any, int] | None:
        """Return key and steps of a line without making its task, for a faster index; None to have
        `parse` do it. Raise the same errors as `parse` for the same lines."""
        return None


class Records:
    """The form of a user's line in the results file. By default it has the answer, its outcome and
    its values."""

    outcome_field: ClassVar[str] = "outcome"
    """The field of a record, or of a part of it, with the kind of an invalid answer."""

    has_answer: ClassVar[bool] = True
    """Whether a record has the answer as `play` returned it: such answers are JSON values, and
    measured as saved."""

    def record(
        self, task: Task, answer: Any, metrics: Any, outcome: str, repairs: Sequence[str]
    ) -> JSON:
        """Return the user's line of the results file, without its usage."""
        return {
            "user_id": task.key,
            "answer": answer,
            "outcome": outcome,
            "repairs": repairs,
            "metrics": metrics,
        }

    def rescore(self, task: Task, data: JSON) -> JSON | None:
        """Return a saved record with its values measured again.

        Return None if `measure` can be called with the saved answer, as for records of the default
        form.
        """
        return None

    def completed(self, record: JSON) -> JSON:
        """Return a record with None for each value that an earlier version of the benchmark did not
        measure.

        Figures and cards are made of completed records; `verify` does not ask for the values that
        were missing.
        """
        return record

    def outcomes(self, record: JSON) -> Iterable[str]:
        """Return the outcome of each answer of a user: `valid`, or the kind of the invalid
        answer."""
        return (record["outcome"],)

    def repairs(self, record: JSON) -> Iterable[str]:
        """Return the kinds of repairs that a user's replies needed."""
        return (*record["repairs"],)

    def rows(self, record: JSON) -> Iterable[JSON]:
        """Return flat rows of one record for tables and frames: one per step, or one per user if
        there are no steps."""
        about = {name: record[name] for name in ("user_id", "repeat", "outcome") if name in record}
        return ({**about, **record.get("metrics", {}), **record.get("usage", {})},)


@dataclass(frozen=True, slots=True)
class Configuration:
    """What a run asks with, as its manifest and its report name it: a prompt or agent file, and the
    settings.

    `source` is the name in reports, `own` for none of the user's. `path` is the file that the user
    named. `files` are the bytes that a run's folder keeps, by name. `identity` has the settings
    that can change a prompt or an answer, for `identity.settings` of the manifest. `temperature` is
    that of requests if the user sets none; with None each request decides (`parameters`). `note` is
    for a user whose model is a baseline, `remark` for all readers of its reports.
    """

    source: str
    path: Path | None
    files: Mapping[str, bytes]
    identity: JSON
    temperature: float | None = TEMPERATURE
    note: str = ""
    remark: str = ""

    @classmethod
    def of(cls, settings: DataclassInstance, asking: Asking) -> Configuration:
        """Return the configuration of a benchmark whose `Settings` name all files."""
        source = "own"
        path = None
        for field_name, path in own_settings.files(settings).items():
            source = own_settings.file_name(field_name, path)
            break  # the first file names the configuration
        return cls(
            source=source,
            path=path,
            files=own_settings.contents(settings),
            identity=own_settings.identity(settings) | asking.identity,
        )


Ends = tuple[float, float] | tuple[float, float, bool]
"""Both ends of a 95 % interval, and True after them if it is approximate: shown with a `~`."""


class Scoring:
    """How records become figures, and what a report has in addition.

    Each record adds a row of sums. Rows of any users are added up, and figures are functions of the
    totals; so neither order nor sharding changes a figure. Write `statistics` and `figures`, or
    extend `Means`.

    `secondary` are further figures of reports and tables; they are compared only if a metric is
    `ranked_by` one. `headline` names the metrics that are shown first, by default the first two;
    users are ranked by the last one. `live` names those that are shown during a run, by default the
    headline.
    """

    is_mean: ClassVar[bool] = False
    is_measured: ClassVar[bool] = False
    """What `Means` is: figures are means, of the values that `measure` returns."""

    secondary: ClassVar[Sequence[Metric]] = ()
    headline: ClassVar[Sequence[str]] = ()
    live: ClassVar[Sequence[str]] = ()

    def statistics(self, records: Sequence[JSON]) -> Any:
        """Return the row that each record adds: records x K sums and counts, without NaN."""
        raise NotImplementedError

    def tallied(self, records: Sequence[JSON]) -> tuple[Any, Any]:
        """Return the rows of some records, and a tally of them or None.

        A tally holds whatever else figures and sections need; tallies merge by `+`. If users have
        several repeats, each repeat is a record and a row, and those of a user follow one another.
        """
        return self.statistics(records), None

    def figures(self, totals: NDArray[np.float64]) -> Any:
        """Return the metrics of summed rows: R x K -> R x metrics, NaN if undefined.

        The secondary metrics may follow; those that do not come from `further_figures`.
        """
        raise NotImplementedError

    def condense(self, tally: Any) -> Any:
        """Return the part of a tally that live figures need, of bounded size; it merges as before.
        None for nothing.

        Live figures have the tallies of a user's repeats one by one, as each ends.
        """
        return None

    def running(self, records: Sequence[JSON]) -> tuple[Any, Any]:
        """Return what `tallied` does for live figures: the rows, and the tally as `condense`
        returns it."""
        rows, tally = self.tallied(records)
        return rows, None if tally is None else self.condense(tally)

    def further_figures(self, tally: Any) -> Mapping[str, float | None]:
        """Return the secondary metrics that `figures` does not."""
        return {}

    intervals: Callable[[Scored], Mapping[str, Ends | None]] | None = None
    """Return 95 % intervals by metric; None for those of the harness, by the jackknife."""

    def facts(self, task: Task) -> Any:
        """Return the small part of a task that `with_task` needs: it is kept until the report,
        which then does not read the task again. None for the whole task."""
        return None

    with_task: Callable[[JSON, Any], JSON] | None = None
    """Return a record with what its task, or the `facts` of it, adds for a report; None if reports
    read no tasks.

    The record is saved nowhere. It is made for at most 2,000 users: a fair draw from the tasks
    file."""

    def breaches(self, record: JSON) -> Iterable[str]:
        """Return a kind for each valid answer of a user that breaks a rule of the task."""
        return ()

    def chance(self, scored: Scored) -> Mapping[str, float | tuple[float, float]]:
        """Return the chance level of metrics, by name: what random answers to the same tasks have
        on average. One that is drawn has its standard error after it."""
        return {}

    def bias(self, scored: Scored) -> Mapping[str, float]:
        """Return the bias of figures that are no means, by metric: how far so few users take them
        off on average."""
        return {}

    def details(self, scored: Scored) -> JSON:
        """Return the benchmark's own values of the JSON report; `scored` is a
        `harness.scoring.reports.Scored`."""
        return {}

    def sections(self, scored: Scored) -> Iterable[Block]:
        """Return additional blocks of the report; `scored.report` is the report so far, with its
        `details`."""
        return ()

    def report_files(self, scored: Scored) -> Mapping[str, bytes]:
        """Return files that are written next to the report, by name."""
        return {}


class Means(Scoring):
    """Figures are means over users. Each record has values, None or NaN if undefined: these have a
    distribution, and bounds while users are missing. A record adds its values, followed by 1 or 0
    for defined or undefined."""

    is_mean = is_measured = True

    def values(self, records: Sequence[JSON]) -> Any:
        """Return each record's values, records x C; None for those that `measure` returned.

        The first columns are the metrics, then the secondary ones; others are for `details`. With
        `is_measured = False` `measure` may return anything; else its values are checked.
        """
        return None

    def tallied(self, records: Sequence[JSON]) -> tuple[Any, Any]:
        return self.values(records), None

    def figures(self, totals: NDArray[np.float64]) -> Any:
        count = totals.shape[1] // 2
        # 0 / 0 is NaN: a mean over nothing is undefined, and not 0.
        return totals[:, :count] / totals[:, count:]


class Cards:
    """What pages show of single users. By default a card has the values, the answer and the
    replies."""

    columns: ClassVar[Sequence[str]] = ()
    """Headings of `figures`; by default each user's headline metrics."""

    private: ClassVar[str] = ""
    """A plural noun for users' own texts, which cards show as private quotes."""

    def card(
        self, record: JSON, task: Task | None, replies: Sequence[Completion]
    ) -> Iterable[Block] | None:
        """Return the blocks of one user on a page, None for the default: values, answer and
        replies.

        `task` is None if the tasks are not available; `replies` are in the order of arrival.
        """
        return None

    def figures(self, record: JSON) -> Sequence[str]:
        """Return what the list of users shows for one user, under `columns`."""
        raise NotImplementedError

    def example(self, record: JSON, replies: Sequence[Completion], kind: str) -> str | None:
        """Return a reply that made an invalid answer of this kind, which the record has; None if
        unknown."""
        return replies[-1].shown if replies else None

    def together(self, records: Sequence[JSON]) -> Iterable[Block]:
        """Return blocks that several users' records make together."""
        return ()


@dataclass(frozen=True, slots=True)
class Imports:
    """What comes from elsewhere, or from earlier runs; only benchmarks that ship have any.

    `importer` reads the results of another program. `published` returns scores that were published
    with the benchmark: tables show them after the runs. `upgraded` returns a JSON report of format
    1 in the present one. `settings` returns the settings that an identity was made from, with files
    by field; by default those of `Settings`, field by field. `runs_code` returns whether playing a
    run with an identity runs the code of a file that was given to it: the harness asks before it
    runs code of somebody else's folder. A file that ends in `.py` always is code. With `same_note`
    the second request for a reply again is the same as the first, after the same mistake, as in
    results that exist.
    """

    importer: Importer | None = None
    published: Callable[[], Published | None] = lambda: None
    upgraded: Callable[[JSON], JSON] = lambda data: data
    settings: Callable[[JSON, Mapping[str, Path]], Any] | None = None
    runs_code: Callable[[JSON], bool] = lambda identity: False
    same_note: bool = False


class Benchmark:
    """Base class of every benchmark: `name`, `subsets`, `metrics`, `parse`, `play` and `measure`
    have no default.

    Declare attributes on the class. An instance belongs to one run: it has the run's `settings` and
    tasks `folder`. A nested frozen dataclass `Settings` declares options; its fields are flags of
    `run` and part of the run's identity.
    """

    name: ClassVar[str]
    """The name on the command line and in files."""

    version: ClassVar[str] = "1"
    """The version of prompts and parsing, part of the identity: a run with another version is not
    continued."""

    subsets: ClassVar[Mapping[str, str]]
    """Subset -> its tasks file, relative to the tasks folder."""

    metrics: ClassVar[Sequence[Metric]]
    """The metrics that `scoring` computes, in that order. They have intervals, and are ranked and
    compared."""

    baselines: ClassVar[Mapping[str, Baseline]] = {}
    """Models that need no endpoint: `{"floor": function}` is the model `baseline/floor`. The
    function returns the text of a reply to the messages of a request, `[{"role": ..., "content":
    ...}]`, and a seed. One with the name of a role answers in it where the benchmark is checked or
    rehearsed."""

    Settings: ClassVar[type[Any]] = NoSettings
    """A frozen dataclass. Its fields are flags of `run` and part of the identity; `resume` reads
    them back."""

    roles: ClassVar[Mapping[str, Role]] = {}
    """Other models that it asks, by name: `await chat.json(prompt, role="judge")`. Their requests
    have an endpoint, parameters, limits and a price of their own."""

    about: ClassVar[About] = About()
    scoring: Scoring = Means()
    records: Records = Records()
    cards: Cards = Cards()
    task_files: TaskFiles = TaskFiles()
    imports: ClassVar[Imports] = Imports()
    """Objects, described by their classes. `prepare` may replace the class's own by one that has
    the data it needs."""

    origin: ClassVar[Origin | None] = None
    """The source of a plug-in, set by the registry; None for a class that ships."""

    def __init__(
        self,
        settings: Any = None,
        *,
        asking: Asking = ASKING,
        folder: Path | None = TASKS_FOLDER,
        recorded: JSON | None = None,
        digests: Mapping[str, str] | None = None,
    ) -> None:
        """Set the settings of one run and call `prepare`.

        `folder` is the tasks folder; with None, `prepare` is not called: such an instance makes
        cards and sections only. `recorded` is `identity.settings` of an earlier run; with it, saved
        answers are measured and no user is played. `digests` is file name -> SHA-256 of the files
        in the run's folder: code whose hash is not among them must not run. The harness takes the
        lines of `warnings` and `logged` for the run's log.
        """
        self.settings = self.Settings() if settings is None else settings
        self.asking = asking
        self.folder = folder or TASKS_FOLDER
        self.recorded = recorded
        self.digests = digests
        self.warnings: list[str] = []
        self.logged: list[str] = []
        if folder is None:
            return
        if self.origin is None:  # what ships raises errors of its own
            self.configuration = self.prepare() or Configuration.of(self.settings, asking)
            return
        # Unlike one that ships, a plug-in names all of its files in `Settings`; what `prepare`
        # returns does not count.
        self.configuration = Configuration.of(self.settings, asking)
        with guarded(self, "prepare"):
            self.prepare()
            for name, kind in OBJECTS.items():
                # A plug-in's attribute of the same name would take the place of an object that
                # reports call.
                if not isinstance(getattr(self, name), kind):
                    raise TypeError(f"self.{name} is an object of the harness: rename yours")

    def prepare(self) -> Configuration | None:
        """Load the data that `play` and `measure` need, from `self.folder`.

        Benchmarks that ship may return what the run asks with, in place of what their `Settings`
        name. If `self.recorded` is not None, no user is played, and the code of a prompt or agent
        file must not run.
        """

    def warn(self, text: str) -> None:
        """Show a line on the display and write it to the run's log."""
        self.warnings.append(text)

    @abstractmethod
    def parse(self, line: JSON, subset: str) -> Task:
        """Return the task of one decoded line of a tasks file.

        Raise `ValueError` with the expected value if a field is wrong; a missing field may raise
        `KeyError`. The harness adds the file, the line and the field that was read last.
        """

    @abstractmethod
    async def play(self, given: Any, chat: Chat) -> Any:
        """Return the answer of one user, as JSON values.

        Let `InvalidReply` pass: the answer is then None, and the outcome is its kind. Any other
        exception makes the user a failure.
        """

    @abstractmethod
    def measure(self, task: Task, answer: Any) -> Mapping[str, float | None]:
        """Return one user's value of every metric, None if it is undefined.

        `answer` is None if the model's reply could not be used. Values are finite and within the
        metric's bounds.
        """

    @classmethod
    def synthesise(
        cls, folder: Path, users: int, seed: int
    ) -> Mapping[str, Iterable[bytes]] | None:
        """Return synthetic tasks: file relative to the tasks folder -> its content in pieces.

        Or write the files into `folder` and return None. An override may also take the keywords
        `subsets` (from `--subset`) and `mean_steps` (from `--steps`).
        """
        raise BadInput(f"{cls.name} makes no synthetic tasks: its class has no `synthesise`")


OBJECTS = {
    "about": About,
    "scoring": Scoring,
    "task_files": TaskFiles,
    "records": Records,
    "cards": Cards,
    "imports": Imports,
}
"""The objects that a benchmark has, by the name of its member."""


def kept_files(benchmark: Benchmark) -> Mapping[str, bytes]:
    """Return all files that a run's folder keeps: those of prompt and agent, and that of a
    plug-in."""
    origin = benchmark.origin
    files = benchmark.configuration.files
    if origin:
        return {**files, origin.kept: origin.content}
    return files


def metrics_of(benchmark: Benchmark | type[Benchmark]) -> dict[str, Metric]:
    """Return every metric by name, the secondary ones last."""
    return {metric.name: metric for metric in (*benchmark.metrics, *benchmark.scoring.secondary)}


def headline_of(benchmark: Benchmark | type[Benchmark]) -> tuple[str, ...]:
    """Return the names of the headline metrics."""
    names = benchmark.scoring.headline or [metric.name for metric in benchmark.metrics[:2]]
    return tuple(names)


def role_baselines(benchmark: Benchmark | type[Benchmark]) -> dict[str, Baseline]:
    """Return the baselines that are called as a role is: checks and rehearsals ask them in it."""
    return {
        role: benchmark.baselines[role] for role in benchmark.roles if role in benchmark.baselines
    }


def model_baselines(benchmark: Benchmark | type[Benchmark]) -> dict[str, Baseline]:
    """Return the baselines that stand in for the model under test."""
    return {
        name: answer for name, answer in benchmark.baselines.items() if name not in benchmark.roles
    }


def files_needed(benchmark: type[Benchmark], subset: str) -> tuple[str, ...]:
    """Return the files of a subset, relative to the tasks folder, the tasks file first."""
    return benchmark.subsets[subset], *benchmark.task_files.data_files


def title_of(benchmark: Benchmark | type[Benchmark]) -> str:
    """Return the name in headings."""
    return benchmark.about.title or benchmark.name


def remark(benchmark: Benchmark, task: Task) -> str:
    """Return what a report on tasks like this one must say first; empty for nothing."""
    about = benchmark.about
    sentences = list[str]()
    if task.synthetic:
        synthetic = (
            "The tasks are synthetic: they show that the harness works, and say nothing of real"
            f" {about.user}s."
        )
        sentences.append(about.synthetic or synthetic)
    if benchmark.configuration.remark:
        sentences.append(benchmark.configuration.remark)
    return " ".join(sentences)
