"""The harness from Python: commands as functions, and saved runs as data.

    from harness import run

    for made in run(model="gpt-4o-mini", limit=100):      # a run of each subset
        print(made.subset, made.report.metrics)
        made.frame("steps")                               # with pandas or polars installed

A keyword is the option of that name (`harness run --help-all` explains each): `--api-url URL` is
`api_url=URL`. None is what the settings file says, else the default. Options of extensions are
objects of their classes: `extensions=[Budget("5usd")]`. `run`, `resume` and `reeval` block, also in
a notebook; `arun` and `aresume` play in the event loop that runs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import wraps
from html import escape
from importlib.util import find_spec
from inspect import signature
from itertools import islice
from pathlib import Path
from typing import Any, Literal, ParamSpec, TypeVar

from msgspec import structs

from harness.analysis.rows import rows as rows_of
from harness.analysis.saved_runs import Rows, SavedRun
from harness.benchmarks.files import DOCUMENT_MOST, content
from harness.chat import Structured
from harness.commands import run as run_command
from harness.commands.parser import Parsed, called
from harness.defaults import BENCHMARK, RESULTS_FOLDER
from harness.engine.local import Signals
from harness.errors import BadInput, ExitCode, HarnessError, reading, to_install
from harness.model import JSON, Snapshots
from harness.options.options import RunOptions
from harness.printable import on_one_line
from harness.reporting.report import covered, headline, with_unit
from harness.reporting.report_files import read
from harness.scoring.reports import Report
from harness.store import log
from harness.store.manifest import COMPLETE, Manifest, load
from harness.store.run import RunFiles, runs, runs_in
from harness.ui.streams import tell_warnings

T = TypeVar("T")
P = ParamSpec("P")
Progress = Callable[[Snapshots], None]
"""A function that is called several times a second with frozen snapshots
(`harness.model.Snapshot`), one per model; of `run` and `resume` in a notebook, from another
thread."""
Play = Callable[[Signals], Coroutine[Any, Any, Any]]
GROUP_ROWS = 500
"""Rows that are read at once."""
FAILED_CODE = 2
"""The first exit code of a command that did not do its work; 1 is a run with failed users."""


@dataclass(frozen=True, repr=False)
class LoadedRun:
    """A saved run of one subset. Its members read the files at each use, and raise `HarnessError`
    if one is damaged."""

    folder: Path
    subset: str

    def __repr__(self) -> str:
        """Return name, subset, coverage and headline figures, each as far as it can be read."""
        try:
            report = self.report
            scores = f"{covered(report)}: {headline(report)}"
        except HarnessError:
            scores = "no report"
        return f"<LoadedRun {on_one_line(f'{self.folder}, {self.subset}: {scores}')}>"

    def _repr_html_(self) -> str:
        """Return the same as a table, for notebooks."""
        try:
            report = self.report
            rows = [("coverage", covered(report))]
            for figure in report.figures:
                rows.append((figure.metric.name, with_unit(figure.metric, figure.shown.value)))
        except HarnessError:
            rows = [("report", "none")]
        title = on_one_line(f"{self.folder}, {self.subset}")
        cells = ""
        for name, text in rows:
            cells += f"<tr><th>{escape(name)}</th><td>{escape(text)}</td></tr>"
        return f"<table><caption>{escape(title)}</caption>{cells}</table>"

    def __fspath__(self) -> str:
        """Return the folder, so that a run can be given where one is named by its folder."""
        return str(self.folder)

    @property
    def name(self) -> str:
        """Return the name of the run: that of its folder."""
        return self.folder.name

    @property
    def files(self) -> RunFiles:
        """Return the paths of the run's files, whether they exist or not."""
        return RunFiles(self.folder, self.subset)

    @property
    def manifest(self) -> Manifest:
        """Return the manifest, which says exactly what was run: identity, provenance, tuning, state
        and counts."""
        manifest = load(self.files.manifest)
        if manifest is None:
            raise BadInput(f"{self.files.manifest} no longer exists")
        return manifest

    @property
    def complete(self) -> bool:
        """Return whether every user is scored."""
        return bool(self.manifest.state == COMPLETE)

    @property
    def report(self) -> Report:
        """Return the figures, with intervals and coverage; `metrics` also has those that runs are
        ranked by."""
        path = self.files.report("json")
        with reading(path):
            report = read(content(path, DOCUMENT_MOST))
        return structs.replace(report, metrics=report.ranked_metrics)

    def records(self) -> Iterator[JSON]:
        """Yield the record of each user, in the order of the file."""
        return (data for _, data in log.objects(self.files.results))

    def users(self) -> Iterator[JSON]:
        """Yield a flat row for each user: values of the metrics, tokens, seconds."""
        return self._rows("users")

    def steps(self) -> Iterator[JSON]:
        """Yield a flat row for each step of each user, as the benchmark declares it, or for a user
        without steps."""
        return self._rows("steps")

    def responses(self) -> Iterator[JSON]:
        """Yield a flat row for each saved reply: digest of the request, text, tokens, seconds,
        tries, endpoint."""
        return self._rows("responses")

    def frame(self, rows: Rows = "steps") -> Any:
        """Return the rows as a DataFrame of pandas, else of polars. Raise `BadInput` if neither is
        installed."""
        if find_spec("pandas"):
            import pandas

            return pandas.DataFrame(list(self._rows(rows)))
        if find_spec("polars"):
            import polars

            # Without a length the first rows, which may lack a value, do not decide the types.
            return polars.DataFrame(list(self._rows(rows)), infer_schema_length=None)
        raise BadInput(f"frame() needs pandas or polars: {to_install('pandas')}")

    def _rows(self, kind: Rows) -> Iterator[JSON]:
        """Yield the rows that `export` writes, in groups: playing users again needs a separate
        event loop."""
        rows = rows_of(SavedRun(self.files, self.manifest), kind, None, self.folder.parent)
        try:
            while group := _apart_from_loops(lambda: list(islice(rows, GROUP_ROWS))):
                yield from group
        finally:
            _apart_from_loops(rows.close)


