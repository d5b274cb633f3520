"""The commands as a user calls them, on real files and a real loopback endpoint."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest

from harness.benchmarks.streamprofile.synth import generate
from harness.cli import main
from harness.client import health
from harness.store.log import decode_line
from tests.support.commands import execute
from tests.support.scripted import UNTIL_STOPPED, baseline, busy, completion, serving

RESULTS = "inference_results_weibo.jsonl"


@pytest.fixture
def tasks(tmp_path: Path) -> Path:
    """A folder with twelve users of weibo."""
    folder = tmp_path / "tasks"
    write_tasks(folder, 12)
    return folder


def write_tasks(folder: Path, users: int, platform: str = "weibo") -> list[bytes]:
    folder.mkdir(exist_ok=True)
    lines = list(generate(platform, users, 5, 3.0))
    (folder / f"{platform}_inference_tasks.jsonl").write_bytes(b"".join(lines))
    return lines


def run(tasks: Path, results: Path, *options: str, model: str = "baseline/recency") -> int:
    where = ["--tasks-dir", str(tasks), "--results-dir", str(results)]
    return main(["run", "--model", model, "--platform", "weibo", "--no-html", *where, *options])


def report(results: Path, name: str = "recency", subset: str = "weibo") -> dict[str, Any]:
    return dict(orjson.loads((results / name / f"eval_report_{subset}.json").read_bytes()))


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [orjson.loads(line) for line in path.read_bytes().splitlines()]


def test_run_scores_every_user_and_says_so_when_called_again(tasks, tmp_path, capsys):
    """A complete run has a report over all users; the same command then only says that it is
    complete."""
    assert run(tasks, tmp_path / "out") == 0
    assert report(tmp_path / "out")["coverage"] == {
        "expected_users": 12,
        "scored_users": 12,
        "failed_users": 0,
        "complete": True,
    }
    steps = sum(len(line["steps"]) for line in lines_of(tmp_path / "out/recency" / RESULTS))
    assert report(tmp_path / "out")["details"]["scored_steps"] == steps
    before = (tmp_path / "out/recency" / RESULTS).stat()
    capsys.readouterr()
    assert run(tasks, tmp_path / "out") == 0
    assert "complete" in capsys.readouterr().out
    assert (tmp_path / "out/recency" / RESULTS).stat() == before


@pytest.mark.slow
def test_demo_runs_all_five_platforms_in_one_schedule_and_verifies(tmp_path):
    """Without a platform all five are run; `verify` finds each of them sound."""
    out = ["--results-dir", str(tmp_path)]
    assert main(["run", "--model", "baseline/recency", "--demo", *out]) == 0
    assert sorted(path.name for path in tmp_path.glob("*/run_*.json")) == sorted(
        f"run_{name}.json" for name in ("weibo", "xiaohongshu", "toutiao", "zhihu", "douban")
    )
    assert main(["verify", *out]) == 0


@pytest.mark.parametrize(
    ("words", "name"), [([], "demo-recency"), (["dailymobility"], "demo-dailymobility-commuter")]
)
def test_demo_without_a_model_plays_a_baseline(words, name, tmp_path):
    """Where an endpoint is named, its model has to be named too."""
    where = ["--demo", "--limit", "2", "--no-html", "--results-dir", str(tmp_path)]
    assert main(["run", *words, *where, "--api-url", "http://127.0.0.1:1/v1"]) == 2 and not list(
        tmp_path.iterdir()
    )
    assert main(["run", *words, *where]) == 0
    assert list((tmp_path / name).glob("eval_report_*.json"))


def test_missing_endpoint_and_tasks_are_said_at_once(tmp_path, capsys):
    """One sentence for the endpoint, then one for the tasks; exit 2, and nothing is written."""
    assert run(tmp_path / "none", tmp_path / "out", model="gpt-4o-mini") == 2
    first, second = capsys.readouterr().err.splitlines()
    assert "LLM_API_KEY" in first and "OPENAI_API_KEY" in first
    assert "weibo_inference_tasks.jsonl" in second and "--demo" in second
    assert not (tmp_path / "out").exists()


def test_bad_line_stops_before_anything_is_sent(tasks, tmp_path, capsys):
    """A wrong field in a late line costs no request: file, line and field are named, exit 2."""
    path = tasks / "weibo_inference_tasks.jsonl"
    lines = path.read_bytes().splitlines()
    lines[7] = lines[7].replace(b'"candidate_pool":[', b'"candidate_pool":[3,', 1)
    path.write_bytes(b"\n".join(lines))
    with serving(baseline) as server:
        assert run(tasks, tmp_path / "out", "--api-url", server.url, model="m") == 2
        assert not server.bodies
    error = capsys.readouterr().err
    assert f"{path}, line 8: field prediction_tasks[0].candidate_pool" in error
    assert not (tmp_path / "out" / "m").exists()


def test_another_configuration_under_the_same_name_is_refused_field_by_field(
    tasks, tmp_path, capsys
):
    """The differing field is named with both values, and each of the three ways out works."""
    assert run(tasks, tmp_path / "out") == 0
    assert run(tasks, tmp_path / "out", "--temperature", "0.7") == 2
    assert "sampling.temperature was 0.0, is now 0.7" in capsys.readouterr().err
    assert (
        run(tasks, tmp_path / "out", "--temperature", "0.7", "--allow", "sampling.temperature") == 0
    )
    assert run(tasks, tmp_path / "out", "--temperature", "0.7", "--name", "warm") == 0
    assert run(tasks, tmp_path / "out", "--temperature", "0.9", "--restart") == 0
    assert list((tmp_path / "out/recency").glob(f"{RESULTS}.before-*"))


def test_growing_the_share_pays_for_the_rest_only(tasks, tmp_path):
    """`--ratio 0.5`, then all: no request is sent twice, and the file is the same as of one run."""
    with serving(baseline) as server:
        assert (
            run(tasks, tmp_path / "grown", "--ratio", "0.5", "--api-url", server.url, model="m")
            == 0
        )
        assert report(tmp_path / "grown", "m")["coverage"]["expected_users"] == 6
        assert run(tasks, tmp_path / "grown", "--api-url", server.url, model="m") == 0
        assert len(set(server.bodies)) == len(server.bodies)
        assert run(tasks, tmp_path / "whole", "--api-url", server.url, model="m") == 0
    assert (tmp_path / "grown/m" / RESULTS).read_bytes() == (
        tmp_path / "whole/m" / RESULTS
    ).read_bytes()


def test_limit_is_recorded_shown_like_a_share_and_grows(tasks, tmp_path, capsys):
    """Manifest, report and tables state it; a higher one plays the other users only; `resume` and
    `verify` keep it."""
    out = tmp_path / "out"
    folder, where = out / "recency", ["--results-dir", str(out)]
    assert run(tasks, out, "--limit", "3") == 0
    manifest = orjson.loads((folder / "run_weibo.json").read_bytes())
    assert manifest["selection"] == {"ratio": 1.0, "sample_seed": 42, "limit": 3}
    assert report(out)["run"]["limit"] == 3 and report(out)["coverage"]["expected_users"] == 3
    assert "a limit of 3 of the 12 users" in " ".join(
        (folder / "eval_report_weibo.txt").read_text().split()
    )
    capsys.readouterr()
    assert main(["stats", "--format", "csv", *where]) == 0
    table = capsys.readouterr().out
    assert "limit 3" in table and ",no," in table
    assert run(tasks, out, "--ratio", "0.5") == 0
    assert report(out)["coverage"]["scored_users"] == 6 and len(lines_of(folder / RESULTS)) == 6
    assert run(tasks, out, "--limit", "12") == 0 and main(["verify", *where]) == 0
    assert main(["stats", "--format", "csv", *where]) == 0
    assert ",yes," in capsys.readouterr().out


def test_user_whose_task_changed_is_owed_again(tasks, tmp_path):
    """After a changed line only that user is asked for, and its old record stays in a set-aside
    file."""
    path = tasks / "weibo_inference_tasks.jsonl"
    with serving(baseline) as server:
        run(tasks, tmp_path / "out", "--api-url", server.url, model="m")
        lines = path.read_bytes().splitlines()
        lines[3] = lines[3].replace(b'"username":"', '"username":"新'.encode(), 1)
        path.write_bytes(b"\n".join(lines) + b"\n")
        before = len(server.bodies)
        assert run(tasks, tmp_path / "out", "--api-url", server.url, model="m") == 0
        assert len(server.bodies) - before == len(orjson.loads(lines[3])["prediction_tasks"])
    assert list((tmp_path / "out/m").glob(f"{RESULTS}.before-*"))
    execute(tmp_path / "out", "verify")


def test_from_its_first_request_on_a_grown_share_tells_of_all_its_users(tasks, tmp_path):
    """Whoever looks while it runs, or after it was killed, takes no count or hash of the smaller
    share for its own."""
    seen = []

    def look(body: dict[str, Any]) -> tuple[int, bytes]:
        seen.append(orjson.loads((tmp_path / "out/m/run_weibo.json").read_bytes()))
        return baseline(body)

    with serving(baseline) as server:
        assert (
            run(tasks, tmp_path / "out", "--api-url", server.url, "--ratio", "0.5", model="m") == 0
        )
        server.script = look
        assert run(tasks, tmp_path / "out", "--api-url", server.url, model="m") == 0
    assert seen and all(one["state"] == "running" and one["results_sha256"] is None for one in seen)
    assert all(one["counts"] == {"users": 12} for one in seen)


def test_a_run_that_got_no_reply_gives_its_name_to_another_configuration(tasks, tmp_path, capsys):
    """As after a misspelt model; once there is one reply, the name is taken."""
    words = ["--name", "n"]
    unknown = 404, b'{"error": {"code": "model_not_found", "message": "no such model"}}'
    with serving(lambda request: unknown) as server:
        where = ["--api-url", server.url]
        assert run(tasks, tmp_path / "out", *where, *words, model="mispelt") == 3
        assert "no run is kept" in capsys.readouterr().out
        assert (
            main(["resume", "--results-dir", str(tmp_path / "out")]) == 2
            and len(server.bodies) <= 48
        )
        assert not (tmp_path / "out/n").exists()
        (tmp_path / "out/n").mkdir()
        assert run(tasks, tmp_path / "out", *where, *words, model="mispelt") == 3
        left = {path.name for path in (tmp_path / "out/n").iterdir()}
        assert left == {"prompt_own.txt", "run_weibo.lock"}
        server.script = baseline
        assert run(tasks, tmp_path / "out", *where, *words, model="m") == 0
        assert "resume with" not in capsys.readouterr().out
        assert report(tmp_path / "out", "n")["model"] == "m"
        execute(tmp_path / "out", "verify")
        assert run(tasks, tmp_path / "out", *where, *words, model="another") == 2


def failing_for(name: str) -> Callable[[dict[str, Any]], tuple[int, bytes]]:
    def script(body: dict[str, Any]) -> tuple[int, bytes]:
        if name in body["messages"][-1]["content"]:
            return 400, b'{"error": {"message": "this one I do not take", "code": "odd"}}'
        return baseline(body)

    return script


@pytest.mark.parametrize(("words", "pages"), [(["--no-html"], 0), ([], 1)])
def test_resume_writes_a_page_where_the_run_did(words, pages, tasks, tmp_path):
    """`--no-html` of the first command holds for the run."""
    with serving(lambda body: (503, b"{}")) as server:
        where = ["--tasks-dir", str(tasks), "--results-dir", str(tmp_path), "--platform", "weibo"]
        once = ["--model", "m", "--api-url", server.url, "--limit", "3", "--max-outage", "1"]
        assert main(["run", *once, *where, *words]) == 3
        server.script = baseline
        execute(tmp_path, "resume", "m")
    assert len(list((tmp_path / "m").glob("*.html"))) == pages


def test_failed_user_is_never_scored_and_resume_pays_only_for_it(tasks, tmp_path, capsys):
    """Exit 1 and a report headed INCOMPLETE; once the endpoint is well, resume ends as an
    undisturbed run."""
    lines = (tasks / "weibo_inference_tasks.jsonl").read_bytes().splitlines()
    victim = orjson.loads(lines[4])
    out = tmp_path / "out"
    with serving(failing_for(victim["username"])) as server:
        assert run(tasks, out, "--api-url", server.url, "--concurrency", "2", model="m") == 1
        assert "only `resume` requests them again" in capsys.readouterr().out
        coverage = report(out, "m")["coverage"]
        assert (coverage["scored_users"], coverage["failed_users"], coverage["complete"]) == (
            11,
            1,
            False,
        )
        assert "INCOMPLETE" in (out / "m/eval_report_weibo.txt").read_text()
        (failure,) = lines_of(out / "m/failures_weibo.jsonl")
        assert (
            failure["user_id"] == victim["user_id"]
            and "this one I do not take" in failure["detail"]
        )
        server.script = baseline
        before = len(server.bodies)
        execute(out, "resume")
        assert len(server.bodies) - before == len(victim["prediction_tasks"])
        assert run(tasks, tmp_path / "whole", "--api-url", server.url, model="m") == 0
    assert (out / "m" / RESULTS).read_bytes() == (tmp_path / "whole/m" / RESULTS).read_bytes()
    assert report(out, "m")["coverage"]["complete"]


def test_tries_of_an_earlier_process_are_numbered_on(tmp_path):
    """A request that failed once before its run was stopped is saved with its second try as the one
    that succeeded."""
    write_tasks(tmp_path / "tasks", 1)
    busy, denied = (
        (503, b'{"error": {"message": "busy"}}'),
        (401, b'{"error": {"message": "bad key"}}'),
    )
    with serving(lambda body: denied if len(server.bodies) > 1 else busy) as server:
        assert run(tmp_path / "tasks", tmp_path / "out", "--api-url", server.url, model="m") == 3
        server.script = baseline
        execute(tmp_path / "out", "resume")
    tries = [
        decode_line(line)["tries"]
        for line in (tmp_path / "out/m/responses_weibo.jsonl").read_bytes().splitlines()
    ]
    assert tries[0] == 2 and set(tries[1:]) == {1}


def test_invalid_answers_are_counted_by_kind_and_scored_as_empty(tasks, tmp_path):
    """A model that never writes JSON is asked again twice a step, then scores 0 under `no_json`."""
    with serving(lambda request: (200, completion("我不会"))) as server:
        assert (
            run(tasks, tmp_path / "out", "--allow-invalid", "--api-url", server.url, model="m") == 0
        )
        found = report(tmp_path / "out", "m")
        steps = found["details"]["scored_steps"]
        assert len(server.bodies) == 3 * steps
    assert found["metrics"]["Recall"]["value"] == 0
    assert found["details"]["errors_over_valid"]["Error_Peer"] is None
    assert "no_json" in json.dumps(found["diagnostics"])


def test_reparse_plays_from_saved_responses_and_keeps_users_that_diverge(tasks, tmp_path, capsys):
    """Without any call; a user whose responses are gone keeps its record and is counted."""
    out = tmp_path / "out"
    run(tasks, out)
    whole = (out / "recency" / RESULTS).read_bytes()
    execute(out, "reeval", "--reparse")
    assert (out / "recency" / RESULTS).read_bytes() == whole
    responses = out / "recency/responses_weibo.jsonl"
    kept = responses.read_bytes().splitlines(keepends=True)[1:]
    responses.write_bytes(b"".join(kept))
    capsys.readouterr()
    execute(out, "reeval", "--reparse")
    assert "1 users could not be played again" in capsys.readouterr().out
    assert sum("reparse" in line for line in lines_of(out / "recency" / RESULTS)) == 1
    assert report(out)["coverage"]["complete"]


def test_results_of_the_authors_runner_are_scored_and_their_errors_counted(tasks, tmp_path):
    """Bare NaN is read, metrics are measured again, both kinds of `Error:` are distinguished."""
    made = [
        orjson.loads(line)
        for line in (tasks / "weibo_inference_tasks.jsonl").read_bytes().splitlines()[:3]
    ]
    reasons = ["fine", "Error: Connection error.", "Error: No JSON object found in response"]
    lines = []
    for user, reason in zip(made, reasons, strict=True):
        user["prediction_tasks"] = user["prediction_tasks"][:1]
        (step,) = user["prediction_tasks"]
        saved = {
            "step_id": step["step_id"],
            "prediction": step["ground_truth"]["all_tags"] if reason == "fine" else [],
            "ground_truth": step["ground_truth"],
            "metrics": {"Recall": float("nan")},
            "reasoning": reason,
            "persona_summary": "",
        }
        lines.append(
            json.dumps(
                {key: user[key] for key in ("user_id", "platform", "username")} | {"steps": [saved]}
            )
        )
    (tasks / "weibo_inference_tasks.jsonl").write_bytes(b"\n".join(map(orjson.dumps, made)) + b"\n")
    folder = tmp_path / "out" / "Qwen3-8B"
    folder.mkdir(parents=True)
    (folder / RESULTS).write_text("\n".join(lines) + "\n")
    where = ["--results-dir", str(tmp_path / "out"), "--tasks-dir", str(tasks)]
    assert main(["reeval", "--name", "Qwen3-8B", *where]) == 1
    found = report(tmp_path / "out", "Qwen3-8B")
    assert found["prompt"] == "authors"
    assert found["metrics"]["Recall"] | {"ci95": None} == {
        "value": pytest.approx(1 / 2),
        "ci95": None,
        "users": 2,
    }
    assert found["details"]["with_failures"]["Recall"]["value"] == pytest.approx(1 / 3)
    assert any("1 of its steps were API failures" in note for note in found["notes"])
    assert any("1 of its steps were replies without JSON" in note for note in found["notes"])
    assert (folder / RESULTS).read_text() != "\n".join(lines)
    assert next(folder.glob(f"{RESULTS}.before-*")).read_text() == "\n".join(lines) + "\n"


def test_a_list_with_commas_is_no_model(tasks, tmp_path, capsys):
    """A model's name may hold a comma, so only an endpoint that does not know it leads to the words
    on `--model`."""
    with serving(lambda request: (404, b'{"error": {"code": "model_not_found"}}')) as server:
        assert run(tasks, tmp_path / "out", "--api-url", server.url, model="a,b") == 3
        assert "check --model: give --model once for each" in capsys.readouterr().out
        assert run(tasks, tmp_path / "out", "--api-url", server.url, model="a-b") == 3
        assert "once for each" not in capsys.readouterr().out


def test_a_key_that_was_never_sent_is_not_the_one_to_check(tasks, tmp_path, capsys):
    """An endpoint that wants one refuses nothing else; with a key the words are about that."""
    with serving(lambda request: (401, b"{}")) as server:
        assert run(tasks, tmp_path / "out", "--api-url", server.url, model="m") == 3
        assert "none was sent: give one with LLM_API_KEY" in capsys.readouterr().out
        server.script = lambda request: (402, b'{"error": {"message": "Insufficient Balance"}}')
        assert run(tasks, tmp_path / "out", "--api-url", server.url, model="m") == 3
        assert "none was sent" not in capsys.readouterr().out
        server.script = lambda request: (401, b"{}")
        assert (
            run(tasks, tmp_path / "out", "--api-url", server.url, "--api-key", "sk-test", model="m")
            == 3
        )
        assert "none was sent" not in capsys.readouterr().out


def test_wait_of_the_command_line_is_the_run_s(tasks, tmp_path, capsys, monkeypatch):
    """The stop names the seconds that are over."""
    monkeypatch.setattr(health, "PATIENCE_WITH_AN_ADDRESS", 0.0)
    assert (
        run(
            tasks,
            tmp_path / "out",
            "--api-url",
            "http://127.0.0.1:9/v1",
            "--wait",
            "0.05",
            model="away",
        )
        == 3
    )
    assert "--wait 0.05 is over" in capsys.readouterr().out


def test_defect_of_the_harness_is_one_sentence_and_a_file(capsys, monkeypatch, tmp_path):
    """No traceback reaches a user, whatever breaks."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    monkeypatch.setattr("harness.commands.status.execute", lambda args: 1 / 0)
    assert main(["status"]) == 70
    error = capsys.readouterr().err
    assert "ZeroDivisionError" in error and len(error.splitlines()) == 1
    assert "Traceback" in next(tmp_path.glob("harness-error-*.txt")).read_text()


