"""The harness from Python: commands as functions, and saved runs as data.

    from harness import run

    for made in run(model="gpt-4o-mini", limit=100):      # a run of each subset
        print(made.subset, made.report.metrics)
        made.frame("steps")                               # with pandas or polars installed

An option has the name of its flag: `--api-url URL` is `api_url=URL`, `--restart` is `restart=True`. A list repeats a
flag, and a mapping is passed as JSON. `run`, `resume` and `reeval` block, also in a notebook;
`await asyncio.to_thread(run, ...)` does not.
"""

from __future__ import annotations

import asyncio
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

import orjson

from harness.analysis.rows import Rows, rows
from harness.analysis.saved_runs import SavedRun
from harness.benchmarks.files import DOCUMENT_MOST, content
from harness.benchmarks.overview import covered, headline
from harness.benchmarks.reports import Report, read
from harness.commands.parser import parsed
from harness.defaults import BENCHMARK, RESULTS_FOLDER
from harness.errors import BadInput, HarnessError, reading, to_install
from harness.model import JSON, Snapshots
from harness.printable import on_one_line
from harness.store import log
from harness.store.manifest import COMPLETE, Manifest, load
from harness.store.run import RunFiles, runs, runs_in

T = TypeVar("T")
Progress = Callable[[Snapshots], None]
"""A function that is called several times a second with frozen snapshots (`harness.model.Snapshot`), one per model; in
a notebook, from another thread."""
FRAMES: Mapping[str, JSON] = {"pandas": {}, "polars": {"infer_schema_length": None}}
"""Libraries with a `DataFrame`, and its options for rows whose first ones may lack a value."""
GROUP = 500
"""Rows that are read at once."""
FAILED = 2
"""The first exit code of a command that did not do its work; 1 is a run with failed users."""


class CommandFailed(HarnessError):
    """A command ended with an `exit_code` of 2 or more; its output says why. Every reply received is saved."""

    def __init__(self, name: str, exit_code: int) -> None:
        super().__init__(f"{name} ended with exit code {exit_code}: see its output")
        self.exit_code = exit_code


@dataclass(frozen=True, repr=False)
class LoadedRun:
    """A saved run of one subset. Its members read the files at each use, and raise `HarnessError` if one is damaged."""

    folder: Path
    subset: str

    def __repr__(self) -> str:
        """Return name, subset, coverage and headline figures, each as far as it can be read."""
        try:
            report = self.report
            scores = f"{'' if report.coverage.complete else 'INCOMPLETE, '}{covered(report, report.user)}: "
            scores += headline(report)
        except HarnessError:
            scores = "no report"
        return f"<LoadedRun {on_one_line(f'{self.folder}, {self.subset}: {scores}')}>"

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
        """Return the manifest, which says exactly what was run: identity, provenance, tuning, state and counts."""
        found = load(self.files.manifest)
        if found is None:
            raise BadInput(f"{self.files.manifest} no longer exists")
        return found

    @property
    def complete(self) -> bool:
        """Return whether every user is scored."""
        return bool(self.manifest.state == COMPLETE)

    @property
    def report(self) -> Report:
        """Return the figures, with intervals and coverage."""
        path = self.files.report("json")
        with reading(path):
            return read(content(path, DOCUMENT_MOST))

    def records(self) -> Iterator[JSON]:
        """Yield the record of each user, in the order of the file."""
        return (data for _, data in log.objects(self.files.results))

    def users(self) -> Iterator[JSON]:
        """Yield a flat row for each user: values of the metrics, tokens, seconds."""
        return self._rows("users")

    def steps(self) -> Iterator[JSON]:
        """Yield a flat row for each step of each user, as the benchmark declares it, or for a user without steps."""
        return self._rows("steps")

    def responses(self) -> Iterator[JSON]:
        """Yield a flat row for each saved reply: digest of the request, text, tokens, seconds, tries, endpoint."""
        return self._rows("responses")

    def frame(self, rows: Rows = "steps") -> Any:
        """Return the rows as a DataFrame of pandas, else of polars. Raise `BadInput` if neither is installed."""
        for library, options in FRAMES.items():
            if find_spec(library):
                return import_module(library).DataFrame(list(self._rows(rows)), **options)
        raise BadInput(f"frame() needs pandas or polars: {to_install('pandas')}")

    def _rows(self, kind: Rows) -> Iterator[JSON]:
        """Yield the rows that `export` writes, in groups: playing users again needs a separate event loop."""
        found = rows(SavedRun(self.files, self.manifest), kind, None, self.folder.parent)
        try:
            while group := _apart_from_loops(lambda: list(islice(found, GROUP))):
                yield from group
        finally:
            _apart_from_loops(found.close)


