"""The pure parts of the benchmarks: what they make of what they see. No process is started, nothing
is timed."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from bench.__main__ import PARTS, cell, main, run, table
from bench.cost import PEER_ENVIRONMENTS, PEER_SCRIPTS, Measured
from bench.instructions import Counted, calls, difference, references
from bench.limits import CHAIN, Faulty, compared, cut, stretches, summary
from bench.machine import facts, memory_mb, peak_mb
from bench.memory import Held, disk_needed, growth
from bench.models import Look, Speeds, most_within, of_speeds, providers_file, rate
from bench.schedule import ORDERS, SHAPES, heavy_tailed, simulate, step_times
from bench.watch import Sample, steady_rate
from harness.benchmarks.streamprofile.benchmark import StreamProfile
from harness.benchmarks.streamprofile.synth import generate
from harness.benchmarks.tasks import parse
from harness.model import Where
from harness.options import providers
from tests.support import ROOT, examples


def sample(
    seconds: float, completed: int = 0, *, requests: int = 0, rejected: int = 0, in_flight: int = 0
) -> Sample:
    return Sample(seconds, requests, completed, rejected, in_flight)


def test_client_that_talks_before_its_figures_is_understood() -> None:
    """Only the last line of what a client prints counts, and CPU is in microseconds a request."""
    found = Measured.parse(
        b'a warning\n{"requests": 200, "cpu": 0.05, "wall": 2.0, "version": "1.2"}\n'
    )
    assert found == Measured(200, found.cpu_us, 100.0, 2.0, "1.2")
    assert found.cpu_us == pytest.approx(250.0)


def test_counts_of_valgrind_and_strace_are_read_from_what_they_write() -> None:
    """With separators of thousands, and whether or not a call has failed; a log without its last
    line is no count."""
    log = (
        "==12== Command: x I refs: 3\n==12== brk segment overflow\n==12== I   refs:     "
        " 7,917,981,801\n"
    )
    table = (
        "% time     seconds  usecs/call     calls    errors syscall\n 99.00  0.010000   5   2000  "
        " 7 read\n"
    )
    assert references(log) == 7_917_981_801
    assert calls(table + "100.00    0.010100           4      2525        16 total\n") == 2525
    assert calls(table + "100.00    0.010100                  2525           total\n") == 2525
    for read in (references, calls):
        with pytest.raises(ValueError, match="unpack"):
            read("killed")


def test_cost_of_a_request_leaves_out_what_a_run_costs_once() -> None:
    """Two runs of the same start differ by their requests alone."""
    assert (
        difference(Counted(100, 5_000_000 + 100 * 700), Counted(350, 5_000_000 + 350 * 700))
        == 700.0
    )


def test_every_peer_has_a_script_and_a_pinned_environment() -> None:
    """What `make bench-peers` makes is what the cost part looks for."""
    for name, (script, *_) in PEER_SCRIPTS.items():
        assert (ROOT / "bench" / "clients" / script).is_file()
        pinned = (ROOT / "requirements" / f"peer-{PEER_ENVIRONMENTS[name]}.txt").read_text()
        assert "--hash=sha256:" in pinned
        assert "index-url" not in pinned


def test_steady_rate_leaves_out_ramp_and_tail() -> None:
    """A run that answers 10 a second in its middle has that rate, however slow its first and last
    fifth."""
    ramp = [sample(float(second), 2 * second) for second in range(10)]
    middle = [sample(10.0 + second, 20 + 10 * second) for second in range(7)]
    tail = [sample(17.0 + second, 80 + second) for second in range(1, 21)]
    assert steady_rate([*ramp, *middle, *tail], 100) == pytest.approx(10.0)


def test_run_too_short_to_be_seen_has_no_steady_rate() -> None:
    """One look in the middle tells no rate."""
    assert steady_rate([sample(0.0, 0), sample(1.0, 50), sample(2.0, 100)], 100) is None


def test_cut_task_is_valid_and_has_exactly_four_steps() -> None:
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


def test_summary_of_repeats_is_their_median() -> None:
    """One bad repeat among three does not become the figure, and is still there to see."""
    rows = [
        {"wall": wall, "of_ideal": wall / 100, "rejected": 0.01} for wall in (104.0, 180.0, 102.0)
    ]
    found = summary(16, rows, 3000)
    assert (found["wall"], found["of_ideal"], found["repeats"]) == (104.0, 1.04, rows)


def test_stretches_tell_what_was_reached_after_each_change() -> None:
    """The seconds that following takes are not averaged in; the rejections in them are counted."""
    before = [sample(float(second), requests=10 * second + 1, in_flight=30) for second in range(30)]
    drop = [
        sample(
            30.0 + second,
            requests=301 + 10 * second,
            rejected=min(second, 5),
            in_flight=30 if second < 5 else 9,
        )
        for second in range(30)
    ]
    back = [
        sample(60.0 + second, requests=601 + 10 * second, rejected=5, in_flight=27)
        for second in range(31)
    ]
    tail = [sample(91.0 + second, requests=911, rejected=5, in_flight=3) for second in range(5)]
    found = stretches([*before, *drop, *back, *tail])
    assert [row["in_flight"] for row in found] == [30, 9, 27]
    assert [row["of_slots"] for row in found] == [1.0, 0.9, 0.9]
    assert [row["rejected"] * row["requests"] for row in found] == [0, 5, 0]


def test_faulty_run_is_measured_against_the_clean_run_beside_it() -> None:
    """Where three tries in ten fail, a run that takes 1/0.7 times as long as without is at the
    yardstick."""
    clean, found = (
        [Faulty(7.0, 100.0), Faulty(14.0, 50.0)],
        [Faulty(10.0, 80.0), Faulty(20.0, 40.0)],
    )
    assert compared(0.3, found, clean)["of_ideal"] == pytest.approx(1.0)
    assert compared(0.0, clean, clean)["of_ideal"] == 1.0


@given(
    st.lists(st.integers(1, 40), min_size=1, max_size=40),
    st.integers(1, 12),
    st.sampled_from(sorted(ORDERS)),
)
@settings(max_examples=examples(60))
def test_makespan_is_never_below_its_bound_nor_above_that_of_busy_slots(
    lengths: list[int], slots: int, name: str
) -> None:
    """Slots that are never idle while users wait are done by work / slots and the longest chain
    together."""
    steps = np.array(lengths, np.int32)
    found = simulate(ORDERS[name](steps, 0), steps, np.ones(int(steps.sum())), slots)
    assert found.ratio >= 1.0
    assert found.makespan <= steps.sum() / slots + steps.max()


def test_simulation_of_a_small_case_is_as_by_hand() -> None:
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


def test_time_of_each_step_is_its_own() -> None:
    """A chain takes as long as its steps together, whoever they belong to."""
    steps = np.array([2, 1], np.int32)
    found = simulate(ORDERS["file"](steps, 0), steps, np.array([0.5, 4.0, 1.0]), 1)
    assert found.makespan == found.bound == 5.5


@pytest.mark.parametrize("shape", sorted(SHAPES))
def test_chains_are_heavy_tailed_from_one_to_forty_steps(shape: str) -> None:
    """Most chains are short, some are as long as chains can be, and step times have the mean
    one."""
    rng = np.random.default_rng(0)
    steps = heavy_tailed(shape, 5000, rng)
    assert (steps.min(), steps.max()) == (1, 40)
    assert np.median(steps) < steps.mean() < 8
    assert step_times(steps, True, rng).mean() == pytest.approx(1.0, abs=0.02)


def test_growth_compares_two_moments_of_a_run() -> None:
    """Memory at a tenth and at nine tenths; looks before the first answer and after the last do not
    count."""
    held = [
        Held(0, 50.0, 1.0),
        Held(120, 90.0, 1.0),
        Held(500, 95.0, 1.0),
        Held(950, 91.0, 1.0),
        Held(1000, 200.0, 1.0),
    ]
    assert growth(held, 1000) == {"at_tenth_mb": 90.0, "at_nine_tenths_mb": 91.0}
    assert growth(held[-1:], 1000) == {"at_tenth_mb": None, "at_nine_tenths_mb": None}


def test_million_users_ask_for_more_disk_than_the_run_itself() -> None:
    """Room is asked for tasks, responses, results and their rewrite: some 14 GB a million."""
    assert 12e9 < disk_needed(1_000_000) < 16e9


def test_part_is_shown_and_saved_with_its_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
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


def test_part_whose_client_fails_does_not_stop_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
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


def test_rows_of_several_tables_stand_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each table has its title and its own columns."""
    part = PARTS["schedule"]
    rows = [{"table": "limits", "slots": 12}, {"table": "streams", "chunks": 100}]
    monkeypatch.setitem(PARTS, "schedule", type(part)(part.title, lambda folder, quick: rows))
    run("schedule", True, tmp_path)
    shown = capsys.readouterr().out
    assert (
        shown.index("limits")
        < shown.index("slots")
        < shown.index("streams")
        < shown.index("chunks")
    )
    assert "–" not in shown


