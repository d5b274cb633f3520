"""Sessions: the runs of plans are opened, played at once, and finished. Shared by `run` and `resume`."""

from __future__ import annotations

import gc
import os
import shlex
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AsyncExitStack, ExitStack
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import anyio
import anyio.to_thread
from rich.console import Console
from rich.table import Table

from harness import defaults
from harness.benchmark import kept_files
from harness.benchmarks import tasks, usage
from harness.benchmarks.overview import covered, headline, running
from harness.benchmarks.reports import Report
from harness.config import providers
from harness.config.origin import where_secret_is_missing
from harness.config.plan import Plan
from harness.cost import shown as shown_cost
from harness.endpoint.budget import Meter
from harness.endpoint.connect import DIRECTLY, connection
from harness.endpoint.control import FixedControl
from harness.endpoint.replies import REFUSED, Denied
from harness.engine.accounts import Opening, OpenLanes, check_budget, meters, open_lanes, openings
from harness.engine.extension import Extension
from harness.engine.files import index_file, now, stamp, write_report
from harness.engine.finish import finish, leave
from harness.engine.lane import Lane
from harness.engine.local import LocalEngine, Signalled
from harness.engine.run import PLAIN, Run, check_disk, is_bare, open_run
from harness.errors import (
    BadInput,
    BenchmarkError,
    ConfigurationRefused,
    EndpointStopped,
    HarnessError,
    MachineError,
    RunStopped,
    heeded,
    memory_for,
)
from harness.model import JSON, Snapshots
from harness.report import pages
from harness.report.pages import Source, Wish
from harness.store.batches import outstanding
from harness.store.manifest import COMPLETE, is_file_name, load, part_of
from harness.store.run import RunFiles, RunStore, runs_in, same_identity, shown
from harness.store.tasks import TaskIndex
from harness.ui.progress import display
from harness.ui.streams import tell
from harness.ui.words import plural

COMPLETE_EXIT, FAILURES_EXIT = 0, 1
ENDS = ("run", "subset", "state", "users", "done", "failed", "figures")
WARNINGS_SHOWN = 5
"""Most warnings of a benchmark shown at the end of a run; run_*.log has all."""


def launch(
    plans: Sequence[Plan],
    console: Console,
    extensions: Sequence[Extension] = (),
    *,
    html: bool,
    observe: Callable[[Snapshots], None] | None = None,
) -> int:
    """Run all plans at once and finish them; return the worst exit code. Pages are made last.

    `observe` gets snapshots instead of the display.
    """
    for words in dict.fromkeys(words for plan in plans for words in _notices(plan)):
        console.print(words, **PLAIN)
    say = partial(console.print, **PLAIN)
    with ExitStack() as held:
        for extension in extensions:
            extension.begin(plans, held, say)
        indexes = open_indexes(plans, held)
        sessions, code = _open_sessions(plans, indexes, held, console, extensions)
        for session, meter in zip(sessions, meters([(one.plan, one.runs) for one in sessions], held), strict=True):
            session.meter = meter
        check_disk([run for session in sessions for run in session.unfinished])
        unfinished = [session for session in sessions if session.unfinished]
        for words in [words for session in unfinished for words in session.waves()]:
            console.print(words, **PLAIN)
        play = partial(_play, console=console, extensions=extensions, observe=observe)
        for extension in extensions:
            unfinished = [*extension.before(unfinished, partial(play, finishing=False), say)] if unfinished else []
        played = play(unfinished) if unfinished else []
        for session, lane, schedule in played:
            if session.code is None:
                session.finish(lane, schedule)
        for session in sessions:
            if session.code is None:
                session.finish()
        if len(plans) > 1:
            _print_ends(sessions, console, extensions)
        if played and (held_up := usage.bottleneck(played[0][2])):  # all share the event loop
            console.print(held_up, **PLAIN)
        if html:
            _write_pages([source for session in sessions for source in session.sources], console)
    for extension in extensions:
        extension.ended(plans)
    return max([code, *[session.code or COMPLETE_EXIT for session in sessions]])


