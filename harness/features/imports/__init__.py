"""Results that another program wrote: `reeval` scores them, and other commands show them (docs/features/imports.md)."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from harness.feature import Feature, Foreign


class _Imports(Feature):
    def foreign(self, results: Path) -> Iterable[Foreign]:
        from harness.analysis.imported import imported  # which takes a while to import

        return imported(results)


FEATURE = _Imports("imports", needs=("rescoring",))