def looks(*counts: tuple[float, int, int]) -> list[Look]:
    """Seconds, requests and answers of the second of two servers."""
    return [Look(seconds, (0, requests), (0, completed)) for seconds, requests, completed in counts]


def test_rate_of_a_server_is_that_between_two_moments() -> None:
    """What came before and after does not count; one look tells no rate."""
    seen = looks((0.0, 0, 0), (10.0, 0, 5), (12.0, 0, 25), (14.0, 0, 45), (20.0, 0, 1000))
    assert rate(seen, 1, 9.0, 15.0) == 10.0
    assert rate(seen, 0, 9.0, 15.0) == 0.0
    assert rate(seen, 1, 12.0, 13.0) is None


def test_most_requests_within_a_minute_are_found_wherever_it_begins() -> None:
    """A burst across two minutes of the clock is one of a minute."""
    seen = looks((0.0, 0, 0), (50.0, 10, 0), (70.0, 190, 0), (105.0, 200, 0), (200.0, 260, 0))
    assert most_within(seen, 1, 60.0) == 190
    assert most_within(seen, 1, 20.0) == 180
    assert most_within(seen, 0, 60.0) == 0


def test_replica_with_the_requests_of_its_speed_is_at_one() -> None:
    """Twice as fast means twice as many; what is counted is the share, not the number."""
    speeds = Speeds((0.1, 0.2), 16).shares()
    assert of_speeds([200, 100], speeds) == pytest.approx([1.0, 1.0])
    assert of_speeds([100, 100], speeds) == pytest.approx([0.75, 1.5])


