"""The commands `run` and `resume` on workers in this process: what is in the files, what the
endpoint got, and how workers share limits."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import orjson
import pytest

import harness
from harness.cli import main
from harness.errors import MachineError
from harness.extensions.ray import Ray, crew
from harness.extensions.ray.crew import WorkerGone
from harness.extensions.ray.worker import LEASE_SECONDS
from harness.store.log import valid_lines
from tests.extensions.ray.conftest import Near, Place, until
from tests.support import SHIPPED, first_quick
from tests.support.plugins import Commands
from tests.support.scripted import Server, baseline, serving

USERS = ("--demo", "--platform", "weibo", "--limit", "16", "--no-html", "--name", "r")
RESULTS, RESPONSES = "inference_results_weibo.jsonl", "responses_weibo.jsonl"
IN_FLIGHT = 4
ON_TWO = ("--engine", "ray", "--workers", "2")


def at(server: Server, *words: object) -> tuple[object, ...]:
    return (
        "run",
        *USERS,
        "--model",
        "m",
        "--api-url",
        server.url,
        *(words if "--concurrency" in words else ("--concurrency", str(IN_FLIGHT), *words)),
    )


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> tuple[bytes, Counter[bytes]]:
    """The results and the requests of one process."""
    folder = tmp_path_factory.mktemp("local")
    with serving(baseline) as server:
        assert main([*map(str, at(server)), "--results-dir", str(folder)]) == 0
    return (folder / "r" / RESULTS).read_bytes(), Counter(server.bodies)


def saved(folder: Path) -> list[dict[str, Any]]:
    return [orjson.loads(line.text) for line in valid_lines(folder / RESPONSES)]


def numbers(report: Any) -> Any:
    """A report without its times."""
    del report["schedule"], report["run"]["created"]
    return report


@pytest.mark.parametrize("benchmark", ["streamprofile", "dailymobility"])
def test_results_of_both_benchmarks_are_those_of_this_process(benchmark, tmp_path, capsys, cluster):
    """To the byte, over the embedded endpoint of each worker; the report too."""
    folders = [tmp_path / "local", tmp_path / "workers"]
    model = "baseline/recency" if benchmark == "streamprofile" else "baseline/random-day"
    words = [
        "run",
        benchmark,
        "--demo",
        "--model",
        model,
        "--limit",
        "7",
        "--no-html",
        "--name",
        "r",
    ]
    for folder, more in zip(folders, ([], ON_TWO), strict=True):
        Commands(folder, capsys)(*words, *more)
    assert len(cluster.workers) == 2
    written = [
        sorted(path.name for path in folder.glob("r/inference_results_*")) for folder in folders
    ]
    assert written[0] == written[1] != []
    for file in written[0]:
        assert (
            (folders[0] / "r" / file).read_bytes() == (folders[1] / "r" / file).read_bytes() != b""
        )
    for one, other in zip(
        *(sorted(folder.glob("r/eval_report_*.json")) for folder in folders), strict=True
    ):
        assert numbers(orjson.loads(one.read_bytes())) == numbers(orjson.loads(other.read_bytes()))


@pytest.mark.parametrize("certain", [True, False])
@pytest.mark.parametrize("after", first_quick([2, 1, 3]))
def test_lost_worker_costs_what_it_had_not_reported(
    after,
    certain,
    local,
    tmp_path,
    capsys,
    cluster,
    monkeypatch,
):
    """Its part goes on elsewhere from the run's files: the same results, nothing is saved twice,
    and the log has it. What it reports is saved before its next turn, and only what was not saved
    is requested again."""
    monkeypatch.setattr(crew, "SHARE_SECONDS", 0.1)
    not_saved = list[int]()

    def lose_first(number: int, worker: Near) -> None:
        if number == 0:
            worker.certain, worker.lost_after = certain, after
            worker.turn = watched(worker)  # type: ignore[method-assign]

    def watched(worker: Near) -> Any:
        turn, reported = worker.turn, Counter[str]()

        async def noted(part: Any, order: Any) -> Any:
            assert count_saved() >= reported["replies"]
            try:
                report = await turn(part, order)
            except WorkerGone:
                not_saved.append(len(server.bodies) - count_saved())
                raise
            reported["replies"] += report.logs.get("responses", b"").count(b"\n")
            return report

        return noted

    def count_saved() -> int:
        return len(saved(tmp_path / "r"))

    cluster.change = lose_first
    with serving(baseline) as server:
        Commands(tmp_path, capsys)(*at(server), *ON_TWO)
    results, requests = local
    assert len(cluster.workers) == 3
    assert (tmp_path / "r" / RESULTS).read_bytes() == results
    replies = Counter((one["user_id"], one["request"], one["nth"]) for one in saved(tmp_path / "r"))
    assert set(replies.values()) == {1} and len(replies) == requests.total()
    assert set(server.bodies) == set(requests)
    # A request may be on its way when the loss is seen: the server has not read it, or its reply is
    # not saved yet.
    assert len(server.bodies) - requests.total() <= not_saved[0] + IN_FLIGHT
    assert about_workers(tmp_path / "r") == ["worker 0 is lost: it was to be lost"]


@pytest.mark.slow
def test_failed_users_of_a_lost_worker_are_counted_once(tmp_path, capsys, cluster):
    """They are played again with its part, and fail again: at the end there are no more of them."""
    refused = set[bytes]()

    one_at_a_time = threading.Lock()

    def refusing(body: dict[str, Any]) -> tuple[int, bytes]:
        key = orjson.dumps(body["messages"])
        with one_at_a_time:
            if len(refused) < 2 and len(server.bodies) >= 20 + 10 * len(refused):
                refused.add(key)
        if key in refused:
            return 400, b'{"error": {"message": "not this one"}}'
        return baseline(body)

    def lose_first(number: int, worker: Near) -> None:
        if number == 0:
            worker.turn = lost_with_failures(worker)  # type: ignore[method-assign]

    def lost_with_failures(worker: Near) -> Any:
        turn = worker.turn

        async def noted(part: Any, order: Any) -> Any:
            if sum(1 for _ in valid_lines(tmp_path / "r" / "failures_weibo.jsonl")):
                worker.lost_after = 0
            return await turn(part, order)

        return noted

    cluster.change = lose_first
    with serving(refusing) as server:
        shown = Commands(tmp_path, capsys)(*at(server), "--engine", "ray", "--workers", "1", code=1)
    failed = {
        orjson.loads(line.text)["user_id"]
        for line in valid_lines(tmp_path / "r" / "failures_weibo.jsonl")
    }
    assert len(cluster.workers) == 2 and len(failed) == 2
    assert (
        ", 2 failed |" in shown
        and "2 failed users: http_400 2" in shown
        and "\n2 users failed: " in shown
    )


@pytest.mark.slow
def test_workers_that_are_lost_again_and_again_stop_the_run(
    local,
    tmp_path,
    capsys,
    cluster,
):
    """With exit code 4 and one sentence; `resume` without Ray goes on."""

    def lose_all(number: int, worker: Near) -> None:
        worker.lost_after = 1

    cluster.change = lose_all
    commands = Commands(tmp_path, capsys)
    with serving(baseline) as server:
        assert "workers were lost" in commands(*at(server), *ON_TWO, code=4)
        commands("resume", "--name", "r", "--no-html")
    assert (tmp_path / "r" / RESULTS).read_bytes() == local[0]


@pytest.mark.parametrize(
    "more",
    first_quick(
        [
            ["--hedge", "3"],
            ["--durability", "power"],
            ["--concurrency", "auto", "--rpm", "60000"],
            ["--estimate", "--yes"],
            ["--part", "1/2"],
        ]
    ),
)
def test_options_of_one_process_are_those_of_workers(more, tmp_path, capsys, cluster):
    """As many requests, the same results, counts and cost."""
    found = []
    for name, engine in (("local", ()), ("workers", ON_TWO)):
        with serving(baseline) as server:
            Commands(tmp_path / name, capsys)(*at(server), *more, *engine)
        [results] = (tmp_path / name).glob(f"*/{RESULTS}")
        manifest = orjson.loads((results.parent / "run_weibo.json").read_bytes())
        found.append(
            (len(server.bodies), results.read_bytes(), manifest["counts"], manifest["cost"])
        )
    assert found[0] == found[1]


@pytest.mark.slow
def test_workers_reuse_the_replies_of_another_run(tmp_path, capsys, cluster):
    """As one process does: nothing is requested that the other run has, and replies and results are
    the same."""
    pytest.importorskip("harness.extensions.reuse")
    commands = Commands(tmp_path, capsys)
    with serving(baseline) as server:
        few = [*at(server)]
        few[few.index("16")], few[few.index("r")] = "6", "earlier"
        commands(*few)
        earlier = len(server.bodies)
        requests, replies = [], []
        for name, engine in (("local", ()), ("workers", ON_TWO)):
            before = len(server.bodies)
            commands(*at(server), "--name", name, "--reuse", "earlier", *engine)
            requests.append(sorted(server.bodies[before:]))
            replies.append(
                sorted(
                    (one["user_id"], one["request"], one.get("reused"))
                    for one in saved(tmp_path / name)
                )
            )
    assert requests[0] == requests[1] != []
    assert (
        replies[0] == replies[1]
        and sum(reused == "earlier" for *_, reused in replies[0]) == earlier
    )
    assert (tmp_path / "local" / RESULTS).read_bytes() == (
        tmp_path / "workers" / RESULTS
    ).read_bytes()


@pytest.mark.slow
def test_models_of_one_command_share_workers(tmp_path, capsys, cluster):
    """Each has its own run, with the results of one process."""
    with serving(baseline) as server:
        words = [
            "run",
            *SHIPPED,
            *USERS[1:-2],
            "--model",
            "m1",
            "--model",
            "m2",
            "--api-url",
            server.url,
        ]
        for name, engine in (("local", ()), ("workers", ON_TWO)):
            Commands(tmp_path / name, capsys)(*words, *engine)
    for model in ("m1", "m2"):
        results = [
            (tmp_path / name / model / RESULTS).read_bytes() for name in ("local", "workers")
        ]
        assert results[0] == results[1] != b""


@pytest.mark.slow
def test_worker_that_was_stopped_asks_before_it_sends(
    local,
    tmp_path,
    capsys,
    cluster,
):
    """It wakes within a turn whose lease is over: no request goes out before the driver's next
    turn."""
    begins, counts = list[int](), list[int]()

    def clock() -> float:
        """Ten seconds go by with each fourth request: as long as a lease."""
        counts.append(len(server.bodies))
        return LEASE_SECONDS * (counts[-1] // 4)

    def watch(number: int, worker: Near) -> None:
        turn = worker.player.turn

        def noted(part: Any, order: Any) -> Any:
            begins.append(len(counts))
            return turn(part, order)

        worker.player.turn = noted  # type: ignore[method-assign]
        worker.player._clock = clock

    cluster.change = watch
    with serving(baseline) as server:
        Commands(tmp_path, capsys)(
            *at(server, "--concurrency", "1"), "--engine", "ray", "--workers", "1"
        )
    leased_at = {counts[begin] for begin in begins}
    asleep = set(range(4, len(server.bodies), 4))
    assert len(asleep) > 10 and asleep <= leased_at
    assert (tmp_path / "r" / RESULTS).read_bytes() == local[0]


@pytest.mark.slow
def test_signal_saves_what_is_answered(
    local,
    tmp_path,
    capsys,
    cluster,
):
    """On all workers: exit code 130, and `resume` without Ray requests the rest alone."""

    def interrupting(body: dict[str, Any]) -> tuple[int, bytes]:
        if len(server.bodies) == 20:
            os.kill(os.getpid(), signal.SIGINT)
        return baseline(body)

    commands = Commands(tmp_path, capsys)
    with serving(interrupting) as server:
        commands(*at(server), *ON_TWO, code=130)
        assert len(server.bodies) == len(saved(tmp_path / "r")) < local[1].total()
        commands("resume", "--name", "r", "--no-html")
    assert Counter(server.bodies) == local[1]
    assert (tmp_path / "r" / RESULTS).read_bytes() == local[0]


@pytest.mark.slow
def test_engines_take_turns_with_repeats(tmp_path, capsys, cluster):
    """Workers, one process, workers: three sessions of two repeats, and each request is paid
    once."""
    words = ("--repeats", "2", "--temperature", "0.5")
    with serving(baseline) as server:
        Commands(tmp_path / "local", capsys)(*at(server, *words))
    requests = Counter(server.bodies)
    commands = Commands(tmp_path, capsys)
    with serving(baseline) as server:
        few = [*at(server, *words)]
        few[few.index("16")] = "5"
        commands(*few, *ON_TWO)
        few[few.index("5")] = "10"
        commands(*few)
        commands(*at(server, *words), *ON_TWO)
    assert Counter(server.bodies) == requests
    assert (tmp_path / "r" / RESULTS).read_bytes() == (
        tmp_path / "local" / "r" / RESULTS
    ).read_bytes()


@pytest.mark.slow
def test_shares_never_exceed_the_limit(tmp_path, capsys, cluster):
    """While workers end, are lost and start: the sum of what they may have in flight is never above
    it, and reaches it. So do the shares of a rate, as the endpoint's clock confirms."""
    sums, rates = set[int](), set[float]()
    arrivals = list[float]()

    def timed(body: dict[str, Any]) -> tuple[int, bytes]:
        arrivals.append(time.monotonic())
        return baseline(body)

    def watch(number: int, worker: Near) -> None:
        turn = worker.turn

        async def noted(part: Any, order: Any) -> Any:
            allowed[number], rate[number] = order.slots, order.tuning.rpm or 0.0
            sums.add(sum(allowed.values()))
            rates.add(round(sum(rate.values()), 6))
            try:
                report = await turn(part, order)
            except Exception:
                allowed[number] = rate[number] = 0
                raise
            ended = report.ended or report.snapshot is None
            allowed[number] = 0 if ended else max(order.slots, report.in_flight)
            rate[number] = 0 if ended else rate[number]
            return report

        worker.lost_after = 3 if number < 2 else None
        worker.turn = noted  # type: ignore[method-assign]

    allowed: dict[int, int] = {}
    rate: dict[int, float] = {}
    cluster.change = watch
    with serving(timed) as server:
        Commands(tmp_path, capsys)(
            *at(server), "--limit", "30", "--rpm", "6000", "--engine", "ray", "--workers", "3"
        )
    assert max(sums) == 4 and max(rates) == 6000.0
    assert (
        arrivals[-1] - arrivals[0] > 0.7 * (len(arrivals) - 1) / 100
    )  # a part may begin with a tenth of a second's


