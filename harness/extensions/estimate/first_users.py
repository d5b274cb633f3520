"""Take part in a run: play its first users, show the estimate, and ask the user whether to
continue."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence

from harness.engine.hooks import Hooks, PlayAlone, Say
from harness.engine.session import PlanSession
from harness.errors import BadInput, HarnessError
from harness.extensions.estimate import Estimate
from harness.extensions.estimate.estimates import CostEstimate, choose, estimate, in_short, lines
from harness.ui.streams import can_ask, tell

AGREE = "; nobody can be asked here: --yes goes on without asking"


class Estimated(HarnessError):
    """A run ends after its first users, since the user did not agree to the rest."""

    exit_code = 5


class FirstUsers(Hooks):
    def __init__(self, options: Estimate) -> None:
        self._yes = options.yes
        if not options.estimate:
            raise BadInput("--yes is for --estimate")

    def before_play(
        self, sessions: Sequence[PlanSession], play: PlayAlone, say: Say
    ) -> Sequence[PlanSession]:
        """Play a few users of each run, print what the whole run will take, and return the sessions
        that continue.

        All other sessions are finished here: they have ended, or the user did not agree.
        """
        sessions = [session for session in sessions if session.unfinished]
        if not sessions:
            return ()
        runs = [run for session in sessions for run in session.unfinished]
        for run in runs:
            run.first = choose(run)
        play(sessions)
        runners = {session: session.runner for session in sessions if session.runner}
        estimates: dict[str, CostEstimate | None] = {}
        for session, runner in runners.items():
            if session.remaining and not runner.ending:
                estimates[session.plan.name] = estimate(session)
        agreed = self._agreed(estimates, say)
        for run in runs:
            run.first = None
        for session, runner in runners.items():
            if not agreed and session.plan.name in estimates:
                hint = "" if can_ask() else AGREE
                runner.ending = Estimated(
                    f"the first users are played, and their replies saved{hint}"
                )
            if runner.ending or not session.remaining:
                session.finish()
            else:
                session.go_on()
        return [session for session in sessions if session.code is None]

    def _agreed(self, estimates: Mapping[str, CostEstimate | None], say: Say) -> bool:
        """Show the estimates; return whether runs continue, by `--yes` or by the user's answer on a
        terminal."""
        known = {name: plan_estimate for name, plan_estimate in estimates.items() if plan_estimate}
        for name, plan_estimate in known.items():
            for line in lines(name, plan_estimate):
                say(line)
        if len(known) < len(estimates):
            say("no estimate: too few of the first users ended")
            return False
        if self._yes or not known or not can_ask():
            return self._yes
        tell(f"go on, for {in_short(known.values())}? [y/N]")
        return sys.stdin.readline().strip().lower() in ("y", "yes")
