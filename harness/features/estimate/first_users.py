"""Take part in a run: play its first users, show the estimate, and ask the user whether to continue."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from typing import Any

from harness.engine.extension import Extension, Say
from harness.engine.session import PlayAlone, Session
from harness.errors import BadInput
from harness.features.estimate.estimates import Estimate, Estimated, choose, estimates, in_short, lines, sample_of
from harness.ui.streams import can_ask, tell

AGREE = "; nobody can be asked here: --yes goes on without asking"


class FirstUsers(Extension):
    def __init__(self, args: Any) -> None:
        self._yes: bool = args.yes
        if not args.estimate:
            raise BadInput("--yes is for --estimate")

    def before(self, sessions: Sequence[Session], play: PlayAlone, say: Say) -> Sequence[Session]:
        unfinished = [session for session in sessions if session.unfinished]
        return self._estimated(unfinished, play, say) if unfinished else ()

    def _estimated(self, sessions: Sequence[Session], play: PlayAlone, say: Say) -> Sequence[Session]:
        """Play a few users of each run, print what the whole run will take, and return the sessions that continue.

        All other sessions are finished here: they have ended, or the user did not agree. Users who are done count.
        """
        began, runs = time.monotonic(), [run for session in sessions for run in session.unfinished]
        for run in runs:
            run.first = choose(run)
        play(sessions)
        lanes = {session: session.lane for session in sessions if session.lane}
        open_ones = {session: lane for session, lane in lanes.items() if not lane.ending and session.remaining}
        parts = [(one.plan, lane, [sample_of(run) for run in one.unfinished]) for one, lane in open_ones.items()]
        for run in runs:
            run.first = None
        found = estimates(parts, time.monotonic() - began) if parts else []
        if found is None:
            say("no estimate: too few of the first users ended")
        for session, of in zip(open_ones, found or (), strict=False):
            for line in lines(session.plan.name, of):
                say(line)
        if open_ones and not (found and self._agreed(found)):
            for lane in open_ones.values():
                lane.ending = Estimated(
                    f"the first users are played, and their replies saved{'' if can_ask() else AGREE}"
                )
        for session, lane in lanes.items():
            if lane.ending or not session.remaining:
                session.finish()
            else:
                session.go_on()
        return [session for session in sessions if session.code is None]

    def _agreed(self, found: Sequence[Estimate]) -> bool:
        """Return whether runs continue, by `--yes` or by the user's answer on a terminal."""
        if self._yes or not can_ask():
            return self._yes
        tell(f"go on, for {in_short(found)}? [y/N]")
        return sys.stdin.readline().strip().lower() in ("y", "yes")