def run(  # noqa: PLR0913
    benchmark: str | Path = BENCHMARK,
    *,
    model: str | Sequence[str] | None = None,
    subset: str | Sequence[str] | None = None,
    name: str | None = None,
    limit: int | None = None,
    ratio: float | None = None,
    repeats: int | None = None,
    sample_seed: int | None = None,
    demo: bool | None = None,
    restart: bool | None = None,
    part: str | None = None,
    fetch: bool | None = None,
    html: bool | None = None,
    primary: str | None = None,
    config: str | Path | None = None,
    api_url: str | Sequence[str] | None = None,
    api_key: str | None = None,
    api_key_file: str | Path | None = None,
    provider: str | None = None,
    providers: str | Path | None = None,
    extra_header: Mapping[str, str] | None = None,
    ca_file: str | Path | None = None,
    price: str | None = None,
    roles: Mapping[str, str] | None = None,
    temperature: float | None = None,
    top_p: float | None = None,
    seed: int | None = None,
    max_tokens: int | None = None,
    extra_body: Mapping[str, object] | None = None,
    structured: Structured | None = None,
    parse_retries: int | None = None,
    concurrency: int | Literal["auto"] | None = None,
    auto_start: int | None = None,
    auto_floor: int | None = None,
    auto_ceiling: int | None = None,
    rpm: float | None = None,
    tpm: float | None = None,
    timeout: float | None = None,
    stall_timeout: float | None = None,
    stream: Literal["auto", "on", "off"] | None = None,
    max_retries: int | None = None,
    max_outage: float | None = None,
    wait: float | None = None,
    durability: Literal["process", "power"] | None = None,
    queue: str | None = None,
    tasks_dir: str | Path | None = None,
    results_dir: str | Path | None = None,
    allow: str | Sequence[str] | None = None,
    allow_invalid: bool | None = None,
    no_color: bool | None = None,
    verbose: bool | None = None,
    quiet: bool | None = None,
    settings_file: str | Path | None = None,
    settings: Mapping[str, object] | None = None,
    extensions: Sequence[object] = (),
    progress: Progress | None = None,
) -> list[LoadedRun]:
    """Run a benchmark against a model, as `harness run` does; return its runs, one for each subset.

    `benchmark` is a name, a `FILE.py` or `package.module:Name`, and `settings` are its own, by
    name. `model` is the model's name at the endpoint `api_url` or that of a `provider`;
    `baseline/recency` and the like need none. `limit` is how many users are played, `concurrency`
    how many requests are in flight, `repeats` how often each user is played. `roles` are the models
    of the benchmark's roles, such as `{"judge": "openai:gpt-4o"}`. `demo` takes the
    synthetic tasks that ship; `html=False` writes no pages. `extensions` are options of extensions,
    such as `Budget("5usd")`. `progress` is called several times a second with frozen snapshots, one
    per model, and replaces all that is printed; `quiet` leaves errors and a line a run. `harness
    run --help-all` explains every keyword.

    Raise `BadInput` for arguments that cannot be used, and another `HarnessError` if the run
    stopped early: its text is the sentence that the command prints, and it has the `exit_code` and
    the `runs` so far. Every reply received is saved; calling it again continues. A run that was
    complete before is returned too, and one with failed users, whose `complete` is False.
    """
    return _apart_from_loops(_called("run", locals()))