def _print_ends(sessions: Sequence[Session], console: Console, extensions: Sequence[Extension]) -> None:
    """Print a table of how the runs of several plans ended, and one command that resumes all that can go on."""
    table = Table(box=None, pad_edge=False)
    for name in ENDS:
        table.add_column(name, justify="right" if name in ("users", "done", "failed") else "left", overflow="fold")
    for session in sessions:
        figures = {source.files.subset: headline(source.report) + _money(source.report) for source in session.sources}
        for run in session.runs:
            done = (str(number) for number in (run.users, run.users_done, run.failed))
            table.add_row(session.plan.name, run.subset, run.manifest.state, *done, figures.get(run.subset, ""))
    console.print(table, highlight=False, markup=False)
    if left := [one.plan for one in sessions if any(run.manifest.state != COMPLETE for run in one.runs)]:
        console.print(f"resume with: {_resume_command(left, extensions)}", **PLAIN)


def _money(report: Report) -> str:
    """Return what a run cost, as the end of a sentence; empty if that is not known."""
    return f"; cost {shown_cost([report.cost.money])}" if report.cost and report.cost.money else ""


def _notices(plan: Plan) -> Iterator[str]:
    """Yield what a user should know about where requests go, before the first one is sent, and of useless repeats.

    Raise `BadInput` if there are more parts than requests at once, and for a budget that fits no price.
    """
    most = plan.limits.most
    check_budget(plan, plan.price)
    if part := plan.selection.get("part"):
        yield f"{plan.name}: part {part} has {most} of the {plan.tuning.most} requests at once, and its share of rates"
    if plan.found is None:
        yield f"{plan.sampling.model}: served by the harness itself on loopback; no key, no network"
        if note := plan.benchmark.configuration.note:
            yield note
        return
    if plan.tuning.batch and len(plan.found.addresses) > 1:
        raise BadInput(f"{plan.name}: --batch needs one address: a batch is on the server that took it")
    provider = plan.found.provider
    if provider and provider.source != str(providers.SHIPPED):
        yield f"provider {provider.name}: from {provider.source}, at {plan.endpoint}"
    for one in plan.found.addresses:
        if (way := connection(one, 1).way) != DIRECTLY:
            yield f"{one.shown}: {way}"
    if plan.found.key_from is None:
        yield f"no key found for {plan.endpoint}: requests are sent without one"
    elif plan.price is None and not (provider and not provider.key_required):
        model = plan.sampling.model
        yield f"no price is known for {model} at {plan.endpoint}: tokens only (to give one: docs/providers.md, Prices)"
    if plan.repeats > 1 and plan.sampling.temperature == 0:
        yield f"{plan.name}: at temperature 0 the {plan.repeats} repeats of a user may be all alike (--temperature)"


_IndexKey = tuple[str, str, str, Path, int]
_Indexes = dict[_IndexKey, TaskIndex]
"""By benchmark, the version of its rules, subset, tasks file and repeats; runs of several models share them."""


def open_indexes(plans: Sequence[Plan], held: ExitStack) -> _Indexes:
    """Open every tasks file, and validate it to its last line before anything else."""
    found: _Indexes = {}
    for plan in plans:
        for subset, path in plan.tasks.items():
            if (key := index_key(plan, subset)) not in found:
                found[key] = index_file(plan.benchmark, subset, path, plan.results, plan.repeats)
                held.callback(found[key].close)
    return found


def index_key(plan: Plan, subset: str) -> _IndexKey:
    return plan.benchmark.name, tasks.version(plan.benchmark), subset, plan.tasks[subset], plan.repeats


def _open_sessions(
    plans: Sequence[Plan],
    indexes: _Indexes,
    held: ExitStack,
    console: Console,
    extensions: Sequence[Extension],
) -> tuple[list[Session], int]:
    """Return the sessions that can start, and an exit code. A plan that cannot stops no other; alone, it raises."""
    if len(plans) == 1:
        return [Session(plans[0], indexes, held, console, extensions, alone=True)], 0
    opened, code = [], 0
    for plan in plans:
        try:
            opened.append(Session(plan, indexes, held, console, extensions, alone=False))
        except HarnessError as error:
            tell(f"{plan.name}: {error}")
            code = max(code, error.exit_code)
    return opened, code


