"""Benchmarks with other models than the one under test, such as a judge, from outside: each role
has an endpoint, a price and a bill of its own."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from decimal import Decimal
from pathlib import Path
from typing import Any

import orjson
import pytest

from tests.support import DATA
from tests.support.embedded import served
from tests.support.endpoint_double.app import Options
from tests.support.plugins import Commands
from tests.support.processes import wait_for_responses
from tests.support.scripted import Server, serving

ESSAYS = DATA / "essays" / "essays.py"
USERS = 12
JUDGE_PRICE = "2/8"
PROVIDERS = """
[providers.writers]
base_url = "{writers}"
key_env = ""
[providers.writers.prices]
w = {{ currency = "USD", prompt = 0.5, completion = 1.5 }}

[providers.judges]
base_url = "{judges}"
key_env = ""
rpm = 6000
concurrency = 3
[providers.judges.prices]
j = {{ currency = "USD", prompt = 2, completion = 8 }}
k = {{ currency = "USD", prompt = 4, completion = 16 }}
"""


def reply(body: dict[str, Any], text: str) -> tuple[int, bytes]:
    """A reply whose usage follows from the lengths of prompt and text."""
    prompt = len(body["messages"][-1]["content"])
    choice = {
        "index": 0,
        "message": {"role": "assistant", "content": text},
        "finish_reason": "stop",
    }
    usage = {"prompt_tokens": prompt, "completion_tokens": len(text)}
    return 200, orjson.dumps({"model": body["model"], "choices": [choice], "usage": usage})


def write(body: dict[str, Any]) -> tuple[int, bytes]:
    return reply(body, f"This is about {body['messages'][-1]['content'].split()[-1]}")


def grade(body: dict[str, Any]) -> tuple[int, bytes]:
    """Judge `j` likes long sentences, judge `k` none."""
    length = len(body["messages"][-1]["content"])
    likes = min(1.0, length / 40) if body["model"] == "j" else 0.25
    return reply(body, orjson.dumps({"grade": likes}).decode())


class Place:
    """A tasks folder, and two endpoints with their log; `run` plays the essays there."""

    def __init__(self, folder: Path, writers: Server, judges: Server, harness: Commands) -> None:
        self.writers, self.judges, self.harness = writers, judges, harness
        self.tasks = folder / "tasks"
        self.tasks.mkdir()
        users = [{"user_id": f"u{n}", "topic": "猫" * (n + 1)} for n in range(USERS)]
        (self.tasks / "essays.jsonl").write_bytes(b"".join(orjson.dumps(u) + b"\n" for u in users))
        self.providers = folder / "providers.toml"
        self.providers.write_text(PROVIDERS.format(writers=writers.url, judges=judges.url))

    def words(self, *more: str, judge: str = "judges:j") -> list[str]:
        words = [
            "run",
            str(ESSAYS),
            "--model",
            "writers:w",
            "--name",
            "w",
            "--role",
            f"judge={judge}",
        ]
        words += ["--tasks-dir", str(self.tasks), "--providers", str(self.providers), "--no-html"]
        return [*words, "--concurrency", "4", *more]

    def run(self, *more: str, judge: str = "judges:j", code: int = 0) -> str:
        return self.harness(*self.words(*more, judge=judge), code=code)

    @property
    def folder(self) -> Path:
        return self.harness.results / "w"

    @property
    def records(self) -> list[dict[str, Any]]:
        lines = (self.folder / "inference_results_short.jsonl").read_bytes().splitlines()
        return [orjson.loads(line.rpartition(b"\t")[0] or line) for line in lines]

    @property
    def report(self) -> dict[str, Any]:
        return orjson.loads((self.folder / "eval_report_short.json").read_bytes())

    def cost_of_log(self) -> Decimal:
        """The cost by the endpoints' own logs."""
        prices = {"w": ("0.5", "1.5"), "j": ("2", "8"), "k": ("4", "16")}
        total = Decimal(0)
        for server in (self.writers, self.judges):
            for body in map(orjson.loads, server.bodies):
                usage = orjson.loads(server.script(body)[1])["usage"]
                prompt, completion = map(Decimal, prices[body["model"]])
                total += usage["prompt_tokens"] * prompt + usage["completion_tokens"] * completion
        return total / 1_000_000