def test_parameter_that_no_body_can_carry_is_refused_at_once(tasks, tmp_path, capsys):
    """A body nested deeper than can be written is one sentence and exit 2, not a failure of every
    user."""
    assert run(tasks, tmp_path / "out", "--extra-body", '{"a": ' * 300 + "1" + "}" * 300) == 2
    assert "cannot be written as JSON" in capsys.readouterr().err


def test_one_name_is_one_configuration_on_all_platforms(tasks, tmp_path, capsys):
    """Another temperature on another platform under the same name is refused; a restart takes all
    anew."""
    write_tasks(tasks, 4, "zhihu")
    both = ["run", "--model", "baseline/recency", "--platform", "weibo", "--platform", "zhihu"]
    where = ["--tasks-dir", str(tasks), "--results-dir", str(tmp_path / "out")]
    assert run(tasks, tmp_path / "out") == 0
    assert main([*both, *where, "--temperature", "0.5"]) == 2
    assert "sampling.temperature was 0.0, is now 0.5" in capsys.readouterr().err
    assert main([*both, *where]) == 0
    assert main([*both, *where, "--temperature", "0.5", "--restart"]) == 0


def test_run_does_not_touch_results_of_another_program(tasks, tmp_path, capsys):
    """A folder of the authors' runner is for `reeval`; a run of that name is refused and leaves it
    as it is."""
    folder = tmp_path / "out" / "recency"
    folder.mkdir(parents=True)
    (folder / RESULTS).write_text('{"user_id": "a", "steps": []}\n')
    assert run(tasks, tmp_path / "out") == 2
    assert "another program wrote it" in capsys.readouterr().err
    assert (folder / RESULTS).read_text() == '{"user_id": "a", "steps": []}\n'


