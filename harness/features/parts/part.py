"""Let a run take one of several disjoint parts of the users, in a folder of its own."""

from __future__ import annotations

from typing import Any

from harness.config import options
from harness.engine.extension import Extension
from harness.errors import BadInput
from harness.store.manifest import Selection


class Part(Extension):
    def __init__(self, args: Any) -> None:
        self._part: str = args.part
        if args.reeval:
            raise BadInput("--part plays users, and --reeval scores saved answers: name the part with --name")

    def choosing(self, name: str, selection: Selection) -> tuple[str, Selection]:
        named = options.new_run_name(f"{name}.part{self._part.replace('/', 'of')}", name)
        return named, {**selection, "part": self._part}