class Session:
    """One plan's runs, one of each subset, from their opening to their reports. `alone` means without other plans.

    `unfinished` are the runs with users left at the start. After `finish`, `code` is the exit code, and `sources` are
    those of the pages of runs with a new report.
    """

    def __init__(
        self,
        plan: Plan,
        indexes: _Indexes,
        held: ExitStack,
        console: Console,
        extensions: Sequence[Extension],
        alone: bool,
    ) -> None:
        """Lock a plan's runs, check that they have its configuration, and open their files."""
        if odd := [name for name in kept_files(plan.benchmark) if not is_file_name(name)]:
            raise BadInput(
                f"{shown(odd[0])} cannot be kept under this name in the run's folder: give the file another name"
            )
        self.plan = plan
        self.code: int | None = None
        self.sources: list[Source] = []
        self.meter: Meter | None = None
        self._console = console
        self._extensions = extensions
        self._alone, self._label = alone, "" if alone else f"{plan.name}: "
        stores: dict[str, RunStore] = {}
        for subset in plan.tasks:
            stores[subset] = RunStore(RunFiles(plan.folder, subset), time.time, stamp())
            held.callback(stores[subset].close)
        for earlier in runs_in(plan.folder):
            if not (earlier.subset in stores and (plan.restart or is_bare(earlier))):
                same_identity(load(earlier.manifest), plan.identity(), plan.allowed, plan.folder)
        if plan.restart:
            for store in stores.values():
                store.set_aside_everything()
        self.runs = [
            open_run(
                plan,
                indexes[index_key(plan, subset)],
                store,
                subset if alone else f"{plan.name}, {subset}",
                console,
                extensions,
            )
            for subset, store in stores.items()
        ]
        self.unfinished = [run for run in self.runs if len(run.remaining)]

    def finish(
        self, lane: Lane | None = None, schedule: JSON | None = None, signalled: Signalled = lambda: None
    ) -> None:
        """Finish each run and print what remains; `lane` and its schedule are None if there was nobody to play.

        After a signal, and once `signalled` returns one, no record is read: runs stay as they are, without a report.
        """
        ending, code = lane.ending if lane else None, COMPLETE_EXIT
        nothing = isinstance(ending, EndpointStopped) and not any(run.store.received for run in self.runs)
        if nothing and isinstance(ending, ConfigurationRefused):
            self.code = self._drop(ending)
            return
        for run in self.runs:
            if run not in self.unfinished and not run.changed and run.manifest.state == COMPLETE:
                self._say(f"{run.label}: complete; report: {run.store.files.report('txt')}")
            elif not isinstance(ending, MachineError):  # a full disk has no room for a report; saved data is intact
                self._count_time(run, lane, schedule)
                try:
                    if isinstance(ending, RunStopped):
                        self._leave(run)
                    else:
                        self._finish(run, lane, nothing, partial(_check, signalled))
                except RunStopped as raised:
                    ending = raised
                    self._leave(run)
                except (BadInput, BenchmarkError) as error:  # of this subset only; the others still get their reports
                    tell(f"{run.store.files.results}: {error}")
                    code = error.exit_code
        self.code = max(code, self._ended(ending))

    def undo(self) -> None:
        """Leave runs as if this session had not begun: it could not, for what this machine or its cluster lacks."""
        for run in self.unfinished:
            if run.is_new and is_bare(run.store.files):
                run.store.drop()
            else:
                leave(run)
                run.manifest.save(run.store.files.manifest)

    @property
    def remaining(self) -> int:
        """Return the number of users left."""
        return sum(len(run.remaining) for run in self.runs)

    def waves(self) -> Iterator[str]:
        """Yield how many waves a run by batches takes, and how long at worst."""
        if self.plan.tuning.batch:
            number = max(int(run.steps_left().max()) for run in self.unfinished)
            yield (
                f"{self._label}--batch: {plural(number, 'wave')}, and each may take a day: {plural(number, 'day')} at "
                "worst, more where the provider has a limit of requests or tokens that are enqueued"
            )

    def go_on(self, schedule: JSON) -> None:
        """Count the time that the first users took; the failed ones of them are tried again."""
        for run in self.unfinished:
            run.failed = 0
            run.manifest.times["seconds"] = run.manifest.times.get("seconds", 0.0) + schedule["seconds"]

    def _drop(self, ending: HarnessError) -> int:
        """Leave no run behind of which nothing was received; return the exit code."""
        for run in self.runs:
            run.store.drop()
        self.runs = []
        self._say(
            f"{self._label}stopped: {ending}; nothing was received, so no run is kept: once that is corrected, start "
            f"it again with `run` (log: {self.plan.folder}/run_*.log)"
        )
        return ending.exit_code

    def _count_time(self, run: Run, lane: Lane | None, schedule: JSON | None) -> None:
        """Put into the manifest what this session took, and the limit that it has learned."""
        manifest = run.manifest
        seconds = schedule["seconds"] if schedule else 0.0
        manifest.times |= {"updated": now(), "seconds": round(manifest.times.get("seconds", 0.0) + seconds, 3)}
        if lane is not None:
            manifest.times["schedule"] = schedule
            control = lane.caller.limiter.slots.control
            if not isinstance(control, FixedControl):
                whole = control.limit * part_of(manifest.selection)[1]
                manifest.tuning["learned_limit"] = min(whole, self.plan.tuning.ceiling)

    def _leave(self, run: Run) -> None:
        """Save where a run is that a signal has stopped, and print it with the figures of the display."""
        leave(run)
        run.store.set_aside_report()
        run.manifest.save(run.store.files.manifest)
        figures, users = running(run.benchmark, run.scores.figures), plural(run.scores.users, run.benchmark.user)
        so_far = f"; {figures} (of {users})" if run.scores.users else ""
        self._say(f"{run.label}: {run.users_done} of {run.users} {run.benchmark.user}s are done (INCOMPLETE){so_far}")

    def _finish(self, run: Run, lane: Lane | None, nothing: bool, check: Callable[[], None]) -> None:
        """Write the results, report and manifest of one run; no report if `nothing` was ever received."""
        manifest, files = run.manifest, run.store.files
        later = "its records are saved; once there is more memory, `resume` or `reeval` makes the report"
        with memory_for(f"score {run.label}", later):
            report, more = finish(run, self.plan.name, lane is not None and lane.ending is not None, check)
            if not nothing:
                write_report(files, report, more)
        manifest.save(files.manifest)
        if nothing:
            return
        incomplete = "" if report.coverage.complete else " (INCOMPLETE)"
        self._say(
            f"{run.label}: {covered(report, 'user')}{incomplete}: {headline(report)}{_money(report)}; "
            f"report: {files.report('txt')}"
        )
        plan = self.plan
        self.sources.append(Source(files, report, plan.selection["sample_seed"], plan.benchmark, run.index))

    def _ended(self, ending: HarnessError | None) -> int:
        """Print what remains and the command for it; return the exit code."""
        plan, runs, label = self.plan, self.runs, self._label
        remaining, failed = self.remaining, sum(run.failed for run in runs)
        what = "user" if plan.repeats == 1 else "repeat"
        if ending is not None:
            word = "interrupted" if isinstance(ending, RunStopped) else f"stopped: {ending}{_keyless(plan, ending)}"
            self._say(f"{label}{word}; {plural(remaining, what)} remaining")
            if plan.tuning.batch and (left := sum([len(outstanding(run.store.files)) for run in runs])):
                self._say(f"{label}{plural(left, 'batch', 'batches')} at the provider: `resume` picks up their replies")
        elif failed:
            self._say(f"{label}{plural(failed, what)} failed: not scored; see {plan.folder}/failures_*.jsonl")
        for warning in [warning for run in runs for warning in run.warnings][:WARNINGS_SHOWN]:
            self._say(f"{label}warning: {warning}")
        if diverged := sum(run.diverged for run in runs):
            self._say(
                f"{label}{diverged} users sent different requests after resuming; the new ones were billed "
                "(asked_otherwise in run_*.log)"
            )
        if remaining or isinstance(ending, RunStopped):
            if self._alone:
                self._say(f"resume with: {_resume_command([plan], self._extensions)}")
            if not all(run.manifest.provenance.get("origin") for run in runs):
                self._say(f"{label}note: {where_secret_is_missing(os.environ)}")
        if ending is not None:
            return ending.exit_code
        return FAILURES_EXIT if remaining else COMPLETE_EXIT

    def _say(self, words: str) -> None:
        self._console.print(words, **PLAIN)