@pytest.fixture
def cut_off(cluster: Place) -> None:
    """The first worker has no way to the endpoint."""

    def change(number: int, worker: Near) -> None:
        if number == 0:
            plan = worker.player.plans[0]
            [address] = plan.endpoint.resolved.addresses if plan.endpoint.resolved else ()
            found = replace(
                plan.endpoint.resolved, addresses=(replace(address, url="http://127.0.0.1:9/v1"),)
            )  # type: ignore[type-var]
            worker.player.plans = [plan._replace(endpoint=replace(plan.endpoint, resolved=found))]

    cluster.change = change


def about_workers(folder: Path) -> list[str]:
    log = [orjson.loads(line.text) for line in valid_lines(folder / "run_weibo.log")]
    return [event["detail"] for event in log if event["what"] == "worker"]


@pytest.mark.slow
@pytest.mark.usefixtures("cut_off")
def test_worker_without_a_way_to_the_endpoint_is_played_without(local, tmp_path, capsys):
    """Its users are played by others, and the log names it."""
    with serving(baseline) as server:
        Commands(tmp_path, capsys)(*at(server), *ON_TWO)
    assert (tmp_path / "r" / RESULTS).read_bytes() == local[0]
    [detail] = about_workers(tmp_path / "r")
    assert detail.startswith("worker 0 gets no users for 30 s: ")


