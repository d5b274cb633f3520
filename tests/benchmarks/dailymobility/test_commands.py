"""DailyMobility as a user runs it: the commands on a small synthetic city, agent files, a real
loopback endpoint."""

from __future__ import annotations

import json
import logging
import re
import shutil
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest

from harness.benchmarks.dailymobility.synth import files
from harness.cli import main
from tests.support import DATA, ROOT, first_quick
from tests.support.scripted import UNTIL_STOPPED, Script, Server, answer, busy, completion, serving

AGENTS = DATA / "mobility_agents"
ASKING, RULES, RAISING, CATCHING = (
    AGENTS / f"{name}.py"
    for name in ("asks_each_step", "rule_based", "raises_at_40", "catches_everything")
)
RESULTS = "inference_results_beijing.jsonl"
FEW, MANY = 5, 12
STEPS = 100
"""Of an agent's day."""

KEY = "sk-marked-0b5e55ed"
PATIENCE = 60.0
"""Seconds until requests that do not come are given up; reached only by a test that fails."""

Told = pytest.CaptureFixture[str]


@pytest.fixture(scope="session")
def city(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tasks folder with twelve residents; nobody changes it."""
    return laid(tmp_path_factory.mktemp("city"), files(MANY, 5))


@pytest.fixture(scope="session")
def town(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same with five residents, for agents that ask a hundred times."""
    return laid(tmp_path_factory.mktemp("town"), files(FEW, 5))


@pytest.fixture
def own(town: Path, tmp_path: Path) -> Path:
    """A copy of `town` to spoil."""
    return Path(shutil.copytree(town, tmp_path / "own"))


@pytest.fixture(scope="session")
def finished(city: Path, town: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A results folder with a complete run of each kind: `plan`, `asking`, `rules`. Nobody changes
    it."""
    results = tmp_path_factory.mktemp("finished")
    assert run(city, results, "--name", "plan") == 0
    assert run(town, results, "--name", "asking", "--agent", ASKING) == 0
    assert run(town, results, "--name", "rules", "--agent", RULES) == 0
    return results


def laid(folder: Path, contents: Mapping[str, bytes]) -> Path:
    for name, content in contents.items():
        path = folder / "dailymobility" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return folder


def run(tasks: Path, results: Path, *options: object, model: str = "baseline/commuter") -> int:
    where = ["--tasks-dir", str(tasks), "--results-dir", str(results)]
    named = [] if "--name" in options else ["--name", model.rpartition("/")[2]]
    return main(
        ["run", "dailymobility", "--model", model, *named, "--no-html", *where, *map(str, options)]
    )


def on(server: Server, tasks: Path, results: Path, *options: object) -> int:
    """A run of the model `m` on a server."""
    return run(tasks, results, "--api-url", server.url, *options, model="m")


def again(command: str, results: Path, *options: str) -> int:
    return main([command, "--results-dir", str(results), *options])


def commuter(body: dict[str, Any]) -> tuple[int, bytes]:
    """Answers as `baseline/commuter` does, whatever the model is called."""
    return 200, completion(answer("baseline/commuter", body["messages"], 0))


def saying(text: str) -> Script:
    return lambda body: (200, completion(text))


def only_together(count: int, script: Script) -> Script:
    """A script that answers once `count` requests are there, and where fewer come at once ends the
    run."""
    gathered = threading.Barrier(count, timeout=PATIENCE)

    def answer(body: dict[str, Any]) -> tuple[int, bytes]:
        try:
            gathered.wait()
        except threading.BrokenBarrierError:
            return 401, b"{}"
        return script(body)

    return answer


def report(results: Path, name: str) -> dict[str, Any]:
    """The JSON report, its own values beside the others."""
    data = orjson.loads((results / name / "eval_report_beijing.json").read_bytes())
    return {**data["details"], **data}


def manifest(results: Path, name: str) -> dict[str, Any]:
    return dict(orjson.loads((results / name / "run_beijing.json").read_bytes()))


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [orjson.loads(line) for line in path.read_bytes().splitlines()]


def numbers(path: Path) -> list[int]:
    return [line["user_id"] for line in lines_of(path)]


def nothing_written(results: Path) -> bool:
    return not results.exists() or not list(results.rglob("*"))


def mended(agent: Path, text: str, instead: str) -> None:
    before = agent.read_text(encoding="utf-8")
    assert text in before
    agent.write_text(before.replace(text, instead), encoding="utf-8")


# Plan mode, and what is done with a finished run.


def test_residents_are_asked_at_the_same_time_and_stand_in_input_order(city, tmp_path):
    """Four at once, each waiting for the three others, make the very file that one at a time
    makes."""
    with serving(commuter) as server:
        assert on(server, city, tmp_path, "--concurrency", 1, "--name", "alone") == 0
        server.script = only_together(4, commuter)
        assert on(server, city, tmp_path, "--concurrency", 4) == 0
        assert len(server.bodies) == 2 * MANY
    path = tmp_path / "m" / RESULTS
    assert numbers(path) == list(range(1, MANY + 1))
    assert path.read_bytes() == (tmp_path / "alone" / RESULTS).read_bytes()
    assert report(tmp_path, "m")["coverage"] == {
        "expected_users": MANY,
        "scored_users": MANY,
        "failed_users": 0,
        "complete": True,
    }


@pytest.mark.parametrize("name", first_quick(["asking", "plan", "rules"]))
def test_finished_run_is_sound_and_scoring_it_again_changes_nothing(name, finished, tmp_path):
    """`verify` finds nothing; `reeval`, from answers and from replies, writes the same results and
    figures."""
    results = Path(shutil.copytree(finished, tmp_path / "out"))
    whole, told = (results / name / RESULTS).read_bytes(), report(results, name)
    assert again("verify", results, "--name", name) == 0
    for how in ([], ["--reparse"]):
        assert again("reeval", results, "--name", name, *how) == 0
        assert (results / name / RESULTS).read_bytes() == whole
        assert report(results, name) == told
    assert again("verify", results, "--name", name) == 0
    assert not list((results / name).glob(f"{RESULTS}.before-*"))


@pytest.mark.parametrize("name", ["plan", "asking", "rules"])
def test_written_lists_score_to_the_figures_of_the_report(name, finished, city, town, capsys):
    """`score-mobility` on `generated_beijing.json` gives the report's numbers to the last digit."""
    data = (city if name == "plan" else town) / "dailymobility"
    capsys.readouterr()
    lists = finished / name / "generated_beijing.json"
    assert main(["score-mobility", str(lists), "--data", str(data), "--json"]) == 0
    scored, told = json.loads(capsys.readouterr().out), report(finished, name)
    assert scored["residents"] == told["coverage"]["scored_users"]
    assert scored["protocols"] == told["protocols"]
    assert scored["JSD_per_slot"] == pytest.approx(
        told["secondary"]["JSD_per_slot"]["value"], rel=1e-12
    )
    assert scored["ceiling"] == told["ceiling"]
    assert scored["ground_truth"] == told["ground_truth"]


def test_a_report_whose_manifest_is_gone_is_a_page_without_users(finished, tmp_path, capsys):
    """No other program writes such results, so nothing says which tasks they are of."""
    shutil.copytree(finished / "plan", tmp_path / "results/plan")
    (tmp_path / "results/plan/run_beijing.json").unlink()
    capsys.readouterr()
    assert again("report", tmp_path / "results", "--name", "plan") == 0
    assert "without its tasks (run_beijing.json is missing" in capsys.readouterr().err


def test_status_and_stats_know_the_runs(finished, tmp_path, capsys):
    """Each run stands there as complete, with the score of its report as a fraction."""
    results = Path(shutil.copytree(finished, tmp_path / "out"))
    assert again("status", results, "--json") == 0
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)}
    assert {name: (row["state"], row["users"], row["done"]) for name, row in rows.items()} == {
        "plan": ("complete", MANY, MANY),
        "asking": ("complete", FEW, FEW),
        "rules": ("complete", FEW, FEW),
    }
    assert again("stats", results, "--json", "--excel") == 0
    tables = json.loads(capsys.readouterr().out)
    for name in rows:
        final = report(results, name)["protocols"]["aligned"]["final_score"]
        figure = tables["Score"][name]["beijing"]
        assert (figure["value"], figure["complete"]) == (pytest.approx(final / 100), True)
    assert (results / "metric_excels" / "Score.xlsx").is_file()


