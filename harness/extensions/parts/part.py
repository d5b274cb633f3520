"""Let a run take one of several disjoint parts of the users, in a folder of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from harness.engine.extension import Extension
from harness.errors import BadInput
from harness.options import options
from harness.store.manifest import Selection, manifests


class Part(Extension):
    """A part of all users has every n-th line of the tasks file, whose others are not validated. Of a share or of some
    users it is every n-th in the order that the seed draws, which only all keys decide."""

    def __init__(self, args: Any) -> None:
        self._part: str = args.part
        self._results: Path = args.results_dir
        self._restarts: bool = args.restart
        if getattr(args, "reeval", False):
            raise BadInput("--part plays users, and --reeval scores saved answers: name the part with --name")

    def choosing(self, name: str, selection: Selection) -> tuple[str, Selection]:
        named = options.new_run_name(f"{name}.part{self._part.replace('/', 'of')}", name)
        chosen: Selection = {**selection, "part": self._part}
        is_all, before = selection["ratio"] == 1 and "limit" not in selection, self._before(self._results / named)
        if before.get("by") and not is_all:
            raise BadInput(
                f"{named} has every n-th line of the tasks file: leave out --ratio and --limit, or give --restart"
            )
        if is_all and (before.get("by") or not before):
            chosen["by"] = "lines"
        return named, chosen

    def _before(self, folder: Path) -> Selection | dict[str, Any]:
        """Return which users an earlier session has selected."""
        earlier = {} if self._restarts else manifests(folder)
        return next((manifest.selection for manifest in earlier.values()), {})
