"""Keep in mind that a run was begun without pages, so that `resume` writes none either."""

from __future__ import annotations

from typing import Any

from harness.engine.extension import Extension
from harness.features.pages import is_without
from harness.options.plan import Plan
from harness.store.manifest import Manifest


class WithoutPages(Extension):
    def __init__(self, args: Any) -> None:
        self._chosen = not args.html

    def opened(self, plan: Plan, manifest: Manifest, old: Manifest | None) -> None:
        if self._chosen or (old and is_without(old)):
            manifest.provenance["html"] = False