# Agent mode.


def test_an_agent_that_asks_at_each_step_is_played_to_its_end(finished, town):
    """A hundred replies of each resident, days that follow them, the file kept, and the simulation
    named."""
    replies = lines_of(finished / "asking/responses_beijing.jsonl")
    assert {
        key: sum(line["user_id"] == key for line in replies) for key in "12345"
    } == dict.fromkeys("12345", STEPS)
    records = lines_of(finished / "asking" / RESULTS)
    assert [record["usage"]["requests"] for record in records] == [STEPS] * FEW
    profiles = orjson.loads((town / "dailymobility/profiles.json").read_bytes())
    for record, profile in zip(records, profiles, strict=True):
        assert record["places"][0] == profile["home"] and profile["work"] in record["places"]
        assert {1, 2, 4} <= set(record["intentions"])
    assert (finished / "asking" / "agent_asks_each_step.py").read_bytes() == ASKING.read_bytes()
    told = report(finished, "asking")
    assert told["prompt"] == "agent asks_each_step.py"
    assert any("Movements are simulated" in note for note in told["notes"])


@pytest.mark.slow
def test_residents_of_one_agent_file_are_played_at_the_same_time(town, tmp_path):
    """No resident gets a reply before all five have asked, at every step; their days are those of
    one at a time."""
    with serving(only_together(FEW, commuter)) as server:
        assert on(server, town, tmp_path, "--agent", ASKING, "--concurrency", FEW) == 0
        assert len(server.bodies) == len(set(server.bodies)) == FEW * STEPS
        server.script = commuter
        assert (
            on(server, town, tmp_path, "--agent", ASKING, "--concurrency", 1, "--name", "alone")
            == 0
        )
    assert (tmp_path / "m" / RESULTS).read_bytes() == (tmp_path / "alone" / RESULTS).read_bytes()


