"""Play plans in four phases: open them, play them, finish them, present what they came to. For `run` and `resume`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from functools import partial

from rich.console import Console

from harness.benchmarks import usage
from harness.commands.notices import Printer, ends, notices, resume_commands, without_price
from harness.engine.events import Emit, Event, Scored
from harness.engine.hooks import Hooks, Observe, Say
from harness.engine.opening import open_sessions
from harness.engine.playing import play
from harness.engine.session import Session
from harness.options import options
from harness.options.plan import Plan
from harness.reporting.reported import Reported
from harness.ui.console import PLAIN
from harness.ui.live import display


def launch(
    plans: Sequence[Plan],
    console: Console,
    hooks: Sequence[Hooks] = (),
    *,
    reported: Callable[[Reported, Say], None],
    caller: options.Session | None = None,
) -> int:
    """Run all plans at once and finish them; return the worst exit code. `reported` acts on each new report, before its
    run is complete. `caller` has what gets snapshots instead of the display, and the event loop to play in."""
    say, several = partial(console.print, **PLAIN), len(plans) > 1
    shown = Printer(console, hooks, alone=not several)

    def emit(event: Event) -> None:
        shown(event)
        for one in hooks:
            one.on_event(event)
        if isinstance(event, Scored):
            reported(event.run, say)

    with ExitStack() as held:
        sessions, code = _open(plans, hooks, emit, say, held)
        _play(sessions, hooks, console, caller or options.Session())
        for session in sessions:
            if session.code is None:
                session.finish()
        if several:
            console.print(ends(sessions), highlight=False, markup=False)
            if left := [one.plan for one in sessions if one.is_resumable]:
                for command in resume_commands(left, hooks):
                    say(f"resume with: {command}")
        for words in _afterwards([session for session in sessions if session.schedule]):
            say(words)
    return max([code, *[session.code or 0 for session in sessions]])


def _afterwards(played: Sequence[Session]) -> Iterator[str]:
    """Yield, once for all sessions that were played, what would have been good to know before."""
    if words := without_price([session.plan for session in played]):
        yield words
    held_up = [usage.bottleneck(session.schedule) for session in played if session.schedule]
    yield from [words for words in held_up if words][:1]  # all share the event loop


def _open(
    plans: Sequence[Plan], hooks: Sequence[Hooks], emit: Emit, say: Callable[[str], None], held: ExitStack
) -> tuple[list[Session], int]:
    """Open the runs of plans, for as long as `held`; return the sessions, and an exit code for those that cannot start.

    Plans are refused, and their tasks validated to the last line, before anything is written.
    """
    for words in dict.fromkeys(words for plan in plans for words in notices(plan)):
        say(words)
    for one in hooks:
        one.check(plans)
    for one in hooks:
        one.prepare(plans, held, say)
    sessions, code = open_sessions(plans, held, emit, hooks)
    for session in [session for session in sessions if session.unfinished]:
        label = f"{session.plan.name}: " if len(plans) > 1 else ""
        for words in [words for one in hooks for words in one.forecast(session.plan, session.longest)]:
            say(f"{label}{words}")
    return sessions, code


def _play(sessions: Sequence[Session], hooks: Sequence[Hooks], console: Console, caller: options.Session) -> None:
    """Play the users that are left. Sessions that end while others go on are finished at once."""
    say = partial(console.print, **PLAIN)

    def shown() -> AbstractContextManager[Observe]:
        return nullcontext(caller.progress) if caller.progress else display(console)

    playing = partial(play, hooks=hooks, say=say, display=shown, run_async=caller.run_async)
    for one in hooks:
        sessions = one.before_play(sessions, partial(playing, finishing=False), say)
    if unfinished := [session for session in sessions if session.unfinished]:
        playing(unfinished)
