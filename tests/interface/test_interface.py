"""The Python interface: commands as functions, saved runs as data."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import orjson
import pytest

from harness import arun, list_runs, load_run, reeval, resume, run
from harness.errors import BadInput
from harness.interface import LoadedRun
from harness.model import Snapshots
from harness.store.disk import Disk
from tests.support import ROOT, SHIPPED


def small(results: Path, **options: Any) -> list[LoadedRun]:
    """Run a baseline on a few synthetic users."""
    made: dict[str, Any] = {
        "model": "baseline/recency",
        "subset": "weibo",
        "tasks_dir": SHIPPED[1],
        "limit": 3,
    }
    return run(results_dir=results, **{**made, "html": False, **options})


def test_run_returns_no_run_of_another_name(tmp_path):
    """Of the same model, from before or from another thread meanwhile: figures of two runs are
    never mixed."""
    small(tmp_path, name="earlier")

    def meanwhile(snapshots: Snapshots) -> None:
        if not (tmp_path / "other").exists():
            small(tmp_path, name="other", progress=lambda _: None)

    async def main() -> list[LoadedRun]:
        return await asyncio.to_thread(small, tmp_path, progress=meanwhile)

    assert [made.name for made in asyncio.run(main())] == ["recency"]
    assert [made.name for made in small(tmp_path, name="x", html=False, part="1/2")] == [
        "x.part1of2"
    ]
    assert [made.name for made in small(tmp_path, name="x", html=False, part="1/2")] == [
        "x.part1of2"
    ]


def test_progress_gets_frozen_snapshots_to_the_end(tmp_path):
    """The last one says that all users are done."""
    seen: list[Snapshots] = []
    small(tmp_path, progress=seen.append)
    assert seen[-1][0].subsets[0].done == 3


def test_functions_work_where_a_loop_runs(tmp_path):
    """As in a notebook: blocking, and in a thread to await."""

    async def cell() -> list[LoadedRun]:
        small(tmp_path)
        return await asyncio.to_thread(small, tmp_path, model="baseline/frequency")

    assert [made.name for made in asyncio.run(cell())] == ["frequency"]
    assert resume(results_dir=tmp_path) == []
    assert len(reeval(results_dir=tmp_path, html=False)) == 2


def test_folder_of_several_subsets_needs_the_name_of_one(tmp_path):
    """The error names the argument with each value that it can have."""
    small(tmp_path, subset=["weibo", "zhihu"])
    with pytest.raises(BadInput) as refused:
        load_run(tmp_path / "recency")
    assert 'subset="weibo"' in str(refused.value) and 'subset="zhihu"' in str(refused.value)
    assert load_run(tmp_path / "recency", subset="zhihu").subset == "zhihu"


def test_run_shows_its_scores(tmp_path):
    """As the last line of a run does; one without a report, or with a damaged one, is shown
    without."""
    [made] = small(tmp_path)
    assert all(part in repr(made) for part in ("recency", "weibo", "3 of 3 users"))
    recall = 100 * (made.report.metrics["Recall"].value or 0)
    assert f"Recall {recall:.2f}%" in repr(made)
    made.files.report("json").write_text("{")
    assert "Recall" not in repr(made) and "weibo" in repr(made)
    made.files.report("json").unlink()
    assert "Recall" not in repr(made) and "weibo" in repr(made)


def test_failures_raise(tmp_path, capsys):
    """Bad options and input are errors of the harness, never an exit of the interpreter."""
    with pytest.raises(BadInput):
        small(tmp_path, subset="nowhere")
    with pytest.raises(TypeError):
        small(tmp_path, colour="red")
    for wrong in (
        {"limit": 0},
        {"model": ""},
        {"extensions": [object()]},
        {"settings": {"colour": "red"}},
        {"ratio": 0.1},
    ):
        with pytest.raises(BadInput) as refused:
            small(tmp_path, **wrong)
        assert refused.value.exit_code == 2 and str(refused.value)
    with pytest.raises(BadInput):
        load_run(tmp_path / "nothing")


def test_notebook_runs_from_its_first_cell_to_its_last(tmp_path, monkeypatch):
    """Its code cells, in one namespace and within a running loop, as a kernel executes them."""
    monkeypatch.chdir(tmp_path)
    cells = orjson.loads((ROOT / "examples" / "notebook.ipynb").read_bytes())["cells"]
    names: dict[str, object] = {}

    async def kernel() -> None:
        for cell in cells:
            if cell["cell_type"] == "code":
                exec("".join(cell["source"]), names)

    asyncio.run(kernel())
    assert (tmp_path / "results" / "demo-recency" / "eval_report_weibo.json").is_file()


# Many at once


BASELINES = ("recency", "frequency", "random")
Kwargs = dict[str, Any]
SAME_TASKS: list[Kwargs] = [{"model": f"baseline/{name}"} for name in BASELINES]
SAME_NAME: list[Kwargs] = [{"subset": subset} for subset in ("weibo", "zhihu", "douban")]
at_once = pytest.mark.parametrize(
    ("runs", "shared_file"),
    [(SAME_TASKS, ".index/weibo_inference_tasks.jsonl"), (SAME_NAME, "recency/prompt_own.txt")],
    ids=["tasks", "name"],
)


@pytest.fixture
def write_together(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Has the three writers of a file all reach its end before any goes on."""
    sync, barrier = Disk.sync, threading.Barrier(3)

    def begin(shared_file: str) -> None:
        def sync_together(self: Disk, fd: int) -> None:
            if shared_file in str(Path(f"/dev/fd/{fd}").readlink()):
                barrier.wait(60)
            sync(self, fd)

        monkeypatch.setattr(Disk, "sync", sync_together)

    return begin


def check_runs(results: Path) -> None:
    found = list_runs(results)
    assert len(found) == 3 and all(run.complete for run in found)
    assert [*results.rglob("*.new")] == []


@at_once
def test_runs_of_one_loop_begin_a_results_folder_together(
    tmp_path, write_together, runs, shared_file
):
    """The files that they share are whole, whoever replaces them last, and nothing half-written
    stays."""
    write_together(shared_file)
    options: Kwargs = {
        "model": "baseline/recency",
        "subset": "weibo",
        "tasks_dir": SHIPPED[1],
        "limit": 3,
    }

    async def together() -> None:
        await asyncio.gather(
            *[arun(**{**options, **run}, results_dir=tmp_path, html=False) for run in runs]
        )

    asyncio.run(together())
    check_runs(tmp_path)


@pytest.mark.slow
@at_once
def test_threads_begin_a_results_folder_together(tmp_path, write_together, runs, shared_file):
    """As runs of one loop."""
    write_together(shared_file)
    with ThreadPoolExecutor(len(runs)) as threads:
        list(threads.map(lambda run: small(tmp_path, **run), runs))
    check_runs(tmp_path)


@pytest.mark.slow
def test_processes_begin_a_results_folder_together(tmp_path):
    """As runs of one loop."""
    command = [
        sys.executable,
        "-m",
        "harness",
        "run",
        "--subset",
        "weibo",
        *SHIPPED,
        "--limit",
        "3",
    ]
    command += ["--results-dir", str(tmp_path), "--model"]
    started = [
        subprocess.Popen(
            [*command, f"baseline/{name}"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        for name in BASELINES
    ]
    messages = [process.communicate()[1] for process in started]
    assert [process.returncode for process in started] == [0] * len(started), messages
    check_runs(tmp_path)
