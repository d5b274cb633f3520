"""What a session asks of this machine before it begins: open files for its connections."""

from __future__ import annotations

import re
import resource
import subprocess
import sys
from collections.abc import Iterator

import pytest

from harness import defaults
from harness.engine import accounts
from harness.errors import MachineError
from tests.support import ROOT, SHIPPED

NONE = resource.RLIM_INFINITY
MORE = defaults.OTHER_FILES


class Files:
    """The limit of open files, soft and hard, as a process without privileges may change it."""

    def __init__(self, soft: int, hard: int) -> None:
        self.limits = (soft, hard)

    def get(self, what: int) -> tuple[int, int]:
        assert what == resource.RLIMIT_NOFILE
        return self.limits

    def set(self, what: int, limits: tuple[int, int]) -> None:
        assert what == resource.RLIMIT_NOFILE
        assert limits[1] == self.limits[1]
        assert limits[1] == NONE or limits[0] <= limits[1]
        self.limits = limits


@pytest.fixture
def allowing(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Files]]:
    """Files whose limit stands in for this process's, once made."""

    class Standing(Files):
        def __init__(self, soft: int, hard: int) -> None:
            super().__init__(soft, hard)
            monkeypatch.setattr(resource, "getrlimit", self.get)
            monkeypatch.setattr(resource, "setrlimit", self.set)

    yield Standing


@pytest.mark.parametrize(
    ("soft", "hard", "raised"),
    [
        (1000 + MORE, 4096, 1000 + MORE),  # enough as it is
        (5000, 5000, 5000),
        (NONE, NONE, NONE),
        (256, 4096, 1000 + MORE),
        (1000 + MORE - 1, 1000 + MORE, 1000 + MORE),
        (256, NONE, 1000 + MORE),
    ],
)
def test_soft_limit_is_raised_to_what_the_connections_take_and_never_lowered(
    allowing, soft, hard, raised
):
    """A thousand at once need a thousand sockets and some files; the hard limit is left alone."""
    files = allowing(soft, hard)
    accounts.admit_sockets(1000, 1000)
    assert files.limits == (raised, hard)


def test_more_connections_than_this_machine_allows_are_refused_with_what_it_does(
    allowing,
):
    """Before anything is sent, and in one sentence: how many are needed and allowed, and what to do
    about it."""
    files = allowing(256, 1024)
    with pytest.raises(
        MachineError,
        match=rf"need {2000 + MORE} .* allows 1024 .* --concurrency {1024 - MORE} .*ulimit",
    ):
        accounts.admit_sockets(2000, 2000)
    assert files.limits == (256, 1024)
    accounts.admit_sockets(1024 - MORE, 1024 - MORE)  # the advice holds
    assert files.limits == (1024, 1024)


def test_advice_of_several_accounts_is_a_share_of_what_there_is(allowing):
    """Three servers of 500 requests each need 1,500 connections; a third of what there is goes for
    each."""
    allowing(256, 600 + MORE)
    with pytest.raises(MachineError, match=r"1500 requests at once .* --concurrency 200 "):
        accounts.admit_sockets(1500, 500)


@pytest.mark.parametrize(
    ("connections", "most", "hard"), [(16, 16, 64), (1, 1, 64), (16, 16, 3), (6, 2, MORE + 2)]
)
def test_where_no_concurrency_fits_the_limit_is_the_only_advice(allowing, connections, most, hard):
    """A lower --concurrency would be refused in its turn; with the limit that the sentence names
    the run begins."""
    files = allowing(hard, hard)
    with pytest.raises(MachineError, match="no --concurrency fits") as refused:
        accounts.admit_sockets(connections, most)
    assert "take --concurrency" not in str(refused.value)
    named = re.search(r"ulimit -n (\d+)", str(refused.value))
    assert named and int(named[1]) == connections + MORE
    files.limits = (int(named[1]), int(named[1]))
    accounts.admit_sockets(connections, most)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("limit", "concurrency", "fits"),
    [(64, 1, False), (64, 16, False), (65, 16, True), (80, 16, None)],
)
def test_advice_of_a_shell_with_few_files_is_one_that_helps(limit, concurrency, fits, tmp_path):
    """The same in a process of its own, whose shell has called `ulimit -n`."""
    command = [
        sys.executable,
        "-m",
        "harness",
        "run",
        *SHIPPED,
        "--model",
        "baseline/recency",
        "--ratio",
        "0.1",
    ]
    more = [
        "--platform",
        "weibo",
        "--no-html",
        "--concurrency",
        str(concurrency),
        "--results-dir",
        str(tmp_path),
    ]
    shell = ["sh", "-c", 'ulimit -n "$0" && exec "$@"', str(limit), *command, *more]
    done = subprocess.run(shell, cwd=ROOT, capture_output=True, text=True, timeout=60)
    advice = {
        True: "take --concurrency 1 ",
        False: f"no --concurrency fits: raise .*ulimit -n {concurrency + MORE}`",
    }
    assert done.returncode == (0 if fits is None else MachineError.exit_code), done.stderr
    assert re.search(advice[fits] if fits is not None else r"\A\Z", done.stderr), done.stderr
    assert len(done.stderr.splitlines()) <= 1


def test_limit_of_this_very_process_is_raised():
    """The same with the real system calls."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    if before[1] != NONE and before[1] < 600:
        pytest.skip("this machine allows too few open files to tell")
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (300, before[1]))
        accounts.admit_sockets(500, 500)
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (500 + MORE, before[1])
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_plans_on_one_account_keep_the_lower_of_their_limits():
    """Whichever comes first; a limit that only one of them has holds for both."""
    one = defaults.RunTuning(concurrency=64, rpm=None, tpm=5e5, ceiling=100, start=8, floor=2)
    other = defaults.RunTuning(
        concurrency=None, rpm=600.0, tpm=9e5, ceiling=1024, start=16, floor=1
    )
    for made in (one.combined(other), other.combined(one)):
        limits = (made.concurrency, made.rpm, made.tpm, made.ceiling, made.start, made.floor)
        assert limits == (64, 600.0, 5e5, 100, 8, 1)
    assert other.combined(other).concurrency is None
