"""Play plans in four phases: open them, play them, finish them, present what they came to. For
`run` and `resume`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from functools import partial
from itertools import chain

from harness.benchmarks import usage
from harness.commands.notices import (
    Printer,
    ends,
    notices,
    outcome,
    resume_commands,
    without_price,
)
from harness.engine.events import Emit, Failed, ReportMade, SessionEvent
from harness.engine.hooks import Hooks, Observe, Say
from harness.engine.opening import open_sessions
from harness.engine.playing import play
from harness.engine.session import PlanSession
from harness.errors import BadInput
from harness.model import Snapshots
from harness.options import options
from harness.options.plan import Plan
from harness.reporting.reported import Reported
from harness.ui.console import PLAIN, SharedConsole
from harness.ui.live import display
from harness.ui.streams import show_json

LOG_COLUMNS = 500
"""Most columns of a table where no terminal has fewer."""


def launch(
    plans: Sequence[Plan],
    console: SharedConsole,
    hooks: Sequence[Hooks] = (),
    *,
    reported: Callable[[Reported, Say], None],
    caller: options.PlayOptions | None = None,
) -> int:
    """Run all plans at once and finish them; return the worst exit code. `reported` acts on each
    new report, before its run is complete. `caller` has what gets snapshots instead of the display,
    and the event loop to play in."""
    caller = caller or options.PlayOptions()
    console.quiet = caller.json or caller.progress is not None
    is_quiet = caller.quiet or console.quiet
    say: Say = _say_nothing if is_quiet else partial(console.print, **PLAIN)
    printer = Printer(console, hooks, alone=len(plans) == 1, quiet=is_quiet)

    def emit(event: SessionEvent) -> None:
        # The user may not have in mind what the settings file has.
        if isinstance(event, Failed) and isinstance(event.error, BadInput):
            caller.name_places(event.error)
        printer(event)
        for hook in hooks:
            hook.on_event(event)
        if isinstance(event, ReportMade):
            reported(event.run, say)

    with ExitStack() as stack:
        sessions, code = _open(plans, hooks, emit, say, stack)
        _play(sessions, hooks, console, say, caller)
        for session in sessions:
            # `play` has finished those that ended while others went on.
            if session.code is None:
                session.finish()
        _close(sessions, hooks, console, say, has_several=len(plans) > 1)
        if caller.json:
            show_json([outcome(run, session) for session in sessions for run in session.runs])
    return max([code, *[session.code or 0 for session in sessions]])


def _show_nothing(snapshots: Snapshots) -> None:
    """Leave out the display of a quiet command."""


def _say_nothing(line: str) -> None:
    """Leave out what a quiet command does not print."""


def _close(
    sessions: Sequence[PlanSession],
    hooks: Sequence[Hooks],
    console: SharedConsole,
    say: Say,
    *,
    has_several: bool,
) -> None:
    """Print how the runs of several plans have ended, and the commands that go on with them; and,
    once for all that were played, what would have been good to know before."""
    if has_several and say is not _say_nothing:
        is_log = not console.is_terminal
        if is_log:
            console.width = LOG_COLUMNS  # all that follows is printed without wrapping
        console.print(ends(sessions, for_log=is_log), highlight=False, markup=False)
    if has_several:
        resumable = [session.plan for session in sessions if session.is_resumable]
        for command in resume_commands(resumable, hooks):
            console.print(f"resume with: {command}", **PLAIN)
    played = [session for session in sessions if session.schedule]
    unpriced = without_price([session.plan for session in played if not session.is_priced])
    if unpriced:
        say(unpriced)
    for session in played:
        bottleneck = session.schedule and usage.bottleneck(session.schedule)
        if bottleneck:
            say(bottleneck)
            break  # once for all of them, as they share the event loop


def _open(
    plans: Sequence[Plan],
    hooks: Sequence[Hooks],
    emit: Emit,
    say: Callable[[str], None],
    stack: ExitStack,
) -> tuple[list[PlanSession], int]:
    """Open the runs of plans, until `stack` is closed; return the sessions, and an exit code for
    those that cannot start.

    Plans are refused, and their tasks validated to the last line, before anything is written.
    """
    # Plans of one endpoint have the same notices.
    for notice in dict.fromkeys(chain.from_iterable(map(notices, plans))):
        say(notice)
    for hook in hooks:
        # All hooks check before one of them prepares: a refusal leaves nothing to undo.
        hook.check(plans)
    for hook in hooks:
        hook.prepare(plans, stack, say)
    sessions, code = open_sessions(plans, stack, emit, hooks)
    for session in sessions:
        if not session.unfinished:
            continue
        label = f"{session.plan.name}: " if len(plans) > 1 else ""
        for hook in hooks:
            for line in hook.forecast(session.plan, session.longest):
                say(f"{label}{line}")
    return sessions, code


def _play(
    sessions: Sequence[PlanSession],
    hooks: Sequence[Hooks],
    console: SharedConsole,
    say: Say,
    caller: options.PlayOptions,
) -> None:
    """Play the users that are left. Sessions that end while others go on are finished at once."""

    def shown() -> AbstractContextManager[Observe]:
        if caller.progress:
            return nullcontext(caller.progress)
        if caller.quiet or caller.json:
            return nullcontext(_show_nothing)
        return display(console, verbose=caller.verbose)

    playing = partial(play, hooks=hooks, say=say, display=shown, run_async=caller.run_async)
    for hook in hooks:
        sessions = hook.before_play(sessions, partial(playing, finishing=False), say)
    unfinished = [session for session in sessions if session.unfinished]
    if unfinished:
        playing(unfinished)
