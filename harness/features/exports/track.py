"""Send the runs of a session to a tracker once they have ended."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from typing import Any

from harness.analysis.saved_runs import SavedRun
from harness.config.plan import Plan
from harness.defaults import RESULTS_FOLDER
from harness.engine.extension import Extension
from harness.errors import HarnessError
from harness.features.exports import trackers
from harness.store.manifest import COMPLETE, INCOMPLETE, load
from harness.store.run import RunFiles
from harness.ui.streams import tell


class Track(Extension):
    def __init__(self, args: Any) -> None:
        self._tracker: str = args.track
        self.resume_words = ["--track", self._tracker]
        trackers.check(self._tracker)

    def ended(self, plans: Sequence[Plan]) -> None:
        """Send what has ended. A run that fails is a warning, and the last one tried: it may have taken minutes. All
        runs are saved, also if the user interrupts it."""
        try:
            for plan in plans:
                for run in _ended(plan):
                    tell(trackers.sent(run, self._tracker))
        except HarnessError as error:
            self._tell_how_to_send(plans, str(error))
        except KeyboardInterrupt:
            self._tell_how_to_send(plans, f"not all is sent to {self._tracker}")
            raise

    def _tell_how_to_send(self, plans: Sequence[Plan], why: str) -> None:
        names, results = [plan.name for plan in plans], plans[0].results
        again = ["harness", "export", *names, "--format", self._tracker]
        again += [] if results == RESULTS_FOLDER else ["--results-dir", str(results)]
        tell(f"{', '.join(names)}: {why}; all is saved, and this sends it later: {shlex.join(again)}")


def _ended(plan: Plan) -> Iterator[SavedRun]:
    for files in (RunFiles(plan.folder, subset) for subset in plan.tasks):
        if (manifest := load(files.manifest)) and manifest.state in (COMPLETE, INCOMPLETE):
            yield SavedRun(files, manifest)
