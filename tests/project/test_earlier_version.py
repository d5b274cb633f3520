"""Folders that version 0.1.0 wrote can be read, checked, scored and completed: same exit codes,
bytes and numbers."""

from __future__ import annotations

import shutil
from fnmatch import fnmatch
from pathlib import Path

import orjson
import pytest

from harness.store.log import valid_lines
from tests.support import earlier
from tests.support.before import run_files
from tests.support.earlier import COMMANDS, FOLDER, copied, outcome, slug
from tests.support.sameness import FORMAT_2, STATS, Renamed, differences, without_intervals

RESULTS = "inference_results_weibo.jsonl"
RESPONSES = "responses_weibo.jsonl"
Contents = dict[str, bytes]


@pytest.fixture(scope="module")
def expected() -> Contents:
    return earlier.expected()


def renamed(name: str) -> Renamed:
    """Paths of numbers that have moved since (see test_unchanged)."""
    return FORMAT_2 if "eval_report" in name else STATS


def changed(old: Contents, new: Contents) -> list[str]:
    """Differences of files with the same name; all earlier ones are needed. A text report has fewer
    tables now: their numbers are in the JSON report."""
    assert old
    return [
        f"{name}: {difference}"
        for name, content in old.items()
        if not fnmatch(name, "*eval_report_*.txt")
        for difference in (
            differences(
                name,
                without_intervals(name, content),
                without_intervals(name, new[name]),
                renamed(name),
            )
            if name in new
            else ["not made"]
        )
    ]


def without_name(files: Contents) -> Contents:
    """A run's files by their names alone, its own name taken out of the report."""
    found = {Path(name).name: content for name, content in files.items()}
    report = orjson.loads(found["eval_report_weibo.json"])
    del report["name"]
    return {**found, "eval_report_weibo.json": orjson.dumps(report)}


NOW = {"status --name none": 2}
"""Exit codes that changed: every command refuses a name that no run has."""


@pytest.mark.parametrize("line", COMMANDS)
def test_command_ends_as_in_the_earlier_version(line, tmp_path, expected):
    """Each command has the exit code that it had, and where it shows or writes figures, those
    figures."""
    code, found = outcome(line, tmp_path)
    assert code == NOW.get(line, earlier.exit_codes()[line])
    kept = {
        name: content
        for name, content in expected.items()
        if name.startswith((f"{slug(line)}/", f"{slug(line)}."))
    }
    assert kept.keys() == found.keys()
    assert not kept or changed(kept, found) == []


@pytest.mark.parametrize(
    ("run", "more"),
    [
        ("whole", ""),
        ("day", ""),
        ("agent", ""),
        ("failed", ""),
        ("whole", "--reparse"),
        ("day", "--reparse"),
    ],
)
def test_reeval_changes_no_byte_and_no_number(run, more, tmp_path):
    """Saved answers and saved replies give the very results and report that the folder has."""
    with copied(tmp_path) as copy:
        copy.command(f"reeval --name {run} {more} --no-html --tasks-dir TASKS")
        assert changed(run_files(FOLDER / "results" / run), run_files(copy.results / run)) == []
        set_aside = list(copy.results.glob("*/*.before-*"))
        assert not set_aside or run == "failed"  # whose users were in the order in which they ended


def test_killed_run_is_resumed_to_the_results_of_the_whole_one(tmp_path):
    """Replies of the earlier version are used, what was cut off is set aside, and the end is that
    of the whole run."""
    with copied(tmp_path) as copy:
        saved = [line.text for line in valid_lines(copy.results / "killed" / RESPONSES)]
        assert copy.command("resume --name killed --no-html --tasks-dir TASKS")[0] == 0
        now = [line.text for line in valid_lines(copy.results / "killed" / RESPONSES)]
        assert len(saved) == 10 and now[: len(saved)] == saved
        assert len(now) == len(list(valid_lines(copy.results / "whole" / RESPONSES)))
        whole, killed = (run_files(copy.results / run) for run in ("whole", "killed"))
        assert changed(without_name(whole), without_name(killed)) == []
        assert copy.command("verify --name killed --tasks-dir TASKS")[0] == 0


def test_failed_user_alone_is_asked_for_by_resume(tmp_path):
    """Replies that the user had before it failed are not asked for again; then the run is complete
    and sound."""
    with copied(tmp_path) as copy:
        failure = orjson.loads((copy.results / "failed" / "failures_weibo.jsonl").read_bytes())
        tasks = map(
            orjson.loads, (copy.tasks / "weibo_inference_tasks.jsonl").read_bytes().splitlines()
        )
        (user,) = [task for task in tasks if task["user_id"] == failure["user_id"]]
        assert (
            copy.command("resume --name failed --api-url URL --no-html --tasks-dir TASKS")[0] == 0
        )
        assert len(copy.server.bodies) == 2  # of its four steps the last two
        assert all(user["username"].encode() in body for body in copy.server.bodies)
        assert copy.command("verify --name failed --tasks-dir TASKS")[0] == 0


def test_agent_run_from_before_its_parameters_is_another_configuration_for_run(
    tmp_path,
):
    """`run` changes nothing of it unless the difference is allowed; `resume` continues it as it was
    made."""
    with copied(tmp_path) as copy:
        folder = copy.results / "agent"
        path, results = folder / "run_beijing.json", folder / "inference_results_beijing.jsonl"
        manifest, whole = orjson.loads(path.read_bytes()), results.read_bytes()
        path.write_bytes(orjson.dumps({**manifest, "state": "incomplete", "results_sha256": None}))
        results.write_bytes(b"".join(whole.splitlines(keepends=True)[:3]))
        before = run_files(folder)
        agent = shutil.copy(folder / "agent_rule_based.py", tmp_path / "rule_based.py")
        again = (
            f"run dailymobility --model baseline/commuter --name agent --agent {agent} --no-html"
            " --tasks-dir TASKS"
        )
        assert [copy.command(f"{again} {more}")[0] for more in ("", "--temperature 0")] == [2, 2]
        assert run_files(folder) == before
        allowed = shutil.copytree(folder, copy.results / "allowed")
        assert copy.command("resume --name agent --trust --no-html --tasks-dir TASKS")[0] == 0
        assert results.read_bytes() == whole
        assert orjson.loads(path.read_bytes())["identity"] == manifest["identity"]
        again = again.replace(
            "--name agent", "--name allowed --temperature 0 --allow settings.agent_parameters"
        )
        assert copy.command(again)[0] == 0
        assert len(orjson.loads((allowed / path.name).read_bytes())["provenance"]["allowed"]) == 1


def test_commands_that_read_change_no_file_of_a_run(tmp_path):
    """`status`, `verify`, `stats` and `compare` leave every file of an earlier version as it is."""
    with copied(tmp_path) as copy:
        for line in (
            "status",
            "verify --name whole --tasks-dir TASKS",
            "stats --json",
            "compare day agent",
        ):
            copy.command(f"{line} --tasks-dir TASKS" if line.startswith("compare") else line)
        for path in (FOLDER / "results").glob("*/*"):
            if path.suffix != ".lock":
                assert (
                    copy.results / path.relative_to(FOLDER / "results")
                ).read_bytes() == path.read_bytes()