def test_report_tells_share_settings_and_accepted_differences(tasks, tmp_path):
    """A number says what it covers: the share with its seed, the ablation, and a configuration
    changed on the way."""
    out = tmp_path / "out"
    assert run(tasks, out, "--ratio", "0.5", "--no-persona") == 0
    text = (out / "recency/eval_report_weibo.txt").read_text()
    assert "a share of 0.5 of the 12 users" in " ".join(text.split())
    assert "Ablation without persona" in text
    assert (
        report(out)["run"] | {"endpoint": "embedded", "ratio": 0.5, "persona": False}
        == report(out)["run"]
    )
    assert (
        run(tasks, out, "--no-persona", "--temperature", "0.5", "--allow", "sampling.temperature")
        == 0
    )
    (note,) = [note for note in report(out)["notes"] if "temperature" in note]
    assert "was 0.0, is now 0.5" in note


def test_report_of_a_run_that_goes_on_is_set_aside(tasks, tmp_path):
    """While a complete run grows, no report stands there that says complete."""
    out = tmp_path / "out"
    assert run(tasks, out, "--ratio", "0.5") == 0
    with serving(lambda request: (401, b"{}")) as server:
        assert run(tasks, out, "--api-url", server.url) == 3
    assert report(out)["coverage"]["complete"] is False
    assert list((out / "recency").glob("eval_report_weibo.json.before-*"))


