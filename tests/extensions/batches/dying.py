"""The harness in a process that kills itself right after its nth operation, which DIES_AFTER gives.

Operations are calls of the Batch API (the provider has done what was asked; the answer is lost),
lines of the journal, and saved replies.

    DIES_AFTER=3 python -m tests.extensions.batches.dying run ...
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from itertools import count
from typing import Any
from unittest.mock import patch

from harness.cli import main
from harness.extensions.batches.api import BatchApi
from harness.store.run import RunStore
from harness.store.submissions import BatchJournal

DIES_AFTER = "DIES_AFTER"


def mortal(last: int) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Wrappers of functions and of coroutine functions, whose calls count together."""
    numbers = count(1)

    def done() -> None:
        if next(numbers) == last:
            os.kill(os.getpid(), signal.SIGKILL)

    def plain(function: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*args: Any, **options: Any) -> Any:
            made = function(*args, **options)
            done()
            return made

        return wrapped

    def awaited(function: Callable[..., Any]) -> Callable[..., Any]:
        async def wrapped(*args: Any, **options: Any) -> Any:
            made = await function(*args, **options)
            done()
            return made

        return wrapped

    return plain, awaited


if __name__ == "__main__":
    plain, awaited = mortal(int(os.environ[DIES_AFTER]))
    with (
        patch.object(BatchApi, "call", awaited(BatchApi.call)),
        patch.object(BatchJournal, "_append", plain(BatchJournal._append)),
        patch.object(RunStore, "save_response", plain(RunStore.save_response)),
    ):
        sys.exit(main(sys.argv[1:]))