@pytest.fixture
def raising(tmp_path: Path) -> Path:
    """A copy of the agent file that fails for resident 3, to mend."""
    return Path(shutil.copy(RAISING, tmp_path))


THREE = ("--limit", 3)


def failed_at_40(server: Server, town: Path, results: Path, agent: Path) -> None:
    """Of three residents, the first, the third and the fifth."""
    assert on(server, town, results, "--agent", agent, *THREE) == 1


def test_a_residents_exception_fails_that_resident_only(town, raising, tmp_path):
    """Exit 1; the failure names file, step and line; the two others are scored in a report headed
    INCOMPLETE."""
    line = next(
        n
        for n, text in enumerate(raising.read_text("utf-8").splitlines(), 1)
        if 'plan["intention"]' in text
    )
    with serving(saying("work")) as server:
        failed_at_40(server, town, tmp_path / "out", raising)
    (failure,) = lines_of(tmp_path / "out/m/failures_beijing.jsonl")
    assert (failure["user_id"], failure["boundary"], failure["kind"]) == (
        "3",
        "agent",
        "agent_error",
    )
    assert failure["detail"] == f"raises_at_40.py, step 40, line {line}: KeyError: 'intention'"
    assert sorted(numbers(tmp_path / "out/m" / RESULTS)) == [1, 5]
    coverage = report(tmp_path / "out", "m")["coverage"]
    assert (coverage["scored_users"], coverage["failed_users"], coverage["complete"]) == (
        2,
        1,
        False,
    )
    assert "INCOMPLETE" in (tmp_path / "out/m/eval_report_beijing.txt").read_text(encoding="utf-8")


@pytest.mark.slow
def test_resume_tries_a_failed_resident_again_from_its_saved_replies(
    town, raising, tmp_path, capsys
):
    """Without mending it fails again at the same line, and none of its forty replies is paid for
    twice."""
    with serving(saying("work")) as server:
        failed_at_40(server, town, tmp_path / "out", raising)
        asked = len(server.bodies)
        assert asked == 2 * STEPS + 40
        capsys.readouterr()
        assert again("resume", tmp_path / "out") == 1
        assert len(server.bodies) == asked
    first, second = lines_of(tmp_path / "out/m/failures_beijing.jsonl")
    assert (first["user_id"], first["detail"]) == (second["user_id"], second["detail"])
    assert "1 user failed: not scored" in capsys.readouterr().out
    assert report(tmp_path / "out", "m")["coverage"]["failed_users"] == 1


@pytest.mark.slow
def test_a_mended_agent_is_another_agent_until_that_is_allowed(town, raising, tmp_path, capsys):
    """`run` refuses its new bytes by field; with `--allow` only what is new is asked, and the
    report tells of it."""
    with serving(saying("work")) as server:
        failed_at_40(server, town, tmp_path / "out", raising)
        mended(raising, "self.id == 3", "self.id < 0")
        asked = len(server.bodies)
        capsys.readouterr()
        assert on(server, town, tmp_path / "out", "--agent", raising, *THREE) == 2
        refused = capsys.readouterr().err
        assert "files.agent_raises_at_40.py was " in refused and "settings." not in refused
        allow = ("--allow", "files.agent_raises_at_40.py")
        assert on(server, town, tmp_path / "out", "--agent", raising, *THREE, *allow) == 0
        assert len(server.bodies) == asked + STEPS - 40
        assert len(set(server.bodies)) == 3 * STEPS
    assert numbers(tmp_path / "out/m" / RESULTS) == [1, 3, 5]
    assert any(
        "files.agent_raises_at_40.py was" in note for note in report(tmp_path / "out", "m")["notes"]
    )
    (kept,) = (tmp_path / "out/m").glob("agent_raises_at_40.py.before-*")
    assert kept.read_bytes() == RAISING.read_bytes()


@pytest.mark.slow
def test_resume_says_that_the_agent_file_has_changed_and_takes_it_where_that_is_allowed(
    town, raising, tmp_path, capsys
):
    """Without a word it would go on with the run's own copy, and fail again; `--allow` takes the
    file as it is now."""
    with serving(saying("work")) as server:
        failed_at_40(server, town, tmp_path / "out", raising)
        mended(raising, "self.id == 3", "self.id < 0")
        asked = len(server.bodies)
        capsys.readouterr()
        assert again("resume", tmp_path / "out") == 1
        assert (
            "files.agent_raises_at_40.py was changed or deleted since the run began"
            in capsys.readouterr().out
        )
        assert again("resume", tmp_path / "out", "--allow", "files.agent_raises_at_40.py") == 0
        assert len(server.bodies) == asked + STEPS - 40