Played = list[tuple["Session", Lane, JSON]]
"""Sessions, their lanes and schedules, once all users are played."""
PlayAlone = Callable[[Sequence["Session"]], Played]
"""Plays sessions without finishing them."""


def _play(
    sessions: Sequence[Session],
    console: Console,
    extensions: Sequence[Extension],
    observe: Callable[[Snapshots], None] | None,
    finishing: bool = True,
) -> Played:
    """Play all at once, with one limit for each account; return each session's lane and schedule.

    Sessions that end while others go on are finished at once, if `finishing`.
    """
    uvloop = find_spec("uvloop") is not None  # where it cannot be installed, asyncio's own loop serves
    in_main = threading.current_thread() is threading.main_thread()  # others can set no handlers
    handlers = {number: signal.getsignal(number) for number in heeded()} if in_main else {}
    gc.freeze()
    try:
        with ExitStack() as held:
            opening: OpenLanes = open_lanes
            for extension in extensions:
                opening = extension.opening(opening, held, partial(console.print, **PLAIN))
            observe = observe or held.enter_context(display(console))
            made = openings([(one.plan, one.unfinished, one.meter) for one in sessions], extensions)
            playing = partial(_played, sessions, made, opening, observe, finishing)
            return anyio.run(playing, backend_options={"use_uvloop": uvloop})
    except (HarnessError, KeyboardInterrupt):  # before the first user: later ones end lanes
        for session in sessions:
            if session.code is None:
                session.undo()
        raise
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)  # the event loop leaves the system's own behind
        gc.unfreeze()