@pytest.mark.slow
@pytest.mark.usefixtures("cut_off")
def test_worker_alone_without_a_way_to_the_endpoint_stops_the_run(tmp_path, capsys):
    """As one process does."""
    with serving(baseline) as server:
        Commands(tmp_path, capsys)(*at(server), "--engine", "ray", "--workers", "1", code=3)


@pytest.mark.slow
@pytest.mark.usefixtures("cut_off")
def test_worker_without_a_way_waits_for_one_that_is_being_started(
    local,
    tmp_path,
    capsys,
    cluster,
):
    """On a slow machine the other begins only when the first has given up."""
    given_up = anyio.Event()

    async def second_waits(number: int) -> None:
        if number == 1:
            await until(lambda: about_workers(tmp_path / "r"))
            given_up.set()

    cluster.starts = second_waits
    with serving(baseline) as server:
        Commands(tmp_path, capsys)(*at(server), *ON_TWO)
    assert given_up.is_set()
    assert (tmp_path / "r" / RESULTS).read_bytes() == local[0]


@pytest.mark.slow
def test_worker_that_cannot_be_started_is_played_without(
    local,
    tmp_path,
    capsys,
    cluster,
):
    """Also when the only other is lost, and its successor is still being started."""

    def lose_first(number: int, worker: Near) -> None:
        worker.lost_after = 1 if number == 0 else None

    async def second_fails(number: int) -> None:
        if number == 1:
            await until(lambda: len(cluster.started) == 3)
            raise MachineError("no machine")
        if number == 2:
            await until(lambda: len(about_workers(tmp_path / "r")) == 2)

    cluster.change, cluster.starts = lose_first, second_fails
    with serving(baseline) as server:
        Commands(tmp_path, capsys)(*at(server), *ON_TWO)
    assert about_workers(tmp_path / "r") == [
        "worker 0 is lost: it was to be lost",
        "the run goes on with fewer workers: no machine",
    ]
    assert (tmp_path / "r" / RESULTS).read_bytes() == local[0]