@pytest.fixture
def place(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Iterator[Place]:
    with serving(write) as writers, serving(grade) as judges:
        yield Place(tmp_path, writers, judges, Commands(tmp_path / "results", capsys))


def models(server: Server) -> list[str]:
    return [orjson.loads(body)["model"] for body in server.bodies]


def test_each_role_is_asked_at_its_own_endpoint_and_named_in_the_report(place):
    """Model and judge have an endpoint each; the report says who judged, and how often."""
    place.run()
    assert models(place.writers) == ["w"] * USERS
    assert models(place.judges) == ["j"] * USERS
    text = (place.folder / "eval_report_short.txt").read_text()
    assert f"Role judge (grades each sentence): j at {place.judges.url}" in text
    assert "Judge: answered by j 100 % (12) of 12 replies" in text
    usage = place.records[0]["usage"]
    assert usage["requests"] == 2 and usage["roles"]["judge"]["requests"] == 1


def test_cost_is_that_of_both_endpoints_to_the_cent(place):
    """Each reply costs what its own model costs, by the usage that the endpoints sent."""
    place.run()
    assert Decimal(place.report["cost"]["amount"]) == place.cost_of_log()


def test_another_judge_grades_without_a_new_answer(place):
    """Only requests to the new judge are sent; every record names it, and what both cost is
    right."""
    place.run()
    before = place.records
    refused = place.harness.refused(*place.words(judge="judges:k"))
    assert "roles.judge.model" in refused
    place.run("--allow", "roles.judge", judge="judges:k")
    assert models(place.writers) == ["w"] * USERS
    assert models(place.judges) == ["j"] * USERS + ["k"] * USERS
    assert [record["roles"]["judge"]["model"] for record in place.records] == ["k"] * USERS
    assert {record["metrics"]["Grade"] for record in place.records} == {0.25}
    assert Decimal(place.report["cost"]["amount"]) == place.cost_of_log()
    place.run("--allow", "roles.judge")  # the first judge's replies are still there
    assert len(place.judges.bodies) == 2 * USERS
    assert place.records == before


def test_another_judge_that_is_killed_goes_on(place):
    """After a kill in the middle, `resume` sends what is left to the new judge, and the results are
    those of a run that nobody killed."""
    place.run("--allow", "roles.judge", judge="judges:k")
    whole = (place.folder / "inference_results_short.jsonl").read_bytes()
    place.harness("remove", "w")
    place.run()
    place.writers.bodies.clear()
    place.judges.bodies.clear()
    with slow(place.judges):
        command = place.words("--allow", "roles.judge", "--results-dir", str(place.harness.results))
        command[command.index("judge=judges:j")] = "judge=judges:k"
        process = subprocess.Popen([sys.executable, "-m", "harness", *command])
        wait_for_responses(place.folder / "responses_short.jsonl", 2 * USERS + 4)
        process.send_signal(signal.SIGKILL)
        process.wait()
    sent = len(place.judges.bodies)
    assert USERS > sent >= 4
    place.harness("resume", "w", "--providers", str(place.providers))
    assert place.writers.bodies == []
    assert set(models(place.judges)) == {"k"}
    assert (place.folder / "inference_results_short.jsonl").read_bytes() == whole


@contextmanager
def slow(server: Server) -> Iterator[None]:
    """The server answers four requests, and holds the others until the end."""
    from threading import Event

    answer, ended = server.script, Event()

    def script(body: dict[str, Any]) -> tuple[int, bytes]:
        if len(server.bodies) > 4:
            ended.wait(60)
        return answer(body)

    server.script = script
    try:
        yield
    finally:
        server.script = answer
        ended.set()


def test_reparse_needs_no_request(place):
    """`reeval --reparse` reads the saved replies of model and judge."""
    place.run()
    sent = len(place.writers.bodies), len(place.judges.bodies)
    before = place.records
    place.harness("reeval", "w", "--reparse", "--tasks-dir", place.tasks)
    assert place.records == before
    assert (len(place.writers.bodies), len(place.judges.bodies)) == sent
    place.harness("verify", "w", "--tasks-dir", place.tasks)


def test_budget_holds_over_both_roles(place):
    """The run stops before model and judge together cost more than the budget."""
    place.run("--budget", "0.002usd", "--max-tokens", "30", judge="judges:j,max_tokens=20", code=5)
    assert 0 < place.cost_of_log() <= Decimal("0.002")
    assert place.judges.bodies
    place.run("--budget", "1usd", "--max-tokens", "30", judge="judges:j,max_tokens=20")
    assert len(place.writers.bodies) == len(place.judges.bodies) == USERS


def test_budget_in_tokens_counts_both(place):
    place.run("--budget", "900tok", "--max-tokens", "30", judge="judges:j,max_tokens=20", code=5)
    used = 0
    for server in (place.writers, place.judges):
        for body in map(orjson.loads, server.bodies):
            usage = orjson.loads(server.script(body)[1])["usage"]
            used += usage["prompt_tokens"] + usage["completion_tokens"]
    assert used <= 900 and place.judges.bodies


def test_role_that_is_not_named_is_asked_for(place):
    """Nothing is sent; the sentence says what the role is for and how to name its model."""
    words = place.words()
    at = words.index("--role")
    del words[at : at + 2]
    refused = place.harness.refused(*words)
    assert "needs a model for the role judge (grades each sentence)" in refused
    assert "--role judge=[PROVIDER:]MODEL" in refused
    assert "no role jugde" in place.harness.refused(*words, "--role", "jugde=judges:j")
    assert place.writers.bodies == []


def test_judge_whose_replies_cannot_be_used_scores_nobody(place):
    """A judge's failure is no answer of the model: its users have failed, without a score."""
    place.judges.script = lambda body: reply(body, "I would rather not.")
    place.run("--limit", "2", code=1)
    assert place.records == []
    failures = (place.folder / "failures_short.jsonl").read_text()
    assert failures.count('"boundary":"role"') == 2 and "judge_unusable" in failures


def test_judge_that_refuses_the_key_stops_the_run(place):
    """A judge's wrong key does not take an answer of the model for every user."""
    place.judges.script = lambda body: (401, b'{"error": {"message": "no such key"}}')
    place.run(code=3)
    assert len(place.writers.bodies) < USERS


def test_judge_may_be_a_baseline(place):
    """A baseline of the benchmark judges without an endpoint, and costs nothing."""
    place.run(judge="baseline/yes")
    assert place.judges.bodies == []
    assert Decimal(place.report["cost"]["amount"]) == place.cost_of_log()


def test_judge_has_repeats_parameters_and_merge(place):
    """Repeats are judged each; parts merge, with the cost of both."""
    for part in ("1/2", "2/2"):
        place.run("--part", part, "--repeats", "2", judge="judges:j,temperature=0.5,seed=3")
    place.harness("merge", "w", "--tasks-dir", place.tasks)
    bodies = [orjson.loads(body) for body in place.judges.bodies]
    assert {body["temperature"] for body in bodies} == {0.5}
    assert len({body["seed"] for body in bodies}) == 2
    assert Decimal(place.report["cost"]["amount"]) == place.cost_of_log()


def test_settings_file_and_python_name_roles(place, tmp_path, monkeypatch):
    """`roles` of the settings file, of a queue's entry and of Python are the same option."""
    import harness as package

    words = place.words()
    at = words.index("--role")
    del words[at : at + 2]
    (tmp_path / "harness.toml").write_text('[run]\nrole = ["judge=judges:k"]\n')
    place.harness(*words, "--limit", "1", "--settings", str(tmp_path / "harness.toml"))
    assert models(place.judges) == ["k"]
    place.judges.bodies.clear()
    [run] = package.run(
        ESSAYS,
        model="writers:w",
        name="python",
        roles={"judge": "judges:j"},
        limit=1,
        tasks_dir=place.tasks,
        results_dir=place.harness.results,
        providers=place.providers,
        quiet=True,
    )
    assert run.complete and models(place.judges) == ["j"]
    place.judges.bodies.clear()
    queue = '[queues]\nq = [{model = "writers:w", name = "queued", roles = {judge = "judges:k"}}]\n'
    place.providers.write_text(place.providers.read_text() + queue)
    at = words.index("--model")
    del words[at : at + 4]
    place.harness(*words, "--limit", "1", "--queue", "q")
    assert models(place.judges) == ["k"]


def test_batches_are_of_the_model_and_the_judge_is_asked_at_once(place):
    """Both meet in one run: its answers come in a batch, its judgements one by one."""
    with served(Options()) as provider:
        words = place.words("--batch", "--api-url", provider.url)
        words[words.index("writers:w")] = "baseline/recency"
        place.harness(*words)
        assert models(place.judges) == ["j"] * USERS
        assert [record["roles"]["judge"]["model"] for record in place.records] == ["j"] * USERS
        assert provider.stats()["batches"] >= 1


def test_estimate_prices_each_model_at_its_own_price(place):
    """The estimate of a run of users who are all alike is what the run costs in the end."""
    users = [{"user_id": f"u{n}", "topic": "猫"} for n in range(USERS)]
    lines = b"".join(orjson.dumps(user) + b"\n" for user in users)
    (place.tasks / "essays.jsonl").write_bytes(lines)
    place.run("--estimate", "--yes")
    estimated = re.search(r"cost ([\d.]+) \(", place.harness.out + place.harness.err)
    assert estimated
    assert float(estimated[1]) == pytest.approx(float(place.cost_of_log()), rel=0.01)


def test_dry_run_says_whose_requests_it_leaves_out(place):
    place.run("--dry-run")
    assert "role judge: j, whose requests are not counted here" in place.harness.out
    assert place.judges.bodies == []


def test_models_in_two_currencies_have_a_cost_each_and_no_sum(place):
    """Nothing is converted; the report says what the judge cost."""
    place.run(judge="judges:j,price=CNY:2/8")
    assert place.report["cost"]["amount"] is None
    shares = {share["price"]["currency"] for share in place.report["cost"]["shares"]}
    assert shares == {"USD", "CNY"}
    assert "CNY" in (place.folder / "eval_report_short.txt").read_text()
    place.harness("status")
    place.harness("stats", "w", "--format", "csv")
    place.harness("report", "w")


def test_show_says_to_whom_each_request_went(place):
    """Model and judge are two conversations."""
    place.run("--limit", "1")
    shown = place.harness("show", "w", place.records[0]["user_id"], "--tasks-dir", place.tasks)
    assert "Request 1 of 2\n" in shown and "Request 2 of 2, to the judge" in shown


def test_workers_refuse_roles_before_anything_is_sent(place):
    refused = place.harness.refused(*place.words("--engine", "ray"))
    assert "plays no benchmark with roles (judge)" in refused
    assert place.writers.bodies == place.judges.bodies == []


def test_provider_of_a_role_that_is_not_known_is_refused(place):
    """It is not paid for as the whole name of a model at the server of the model under test."""
    words = place.words("--api-url", place.writers.url, judge="jugdes:j")
    words[words.index("writers:w")] = "w"
    assert "role judge: jugdes is no provider" in place.harness.refused(*words)
    assert place.writers.bodies == []


def test_report_counts_the_replies_of_each_judge(place):
    """Those of a judge before are not those of the judge of now; a check has nothing to add."""
    place.run()
    place.run("--allow", "roles.judge", judge="judges:k")
    text = " ".join((place.folder / "eval_report_short.txt").read_text().split())
    assert "k at " in text and "12 replies" in text and "Before it j had this role: 12 repl" in text
    place.harness("verify", "w", "--tasks-dir", place.tasks)
    assert "by their counts alone" not in place.harness.out + place.harness.err
    out = place.harness.results / "rows.jsonl"
    place.harness("export", "w", "--rows", "responses", "--out", out)
    roles = [orjson.loads(row)["role"] for row in out.read_bytes().splitlines()]
    assert sorted(set(roles)) == ["", "judge"]


def test_runs_with_two_judges_are_not_ranked_together(place):
    """Each names its judge."""
    place.run()
    words = place.words(judge="judges:k")
    words[words.index("--name") + 1] = "other"
    place.harness(*words)
    shown = place.harness("stats")
    assert "judge j" in shown and "judge k" in shown


def test_judge_that_nobody_can_read_stops_the_run(place):
    """Three users in a row without a judgement, and none with one: no other answer is paid for."""
    place.judges.script = lambda body: reply(body, "I would rather not.")
    place.run("--concurrency", "1", code=1)
    assert len(place.writers.bodies) < USERS


def test_judge_that_was_repaired_is_asked_again(place):
    """`resume` sends nothing to the model, and gives the users a score; each reply is billed."""
    good = place.judges.script
    place.judges.script = lambda body: reply(body, "I would rather not.")
    place.run("--limit", "2", "--parse-retries", "0", code=1)
    sent, refused = len(place.writers.bodies), len(place.judges.bodies)
    place.judges.script = good
    place.harness("resume", "w", "--providers", str(place.providers))
    assert len(place.writers.bodies) == sent
    assert len(place.judges.bodies) == refused + 2
    assert len(place.records) == 2
    place.harness("verify", "w", "--tasks-dir", place.tasks)
    place.harness("reeval", "w", "--reparse", "--tasks-dir", place.tasks)