async def _played(
    sessions: Sequence[Session],
    made: Sequence[Opening],
    opening: OpenLanes,
    observe: Callable[[Snapshots], None],
    finishing: bool,
) -> Played:
    async with AsyncExitStack() as held:
        session_of = dict(zip(await opening(made, held), sessions, strict=True))

        async def ended(lane: Lane, schedule: JSON, signalled: Signalled) -> None:
            if finishing:
                finish = session_of[lane].finish
                await lane.guarded(partial(anyio.to_thread.run_sync, finish, lane, schedule, signalled))

        lanes, seed = list(session_of), sessions[0].plan.selection["sample_seed"]
        for extension in made[0].extensions:
            observe = await held.enter_async_context(extension.observing(observe))
        playing = LocalEngine(lanes, seed=seed, clock=time.monotonic, observe=observe, ended=ended)
        await playing.run()
        return [(session, lane, playing.schedule(lane)) for lane, session in session_of.items()]


def _write_pages(sources: Sequence[Source], console: Console) -> None:
    written = [
        source.files.folder
        for source in sources
        if pages.attempt(
            partial(pages.write_page, source, Wish()), f"{source.files.folder.name}, {source.files.subset}"
        )
    ]
    for folder in dict.fromkeys(written):
        console.print(f"pages: {folder}/eval_report_*.html", **PLAIN)


def _check(signalled: Signalled) -> None:
    """Raise the signal that asks this process to end, if there is one."""
    if stopped := signalled():
        raise stopped


def _keyless(plan: Plan, ending: HarnessError) -> str:
    """Explain a refused key where none was sent; empty otherwise."""
    without = plan.found is not None and plan.found.key_from is None
    refused = type(ending) is Denied and REFUSED in str(ending)
    return "; none was sent: give one with LLM_API_KEY or --api-key-file" if without and refused else ""


def _resume_command(plans: Sequence[Plan], extensions: Sequence[Extension]) -> str:
    """Return the command that goes on with a plan; of several, with all unfinished runs of the results folder."""
    plan, name = plans[0], ["--name", plans[0].name] if len(plans) == 1 else []
    folder = [] if plan.results == defaults.RESULTS_FOLDER else ["--results-dir", str(plan.results)]
    file = ["--providers", plan.providers_file] if plan.providers_file else []
    more = [word for extension in extensions for word in extension.resume_words]
    names = dict.fromkeys(header for each in plans for header in each.headers)
    headers = [word for header in names for word in ("--extra-header", f"{header}: ...")]
    return shlex.join([*_this_program(), "resume", *name, *folder, *file, *more, *headers])


def _this_program() -> list[str]:
    """Return the words that start this program from here. Python's own `-m` would import from the current folder."""
    script, python = Path(sys.executable).with_name("harness"), Path(sys.executable)
    if script.is_file():
        return [_from_here(script)]
    return [_from_here(python), "-P", "-m", "harness"]


def _from_here(program: Path) -> str:
    """Return the name of a program if the shell finds it by that, else its path."""
    if shutil.which(program.name) == str(program):
        return program.name
    return str(program.relative_to(Path.cwd())) if program.is_relative_to(Path.cwd()) else str(program)