def test_providers_file_of_a_campaign_is_one_that_the_harness_reads(tmp_path: Path) -> None:
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


def test_table_has_room_for_rows_that_differ() -> None:
    """A value that a row lacks, or that could not be measured, is a dash."""
    made = table(
        [{"client": "a", "cpu_us": 12.5}, {"client": "b", "version": "1.0", "cpu_us": None}]
    )
    assert [column.header for column in made.columns] == ["client", "cpu us", "version"]
    assert list(made.columns[1].cells) == ["12.5", "–"]


def test_client_with_an_extra_keeps_its_name(capsys: pytest.CaptureFixture[str]) -> None:
    """Square brackets are no markup."""
    Console().print(table([{"client": "openai[aiohttp]"}]))
    assert "openai[aiohttp]" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, "–"),
        (1.06213, "1.062"),
        (182.04, "182.0"),
        (22_200.4, "22,200"),
        (3000, "3,000"),
        (True, "yes"),
    ],
)
def test_figures_are_shown_with_the_digits_that_count(
    value: float | bool | None, shown: str
) -> None:
    """Ratios get three decimals, hundreds one, thousands none; what is so or not is a word."""
    assert cell(value) == shown


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is read from /proc")
def test_memory_of_a_process_is_told() -> None:
    """This process's peak is at least what it holds now; a process that has gone has none."""
    now = memory_mb("VmRSS")
    assert now is not None and 10 < now <= peak_mb() < 10_000
    assert memory_mb("VmRSS", 2**22 + 1) is None


def test_machine_facts_name_every_version(tmp_path: Path) -> None:
    """Figures without versions cannot be compared."""
    told = facts(tmp_path)
    assert told["cores"] >= 1
    assert all(told["versions"].values())
