"""Which files an output may replace: pages, tables and exports, all of which can be made again.

An output of the harness's own name below the results folder replaces whatever has that name. A path
that the user names is replaced with `--force` only. Either way a symbolic link is replaced itself,
and the file that it leads to stays.
"""

from __future__ import annotations

import os
from pathlib import Path

from harness.errors import BadInput


def check_free(*paths: Path, force: bool) -> None:
    """Raise `BadInput` if something is at one of these paths, unless `force` allows to replace
    it."""
    for path in paths:
        if not force and os.path.lexists(path):
            raise BadInput(
                f"{path} is there already: choose another name, or replace it with --force"
            )