def test_budget_holds_over_all_workers_and_loses_nothing(
    local,
    tmp_path,
    capsys,
    cluster,
):
    """Each reply takes 1,020 tokens. What was answered is saved, and more of the budget ends the
    run without a second request for any of it."""
    commands, requests = Commands(tmp_path, capsys), local[1].total()

    def dear(body: dict[str, Any]) -> tuple[int, bytes]:
        status, reply = baseline(body)
        usage = {"prompt_tokens": 1000, "completion_tokens": 20}
        return status, orjson.dumps(orjson.loads(reply) | {"usage": usage})

    with serving(dear) as server:
        commands(*at(server, "--max-tokens", "20", "--budget", "40ktok"), *ON_TWO, code=5)
        sent = len(server.bodies)
        # A worker that reports late leaves some of its share unused: never more than half.
        assert 20_000 < 1020 * sent <= 40_000 and sent == len(saved(tmp_path / "r")) < requests
        assert "the budget of 40000 tokens is reached" in commands.err + commands.out
        commands("resume", "--name", "r", "--budget", "10Mtok", "--no-html", *ON_TWO)
    assert set(Counter(server.bodies).values()) == {1} and len(server.bodies) == requests


def test_key_on_the_command_line_is_refused(
    tmp_path,
    capsys,
    cluster,
    monkeypatch,
):
    """A cluster's list of jobs shows the command line of each driver to all of its users."""
    with serving(baseline) as server:
        words = list(map(str, (*at(server), *ON_TWO, "--api-key", "sk-planted")))
        monkeypatch.setattr(sys, "argv", ["harness", *words])
        commands = Commands(tmp_path, capsys)
        commands(*words, code=2)
        assert "--api-key-file" in commands.err and "sk-planted" not in commands.err
    assert server.bodies == [] and cluster.workers == []


@pytest.mark.slow
def test_display_counts_what_workers_did(tmp_path, cluster):
    """Users, steps, requests and scored users are those of all workers, and never more than there
    are."""
    seen = list[Any]()
    with serving(baseline) as server:
        harness.run(
            "streamprofile",
            model="m",
            api_url=server.url,
            demo=True,
            subset="weibo",
            limit=16,
            concurrency=IN_FLIGHT,
            results_dir=tmp_path,
            html=False,
            extensions=[Ray(engine="ray", workers=2)],
            progress=seen.extend,
        )
    last = seen[-1].subsets[0]
    assert all(shown.subsets[0].steps_done <= last.steps for shown in seen)
    assert (last.done, last.scored_users, last.steps_done) == (16, 16, last.steps)
    assert seen[-1].requests == len(server.bodies)