def resume(  # noqa: PLR0913
    *,
    name: str | Sequence[str] | None = None,
    model: str | None = None,
    subset: str | Sequence[str] | None = None,
    concurrency: int | Literal["auto"] | None = None,
    auto_start: int | None = None,
    auto_floor: int | None = None,
    auto_ceiling: int | None = None,
    rpm: float | None = None,
    tpm: float | None = None,
    timeout: float | None = None,
    stall_timeout: float | None = None,
    stream: Literal["auto", "on", "off"] | None = None,
    max_retries: int | None = None,
    max_outage: float | None = None,
    wait: float | None = None,
    durability: Literal["process", "power"] | None = None,
    config: str | Path | None = None,
    api_url: str | Sequence[str] | None = None,
    api_key: str | None = None,
    api_key_file: str | Path | None = None,
    provider: str | None = None,
    providers: str | Path | None = None,
    extra_header: Mapping[str, str] | None = None,
    ca_file: str | Path | None = None,
    price: str | None = None,
    benchmark: str | None = None,
    trust: bool | None = None,
    tasks_dir: str | Path | None = None,
    results_dir: str | Path | None = None,
    allow: str | Sequence[str] | None = None,
    allow_invalid: bool | None = None,
    no_color: bool | None = None,
    verbose: bool | None = None,
    quiet: bool | None = None,
    html: bool | None = None,
    settings_file: str | Path | None = None,
    extensions: Sequence[object] = (),
    progress: Progress | None = None,
) -> list[LoadedRun]:
    """Continue unfinished runs, as `harness resume` does; return those that it changed. Raise
    errors as `run` does.

    `name`, `model` and `subset` select runs; without them all continue, each with its own endpoint.
    `harness resume --help-all` explains every keyword.
    """
    return _apart_from_loops(_called("resume", locals()))


def reeval(  # noqa: PLR0913
    *,
    name: str | Sequence[str] | None = None,
    model: str | None = None,
    subset: str | Sequence[str] | None = None,
    reparse: bool | None = None,
    new_prices: bool | None = None,
    html: bool | None = None,
    providers: str | Path | None = None,
    benchmark: str | None = None,
    trust: bool | None = None,
    tasks_dir: str | Path | None = None,
    results_dir: str | Path | None = None,
    settings_file: str | Path | None = None,
    extensions: Sequence[object] = (),
) -> list[LoadedRun]:
    """Score saved answers again, without any request, as `harness reeval` does; return those runs.

    `name`, `model` and `subset` select runs; `reparse` starts from the saved responses. Raise
    errors as `run` does.
    """
    return _apart_from_loops(_called("reeval", locals()))


def load_run(folder: str | Path, subset: str | None = None) -> LoadedRun:
    """Return the run in a folder such as `results/gpt-4o-mini`; name the subset if the folder has
    several.

    Raise `BadInput` if there is no such run, or more than one.
    """
    matching = [files for files in runs_in(Path(folder)) if subset in (None, files.subset)]
    if len(matching) > 1:
        choices = " or ".join([f'subset="{files.subset}"' for files in matching])
        raise BadInput(f"{folder} has runs of several subsets: name one, with {choices}")
    if not matching:
        expected = f"a run of {subset}" if subset else "a run"
        raise BadInput(f"{folder}: expected {expected}, found none")
    return LoadedRun(matching[0].folder, matching[0].subset)


def list_runs(results: str | Path = RESULTS_FOLDER) -> list[LoadedRun]:
    """Return every run below a results folder, by name and subset."""
    return [LoadedRun(files.folder, files.subset) for files in runs(Path(results))]


