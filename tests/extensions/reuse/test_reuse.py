"""`run --reuse`: replies that another run has saved for the same requests are not paid for
again."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import orjson
import pytest

from harness.cli import main
from harness.client.quirks import QUIRKS
from harness.store.log import decode_line
from tests.commands.test_commands import RESULTS, lines_of, report, write_tasks
from tests.support.scripted import Server, baseline, completion, serving


class Case:
    """Tasks of six users, results, and an endpoint that answers as a baseline does."""

    def __init__(self, folder: Path, server: Server) -> None:
        self.out, self.server, self._tasks = folder / "out", server, folder / "tasks"
        write_tasks(self._tasks, 6)

    def run(self, name: str, *options: str, model: str = "m") -> int:
        """Run, and forget the requests so far."""
        self.server.bodies.clear()
        named = [
            "--name",
            name,
            "--model",
            model,
            "--api-url",
            self.server.url,
            "--platform",
            "weibo",
        ]
        where = ["--tasks-dir", str(self._tasks), "--results-dir", str(self.out)]
        return main(["run", *named, *where, "--no-html", *options])

    def manifest(self, name: str) -> dict[str, Any]:
        return dict(orjson.loads((self.out / name / "run_weibo.json").read_bytes()))

    def responses(self, name: str) -> list[dict[str, Any]]:
        return [
            decode_line(line)
            for line in (self.out / name / "responses_weibo.jsonl").read_bytes().splitlines()
        ]

    def notes(self, name: str) -> list[str]:
        return [note for note in report(self.out, name)["notes"] if "--reuse" in note]


@pytest.fixture
def case(tmp_path: Path) -> Any:
    with serving(baseline) as server:
        yield Case(tmp_path, server)


def test_equal_run_pays_for_nothing_and_has_the_same_results(case):
    """Its folder is whole: it verifies, is parsed again, and names the run of every reply; its
    identity is the same."""
    assert case.run("first") == 0
    paid = len(case.server.bodies)
    assert paid and case.run("second", "--reuse", "first") == 0
    assert case.server.bodies == []
    assert (case.out / "second" / RESULTS).read_bytes() == (
        case.out / "first" / RESULTS
    ).read_bytes()
    assert case.manifest("second")["identity"] == case.manifest("first")["identity"]
    assert case.manifest("second")["provenance"]["reused"] == {"first": paid}
    assert report(case.out, "second")["replies"] == {
        "answered_by": [{"replies": paid, "model": "scripted"}]
    }
    assert case.manifest("second")["times"]["schedule"]["lower_bound_seconds"] == 0
    assert [note.split()[0] for note in case.notes("second")] == [str(paid)] and case.notes(
        "first"
    ) == []
    shutil.rmtree(case.out / "first")
    made = {line.pop("reused") for line in case.responses("second")}
    assert made == {"first"} and len(case.responses("second")) == paid
    where = ["--results-dir", str(case.out)]
    assert main(["verify", *where]) == 0
    assert main(["reeval", "--reparse", "--no-html", *where]) == 0
    assert len(case.notes("second")) == 1


def test_reply_is_saved_as_it_came(case):
    """With its seconds, tries and endpoint of then, and without the bytes that were sent for it:
    none were. A reply that was itself reused names the run that was given."""
    case.run("first", "--limit", "2")
    case.run("second", "--limit", "2", "--reuse", "first")
    case.run("third", "--limit", "2", "--reuse", str(case.out / "second"))
    first, third = (
        sorted(case.responses(name), key=lambda line: line["request"])
        for name in ("first", "third")
    )
    assert all(line.pop("sent") for line in first)
    assert third == [{**line, "reused": "second"} for line in first]


def test_what_the_other_run_lacks_is_requested(case):
    """Users beyond its share, replies that are damaged, and those that a changed prompt asks
    for."""
    case.run("first", "--limit", "3")
    saved = len(case.server.bodies)
    path = case.out / "first/responses_weibo.jsonl"
    path.write_bytes(path.read_bytes().replace(b'"nth":0', b'"nth":9', 1))
    case.run("whole")
    whole = len(case.server.bodies)
    assert case.run("second", "--reuse", "first") == 0
    assert len(case.server.bodies) == whole - saved + 1
    assert case.manifest("second")["provenance"]["reused"] == {"first": saved - 1}
    assert case.run("third", "--reuse", "whole", "--no-persona") == 0
    assert 0 < len(case.server.bodies) < whole


def test_count_is_of_all_sessions(case):
    """A run that was stopped and resumed has reused what its files say, and the resume pays for the
    rest."""
    case.run("first", "--limit", "3")
    saved = len(case.server.bodies)
    case.server.script = lambda body: (401, b"{}")
    assert case.run("second", "--reuse", "first") == 3
    case.server.script = baseline
    assert main(["resume", "--name", "second", "--results-dir", str(case.out), "--no-html"]) == 0
    assert case.manifest("second")["provenance"]["reused"] == {"first": saved}


def test_each_part_and_repeat_reuses_its_own(case):
    """Merged parts have the sum; a second repeat sends another seed, so that no reply is one to
    it."""
    case.run("first")
    paid = len(case.server.bodies)
    for part in ("1/2", "2/2"):
        assert case.run("second", "--part", part, "--reuse", "first") == 0
        assert case.server.bodies == []
    assert main(["merge", "second", "--no-html", "--results-dir", str(case.out)]) == 0
    assert case.manifest("second")["provenance"]["reused"] == {"first": paid}
    assert len(case.notes("second")) == 1
    assert case.run("third", "--repeats", "2", "--reuse", "first") == 0
    assert all("seed" in orjson.loads(body) for body in case.server.bodies)
    assert case.manifest("third")["provenance"]["reused"] == {"first": paid}


def test_resume_takes_it_too(case, capsys):
    """So an interrupted run goes on as it began; the command for that names the other run."""
    case.run("first", "--limit", "3")
    case.server.script = lambda body: (401, b"{}")
    assert case.run("second", "--reuse", "first") == 3
    assert f"--reuse {case.out / 'first'}" in capsys.readouterr().out
    case.server.script = baseline
    assert case.run("first") == 0
    case.server.bodies.clear()
    where = ["--results-dir", str(case.out), "--no-html", "--reuse", "first"]
    assert main(["resume", "--name", "second", *where]) == 0
    assert case.server.bodies == []
    assert len(case.notes("second")) == 1


REFUSED = (
    ("--reuse", "nowhere"),
    ("--reuse", "second"),
    ("--reuse", "first", "--temperature", "0.5"),
    ("--reuse", "first", "--extra-body", '{"temperature": 1}'),
    ("--reuse", "first", "--max-tokens", "9"),
    ("--reuse", "first", "--seed", "1"),
    ("--reuse", "first", "--extra-body", '{"top_k": 1}'),
    ("--reuse", "first", "--model", "other"),
)


def test_replies_to_other_requests_are_refused(case, capsys):
    """With exit code 2 and one sentence, before anything is sent or set aside."""
    case.run("first", "--limit", "1")
    case.run("second", "--limit", "1")
    before = lines_of(case.out / "second" / RESULTS)
    for options in REFUSED:
        model = options[3] if "--model" in options else "m"
        given = [word for word in options if word not in ("--model", "other")]
        capsys.readouterr()
        assert case.run("second", "--restart", *given, model=model) == 2
        assert case.server.bodies == []
        assert lines_of(case.out / "second" / RESULTS) == before
        assert len(capsys.readouterr().err.strip().splitlines()) == 1


@pytest.mark.parametrize(
    "sampling", [("--temperature", "0.5"), ("--extra-body", '{"temperature": 1}')]
)
def test_samples_are_refused_though_both_runs_have_the_same_parameters(case, sampling):
    """Above temperature 0 a reply is a draw, and a run of copies would be no run."""
    assert case.run("first", "--limit", "1", *sampling) == 0
    assert case.run("second", "--limit", "1", *sampling, "--reuse", "first") == 2


def test_run_without_that_platform_is_refused(case):
    """The user names the platforms that it has."""
    case.run("first", "--limit", "1")
    (case.out / "first/run_weibo.json").unlink()
    assert case.run("second", "--reuse", "first") == 2


def refusing(member: str, words: str) -> Any:
    def script(body: dict[str, Any]) -> tuple[int, bytes]:
        if member in str(body):
            return 400, orjson.dumps({"error": {"message": words, "code": "x"}})
        return baseline(body)

    return script


def test_samples_of_an_endpoint_without_temperature_are_refused(case):
    """Its requests said 0, and were sent without."""
    case.server.script = refusing("temperature", "'temperature' is not supported with this model.")
    assert case.run("first", "--limit", "1") == 0
    assert case.run("second", "--limit", "1", "--reuse", "first") == 2


def test_replies_without_the_schema_do_not_stand_for_replies_with_it(case):
    """`json_schema` refuses them; `auto` takes them, and its report says what they were asked
    for."""
    case.server.script = refusing("json_schema", "This response_format type is unavailable now")
    assert case.run("first", "--limit", "1", "--structured", "auto") == 0
    assert (
        case.run("second", "--limit", "1", "--structured", "json_schema", "--reuse", "first") == 2
    )
    case.server.script = baseline
    assert case.run("third", "--limit", "1", "--structured", "auto", "--reuse", "first") == 0
    assert case.server.bodies == []
    words = QUIRKS["json_object"].sentence[1:]
    assert any(words in note for note in report(case.out, "third")["notes"])


def test_reply_that_cannot_be_used_is_reused_as_often_as_it_came(case):
    """The first answer and each answer to a repeated request are distinguished."""
    case.server.script = lambda body: (200, completion("没有"))
    assert case.run("first", "--limit", "1") == 0
    assert case.run("second", "--limit", "1", "--reuse", "first") == 0
    assert case.server.bodies == []
    assert (case.out / "second" / RESULTS).read_bytes() == (
        case.out / "first" / RESULTS
    ).read_bytes()


def test_its_value_is_completed_with_names_of_runs():
    from harness.commands import completion

    commands: Any = completion.full_parser()._subparsers
    [choices] = [action.choices for action in commands._group_actions]
    for name in ("run", "resume"):
        [action] = [one for one in choices[name]._actions if "--reuse" in one.option_strings]
        assert action.complete is completion.RUNS
