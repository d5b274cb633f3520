"""A benchmark made again on a machine that has none of its files."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from hashlib import sha256
from pathlib import Path

import pytest

from harness.benchmark import Benchmark, kept_files
from harness.benchmarks import registry, tasks
from harness.benchmarks.dailymobility import synth
from harness.benchmarks.dailymobility.benchmark import DailyMobility
from harness.benchmarks.streamprofile.benchmark import StreamProfile
from harness.chat import Asking
from harness.features.ray.shipping import packed, unpacked
from tests.features.ray.workers import Shared
from tests.support.plugins import STARS, VISITS, write_visits

AGENT = """
from agentsociety_benchmark.benchmarks import DailyMobilityAgent
from sibling import NAME


class Own(DailyMobilityAgent):
    async def forward(self):
        pass
"""
BUILDER = """
class BenchTaskBuilder:
    def __init__(self, platform): self.platform = platform
    def format_prompt(self, **given): return str(given)
"""
RUNNER = 'MESSAGE = {"role": "system", "content": "只写 JSON。"}\n'


def stars(folder: Path) -> Benchmark:
    copy = shutil.copy(STARS, folder)
    return registry.find(str(copy))(asking=Asking(False, 7), folder=folder)


def visits(folder: Path) -> Benchmark:
    """A plug-in that reads a file in the tasks folder."""
    return registry.find(str(shutil.copy(VISITS, folder)))(folder=write_visits(folder))


def module(folder: Path) -> Benchmark:
    return registry.find(f"{Shared.__module__}:{Shared.__name__}")(folder=folder)


def template(folder: Path) -> Benchmark:
    (folder / "我的.txt").write_text("${posts} ${pool} ${persona}", encoding="utf-8")
    return StreamProfile(StreamProfile.Settings(prompt=folder / "我的.txt"), folder=folder)


def authors(folder: Path) -> Benchmark:
    (folder / "bench_task.py").write_text(BUILDER)
    (folder / "bench_inference.py").write_text(RUNNER, encoding="utf-8")
    return StreamProfile(StreamProfile.Settings(prompt=folder / "bench_task.py"), folder=folder)


def city(folder: Path) -> Path:
    (folder / "dailymobility" / "groundtruth").mkdir(parents=True)
    for name, content in synth.files(3, 1).items():
        (folder / "dailymobility" / name).write_bytes(content)
    return folder


def plan(folder: Path) -> Benchmark:
    return DailyMobility(folder=city(folder))


def plan_with_prompt(folder: Path) -> Benchmark:
    (folder / "plan.txt").write_text("${profile} ${candidates} ${intentions} ${home} ${work}", encoding="utf-8")
    return DailyMobility(DailyMobility.Settings(prompt=folder / "plan.txt"), folder=city(folder))


def agent(folder: Path) -> Benchmark:
    (folder / "own.py").write_text(AGENT)
    (folder / "sibling.py").write_text("NAME = '小明'\n", encoding="utf-8")
    return DailyMobility(DailyMobility.Settings(agent=folder / "own.py", agent_seed=3), folder=city(folder))


MADE: list[Callable[[Path], Benchmark]] = [
    partial(lambda folder: StreamProfile(asking=Asking(True, 4), folder=folder)),
    stars,
    visits,
    module,
    template,
    authors,
    plan,
    plan_with_prompt,
    agent,
]
NAMES = ["own prompt", "plug-in", "plug-in with data", "module", "template", "authors", "plan", "plan prompt", "agent"]


@pytest.mark.parametrize("make", MADE, ids=NAMES)
def test_benchmark_is_made_again_where_none_of_its_files_are(make: Callable[[Path], Benchmark], tmp_path: Path) -> None:
    """The same class, identity, files and ways to ask; the originals are gone by then."""
    here, there, contents = tmp_path / "here", tmp_path / "there", dict[str, bytes]()
    here.mkdir()
    before = make(here)
    shipped = packed(before, contents)
    shutil.rmtree(here)
    after = unpacked(shipped, contents, there)
    assert type(after) is type(before)
    assert replace(after.configuration, path=None) == replace(before.configuration, path=None)
    assert after.asking == before.asking
    assert kept_files(after) == kept_files(before)
    assert after.task_files.truth_sha256 == before.task_files.truth_sha256
    assert tasks.version(after) == tasks.version(before)
    assert {sha256(data).hexdigest(): data for data in contents.values()} == contents


def test_each_file_is_sent_once(tmp_path: Path) -> None:
    """Two plans with the same map have it once."""
    contents: dict[str, bytes] = {}
    folder = city(tmp_path)
    sizes = []
    for _ in range(2):
        packed(DailyMobility(folder=folder), contents)
        sizes.append(len(contents))
    assert sizes[0] == sizes[1] == len(DailyMobility.task_files.data_files) + 1  # with its own prompt
