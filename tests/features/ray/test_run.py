"""The command `run` on workers in this process, with both benchmarks that ship and with other features."""

from __future__ import annotations

from pathlib import Path

import orjson
import pytest

from harness.engine import finish
from harness.features.ray import scoring
from tests.commands.test_commands import RESULTS
from tests.features.ray.conftest import Place
from tests.support.plugins import Commands
from tests.support.scripted import baseline, serving


@pytest.mark.parametrize("benchmark", ["streamprofile", "dailymobility"])
def test_results_of_both_benchmarks_are_those_of_this_process(
    benchmark: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    cluster: Place,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """To the byte, over the embedded endpoint of each worker; the report too, whose shards workers score."""
    for module in (finish, scoring):
        monkeypatch.setattr(module, "SHARD_USERS", 2)
    folders = [tmp_path / "local", tmp_path / "workers"]
    model = "baseline/recency" if benchmark == "streamprofile" else "baseline/random-day"
    words = ["run", benchmark, "--demo", "--model", model, "--limit", "7", "--no-html", "--name", "r"]
    for folder, more in zip(folders, ([], ["--engine", "ray", "--workers", "2", "--turn", "1"]), strict=True):
        Commands(folder, capsys)(*words, *more)
    assert len(cluster.workers) == 2
    written = [sorted(path.name for path in folder.glob("r/inference_results_*")) for folder in folders]
    assert written[0] == written[1] != []
    for file in written[0]:
        assert (folders[0] / "r" / file).read_bytes() == (folders[1] / "r" / file).read_bytes() != b""
    for one, other in zip(*(sorted(folder.glob("r/eval_report_*.json")) for folder in folders), strict=True):
        reports = [orjson.loads(path.read_bytes()) for path in (one, other)]
        for report in reports:
            del report["schedule"], report["run"]["created"]
        assert reports[0] == reports[1]


@pytest.mark.usefixtures("cluster")
def test_workers_go_on_with_replies_of_another_run_that_they_did_not_receive(tmp_path: Path) -> None:
    """And with those to their own requests; the results are those of a run without the other one."""
    reuse = pytest.importorskip("tests.features.reuse.test_reuse")
    with serving(baseline) as server:
        case = reuse.Case(tmp_path, server)
        case.run("first", "--limit", "1")
        saved = len(server.bodies)
        case.run("whole", "--limit", "2")
        whole = len(server.bodies)
        on_workers = ("--engine", "ray", "--turn", "1")
        assert case.run("second", "--limit", "2", "--reuse", "first", *on_workers) == 0
    assert len(server.bodies) == whole - saved
    assert (case.out / "second" / RESULTS).read_bytes() == (case.out / "whole" / RESULTS).read_bytes()
