"""A crew of workers over a small benchmark and a scripted endpoint, in virtual time, with real files."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import virtual
from tests.support.chain_runs import Run
from tests.support.chains import Endpoint
from tests.support.workers import Shared, importable, played

USERS = {f"用户{n}": 1 + n % 3 for n in range(4)}


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(tmp_path, USERS, benchmark=importable(Shared))


def test_every_user_is_recorded(run: Run) -> None:
    endpoint = Endpoint()
    assert virtual.run(lambda: played(run, endpoint)) is None
    assert run.recorded == list(USERS)
