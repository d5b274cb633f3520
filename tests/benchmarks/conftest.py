from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.plugins import write_visits


@pytest.fixture
def tasks(tmp_path: Path) -> Path:
    """The tasks folder of `tests/data/visits`."""
    return write_visits(tmp_path)
