"""`run --repeats`: every user several times in one run, from requests to tables."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest

from harness.cli import main
from harness.client.request_body import Sampling
from tests.commands.test_commands import RESULTS, lines_of, report, run, write_tasks
from tests.support import DATA
from tests.support.plugins import FLOOR, STARS
from tests.support.scripted import Script, answer, completion, serving

USERS = 12
WALK = DATA / "agents" / "random_walk.py"
WARM = ("--temperature", "0.7", "--no-html")


def seeded(body: dict[str, Any]) -> tuple[int, bytes]:
    """Answer as `baseline/random` does, by the seed of the request."""
    return 200, completion(answer("baseline/random", body["messages"], body.get("seed", 0)))


def unless(refused: Callable[[dict[str, Any]], bool], status: int, words: bytes) -> Script:
    """Answer as `seeded` does, but for some requests."""
    return lambda body: (
        (status, b'{"error":{"message":"%s"}}' % words) if refused(body) else seeded(body)
    )


@pytest.fixture(scope="module")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tasks")
    write_tasks(folder, USERS)
    return folder


@pytest.fixture(scope="module")
def finished(
    tasks: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, list[dict[str, Any]]]:
    """The results folder of a run with three repeats, and its requests in order."""
    results = tmp_path_factory.mktemp("finished")
    with serving(seeded) as server:
        assert play(tasks, results, server.url, 3, "--concurrency", "2") == 0
        return results, list(map(orjson.loads, server.bodies))


def play(tasks: Path, results: Path, url: str, repeats: int, *more: str) -> int:
    return run(tasks, results, "--api-url", url, "--repeats", str(repeats), *WARM, *more, model="m")


def command(results: Path, *words: str) -> int:
    return main([*words, "--results-dir", str(results)])


def contents(results: Path) -> bytes:
    return (results / "m" / RESULTS).read_bytes()


def test_each_repeat_has_its_own_seed_and_the_first_repeats_come_first(
    finished,
):
    """The first repeat is the run without repeats; the others' seeds depend on the run's and on
    their number."""
    seeds = [body.get("seed") for _, bodies in [finished] for body in bodies]
    of = [None, *(Sampling("m").of_repeat(number).seed for number in (2, 3))]
    assert set(seeds) == set(of) and len(set(of)) == 3
    rank = [of.index(seed) for seed in seeds]
    steps = len(rank) // 3
    assert Counter(rank) == {0: steps, 1: steps, 2: steps}
    assert max(rank[: steps - 6]) == 0  # but for two users in play together at the seam
    assert Sampling("m", seed=3).of_repeat(2) != Sampling("m", seed=4).of_repeat(2)
    assert Sampling("m", seed=3).of_repeat(1).seed == 3


def test_records_and_responses_are_those_of_each_repeat(
    finished,
):
    """A user's repeats follow one another in the results, numbered from the second on, and `verify`
    replays each."""
    results, bodies = finished
    records = lines_of(results / "m" / RESULTS)
    assert [record.get("repeat", 1) for record in records] == [1, 2, 3] * USERS
    assert all(record.get("repeat") != 1 for record in records)
    assert len(lines_of(results / "m/responses_weibo.jsonl")) == len(bodies)
    answers = {user: set[str]() for user in {record["user_id"] for record in records}}
    for record in records:
        answers[record["user_id"]].add(str([step["prediction"] for step in record["steps"]]))
    assert any(len(each) > 1 for each in answers.values())
    assert command(results, "verify") == 0


def test_report_has_means_over_repeats_and_their_variances(
    finished,
):
    """A figure is the mean over users of the mean over their repeats; the parts are the analysis of
    variance."""
    made = report(finished[0], "m")
    values = [
        [step["metrics"]["Precision"] for step in record["steps"]]
        for record in lines_of(finished[0] / "m" / RESULTS)
    ]
    plays = np.array([np.mean(of) for of in values]).reshape(USERS, 3)
    assert made["metrics"]["Precision"]["value"] == pytest.approx(plays.mean())
    assert made["coverage"] == {
        "expected_users": USERS,
        "scored_users": USERS,
        "failed_users": 0,
        "complete": True,
    }
    of = made["repeats"]
    assert (of["repeats"], of["expected"], of["scored"]) == (3, 36, 36)
    within, among = plays.var(axis=1, ddof=1).mean(), 3 * plays.mean(axis=1).var(ddof=1)
    found = of["components"]["Precision"]
    between = max(0.0, (among - within) / 3)
    assert (found["within"], found["between"]) == pytest.approx((within, between))
    assert found["error"] == pytest.approx(np.sqrt((between + within / 3) / USERS))
    assert found["doubled"] == pytest.approx(
        np.sqrt((between + within / 6) / (between + within / 3))
    )
    assert "Repeats" in (finished[0] / "m/eval_report_weibo.txt").read_text().splitlines()
    curve = made["details"]["learning_curve"]
    assert max(point["users"] for point in curve) == USERS  # users, not their repeats


def test_run_that_is_stopped_among_its_repeats_ends_with_the_same_bytes(tasks, finished, tmp_path):
    """Wherever the endpoint denied it, `resume` ends in the bytes of the undisturbed run, and pays
    the rest."""
    count = [0]

    def few(body: dict[str, Any]) -> bool:
        count[0] += 1
        return count[0] > 40

    with serving(unless(few, 401, b"bad key")) as server:
        assert play(tasks, tmp_path, server.url, 3, "--concurrency", "4") == 3
        server.script = seeded
        before = len(server.bodies)
        assert command(tmp_path, "resume", "--api-url", server.url) == 0
        assert 40 + len(server.bodies) - before == len(finished[1])
    assert contents(tmp_path) == contents(finished[0])
    assert command(tmp_path, "verify") == 0


@pytest.mark.slow
def test_more_repeats_later_go_on_from_fewer(tasks, finished, tmp_path):
    """1, then 2, then 3 repeats: no request twice, and the bytes of a run with 3 at once; fewer
    again are refused."""
    with serving(seeded) as server:
        for repeats in (1, 2, 3):
            assert play(tasks, tmp_path, server.url, repeats) == 0
            made = orjson.loads((tmp_path / "m/run_weibo.json").read_bytes())
            assert made["selection"].get("repeats") == (repeats if repeats > 1 else None)
        assert len(server.bodies) == len(finished[1])
        assert play(tasks, tmp_path, server.url, 2) == play(tasks, tmp_path, server.url, 1) == 2
    assert contents(tmp_path) == contents(finished[0])
    assert command(tmp_path, "verify") == 0


def test_failed_repeat_leaves_its_user_incomplete(tasks, tmp_path):
    """A user of whom one repeat failed is scored by the others, named as failed, and played again
    by `resume`."""
    seed = Sampling("m").of_repeat(3).seed
    first = orjson.loads((tasks / "weibo_inference_tasks.jsonl").read_bytes().splitlines()[0])

    def refused(body: dict[str, Any]) -> bool:
        return body.get("seed") == seed and first["username"] in str(body["messages"])

    with serving(unless(refused, 422, b"no")) as server:
        assert play(tasks, tmp_path, server.url, 3) == 1
        made = report(tmp_path, "m")
        failed = sum(
            1 for line in lines_of(tmp_path / "m/failures_weibo.jsonl") if line["repeat"] == 3
        )
        assert made["coverage"] == {
            "expected_users": USERS,
            "scored_users": USERS,
            "failed_users": failed,
            "complete": False,
        }
        assert failed >= 1 and made["repeats"]["scored"] == 36 - failed
        low, high = made["bounds"]["Precision"]
        assert low < made["metrics"]["Precision"]["value"] < high < low + (failed + 0.5) / 36
        counts = orjson.loads((tmp_path / "m/run_weibo.json").read_bytes())["counts"]
        assert (counts["users"], counts["done"], counts["failed"]) == (
            USERS,
            USERS - failed,
            failed,
        )
        assert command(tmp_path, "verify") == 0
        server.script = seeded
        assert command(tmp_path, "resume", "--api-url", server.url) == 0
    assert report(tmp_path, "m")["coverage"]["complete"]


def test_endpoint_that_takes_no_seed_gets_none_and_the_report_says_so(tasks, tmp_path):
    """The member is dropped as others are; saved responses are found all the same."""
    with serving(
        unless(lambda body: "seed" in body, 400, b"Unsupported parameter: seed")
    ) as server:
        assert play(tasks, tmp_path, server.url, 2) == 0
    assert any("takes no seed" in note for note in report(tmp_path, "m")["notes"])
    assert command(tmp_path, "verify") == 0


@pytest.mark.parametrize(
    ("words", "warned"),
    [
        (["--repeats", "2"], True),
        (["--repeats", "2", "--temperature", "0.5"], False),
        (["--repeats", "1"], False),
    ],
)
def test_repeats_at_temperature_0_are_warned_of(tasks, tmp_path, capsys, words, warned):
    """Once, and only where repeats would be alike."""
    with serving(seeded) as server:
        assert (
            run(
                tasks,
                tmp_path,
                "--api-url",
                server.url,
                "--limit",
                "2",
                "--no-html",
                *words,
                model="m",
            )
            == 0
        )
    assert capsys.readouterr().out.count("at temperature 0") == warned


def test_seed_in_the_extra_body_is_refused_with_repeats(tasks, tmp_path):
    """It would be that of every repeat."""
    assert play(tasks, tmp_path, "http://127.0.0.1:9/v1", 2, "--extra-body", '{"seed": 1}') == 2


def test_runs_with_and_without_repeats_are_compared_by_users(
    tasks,
    finished,
    tmp_path,
    capsys,
):
    """Each user counts once with its mean; notes of `compare` and `stats` name the repeats of each
    run."""
    shutil.copytree(finished[0] / "m", tmp_path / "m")
    assert run(tasks, tmp_path, "--no-html", "--name", "once") == 0
    capsys.readouterr()
    assert command(tmp_path, "compare", "m", "once", "--json", "--resamples", "1000") == 0
    (pair,) = orjson.loads(capsys.readouterr().out)["pairs"]
    (of,) = [one for one in pair["figures"] if one["metric"] == "Precision"]
    assert of["users"] == USERS
    assert of["a"] == pytest.approx(report(tmp_path, "m")["metrics"]["Precision"]["value"])
    assert any("3 in m, 1 in once" in words for words in pair["warnings"])
    assert sum(pair["coverage"][0]["a"]["answers_on_common"].values()) == len(finished[1])
    assert command(tmp_path, "stats", "--metric", "Precision") == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "mean over its repeats: m 3" in shown


def test_unfinished_repeats_are_compared_wherever_their_lines_are(
    tasks,
    finished,
    tmp_path,
    capsys,
):
    """Of a run that is not finished a user's repeats are lines far apart: the figures are the
    same."""
    found = []
    for name in ("in order", "reversed"):
        shutil.copytree(finished[0] / "m", tmp_path / name / "m")
        path = tmp_path / name / "m" / RESULTS
        lines = path.read_bytes().splitlines(keepends=True)
        path.write_bytes(b"".join(lines if name == "in order" else lines[::-1]))
        assert run(tasks, tmp_path / name, "--no-html", "--name", "once") == 0
        capsys.readouterr()
        assert (
            command(tmp_path / name, "compare", "m", "once", "--json", "--resamples", "1000") == 0
        )
        figures = orjson.loads(capsys.readouterr().out)["pairs"][0]["figures"]
        found.append([(one["metric"], one["users"], one["a"]) for one in figures])
    assert [one[:2] for one in found[0]] == [one[:2] for one in found[1]]
    assert [one[2] for one in found[0]] == pytest.approx([one[2] for one in found[1]])


def test_status_counts_users_and_their_repeats(tasks, tmp_path, capsys):
    """A user is done once all its repeats are; the percentage is of repeats."""
    count = [0]

    def few(body: dict[str, Any]) -> bool:
        count[0] += 1
        return count[0] > 40

    with serving(unless(few, 401, b"bad key")) as server:
        assert play(tasks, tmp_path, server.url, 3, "--concurrency", "2") == 3
    capsys.readouterr()
    assert command(tmp_path, "status", "--json") == 0
    (row,) = orjson.loads(capsys.readouterr().out)
    records = lines_of(tmp_path / "m" / RESULTS)
    done = Counter(record["user_id"] for record in records)
    assert (row["users"], row["repeats"], row["repeats_done"]) == (USERS, 3, len(records))
    assert row["done"] == sum(times == 3 for times in done.values())
    assert row["percent"] == 100 * len(records) // 36
    assert min(done.values()) == 1 and len(done) > USERS // 2
    assert "repeats" in report(tmp_path, "m") and not report(tmp_path, "m")["coverage"]["complete"]


def test_scoring_again_keeps_every_repeat(finished, tmp_path):
    """`reeval`, with and without parsing again, gives the same bytes; the page shows repeats by
    name."""
    shutil.copytree(finished[0] / "m", tmp_path / "m")
    for words in ([], ["--reparse"]):
        assert command(tmp_path, "reeval", *words) == 0
        assert contents(tmp_path) == contents(finished[0])
    assert report(tmp_path, "m") == report(finished[0], "m")
    assert command(tmp_path, "report", "--name", "m") == 0
    assert "(repeat 2)" in (tmp_path / "m/eval_report_weibo.html").read_text()


@pytest.mark.slow
@pytest.mark.parametrize(
    "words", [["--model", "baseline/random-day"], ["--agent", str(WALK)]], ids=["plan", "agent"]
)
def test_repeats_of_residents_are_days_of_their_own(tmp_path, words):
    """A model's by its seed, an agent's by its own random numbers too; scored again they are the
    same."""
    model = [] if "--model" in words else ["--model", "baseline/commuter"]
    options = ["--demo", "--limit", "3", "--repeats", "2", "--no-html", "--name", "m"]
    assert command(tmp_path, "run", "dailymobility", *words, *model, *options) == 0
    path = tmp_path / "m/inference_results_beijing.jsonl"
    days = [tuple(record["intentions"]) for record in lines_of(path)]
    assert len(days) == len(set(days)) == 6
    made = report(tmp_path, "m", "beijing")
    assert made["metrics"]["Score"]["users"] == 3 and made["diagnostics"]["answers"] == 6
    assert set(made["repeats"]["components"]) == set(made["metrics"])
    before = path.read_bytes()
    assert command(tmp_path, "reeval", "--reparse", "--no-html") == command(tmp_path, "verify") == 0
    assert path.read_bytes() == before


def test_plug_in_may_use_the_name_repeat_itself_without_repeats(tmp_path, capsys):
    """Its record is found again, verified and shown as it is; with repeats the name is refused with
    a sentence."""
    file = tmp_path / "stars.py"
    own = """
    class Repeated(__import__('harness').Records):
        def record(self, task, answer, metrics, outcome, repairs):
            return {**super().record(task, answer, metrics, outcome, repairs), "repeat": 7}

    records = Repeated()
"""
    file.write_text(
        STARS.read_text().replace("    async def play(", f"{own}\n    async def play(", 1)
    )
    where = [
        "--model",
        FLOOR,
        "--name",
        "four-stars",
        "--tasks-dir",
        str(STARS.parent),
        "--limit",
        "3",
    ]
    assert command(tmp_path, "run", str(file), *where, "--name", "a") == 0
    assert {
        record["repeat"] for record in lines_of(tmp_path / "a/inference_results_yelp.jsonl")
    } == {7}
    assert (
        command(tmp_path, "verify", "--name", "a")
        == command(tmp_path, "reeval", "--name", "a")
        == 0
    )
    assert "(repeat 7)" not in (tmp_path / "a/eval_report_yelp.html").read_text()
    capsys.readouterr()
    assert command(tmp_path, "run", str(file), *where, "--name", "b", "--repeats", "2") == 2
    assert "needs the name repeat" in "".join(capsys.readouterr())