class _CommandFromPython:
    """A command that Python calls: its options are checked when it is made, and it is executed
    once."""

    def __init__(self, parsed: Parsed, progress: Progress | None) -> None:
        self._name = parsed.interface.command
        self._raised = list[Exception]()
        self._progress = progress
        self._parsed = parsed

    def __call__(self, run_async: Callable[[Any], Any] | None = None) -> list[LoadedRun]:
        """Return the runs that `run` was called for, complete before or not, else those that
        changed."""
        args = self._parsed.args
        if self._name != "reeval":
            args = replace(args, progress=self._progress and self._observe, run_async=run_async)
        # What `resume` and `reeval` have changed is only visible in the times of the manifests.
        changes_before = dict(map(_last_change, list_runs(args.results_dir)))
        try:
            code = replace(self._parsed, args=args).execute()
        except HarnessError as error:
            # The command's own error goes before one of reading what it left.
            with suppress(HarnessError):
                error.runs = self._runs(changes_before)
            raise
        except BaseException:
            # The error of the user's function, and not what the engine made of it.
            if self._raised:
                raise self._raised[0] from None
            raise
        runs_so_far = self._runs(changes_before)
        if code < FAILED_CODE:
            return runs_so_far
        ending = HarnessError(f"{self._name} ended with exit code {code}")
        if isinstance(code, ExitCode):
            ending = code.error
        ending.exit_code = int(code)
        ending.runs = runs_so_far
        raise ending

    def _observe(self, snapshots: Snapshots) -> None:
        """Pass snapshots on; keep the error of the user's function, which ends the run so that it
        can be resumed."""
        assert self._progress is not None
        try:
            self._progress(snapshots)
        except Exception as error:
            self._raised.append(error)
            raise

    def _runs(self, changes_before: Mapping[Path, int]) -> list[LoadedRun]:
        args = self._parsed.args
        saved_runs = list_runs(args.results_dir)
        # A run that was complete before has no change, and is returned all the same.
        if self._name == "run":
            names = run_command.names(args)
            named = [saved_run for saved_run in saved_runs if saved_run.name in names]
            return [saved_run for saved_run in named if _is_asked_for(saved_run, args)]
        return [run for run in saved_runs if _last_change(run) not in changes_before.items()]


def _called(name: str, arguments: Mapping[str, Any]) -> _CommandFromPython:
    """Return the call of a command, of the arguments of one of the functions above."""
    tell_warnings()
    keywords = {**arguments}
    headers = arguments.get("extra_header")
    if headers:
        keywords["extra_header"] = [f"{key}:{value}" for key, value in headers.items()]
    roles = arguments.get("roles")
    if roles:
        keywords["roles"] = [f"{role}={model}" for role, model in roles.items()]
    parsed = called(name, keywords, arguments["extensions"], arguments.get("settings"))
    return _CommandFromPython(parsed, arguments.get("progress"))


def _apart_from_loops(work: Callable[[], T]) -> T:
    """Return what work gives, in a separate thread if an event loop is running, as in a
    notebook."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return work()
    # The thread has no loop, so a command can run one of its own.
    with ThreadPoolExecutor(1) as executor:
        return executor.submit(work).result()


def _in_this_loop(
    name: str, function: Callable[P, list[LoadedRun]]
) -> Callable[P, Coroutine[Any, Any, list[LoadedRun]]]:
    """Return a coroutine function that does the same, and plays in the event loop that runs.

    Opening, validating and scoring, which take a while, happen in a thread. If the task is
    cancelled, the play ends as a run does that is killed: every reply received is saved.
    """

    @wraps(function)
    async def played(*args: P.args, **kwargs: P.kwargs) -> list[LoadedRun]:
        bound = signature(function).bind(*args, **kwargs)
        bound.apply_defaults()
        call = _called(name, bound.arguments)
        loop = asyncio.get_running_loop()
        plays = list[asyncio.Future[Any]]()
        cancelled = asyncio.Event()

        async def play(playing: Play) -> Any:
            # The task may have been cancelled before the thread came to play.
            if cancelled.is_set():
                raise asyncio.CancelledError
            plays.append(asyncio.ensure_future(_hearing_signals(playing)))
            return await plays[-1]

        def run_async(playing: Play) -> Any:
            return asyncio.run_coroutine_threadsafe(play(playing), loop).result()

        # The thread goes on if this task is cancelled: it has to save and close the run.
        work = asyncio.ensure_future(asyncio.to_thread(call, run_async))
        try:
            return await asyncio.shield(work)
        except asyncio.CancelledError:
            cancelled.set()
            for pending in plays:
                pending.cancel()
            # Awaited: whoever cancelled it may start the same run at once, and needs its lock.
            with suppress(BaseException):
                await work
            raise

    return played


async def _hearing_signals(playing: Play) -> Any:
    """Await a play, which stops at a signal as the command does; then handlers are as before."""
    with Signals() as signals:
        signals.listen()
        return await playing(signals)


arun = _in_this_loop("run", run)
aresume = _in_this_loop("resume", resume)


def _is_asked_for(loaded: LoadedRun, args: RunOptions) -> bool:
    """Return whether a run has a benchmark and subset that `run` was called for."""
    if args.platform and loaded.subset not in args.platform:
        return False
    benchmark: str = loaded.manifest.identity["benchmark"]
    return benchmark == args.benchmark_class.name


def _last_change(loaded: LoadedRun) -> tuple[Path, int]:
    """Return the path of a run's manifest, and the time of its last change in nanoseconds."""
    path = loaded.files.manifest
    return path, path.stat().st_mtime_ns
