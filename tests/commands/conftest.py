"""Runs that tests of `compare` read: of each benchmark a baseline and two seeds of a random one."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from harness.benchmarks.dailymobility.synth import files
from harness.benchmarks.streamprofile.synth import generate
from harness.cli import main
from tests.support.scripted import Script, answer, completion, serving

PLATFORMS = ("weibo", "zhihu")
USERS = 48


def seeded(seed: int) -> Script:
    """`baseline/random` of another seed."""
    return lambda body: (200, completion(answer("baseline/random", body["messages"], seed)))


def day(name: str, seed: int) -> Script:
    return lambda body: (200, completion(answer(name, body["messages"], seed)))


def play(root: Path, name: str, script: Script | None, *words: str) -> None:
    """One run of the scripted model, or of `baseline/recency`."""
    where = [
        "--tasks-dir",
        str(root / "tasks"),
        "--results-dir",
        str(root / "results"),
        "--name",
        name,
    ]
    if script is None:
        assert main(["run", *words, "--model", "baseline/recency", *where]) == 0
        return
    with serving(script) as server:
        address = ["--api-url", server.url, "--api-key", "sk-test-1"]
        assert main(["run", *words, "--model", "baseline/random", *address, *where]) == 0


@pytest.fixture(scope="session")
def played(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with tasks and runs of two platforms: `recency`, `random-1`, `random-2`. Nobody
    changes it."""
    root = tmp_path_factory.mktemp("played")
    (root / "tasks").mkdir()
    for platform in PLATFORMS:
        path = root / "tasks" / f"{platform}_inference_tasks.jsonl"
        path.write_bytes(b"".join(generate(platform, USERS, 5, 2.0)))
    both = [word for platform in PLATFORMS for word in ("--platform", platform)]
    play(root, "recency", None, *both)
    for seed in (1, 2):
        play(root, f"random-{seed}", seeded(seed), *both)
    return root


@pytest.fixture(scope="session")
def lived(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same of DailyMobility: `commuter`, `day-1`, `day-2`, over 48 residents."""
    root = tmp_path_factory.mktemp("lived")
    for name, content in files(USERS, 5).items():
        path = root / "tasks" / "dailymobility" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    play(root, "commuter", day("baseline/commuter", 0), "dailymobility")
    for seed in (1, 2):
        play(root, f"day-{seed}", day("baseline/random-day", seed), "dailymobility")
    return root


@pytest.fixture
def own(played: Path, tmp_path: Path) -> Path:
    """A copy of the runs to spoil."""
    return Path(shutil.copytree(played, tmp_path / "own"))
