"""Sessions: the runs of a plan, from their opening to their reports. Nothing is printed: events are
emitted."""

from __future__ import annotations

from harness.client.control import FixedControl
from harness.engine.events import Dropped, Emit, Ended, Failed, LeftOpen, ReportMade, Unchanged
from harness.engine.files import write_report
from harness.engine.finish import finish
from harness.engine.local import Signalled
from harness.engine.run import Run, models_warning
from harness.engine.runner import ModelRunner
from harness.errors import (
    BadInput,
    BenchmarkError,
    EndpointStopped,
    ExitCode,
    HarnessError,
    MachineError,
    RunStopped,
    memory_for,
)
from harness.model import JSON
from harness.options.plan import Plan
from harness.reporting.reported import Reported
from harness.store.manifest import COMPLETE, STOPPED, part_of
from harness.store.submissions import outstanding, pending

COMPLETE_EXIT, FAILURES_EXIT = 0, 1
BROKEN = frozenset({MachineError.exit_code, BenchmarkError.exit_code})
"""Of ends for a reason of this machine or of a benchmark, after which a run's files have more than
the error's sentence."""


class PlanSession:
    """One plan's runs, one of each subset, from their opening to their reports.

    `unfinished` are the runs with users left at the start. `runner` is the one that has played them
    last, and `schedule` how long that took; None before. After `finish`, `code` is the exit code,
    and `reported` are the runs with a new report.
    """

    def __init__(self, plan: Plan, runs: list[Run], emit: Emit) -> None:
        self.plan = plan
        self.runs = runs
        self.unfinished = [run for run in runs if len(run.remaining)]
        self.runner: ModelRunner | None = None
        self.schedule: JSON | None = None
        self.code: int | None = None
        self.reported: list[Reported] = []
        self._emit = emit

    def finish(self, signalled: Signalled = lambda: None) -> None:
        """Finish each run and report what remains. A signal leaves runs with users left as they
        are, without a report; once `signalled` returns one, no record is read."""
        ending = self.runner.ending if self.runner else None
        if isinstance(ending, RunStopped) and not self.remaining:
            ending = None  # the grace period was enough for all users
        received = any(run.store.received for run in self.runs)
        # A run of which nothing came, such as after a wrong key, leaves no folder to clean up.
        if ending and ending.exit_code not in BROKEN and not received and self._is_free:
            self.code = self._drop(ending)
            return
        no_replies = isinstance(ending, EndpointStopped) and not received
        code = COMPLETE_EXIT
        for run in self.runs:
            is_complete = run.manifest.state == COMPLETE and not run.changed
            if is_complete and run not in self.unfinished:
                self._emit(Unchanged(run.label, run.store.files.report("txt")))
                continue
            # A full disk has no room for a report; saved data is intact.
            if isinstance(ending, MachineError):
                continue
            run.played(self.schedule, self._learned_limit)
            try:
                if isinstance(ending, RunStopped) and len(run.remaining):
                    self._leave(run)
                else:
                    self._finish(run, no_replies, signalled)
            except RunStopped as raised:
                ending = raised
                self._leave(run)
            # An error of this subset only; the others still get their reports.
            except (BadInput, BenchmarkError) as error:
                self._emit(Failed(str(run.store.files.results), error))
                code = ExitCode.of(error)
        self.code = max(code, self._ended(ending))

    def undo(self) -> None:
        """Restore the runs' state from before this session, which could not begin."""
        for run in self.unfinished:
            if run.is_new and run.store.files.is_bare:
                run.store.drop()
            else:
                run.end(STOPPED)
                run.save()

    @property
    def remaining(self) -> int:
        """Return the number of users left."""
        return sum(len(run.remaining) for run in self.runs)

    @property
    def longest(self) -> int:
        """Return the largest number of remaining steps of a user."""
        return max(int(run.steps_left().max()) for run in self.unfinished)

    def go_on(self) -> None:
        """Add the seconds that the first users took. Those of them who failed are tried again."""
        for run in self.unfinished:
            run.failed = 0
            run.refused.clear()
            run.played(self.schedule)

    @property
    def _is_free(self) -> bool:
        """Return whether this command has made the runs, and sent nothing of them that may be
        billed."""
        stores = [run.store for run in self.runs]
        billed = any(store.tally.bill.has_requests or pending(store.files) for store in stores)
        return all(run.is_new for run in self.runs) and not billed

    def _drop(self, ending: HarnessError) -> int:
        """Remove the runs, of which nothing was received, and return the exit code."""
        for run in self.runs:
            run.store.drop()
        self.runs = []
        self._emit(Dropped(self.plan, ending))
        return ExitCode.of(ending)

    @property
    def _learned_limit(self) -> int | None:
        """Return the limit of all parts that `auto` has found; None where none was looked for."""
        if self.runner is None:
            return None
        control = self.runner.caller.limiter.slots.control
        if isinstance(control, FixedControl):
            return None
        # The manifest has the limit of the whole run, of which each part takes its share.
        _, parts = part_of(self.plan.selection)
        return min(control.limit * parts, self.plan.tuning.ceiling)

    def _leave(self, run: Run) -> None:
        """Save the state of a run that a signal has stopped: a job scheduler gives seconds, so no
        record is read, however many there are. `resume` finishes the run, and `report` makes a
        report of it as it is."""
        run.end(STOPPED)
        # The old report would be read as that of the run as it is now.
        run.store.set_aside_report()
        run.save()
        self._emit(
            LeftOpen(
                run.label,
                run.benchmark,
                run.users_done,
                run.users,
                run.scores.figures,
                run.scores.users,
            )
        )

    def _finish(self, run: Run, no_replies: bool, signalled: Signalled) -> None:
        """Write the results, report and manifest of one run; no report if there are
        `no_replies` at all.

        The manifest says last that a run is complete, once `ReportMade` is handled: after a death
        before that, the next command finishes the run again.
        """
        plan, files = self.plan, run.store.files
        was_stopped = self.runner is not None and self.runner.ending is not None
        later = (
            "its records are saved; once there is more memory, `resume` or `reeval` makes the"
            " report"
        )
        with memory_for(f"score {run.label}", later):
            report, other_files = finish(run, plan.name, was_stopped, signalled)
            if not no_replies:
                write_report(files, report, other_files)
        if not no_replies:
            seed = plan.selection["sample_seed"]
            reported = Reported(files, report, seed, plan.benchmark, run.index)
            self.reported.append(reported)
            self._emit(ReportMade(run.label, reported))
        run.save()

    def _ended(self, ending: HarnessError | None) -> int:
        """Emit what remains; return the exit code."""
        remaining = self.remaining
        warnings: list[str] = []
        other_models = models_warning(self.unfinished)
        if other_models:
            warnings.append(f"{other_models}; the report has their shares")
        refused: list[str] = []
        failed = diverged = batches = 0
        for run in self.runs:
            warnings += run.warnings
            refused += run.refused
            failed += run.failed
            diverged += run.diverged
            if ending is not None:
                batches += len(outstanding(run.store.files))
        self._emit(
            Ended(
                plan=self.plan,
                ending=ending,
                remaining=remaining,
                failed=failed,
                refused=refused,
                batches=batches,
                warnings=warnings,
                diverged=diverged,
            )
        )
        if ending is not None:
            return ExitCode.of(ending)
        return FAILURES_EXIT if remaining else COMPLETE_EXIT

    @property
    def is_priced(self) -> bool:
        """Return whether the price of all requests that may be billed is known."""
        return all(run.price_of(role) for run in self.runs for role in run.billed_roles)

    @property
    def is_resumable(self) -> bool:
        """Return whether a run of it can go on."""
        return any(run.manifest.state != COMPLETE for run in self.runs)