@pytest.mark.slow
@pytest.mark.parametrize("helper", [False, True], ids=["alone", "with a module beside it"])
def test_a_run_whose_agent_file_has_gone_goes_on_with_the_kept_copy(town, tmp_path, helper):
    """`resume` and `verify` need nothing but the run's folder and its tasks."""
    agent = tmp_path / "walker.py"
    text = RULES.read_text(encoding="utf-8")
    if helper:
        (tmp_path / "habits.py").write_text("WAKE = 7\n", encoding="utf-8")
        text = "from habits import WAKE\n" + text.replace("hour < 7", "hour < WAKE")
    agent.write_text(text, encoding="utf-8")
    assert run(town, tmp_path / "out", "--agent", agent, "--name", "whole") == 0
    whole = tmp_path / "out/whole" / RESULTS
    lines = whole.read_bytes()
    whole.write_bytes(lines[: len(lines) // 2])  # as if the process had died
    for path in tmp_path.glob("*.py"):
        path.unlink()
    assert again("reeval", tmp_path / "out") == 1
    assert again("resume", tmp_path / "out") == 0
    assert whole.read_bytes() == lines
    assert again("verify", tmp_path / "out") == 0


@pytest.mark.slow
def test_an_endpoint_failure_is_not_scored_however_much_an_agent_catches(town, tmp_path):
    """500s beyond the retries at one resident's 10 o'clock: a failure of the endpoint, and no day
    at home."""

    def failing(body: dict[str, Any]) -> tuple[int, bytes]:
        failed = body["messages"][-1]["content"].startswith("居民 3，36001 秒")
        return (
            (500, b'{"error": {"message": "no worker"}}') if failed else (200, completion("work"))
        )

    with serving(failing) as server:
        assert on(server, town, tmp_path, "--agent", CATCHING, "--max-retries", 1) == 1
        of_three = [body for body in server.bodies if "居民 3，".encode() in body]
        assert len(of_three) == 10 + 2  # its hours from 0 to 9, and two tries at 10
        server.script = saying("work")
        (failure,) = lines_of(tmp_path / "m/failures_beijing.jsonl")
        assert (failure["user_id"], failure["boundary"], failure["kind"]) == (
            "3",
            "endpoint",
            "persistent_error",
        )
        assert failure["tries"] == 2 and "no worker" in failure["detail"]
        assert sorted(numbers(tmp_path / "m" / RESULTS)) == [1, 2, 4, 5]
        assert (
            len(
                orjson.loads((tmp_path / "m/generated_beijing.json").read_bytes())[
                    "intention_sequences"
                ]
            )
            == FEW - 1
        )
        assert again("resume", tmp_path) == 0
        assert len([body for body in server.bodies if "居民 3，".encode() in body]) == 12 + 15
    assert all(
        record["intentions"][16:36] == [4] * 20 for record in lines_of(tmp_path / "m" / RESULTS)
    )


# asbench's configuration file.


@pytest.fixture
def config(tmp_path: Path) -> Callable[..., Path]:
    """Writes the file, the key in it, for an address."""

    def write(url: str, **fields: object) -> Path:
        entry = {
            "provider": "vllm",
            "base_url": url,
            "api_key": KEY,
            "model": "千问-7B",
            "semaphore": 3,
            **fields,
        }
        path = tmp_path / "asbench.yml"
        text = "\n  ".join(f"{name}: {value}" for name, value in entry.items())
        path.write_text(f"llm:\n- {text}\nenv:\n  home_dir: .agentsociety\n", encoding="utf-8")
        return path

    return write


def configured(tasks: Path, results: Path, file: Path, *options: str) -> int:
    where = ["--tasks-dir", str(tasks), "--results-dir", str(results)]
    return main(["run", "dailymobility", "--config", str(file), "--no-html", *where, *options])


def echoing(script: Script) -> Script:
    """The script, after a fault that quotes the key, as some relays do."""
    faults = iter([(500, orjson.dumps({"error": {"message": f"upstream refused {KEY}"}}))])
    return lambda body: next(faults, None) or script(body)


def test_config_gives_address_key_model_and_pace_and_keeps_the_key_to_itself(
    town, tmp_path, config, capsys
):
    """The run is named after its model and sends the key; no file and no output has it, not even
    from an echo."""
    with serving(echoing(commuter)) as server:
        assert configured(town, tmp_path / "out", config(server.url)) == 0
        assert set(server.keys) == {f"Bearer {KEY}"}
        assert {orjson.loads(body)["model"] for body in server.bodies} == {"千问-7B"}
    made = manifest(tmp_path / "out", "dailymobility-千问-7B")
    assert made["identity"]["model"] == "千问-7B" and made["tuning"]["concurrency"] == 3
    assert made["provenance"]["key_from"] == f"--config {tmp_path / 'asbench.yml'}"
    assert "upstream refused" in (tmp_path / "out/dailymobility-千问-7B/run_beijing.log").read_text(
        encoding="utf-8"
    )
    written = [path for path in (tmp_path / "out").rglob("*") if path.is_file()]
    assert not [path for path in written if KEY.encode() in path.read_bytes()]
    shown = capsys.readouterr()
    assert KEY not in shown.out + shown.err


def test_resume_takes_address_and_key_of_the_config_file_again(town, tmp_path, config, capsys):
    """As they are by then: the old endpoint receives nothing."""
    with serving(busy) as server, serving(commuter) as other:
        assert configured(town, tmp_path / "out", config(server.url), *UNTIL_STOPPED) == 3
        config(other.url, api_key=f"{KEY}-renewed")
        asked = len(server.bodies)
        capsys.readouterr()
        assert again("resume", tmp_path / "out") == 0
        assert f"endpoint was {server.url}, is now {other.url}" in capsys.readouterr().out
        assert len(server.bodies) == asked and set(other.keys) == {f"Bearer {KEY}-renewed"}
    assert report(tmp_path / "out", "dailymobility-千问-7B")["coverage"]["complete"]


@pytest.mark.parametrize("beside", [("--api-key", KEY), ("--api-url", "http://127.0.0.1:9/v1")])
def test_config_beside_another_address_or_key_is_refused(
    beside,
    town,
    tmp_path,
    config,
    capsys,
):
    """Exit 2 in one sentence that holds no key; nothing is written."""
    assert configured(town, tmp_path / "out", config("http://127.0.0.1:9/v1"), *beside) == 2
    error = capsys.readouterr().err
    assert "--config" in error and len(error.splitlines()) == 1 and KEY not in error
    assert nothing_written(tmp_path / "out")


# What cannot be used.


def test_options_of_the_other_benchmark_are_refused(town, tmp_path, capsys):
    """`--agent` is of DailyMobility and `--no-persona` of StreamProfileBench, where the other does
    not know them; an agent takes no prompt."""
    out = ["--results-dir", str(tmp_path / "out")]
    assert (
        main(
            [
                "run",
                "streamprofile",
                "--model",
                "baseline/recency",
                "--demo",
                "--agent",
                str(RULES),
                *out,
            ]
        )
        == 2
    )
    assert "--agent is an option of `run dailymobility`" in capsys.readouterr().err
    assert run(town, tmp_path / "out", "--no-persona") == 2
    assert "--no-persona is an option of `run streamprofile`" in capsys.readouterr().err
    assert run(town, tmp_path / "out", "--agent", RULES, "--prompt", RULES) == 2
    assert "--agent and --prompt exclude each other" in capsys.readouterr().err
    assert nothing_written(tmp_path / "out")


def test_another_map_is_another_run(own, tmp_path, capsys):
    """The map's hash is part of what a run is: the same name on a changed map is refused by that
    field."""
    assert run(own, tmp_path / "out") == 0
    laid(own, {"beijing.pb": files(FEW, 6)["beijing.pb"]})
    assert run(own, tmp_path / "out") == 2
    assert "settings.map_sha256 was " in capsys.readouterr().err


# What a model is shown.


@pytest.mark.parametrize(
    "agent",
    [
        pytest.param((), id="plan"),
        pytest.param(("--agent", ASKING), id="agent", marks=pytest.mark.slow),
    ],
)
def test_changing_the_ground_truth_changes_no_request(agent, own, tmp_path):
    """Other truths, the very same requests, byte by byte; and another score, so that it was
    read."""
    sent, scores = [], []
    for name, seed in (("one", 5), ("other", 6)):
        laid(
            own,
            {
                array: content
                for array, content in files(FEW, seed).items()
                if array.startswith("groundtruth/")
            },
        )
        with serving(commuter) as server:
            assert on(server, own, tmp_path / "out", *agent, "--name", name) == 0
            sent.append(sorted(server.bodies))
        scores.append(report(tmp_path / "out", name)["protocols"]["aligned"]["final_score"])
    assert sent[0] == sent[1]
    assert scores[0] != scores[1]


def test_an_unknown_field_of_an_entry_is_not_shown_in_the_plan_prompt(own, tmp_path):
    """What else a data set keeps of a resident, its day maybe, changes no request; a known field
    does."""
    path = own / "dailymobility/profiles.json"
    sent = []
    for field, value in (
        ("trajectory", "七点起床"),
        ("trajectory", "六点起床"),
        ("occupation", "守林人"),
    ):
        residents = orjson.loads(path.read_bytes())
        residents[1][field] = value
        path.write_bytes(orjson.dumps(residents))
        with serving(commuter) as server:
            assert on(server, own, tmp_path / "out", "--name", value) == 0
            sent.append(sorted(server.bodies))
    assert sent[0] == sent[1] != sent[2]
    assert b"trajectory" not in b"".join(sent[0]) and "守林人".encode() in b"".join(sent[2])


def test_another_ground_truth_is_told_and_scored_with(own, tmp_path, capsys):
    """`verify` finds it; the same `run` makes the report anew, without a request."""
    out = tmp_path / "out"
    assert run(own, out, "--name", "plan") == 0
    before = report(out, "plan")["protocols"]["aligned"]["final_score"]
    path = own / "dailymobility/groundtruth/gyration_radius.npy"
    np.save(path, np.load(path) * 3)
    assert again("verify", out) == 1
    assert (
        "the ground truth is not the one that this run was scored with" in capsys.readouterr().out
    )
    assert run(own, out, "--name", "plan") == 0
    assert report(out, "plan")["protocols"]["aligned"]["final_score"] != before
    assert again("verify", out) == 0


@pytest.mark.parametrize("command", ["verify", "reeval"])
def test_saved_days_are_not_measured_on_another_map(own, tmp_path, capsys, command):
    """Radii would be those of other places: the map's hash is named, and nothing is written."""
    out = tmp_path / "out"
    assert run(own, out, "--name", "plan") == 0
    results = (out / "plan" / RESULTS).read_bytes()
    (own / "dailymobility/beijing.pb").write_bytes(files(FEW, 6)["beijing.pb"])
    assert again(command, out) == 2
    assert "the run was made with other data (map_sha256 was" in capsys.readouterr().err
    assert (out / "plan" / RESULTS).read_bytes() == results


@pytest.mark.slow
@pytest.mark.parametrize("command", ["verify", "reeval"])
def test_measuring_saved_days_runs_no_agent(town, tmp_path, command):
    """A results folder can be checked without running what somebody put there."""
    agent, ran = tmp_path / "walker.py", tmp_path / "ran"
    text = RULES.read_text(encoding="utf-8")
    agent.write_text(f"open({str(ran)!r}, 'a').close()\n{text}", encoding="utf-8")
    assert run(town, tmp_path / "out", "--agent", agent, "--name", "rules") == 0
    assert ran.exists()
    ran.unlink()
    assert again(command, tmp_path / "out") == 0
    assert not ran.exists()


def test_a_kept_agent_that_somebody_changed_is_not_run(town, tmp_path, capsys):
    """A resume from the run's own copy looks at its hash before it runs it."""
    agent = tmp_path / "walker.py"
    agent.write_bytes(RULES.read_bytes())
    assert run(town, tmp_path / "out", "--agent", agent, "--name", "rules") == 0
    whole = tmp_path / "out/rules" / RESULTS
    whole.write_bytes(whole.read_bytes()[:100])
    assert again("reeval", tmp_path / "out") == 1
    agent.unlink()
    kept = tmp_path / "out/rules/agent_walker.py"
    kept.write_text("raise SystemExit('ran')", encoding="utf-8")
    assert again("resume", tmp_path / "out") == 2
    assert f"{kept} is not what the run was given" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--agent-seed", "7"], "--agent-seed has no effect without --agent"),
        (["--agent-memory-search"], "--agent-memory-search has no effect without --agent"),
        (["--agent", RULES, "--prompt", RULES], "--agent and --prompt exclude each other"),
    ],
)
def test_options_without_effect_are_refused(town, tmp_path, capsys, options, said):
    """Silence would let them be believed in."""
    assert run(town, tmp_path / "out", *options) == 2
    assert said in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "place",
    ["", *first_quick(["DATASETS/dailymobility", "datasets/DailyMobility", "DailyMobility"])],
)
def test_data_is_found_where_it_lies(town, tmp_path, place):
    """The layout of asbench, and the data folder itself; later commands find it without being given
    its place."""
    tasks, out = tmp_path / "theirs", tmp_path / "out"
    shutil.copytree(town / "dailymobility", tasks / place)
    assert run(tasks, out, "--name", "m") == 0
    manifest = json.loads((out / "m" / "run_beijing.json").read_bytes())
    assert Path(manifest["tasks"]["path"]) == tasks / place / "profiles.json"
    for command in ("verify", "reeval", "report"):
        assert again(command, out, "--name", "m") == 0
        assert again(command, out, "--name", "m", "--tasks-dir", str(town)) == 0