def test_reeval_of_a_damaged_run_says_that_it_is_not_complete_any_more(tasks, tmp_path, capsys):
    """A flipped byte costs one record: exit 1, unfinished again, and resume plays the user from its
    replies."""
    out = tmp_path / "out"
    run(tasks, out)
    path = out / "recency" / RESULTS
    whole = path.read_bytes()
    path.write_bytes(whole[:200] + bytes([whole[200] ^ 1]) + whole[201:])
    execute(out, "reeval", code=1)
    assert report(out)["coverage"]["scored_users"] == 11
    responses = (out / "recency/responses_weibo.jsonl").read_bytes()
    execute(out, "resume")
    assert path.read_bytes() == whole
    assert (out / "recency/responses_weibo.jsonl").read_bytes() == responses


def test_own_records_without_their_manifest_are_not_taken_for_the_authors(tasks, tmp_path, capsys):
    """A lost manifest never turns our prompt into the authors' in a report."""
    out = tmp_path / "out"
    run(tasks, out)
    (out / "recency/run_weibo.json").unlink()
    execute(out, "reeval", "--tasks-dir", str(tasks), code=2)
    assert "manifest (run_*.json) is missing" in capsys.readouterr().err


@pytest.mark.parametrize("subset", ["beijing", "x"])
def test_results_that_no_benchmark_can_read_without_their_manifest_are_told(
    tasks, tmp_path, capsys, subset
):
    """In one sentence, by the commands that take results without one."""
    out = tmp_path / "out"
    run(tasks, out)
    (out / "recency/run_weibo.json").unlink()
    (out / "recency" / RESULTS).rename(out / f"recency/inference_results_{subset}.jsonl")
    where = ["--results-dir", str(out), "--tasks-dir", str(tasks)]
    capsys.readouterr()
    assert main(["reeval", *where]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert f"run_{subset}.json is missing" in line
    shutil.copytree(out / "recency", out / "copy")
    assert main(["compare", "recency", "copy", *where]) == 2
    assert f"run_{subset}.json is missing" in capsys.readouterr().err


def test_changed_tasks_of_a_complete_run_are_taken_up(tasks, tmp_path):
    """A user that left the tasks file leaves the report, too, although nothing is owed."""
    out = tmp_path / "out"
    run(tasks, out)
    path = tasks / "weibo_inference_tasks.jsonl"
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[1:]))
    assert run(tasks, out) == 0
    assert report(out)["coverage"]["expected_users"] == 11
    execute(out, "verify")


