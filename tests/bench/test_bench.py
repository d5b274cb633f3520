"""The pure parts of the benchmarks: what they make of what they see. No process is started, nothing
is timed."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest

from bench.__main__ import PARTS, main, run
from bench.cost import PEER_ENVIRONMENTS, PEER_SCRIPTS
from bench.instructions import Counted, difference
from bench.limits import CHAIN, cut
from bench.models import Look, most_within, providers_file
from bench.schedule import ORDERS, simulate
from bench.watch import Sample, steady_rate
from harness.benchmarks.streamprofile.benchmark import StreamProfile
from harness.benchmarks.streamprofile.synth import generate
from harness.benchmarks.tasks import parse
from harness.model import Where
from harness.options import providers
from tests.support import ROOT


def sample(
    seconds: float, completed: int = 0, *, requests: int = 0, rejected: int = 0, in_flight: int = 0
) -> Sample:
    return Sample(seconds, requests, completed, rejected, in_flight)


def test_cost_of_a_request_leaves_out_what_a_run_costs_once():
    """Two runs of the same start differ by their requests alone."""
    assert (
        difference(Counted(100, 5_000_000 + 100 * 700), Counted(350, 5_000_000 + 350 * 700))
        == 700.0
    )


def test_every_peer_has_a_script_and_a_pinned_environment():
    """What `make bench-peers` makes is what the cost part looks for."""
    for name, (script, *_) in PEER_SCRIPTS.items():
        assert (ROOT / "bench" / "clients" / script).is_file()
        pinned = (ROOT / "requirements" / f"peer-{PEER_ENVIRONMENTS[name]}.txt").read_text()
        assert "--hash=sha256:" in pinned
        assert "index-url" not in pinned


def test_steady_rate_leaves_out_ramp_and_tail():
    """A run that answers 10 a second in its middle has that rate, however slow its first and last
    fifth."""
    ramp = [sample(float(second), 2 * second) for second in range(10)]
    middle = [sample(10.0 + second, 20 + 10 * second) for second in range(7)]
    tail = [sample(17.0 + second, 80 + second) for second in range(1, 21)]
    assert steady_rate([*ramp, *middle, *tail], 100) == pytest.approx(10.0)


def test_cut_task_is_valid_and_has_exactly_four_steps():
    """Chains of four pass the harness's own validation, say four everywhere, and short users are
    left out."""
    lines = list(generate("weibo", 60, 0, 6.0))
    steps = [len(orjson.loads(line)["prediction_tasks"]) for line in lines]
    made = [cut(line) for line in lines]
    assert [one is not None for one in made] == [count >= CHAIN for count in steps]
    for line in filter(None, made):
        given = parse(StreamProfile(), line, Where("f", 1), "weibo").given
        assert [(step.step_id, step.total_steps) for step in given.steps] == [
            (n, CHAIN) for n in range(1, CHAIN + 1)
        ]
        assert orjson.loads(line)["total_steps"] == CHAIN


def test_simulation_of_a_small_case_is_as_by_hand():
    """Chains 1, 1, 3 on two slots: in file order the long one starts at 1 and ends at 4; started
    first it ends at 3."""
    steps = np.array([1, 1, 3], np.int32)
    in_file_order = simulate(ORDERS["file"](steps, 0), steps, np.ones(5), 2)
    longest_first = simulate(ORDERS["longest"](steps, 0), steps, np.ones(5), 2)
    assert (in_file_order.makespan, longest_first.makespan) == (4.0, 3.0)
    assert in_file_order.bound == longest_first.bound == 3.0
    assert in_file_order.half_sample == pytest.approx(
        1 / (5 / 3)
    )  # at 2, both chains of one step are done


def test_part_is_shown_and_saved_with_its_machine(tmp_path, monkeypatch, capsys):
    """Rows stand in the part's file, details and all, beside their machine; the table shows plain
    values."""
    part = PARTS["schedule"]
    rows = [{"order": "ours", "of_bound": 1.0123, "repeats": [1, 2]}]
    monkeypatch.setitem(PARTS, "schedule", type(part)(part.title, lambda folder, quick: rows))
    run("schedule", True, tmp_path / "results")
    saved = orjson.loads((tmp_path / "results" / "schedule.json").read_bytes())
    assert (saved["rows"], saved["quick"]) == (rows, True)
    assert {"cpu", "cores", "kernel", "python", "versions", "load"} <= saved["machine"].keys()
    shown = capsys.readouterr().out
    assert "1.012" in shown
    assert "repeats" not in shown


def test_part_whose_client_fails_does_not_stop_the_others(tmp_path, monkeypatch, capsys):
    """What failed is said with its exit code, the parts after it are measured, and the whole ends
    with 1."""

    def fails(folder: Path, quick: bool) -> list[dict[str, Any]]:
        raise subprocess.CalledProcessError(70, ["client", "a b"])

    part = PARTS["schedule"]
    monkeypatch.setattr("bench.__main__.RESULTS", tmp_path)
    monkeypatch.setitem(PARTS, "cost", type(part)("", fails))
    monkeypatch.setitem(PARTS, "schedule", type(part)("", lambda folder, quick: [{"users": 1}]))
    monkeypatch.setattr("bench.__main__.os.environ", {})
    assert main(["cost", "schedule"]) == 1
    assert "cost: not measured: exit code 70 of client 'a b'" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["schedule.json"]


def looks(*counts: tuple[float, int, int]) -> list[Look]:
    """Seconds, requests and answers of the second of two servers."""
    return [Look(seconds, (0, requests), (0, completed)) for seconds, requests, completed in counts]


def test_most_requests_within_a_minute_are_found_wherever_it_begins():
    """A burst across two minutes of the clock is one of a minute."""
    seen = looks((0.0, 0, 0), (50.0, 10, 0), (70.0, 190, 0), (105.0, 200, 0), (200.0, 260, 0))
    assert most_within(seen, 1, 60.0) == 190
    assert most_within(seen, 1, 20.0) == 180
    assert most_within(seen, 0, 60.0) == 0


def test_providers_file_of_a_campaign_is_one_that_the_harness_reads(tmp_path):
    """Lists of addresses, numbers and switches as they were given."""
    urls = ("http://127.0.0.1:1/v1", "http://127.0.0.1:2/v1")
    fields = {"base_url": list(urls), "concurrency": 5, "rpm": 180, "key_required": False}
    found = providers.read(providers_file(tmp_path / "p.toml", {"ours": fields}), {}).providers[
        "ours"
    ]
    assert (found.base_url, found.concurrency, found.rpm, found.key_required) == (
        urls,
        5,
        180,
        False,
    )