@pytest.mark.parametrize(
    ("place", "agent"),
    first_quick([("datasets/DailyMobility", RULES), ("DailyMobility", None), ("", None)]),
)
def test_run_is_resumed_with_data_that_moved_to_the_layout_of_asbench(
    place, agent, own, tmp_path, capsys
):
    """Once its folder is named, later commands find it without; the results are those of an
    undisturbed run."""
    theirs, folder = tmp_path / "theirs", tmp_path / "out" / "m"
    assert run(own, folder.parent, "--name", "m", *(("--agent", agent) if agent else ())) == 0
    results, made = folder / RESULTS, manifest(folder.parent, "m")
    whole = results.read_bytes()
    results.write_bytes(b"".join(whole.splitlines(keepends=True)[:2]))
    (folder / "run_beijing.json").write_bytes(
        orjson.dumps({**made, "state": "stopped", "results_sha256": None})
    )
    (theirs / place).parent.mkdir(parents=True, exist_ok=True)
    (own / "dailymobility").rename(theirs / place)
    assert again("resume", folder.parent) == 2
    assert "--tasks-dir" in capsys.readouterr().err
    assert again("resume", folder.parent, "--tasks-dir", str(theirs)) == 0
    assert results.read_bytes() == whole
    assert Path(manifest(folder.parent, "m")["tasks"]["path"]) == theirs / place / "profiles.json"
    assert again("verify", folder.parent) == 0