def test_restart_that_would_leave_two_configurations_moves_nothing(tasks, tmp_path, capsys):
    """A restart of one platform of two is refused before anything is set aside."""
    write_tasks(tasks, 4, "zhihu")
    where = ["--tasks-dir", str(tasks), "--results-dir", str(tmp_path / "out")]
    both = ["run", "--model", "baseline/recency", "--platform", "weibo", "--platform", "zhihu"]
    assert main([*both, *where]) == 0
    before = sorted(path.name for path in (tmp_path / "out/recency").iterdir())
    assert run(tasks, tmp_path / "out", "--restart", "--temperature", "0.7") == 2
    assert sorted(path.name for path in (tmp_path / "out/recency").iterdir()) == before


def test_resume_keeps_the_tuning_of_the_run(tasks, tmp_path):
    """A concurrency or rate once given is not forgotten by a resume that says nothing of it."""
    out = tmp_path / "out"
    with serving(busy) as server:
        tuning = ("--concurrency", "3", "--timeout", "33", *UNTIL_STOPPED)
        run(tasks, out, "--api-url", server.url, *tuning, model="m")
        server.script = baseline
        execute(out, "resume", "--timeout", "44")
    saved = orjson.loads((out / "m/run_weibo.json").read_bytes())["tuning"]
    assert (saved["concurrency"], saved["timeout"]) == (3, 44)


def test_results_of_another_program_are_refused_before_a_run_is_opened(tmp_path):
    """Of any subset: those before it have no manifest yet."""
    folder = tmp_path / "recency"
    folder.mkdir()
    (folder / "inference_results_weibo.jsonl").write_text("{}\n")
    words = [
        "run",
        "--demo",
        "--platform",
        "weibo",
        "--platform",
        "zhihu",
        "--limit",
        "4",
        "--no-html",
    ]
    execute(tmp_path, *words, "--name", "recency", code=2)
    assert not list(folder.glob("run_*.json"))
