"""The places in a run at which an extension takes part. Composed once, of the extensions that are
switched on."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack

from harness.client.caller import MakeAttempt
from harness.cost import Rate
from harness.engine.accounts import OpenRunners
from harness.engine.events import SessionEvent
from harness.engine.runner import ModelRunner, RunnerTask, Send, Settle
from harness.engine.session import PlanSession
from harness.model import Snapshots
from harness.options.plan import Plan
from harness.store.manifest import Manifest

Observe = Callable[[Snapshots], None]
Say = Callable[[str], None]
"""Prints a line."""
PlayAlone = Callable[[Sequence[PlanSession]], None]
"""Plays sessions without finishing them."""


class Hooks:
    """An extension's part in the runs of one command. Each member adds nothing by default.

    A `wrap_...` returns the function that it is given, or one that does something before, after or
    instead of it.
    """

    def options_to_resume(self, plan: Plan) -> Sequence[str]:
        """Return the words of options that `resume` needs to go on with a plan."""
        return ()

    def check(self, plans: Sequence[Plan]) -> None:
        """Raise `BadInput` for plans that cannot be played. Called before `prepare`, and where
        nothing will be sent."""

    def prepare(self, plans: Sequence[Plan], held: ExitStack, say: Say) -> None:
        """Prepare for plans before any file of theirs is opened, for as long as `held`. Raise
        `HarnessError` for what cannot work."""

    def adjust_price(self, plan: Plan, rate: Rate) -> Rate:
        """Return the price that a plan's requests have."""
        return rate

    def update_manifest(self, plan: Plan, manifest: Manifest, old: Manifest | None) -> None:
        """Note in the manifest of a run what this session adds; `old` is that of the session
        before."""

    def forecast(self, plan: Plan, longest: int) -> Iterable[str]:
        """Yield what to know of a plan before its first request; `longest` are the most steps that
        a user has."""
        return ()

    def before_play(
        self, sessions: Sequence[PlanSession], play: PlayAlone, say: Say
    ) -> Sequence[PlanSession]:
        """Act once the runs of all plans are open, before any user is played; return the sessions
        that are still to be played. Raise `BadInput` for what cannot go on so."""
        return sessions

    def wrap_open_runners(
        self, open_runners: OpenRunners, held: ExitStack, say: Say
    ) -> OpenRunners:
        """Wrap how runners are opened. Called in the main thread before the event loop starts,
        which ends before `held`."""
        return open_runners

    def runner_task(self, runner: ModelRunner) -> RunnerTask | None:
        """Return what works next to the users of a runner. Called before the first user starts."""
        return None

    def wrap_settle(self, settle: Settle) -> Settle:
        """Wrap how a new request gets its saved reply."""
        return settle

    def wrap_send(self, send: Send) -> Send:
        """Wrap how a request is sent until it is answered."""
        return send

    def wrap_attempt(self, runner: ModelRunner, role: str, attempt: MakeAttempt) -> MakeAttempt:
        """Wrap each try of the requests of a runner to the model of a role; an empty one is the
        model under test."""
        return attempt

    def on_event(self, event: SessionEvent) -> None:
        """Act on an event of the runs (`harness.engine.events`)."""


def extend(runner: ModelRunner, hooks: Sequence[Hooks]) -> None:
    """Let extensions take part in a runner, before its first user starts. The last one is
    outermost."""
    for extension in hooks:
        runner.settle = extension.wrap_settle(runner.settle)
        runner.send = extension.wrap_send(runner.send)
        for role, caller in runner.callers.items():
            caller.make_attempt = extension.wrap_attempt(runner, role, caller.make_attempt)
        if task := extension.runner_task(runner):
            runner.tasks.append(task)