def test_baselines_answer_the_example_agent_and_a_warning_says_what_else_they_do(
    town, tmp_path, capsys
):
    """The agent sees what plan mode sees, so its residents go to work; plan mode itself gets no
    such warning."""
    assert (
        run(
            town,
            tmp_path / "out",
            "--name",
            "m",
            "--agent",
            ROOT / "examples" / "commuting_agent.py",
        )
        == 0
    )
    assert "warning: baselines answer" in capsys.readouterr().out
    lines = (tmp_path / "out" / "m" / RESULTS).read_text("utf-8").splitlines()
    records = [json.loads(line) for line in lines]
    assert len(records) == FEW and all(record["usage"]["requests"] == 1 for record in records)
    assert 4 in {number for record in records for number in record["intentions"]}
    assert all(len(record["visited_aois"]) > 1 and record["invalid"] is None for record in records)
    assert run(town, tmp_path / "out", "--name", "plan") == 0
    assert "warning" not in capsys.readouterr().out


def test_what_an_agent_logs_is_in_the_run_s_log_alone(town, tmp_path, capsys, monkeypatch):
    """By `logging` with and without a handler of its own, the standard streams and their bytes, its
    logger, `print`."""
    agent, out = tmp_path / "talks.py", tmp_path / "out"
    agent.write_text(
        "import io, logging, sys\nfrom agentsociety_benchmark.benchmarks import"
        " DailyMobilityAgent\n\nown ="
        " logging.getLogger('own')\nown.addHandler(logging.StreamHandler())\nown.propagate ="
        " False\n\nclass Talks(DailyMobilityAgent):\n    async def forward(self):\n        if"
        " self.environment.get_tick() == 901:\n            logging.warning('one')\n           "
        " own.warning('two')\n            sys.stderr.write('第三\\n')\n           "
        " self.logger.info('four')\n            print('five')\n            sys.stderr.close()\n    "
        "        sys.stdout.reconfigure(encoding='utf-8')\n            sys.stdout.write('six\\n')\n"
        "            sys.stdout.buffer.write('第七\\n'.encode())\n           "
        " io.TextIOWrapper(sys.stdout.buffer, 'utf-8').write('eight\\n')\n",
        encoding="utf-8",
    )
    monkeypatch.setattr(logging.getLogger(), "handlers", [])  # as in a process of its own
    assert run(town, out, "--name", "m", "--agent", agent) == 0
    log = [
        json.loads(line) for line in (out / "m" / "run_beijing.log").read_text("utf-8").splitlines()
    ]
    details = [entry["detail"] for entry in log if entry["what"] == "output"]
    assert len(details) == 8 * FEW
    assert {detail.partition(", resident ")[0] for detail in details} == {"talks.py, step 2"}
    logged = {"WARNING:root:one", "two", "第三", "four", "five", "six", "第七", "eight"}
    assert {detail.rpartition(": ")[2] for detail in details} == logged
    shown = capsys.readouterr()
    assert shown.err == "" and not any(
        text in shown.out for text in ("第三", "four", "five", "six", "第七", "eight")
    )


