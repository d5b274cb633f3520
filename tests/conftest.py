from __future__ import annotations

import gc
import os
import signal
import sys
from collections.abc import Generator, Iterator, Sequence
from contextlib import suppress
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import hypothesis
import pytest

from harness.benchmarks.dailymobility import groundtruth
from harness.benchmarks.dailymobility.groundtruth import GroundTruth
from harness.client.connect import CA_FOLDERS, CA_VARIABLES
from harness.commands import parser
from harness.commands.parser import Interface
from harness.model import JSON
from harness.options import providers
from harness.ui.streams import tell_warnings
from tests.support import ROOT, examples

VARIABLES = (
    "LLM_API_KEY",
    "LLM_API_BASE",
    "OPENAI_API_KEY",
    "OPENAI_BASE_URL",
    "SGLANG_API_KEY",
    "BENCH_MAX_WORKERS",
)
VARIABLES += (*CA_VARIABLES, CA_FOLDERS, "HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HF_ENDPOINT")
os.environ["HF_TOKEN_PATH"] = os.devnull  # read when huggingface_hub is imported

# Processes that tests start would compile the package each time, and every session the tests.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# A shell ignores signals for what it starts in the background, and so would the processes that
# tests start.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)

# On a disk, the files of tests take most of the time that they are in the kernel, and much waiting.
# In memory they need little room, as those of a test that passes go with it.
MEMORY = Path("/dev/shm")


def has_room(folder: Path) -> bool:
    """Return whether files of tests fit into a folder, and programs among them can be executed."""
    if not os.access(folder, os.W_OK):
        return False
    system = os.statvfs(folder)
    return system.f_bavail * system.f_frsize > 2**31 and not system.f_flag & os.ST_NOEXEC


if has_room(MEMORY):
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY))

# An example takes as long as this machine is busy.
hypothesis.settings.register_profile("tests", deadline=None, max_examples=examples(100))
hypothesis.settings.load_profile("tests")


@pytest.hookimpl(optionalhook=True, wrapper=True)
def pytest_xdist_auto_num_workers() -> Generator[None, int, int]:
    """`-n auto` is a process more than there are cores: a fifth of a process's time goes by in
    waiting."""
    return (yield) + 1


def pytest_collectstart(collector: pytest.Collector) -> None:
    """Compile the tests once, not once in each process of xdist: each process begins with files of
    its own, and what it has compiled the others read. A file that cannot be imported is reported
    when it is collected."""
    config = collector.config
    work = getattr(config, "workerinput", None)
    if work and not config.option.file_or_dir and collector.path == Path(__file__).parent:
        files = sorted(Path(__file__).parent.rglob("test_*.py"))
        for file in files[int(work["workerid"].removeprefix("gw")) :: work["workercount"]]:
            with suppress(Exception, pytest.skip.Exception):
                import_module(".".join(file.relative_to(ROOT).with_suffix("").parts))


def pytest_collection_finish() -> None:
    """Leave the modules and the tests themselves out of each search for garbage: one took a tenth
    of a second."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    """Tests marked `anyio` run on asyncio, as the harness does."""
    return "asyncio"


@pytest.fixture(scope="session", autouse=True)
def clean_environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """No variable of the user's reaches a test, and the secret that seals runs is not the user's
    either."""
    with pytest.MonkeyPatch.context() as patch:
        for name in VARIABLES:
            patch.delenv(name, raising=False)
        for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy", "request_method"):
            patch.delenv(name, raising=False)
            patch.delenv(name.upper(), raising=False)
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        yield


@pytest.fixture(scope="session", autouse=True)
def told_warnings() -> None:
    """Print what is logged, as every command does, also where a test calls what a command calls."""
    tell_warnings()


@pytest.fixture(scope="session", autouse=True)
def no_sync() -> Iterator[None]:
    """No test loses power: tests of what is synced, and when, look at a disk of their own
    (tests/support/disks.py)."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda fd: None)
        yield


@pytest.fixture(scope="session", autouse=True)
def ceilings_once() -> Iterator[None]:
    """The score of residents who are drawn from a ground truth is computed once for each ground
    truth and number: it is a tenth of a second, and part of each report of DailyMobility."""
    known: dict[Any, JSON] = {}
    compute = GroundTruth.ceiling

    def ceiling(self: GroundTruth, residents: int) -> JSON:
        lists = tuple(column.tobytes() for column in self.lists.columns.values())
        key = (lists, residents, groundtruth.RESAMPLES)
        if key not in known:
            known[key] = compute(self, residents)
        return known[key].copy()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(GroundTruth, "ceiling", ceiling)
        yield


@pytest.fixture(scope="session", autouse=True)
def shipped_once() -> Iterator[None]:
    """The shipped file of providers is read once: each command reads it, and nobody changes what it
    makes of it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(providers, "shipped", cache(providers.shipped))
        yield


@pytest.fixture(scope="session", autouse=True)
def parsers_once() -> Iterator[None]:
    """The parser of a command is made once for the same options: it is a tenth of a short
    command's time."""
    known: dict[str, list[tuple[Interface, bool, parser.Parser]]] = {}
    make = parser.parser

    def kept(interface: Interface, arguments: Sequence[str]) -> parser.Parser:
        shows_all = parser.HELP_ALL in arguments
        parsers = known.setdefault(interface.command, [])
        for of, all_shown, made in parsers:
            if of == interface and all_shown is shows_all:
                made._arguments = arguments
                return made
        made = make(interface, arguments)
        parsers.append((interface, shows_all, made))
        return made

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parser, "parser", kept)
        yield


@pytest.fixture
def as_a_program() -> Iterator[None]:
    """For tests that call `main` as a process does that does nothing else: it leaves Ctrl-C to the
    system."""
    before = signal.getsignal(signal.SIGINT)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def workbooks_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make a workbook of the same tables once in a test: `stats` makes 21, and some tests call it a
    hundred times."""
    from harness.reporting import xlsx

    known: dict[str, bytes] = {}
    make = xlsx.workbook

    def workbook(sheets: Any) -> bytes:
        if (key := repr(sheets)) not in known:
            known[key] = make(sheets)
        return known[key]

    monkeypatch.setattr(xlsx, "workbook", workbook)