def run(benchmark: str | Path = BENCHMARK, *, progress: Progress | None = None, **options: Any) -> list[LoadedRun]:
    """Run a benchmark against a model, as `harness run` does; return its runs, one for each subset.

    `benchmark` is a name, a `FILE.py` or `package.module:Name`. `progress` is called several times a second with
    frozen snapshots, one per model, and replaces the display. An option has the name of its flag: `limit=100`,
    `api_url="http://..."`. Raise `BadInput` for arguments that cannot be used, and `CommandFailed` if the command
    stopped early. A run that was complete before is returned too, and one with failed users, whose `complete` is False.
    """
    return _called("run", [str(benchmark)], options, progress)


def resume(*, progress: Progress | None = None, **options: Any) -> list[LoadedRun]:
    """Continue unfinished runs, as `harness resume` does; return those that it changed. Raise errors as `run` does."""
    return _called("resume", [], options, progress)


def reeval(**options: Any) -> list[LoadedRun]:
    """Score saved answers again, without any request, as `harness reeval` does; return those runs."""
    return _called("reeval", [], options, None)


def load_run(folder: str | Path, subset: str | None = None) -> LoadedRun:
    """Return the run in a folder such as `results/gpt-4o-mini`; name the subset if the folder has several.

    Raise `BadInput` if there is no such run, or more than one.
    """
    found = [files for files in runs_in(Path(folder)) if subset in (None, files.subset)]
    if len(found) > 1:
        choices = " or ".join(f'subset="{files.subset}"' for files in found)
        raise BadInput(f"{folder} has runs of several subsets: name one, with {choices}")
    if not found:
        raise BadInput(f"{folder}: expected a run{f' of {subset}' if subset else ''}, found none")
    return LoadedRun(found[0].folder, found[0].subset)


def list_runs(results: str | Path = RESULTS_FOLDER) -> list[LoadedRun]:
    """Return every run below a results folder, by name and subset."""
    return [LoadedRun(files.folder, files.subset) for files in runs(Path(results))]


def _called(name: str, words: list[str], options: Mapping[str, Any], progress: Progress | None) -> list[LoadedRun]:
    return _apart_from_loops(partial(_executed, name, [*words, *_flags(options)], progress))


def _apart_from_loops(work: Callable[[], T]) -> T:
    """Return what work gives, in a separate thread if an event loop is running, as in a notebook."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return work()
    with ThreadPoolExecutor(1) as own:
        return own.submit(work).result()


def _executed(name: str, words: list[str], progress: Progress | None) -> list[LoadedRun]:
    """Execute a command; return the runs that `run` was called for, complete before or not, else those that changed."""
    try:
        called = parsed([name, *words])
    except SystemExit as left:  # its message is printed
        raise CommandFailed(name, int(left.code or 0)) from None
    arguments = called.args
    arguments.progress = progress
    before = {one.files.manifest: _changed(one) for one in list_runs(arguments.results_dir)}
    code: int = called.command.execute(arguments)
    if code >= FAILED:
        raise CommandFailed(name, code)
    found = list_runs(arguments.results_dir)
    if name == "run" and not arguments.reeval:
        names = called.command.names(arguments)
        return [one for one in found if one.name in names and _is_asked_for(one, arguments)]
    return [one for one in found if before.get(one.files.manifest) != _changed(one)]


def _is_asked_for(one: LoadedRun, arguments: Namespace) -> bool:
    """Return whether a run has a benchmark and subset that `run` was called for."""
    platforms = {platform.lower() for platform in arguments.platform or [one.subset]}
    return one.subset in platforms and one.manifest.identity["benchmark"] == arguments.benchmark_class.name


def _changed(one: LoadedRun) -> int:
    return one.files.manifest.stat().st_mtime_ns


def _flags(options: Mapping[str, Any]) -> Iterator[str]:
    for name, value in options.items():
        flag = f"--{name.replace('_', '-')}"
        for one in value if isinstance(value, (list, tuple)) else (value,):
            if one is True:
                yield flag
            elif isinstance(one, Mapping):
                yield f"{flag}={orjson.dumps(one).decode()}"
            elif one is not None and one is not False:
                yield f"{flag}={one}"