ONE_REQUEST = (
    "from agentsociety_benchmark.benchmarks import DailyMobilityAgent\n\n\nclass"
    " Asker(DailyMobilityAgent):\n    async def init(self):\n        await super().init()\n       "
    " dialog = [{'role': 'user', 'content': '你好'}]\n        await self.llm.atext_request(dialog,"
    " max_tokens=50)\n\n    async def forward(self):\n        pass\n"
)


def test_sampling_is_the_agent_s_unless_the_user_sets_it(town, tmp_path):
    """Requests, identity and report agree on which it was."""
    agent, out = tmp_path / "asker.py", tmp_path / "out"
    agent.write_text(ONE_REQUEST, encoding="utf-8")
    for name, options, expected in (
        ("agent", (), (1, 50)),
        ("own", ("--temperature", 0.5), (0.5, 50)),
    ):
        with serving(saying("ok")) as server:
            assert on(server, town, out, "--agent", agent, "--name", name, *options) == 0
            assert {
                (body["temperature"], body["max_tokens"]) for body in map(json.loads, server.bodies)
            } == {expected}
        identity = json.loads((out / name / "run_beijing.json").read_bytes())["identity"]
        assert identity["sampling"]["temperature"] == (None if name == "agent" else 0.5)
        assert identity["settings"]["agent_parameters"] == "sent"
        report = (out / name / "eval_report_beijing.json").read_text(encoding="utf-8")
        assert ("temperature is 1" in report, "own: temperature 0.5" in report) == (
            name == "agent",
            name == "own",
        )
        assert (
            main(["verify", "--name", name, "--results-dir", str(out), "--tasks-dir", str(town)])
            == 0
        )


@pytest.mark.slow
def test_searches_find_memories_only_where_the_run_says_so(town, tmp_path):
    """The choice is part of what the run is, and found again by the commands that play its
    agent."""
    agent, out = tmp_path / "searcher.py", tmp_path / "out"
    agent.write_text(
        "from agentsociety_benchmark.benchmarks import DailyMobilityAgent\n\n\nclass"
        " Searcher(DailyMobilityAgent):\n    async def forward(self):\n        if"
        " self.environment.get_tick() == 1:\n            await self.stream.add('mobility',"
        " 'breakfast')\n            found = await self.stream.search('breakfast')\n           "
        " await self.llm.atext_request([{'role': 'user', 'content': found}])\n",
        encoding="utf-8",
    )
    for name, options in (("upstream", ()), ("finds", ("--agent-memory-search",))):
        with serving(saying("ok")) as server:
            assert on(server, town, out, "--agent", agent, "--name", name, *options) == 0
            said = {
                json.loads(body)["messages"][0]["content"] == "Nothing" for body in server.bodies
            }
        assert said == {name == "upstream"}
        settings = json.loads((out / name / "run_beijing.json").read_bytes())["identity"][
            "settings"
        ]
        assert settings.get("agent_memory_search", False) is (name == "finds")
        again = ["--name", name, "--results-dir", str(out), "--tasks-dir", str(town)]
        assert main(["verify", *again]) == main(["reeval", "--reparse", *again]) == 0


def test_a_run_from_before_agents_parameters_were_sent_goes_on_as_it_was(town, tmp_path):
    """Its manifest does not have the setting: requests have the run's temperature and nothing of
    the agent's."""
    agent, out = tmp_path / "asker.py", tmp_path / "out"
    agent.write_text(ONE_REQUEST, encoding="utf-8")
    with serving(saying("ok")) as server:
        assert on(server, town, out, "--agent", agent, "--temperature", 0, "--name", "m") == 0
        path = out / "m" / "run_beijing.json"
        made = json.loads(path.read_bytes())
        del made["identity"]["settings"]["agent_parameters"]
        made["state"] = "incomplete"
        path.write_text(json.dumps(made), encoding="utf-8")
        for name in (RESULTS, "responses_beijing.jsonl"):
            (out / "m" / name).write_bytes(b"")
        del server.bodies[:]
        edited = ("--trust", "--api-url", server.url)  # its seal is broken now
        assert (
            main(
                [
                    "resume",
                    "--name",
                    "m",
                    "--results-dir",
                    str(out),
                    "--tasks-dir",
                    str(town),
                    *edited,
                ]
            )
            == 0
        )
        assert len(server.bodies) == FEW
        assert all(
            b["temperature"] == 0 and "max_tokens" not in b for b in map(json.loads, server.bodies)
        )
    assert "not those that the agent file asks for" in (
        out / "m" / "eval_report_beijing.txt"
    ).read_text("utf-8")


def test_the_bias_of_a_score_is_next_to_it_in_every_table(tmp_path, capsys):
    """That of the jackknife: what the score is off the one without bias, which the report has."""
    results = ["--results-dir", str(tmp_path)]
    assert (
        main(
            [
                "run",
                "dailymobility",
                "--model",
                "baseline/commuter",
                "--name",
                "commuter",
                "--demo",
                "--no-html",
                *results,
            ]
        )
        == 0
    )
    assert re.search(r"Score \d+\.\d\d% \(bias -\d+\.\d\d points\)", capsys.readouterr().out)
    report = json.loads((tmp_path / "commuter" / "eval_report_beijing.json").read_bytes())
    bias, value = report["bias"]["Score"], report["metrics"]["Score"]["value"]
    assert value - bias == pytest.approx(report["details"]["without_bias"]["value"])
    shown = f"{100 * value:.2f} (bias {100 * bias:+.2f})"
    assert main(["stats", *results]) == 0
    assert shown in capsys.readouterr().out
    assert main(["stats", "--format", "markdown", *results]) == 0
    assert shown in capsys.readouterr().out.replace("\\", "")
    text = (tmp_path / "commuter" / "eval_report_beijing.txt").read_text()
    assert re.search(rf"Score +% +{100 * value:.2f} .* {re.escape(f'{100 * bias:+.2f}')}", text)
