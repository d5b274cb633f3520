"""`verify` against planted corruptions: whatever stands otherwise in a run's files is found, or is
listed here as what cannot be noticed."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from harness.analysis import selection
from harness.benchmarks.streamprofile.synth import generate
from harness.cli import main
from harness.commands.verify.command import Options
from harness.commands.verify.proof import Check, Replayer
from harness.engine.files import index_file
from harness.options.plan import sampling_again
from harness.store.log import decode_line, encode_line
from harness.store.manifest import RUNNING, load
from tests.support import ROOT, SHIPPED, examples
from tests.support.commands import execute
from tests.support.scripted import Script, baseline, serving

Told = pytest.CaptureFixture[str]

RECORDS, RESPONSES, FAILURES = (
    "inference_results_weibo.jsonl",
    "responses_weibo.jsonl",
    "failures_weibo.jsonl",
)
EVENTS, MANIFEST, REPORT = "run_weibo.log", "run_weibo.json", "eval_report_weibo.json"
USERS = 5


@pytest.fixture(scope="module")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tasks")
    (folder / "weibo_inference_tasks.jsonl").write_bytes(b"".join(generate("weibo", USERS, 5, 2.0)))
    return folder


@pytest.fixture(scope="module")
def runs(tasks: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three runs of the same tasks: `incomplete` (a user failed), `complete` (that one, resumed)
    and `other`."""
    folder = tmp_path_factory.mktemp("runs")
    name = orjson.loads((tasks / "weibo_inference_tasks.jsonl").read_bytes().splitlines()[2])[
        "username"
    ]

    busy = iter([True])

    def one_user_fails(request: dict[str, Any]) -> tuple[int, bytes]:
        if next(busy, False):
            return 503, b'{"error":"busy"}'  # the log has a line of it
        refused = name in request["messages"][-1]["content"]
        return (400, b'{"error":"no"}') if refused else baseline(request)

    assert _run(tasks, folder, "incomplete", one_user_fails) == 1
    shutil.copytree(folder / "incomplete", folder / "complete")
    with serving(baseline) as server:
        again = [
            "resume",
            "--name",
            "complete",
            "--api-url",
            server.url,
            "--results-dir",
            str(folder),
        ]
        assert main(again) == 0
    assert (
        main(["run", "--model", "baseline/random", "--name", "other", *_where(tasks, folder)]) == 0
    )
    return folder


def _where(tasks: Path, results: Path) -> list[str]:
    return ["--platform", "weibo", "--tasks-dir", str(tasks), "--results-dir", str(results)]


def _run(tasks: Path, results: Path, name: str, script: Script, *more: str) -> int:
    with serving(script) as server:
        command = [
            "run",
            "--model",
            "m",
            "--name",
            name,
            "--api-url",
            server.url,
            *_where(tasks, results),
            *more,
        ]
        return main(command)


@pytest.fixture
def results(runs: Path, tmp_path: Path) -> Path:
    """Copies that a test may spoil."""
    return Path(shutil.copytree(runs, tmp_path / "results"))


@pytest.fixture
def complete(results: Path) -> Path:
    return results / "complete"


@pytest.fixture
def incomplete(results: Path) -> Path:
    return results / "incomplete"


def proof(folder: Path, capsys: Told, *more: str) -> dict[str, Any]:
    """What `verify` says of a run, and its exit code."""
    capsys.readouterr()
    code = main(
        ["verify", "--json", "--name", folder.name, "--results-dir", str(folder.parent), *more]
    )
    shown = capsys.readouterr()
    found = orjson.loads(shown.out or "[]")
    return {"code": code, "told": shown.err, **(found[0] if found else {})}


@contextmanager
def looking(folder: Path, state: str | None = None) -> Iterator[Callable[[], str | None]]:
    """Gives what tells the first finding, else the first note, with everything that is not the
    run's own opened once.

    In the `state` of a run that died nothing but the checksums of lines tells a change.
    """
    (run,) = [one for one in selection.find(_which(folder))[0] if one.name == folder.name]
    benchmark = run.as_it_was(None, play=True)
    with (
        closing(index_file(benchmark, "weibo", run.tasks(None), folder.parent)) as index,
        asyncio.Runner() as loop,
    ):

        def first() -> str | None:
            manifest = load(run.files.manifest)
            assert manifest is not None
            if state is not None:
                manifest.state, manifest.results_sha256 = state, None
            player = Replayer(benchmark, sampling_again(manifest), loop)
            check = Check(replace(run, manifest=manifest), benchmark, index, player, lambda: None)
            return next(check.findings(), None) or next(iter(check.notes), None)

        yield first


def _which(folder: Path) -> Options:
    return Options(runs=[folder.name], results_dir=folder.parent)


def lines(path: Path) -> list[bytes]:
    return path.read_bytes().splitlines(keepends=True)


def write(path: Path, changed: list[bytes]) -> None:
    path.write_bytes(b"".join(changed))


def edited(line: bytes, change: Callable[[dict[str, Any]], None]) -> bytes:
    """A line with other content under a right checksum."""
    data = decode_line(line.rstrip(b"\n"))
    change(data)
    return encode_line(data)


# What is sound


@pytest.mark.parametrize(
    ("name", "state"), [("complete", "complete"), ("incomplete", "incomplete")]
)
def test_sound_run_has_no_findings_and_stays_as_it_is(name, state, results, capsys):
    """Nothing is wrong, nothing is noted, and not a byte or a name of the run changes."""
    before = {path: path.read_bytes() for path in (results / name).iterdir()}
    found = proof(results / name, capsys)
    assert (found["code"], found["state"], found["findings"], found["notes"]) == (0, state, [], [])
    assert {path: path.read_bytes() for path in (results / name).iterdir()} == before


def test_run_that_was_stopped_is_sound(tasks, tmp_path, capsys):
    """Users that are owed are no finding."""
    answered = iter([True, True, True])

    def out_of_money(request: dict[str, Any]) -> tuple[int, bytes]:
        return (
            baseline(request)
            if next(answered, False)
            else (402, b'{"error":"insufficient balance"}')
        )

    assert _run(tasks, tmp_path, "m", out_of_money, "--concurrency", "1") == 3
    found = proof(tmp_path / "m", capsys)
    assert (found["code"], found["state"], found["findings"]) == (0, "stopped", [])
    assert found["records"] < found["users"] == USERS


@pytest.mark.slow
@pytest.mark.parametrize("more", [[], ["--reparse"]])
def test_run_that_was_scored_again_is_sound(more, complete, capsys):
    """From answers or from responses."""
    execute(complete.parent, "reeval", "--name", "complete", *more)
    found = proof(complete, capsys)
    assert (found["code"], found["findings"]) == (0, [])


@pytest.mark.slow
def test_user_that_could_not_be_played_again_stays_sound_once_that_was_said(complete, capsys):
    """`verify` finds the missing response; after `reeval --reparse` the record and the report say
    so themselves."""
    write(complete / RESPONSES, lines(complete / RESPONSES)[1:])
    assert "a missing response" in proof(complete, capsys)["findings"][0]
    execute(complete.parent, "reeval", "--reparse", "--name", "complete")
    assert proof(complete, capsys)["findings"] == []
    execute(complete.parent, "reeval", "--name", "complete")
    assert proof(complete, capsys)["findings"] == []


# A byte that flips


def flipped(path: Path, every: int) -> Iterator[int]:
    """Leaves the file with one byte changed, at one place after the other, and whole again at the
    end."""
    whole = path.read_bytes()
    for at in range(0, len(whole), every):
        bit = 1 << (at % 8)
        path.write_bytes(whole[:at] + bytes([whole[at] ^ bit]) + whole[at + 1 :])
        yield at
    path.write_bytes(whole)


@pytest.mark.parametrize(
    ("name", "every"), [(RECORDS, 41), (RESPONSES, 97), (FAILURES, 3), (EVENTS, 7)]
)
def test_any_byte_of_a_log_that_flips_is_found(name, every, complete):
    """By the checksum of its line alone, as in a run that died: no hash of the whole file, no
    report to compare."""
    with looking(complete, RUNNING) as first:
        assert first() is None
        unnoticed = [at for at in flipped(complete / name, every) if first() is None]
    assert unnoticed == []


def test_any_byte_of_finished_results_that_flips_is_found(complete):
    """At a sample of its bytes."""
    with looking(complete) as first:
        assert first() is None
        every = (complete / RECORDS).stat().st_size // 10 + 1
        assert [at for at in flipped(complete / RECORDS, every) if first() is None] == []


def leaves(data: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if isinstance(data, (dict, list)) and data:
        for key, value in data.items() if isinstance(data, dict) else enumerate(data):
            yield from leaves(value, (*path, key))
    else:
        yield path


def with_leaf(data: Any, path: tuple[Any, ...], change: Callable[[Any], Any]) -> Any:
    """A copy with one value changed."""
    if not path:
        return change(data)
    copy = data.copy()
    copy[path[0]] = with_leaf(data[path[0]], path[1:], change)
    return copy


def other(value: Any) -> Any:
    """A value of the same type, hardly different."""
    match value:
        case bool():
            return not value
        case int():
            return value + 1
        case float():
            return value + 1e-6
        case str():
            return value + "x"
        case None:
            return 0.5
        case _:
            return {**value, "x": 1} if isinstance(value, dict) else [*value, "x"]


DECIDES = (
    "subset",
    "results_sha256",
    "tasks.",
    "identity.",
    "counts.users",
    "counts.done",
    "counts.failed",
)
"""Parts of a manifest that decide how its results are to be read."""


@pytest.mark.slow
def test_every_field_of_a_manifest_that_decides_how_results_are_read_is_found(complete, capsys):
    """The files or the tasks have it as well."""
    path = complete / MANIFEST
    data = orjson.loads(path.read_bytes())
    unnoticed = set()
    for place in leaves(data):
        if not (name := ".".join(map(str, place))).startswith(DECIDES):
            continue
        path.write_bytes(
            orjson.dumps(with_leaf(data, place, other), option=orjson.OPT_INDENT_2) + b"\n"
        )
        if proof(complete, capsys)["code"] == 0:
            unnoticed.add(name)
    assert unnoticed == {"identity.prompt_version", "identity.settings.parse_retries", "tasks.path"}


@pytest.mark.slow
@pytest.mark.parametrize("every", [41])
def test_byte_of_a_manifest_that_flips_never_passes_for_another_run(every, complete, capsys):
    """Wherever it is: a finding, a refusal that names the file, or one of the fields that nothing
    else tells."""
    for _ in flipped(complete / MANIFEST, every):
        found = proof(complete, capsys)
        assert found["code"] in (0, 1, 2), found["told"]
        assert found["code"] != 2 or found["told"]


# Lines that are sound and stand where they should not

Spoil = Callable[[Path], None]


def doubled(name: str) -> Spoil:
    def spoil(folder: Path) -> None:
        whole = lines(folder / name)
        write(folder / name, [*whole, whole[0]])

    return spoil


def left_out(name: str, at: int = 0) -> Spoil:
    def spoil(folder: Path) -> None:
        whole = lines(folder / name)
        del whole[at]
        write(folder / name, whole)

    return spoil


def cut(name: str, size: int) -> Spoil:
    """Without so many bytes at the end."""

    def spoil(folder: Path) -> None:
        path = folder / name
        path.write_bytes(path.read_bytes()[:-size])

    return spoil


def gone(name: str) -> Spoil:
    return lambda folder: (folder / name).unlink()


def swapped(folder: Path) -> None:
    first, second, *rest = lines(folder / RECORDS)
    write(folder / RECORDS, [second, first, *rest])


def from_another_run(name: str) -> Spoil:
    """A line of the same user and task takes the place of the run's own."""

    def spoil(folder: Path) -> None:
        whole, foreign = lines(folder / name), lines(folder.parent / "other" / name)
        user = decode_line(whole[0].rstrip(b"\n"))["user_id"]
        whole[0] = next(
            line for line in foreign if decode_line(line.rstrip(b"\n"))["user_id"] == user
        )
        write(folder / name, whole)

    return spoil


def with_line(name: str, change: Callable[[dict[str, Any]], None]) -> Spoil:
    def spoil(folder: Path) -> None:
        whole = lines(folder / name)
        write(folder / name, [edited(whole[0], change), *whole[1:]])
        if name == RECORDS:
            _named_by_the_manifest(folder)

    return spoil


def _named_by_the_manifest(folder: Path) -> None:
    """Whoever edits on purpose adjusts the hash of the whole file as well."""
    data = orjson.loads((folder / MANIFEST).read_bytes())
    if data["results_sha256"]:
        data["results_sha256"] = sha256((folder / RECORDS).read_bytes()).hexdigest()
        (folder / MANIFEST).write_bytes(orjson.dumps(data))


def better_metrics(data: dict[str, Any]) -> None:
    data["steps"][0]["metrics"]["Recall"] = 0.987


def better_answer(data: dict[str, Any]) -> None:
    """An answer that scores higher, with the metrics that it would have."""
    step = data["steps"][0]
    step["prediction"] = step["ground_truth"]


def another_reasoning(data: dict[str, Any]) -> None:
    data["steps"][0]["reasoning"] += "!"


def another_usage(data: dict[str, Any]) -> None:
    data["usage"]["prompt_tokens"] += 1


def another_user(data: dict[str, Any]) -> None:
    data["user_id"] = "nobody"


def another_reply(data: dict[str, Any]) -> None:
    data["completion"]["text"] = data["completion"]["text"].replace(
        '"reasoning"', '"reasoning": "x", "reasoned"'
    )


def another_answerer(data: dict[str, Any]) -> None:
    data["completion"]["model"] = "another"


def no_reply(data: dict[str, Any]) -> None:
    data["completion"] = {"words": 3}


def failed_earlier(data: dict[str, Any]) -> None:
    data["task"] = "0" * 32


PLANTED: dict[str, tuple[str, Spoil, str]] = {
    "record doubled": ("complete", doubled(RECORDS), "has a duplicate record"),
    "record doubled, unfinished": ("incomplete", doubled(RECORDS), "has a duplicate record"),
    "response doubled": ("complete", doubled(RESPONSES), "duplicate response"),
    "failure doubled": ("incomplete", doubled(FAILURES), "duplicate failure"),
    "record left out": ("complete", left_out(RECORDS, 1), "neither a record nor a failure"),
    "record left out, unfinished": (
        "incomplete",
        left_out(RECORDS),
        "neither a record nor a failure",
    ),
    "response left out": ("complete", left_out(RESPONSES), "a missing response"),
    "failure left out": ("incomplete", left_out(FAILURES), "neither a record nor a failure"),
    "failure of another task": (
        "incomplete",
        with_line(FAILURES, failed_earlier),
        "neither a record nor a failure",
    ),
    "records swapped": ("complete", swapped, "not in the order of the tasks file"),
    "record of another run": (
        "complete",
        from_another_run(RECORDS),
        "is not what the saved responses give",
    ),
    "record of another run, unfinished": (
        "incomplete",
        from_another_run(RECORDS),
        "is not what the saved responses",
    ),
    "response of another run": ("complete", from_another_run(RESPONSES), "a missing response"),
    "results cut within a line": ("complete", cut(RECORDS, 5), "torn or changed"),
    "results without their last line end": ("complete", cut(RECORDS, 1), "torn or changed"),
    "responses cut within a line": ("complete", cut(RESPONSES, 5), "torn or changed"),
    "no results": ("complete", gone(RECORDS), "is not the file that the manifest names"),
    "no responses": ("complete", gone(RESPONSES), "a missing response"),
    "no prompt": ("complete", gone("prompt_own.txt"), "prompt_own.txt is not the file"),
    "metrics edited": ("complete", with_line(RECORDS, better_metrics), "differ from a re-score"),
    "answer edited": ("complete", with_line(RECORDS, better_answer), "differ"),
    "reasoning edited": ("complete", with_line(RECORDS, another_reasoning), "give: steps"),
    "usage edited": ("complete", with_line(RECORDS, another_usage), "give: usage"),
    "user of no tasks file": ("complete", with_line(RECORDS, another_user), "has no such task"),
    "reply edited": ("complete", with_line(RESPONSES, another_reply), "give: steps"),
    "answerer edited": (
        "complete",
        with_line(RESPONSES, another_answerer),
        "replies.answered_by is not what",
    ),
    "response that is none": (
        "complete",
        with_line(RESPONSES, no_reply),
        "a malformed saved response",
    ),
    "events cut within a line": ("incomplete", cut(EVENTS, 3), "torn or changed"),
}
"""What is planted in which run, and what the finding says."""


@pytest.mark.parametrize("what", PLANTED)
def test_planted_corruption_is_found(what, results, capsys):
    """Exit 1, and a sentence that names the file, and the line or user."""
    name, spoil, said = PLANTED[what]
    assert proof(results / name, capsys)["findings"] == []
    spoil(results / name)
    found = proof(results / name, capsys)
    assert found["code"] == 1
    assert any(said in finding for finding in found["findings"]), found["findings"]


def test_user_of_no_tasks_file_in_an_unfinished_run_is_noted(incomplete, capsys):
    """There it may be of a tasks file that the run began with: it is not counted, and not passed
    over in silence."""
    whole = lines(incomplete / RECORDS)
    write(incomplete / RECORDS, [*whole, edited(whole[0], another_user)])
    found = proof(incomplete, capsys)
    assert (found["code"], found["notes"]) == (
        0,
        ["1 record of users or tasks that are not in the tasks file"],
    )


def test_tasks_that_changed_are_found(complete, tasks, tmp_path, capsys):
    """The file as a whole, and each user whose line is another one now."""
    moved = Path(shutil.copytree(tasks, tmp_path / "moved"))
    path = moved / "weibo_inference_tasks.jsonl"
    path.write_bytes(path.read_bytes().replace(b'"bio":"', b'"bio":"x', 1))
    found = proof(complete, capsys, "--tasks-dir", str(moved))
    assert found["code"] == 1
    assert f"{path} is not the tasks file that this run was made with" in found["findings"]
    assert sum("has no such task" in finding for finding in found["findings"]) == 1


def test_tasks_that_cannot_be_used_are_a_bad_input(complete, tasks, tmp_path, capsys):
    """File and line are named, and exit 2."""
    moved = Path(shutil.copytree(tasks, tmp_path / "moved"))
    path = moved / "weibo_inference_tasks.jsonl"
    path.write_bytes(path.read_bytes()[:-30])
    found = proof(complete, capsys, "--tasks-dir", str(moved))
    assert found["code"] == 2
    assert f"{path}, line {USERS}" in found["told"]


# Without the tasks

OF_LINES = (
    *(
        "record doubled",
        "record doubled, unfinished",
        "response doubled",
        "failure doubled",
        "records swapped",
    ),
    *(
        "results cut within a line",
        "results without their last line end",
        "responses cut within a line",
    ),
    *("events cut within a line", "no results", "no prompt"),
)


@pytest.mark.parametrize(
    ("name", "state"), [("complete", "complete"), ("incomplete", "incomplete")]
)
def test_lines_alone_can_be_checked_where_the_tasks_are_not(name, state, results, tasks, capsys):
    """Where asked for: else the command says how to, and proves nothing. What was not checked is
    noted."""
    tasks.rename(tasks.with_name("away"))
    try:
        refused, found = (
            proof(results / name, capsys),
            proof(results / name, capsys, "--without-tasks"),
        )
        execute(results, "verify", "--without-tasks", "--name", name)
    finally:
        tasks.with_name("away").rename(tasks)
    assert (
        refused["code"] == 2 and "--without-tasks" in refused["told"] and "findings" not in refused
    )
    records = len(lines(results / name / RECORDS))
    assert (found["code"], found["state"], found["findings"]) == (0, state, [])
    assert (found["users"], found["records"]) == (None, records)
    assert "not whether users are missing" in found["notes"][0]
    assert f"{name}, weibo: {records} users, {state}: sound lines" in capsys.readouterr().out


def test_tasks_that_are_named_are_not_left_out(complete, tasks, capsys):
    found = proof(complete, capsys, "--without-tasks", "--tasks-dir", str(tasks))
    assert found["code"] == 2 and "--tasks-dir" in found["told"]


@pytest.mark.parametrize("what", OF_LINES)
def test_planted_corruption_of_a_line_is_found_without_the_tasks(what, results, capsys):
    name, spoil, said = PLANTED[what]
    said = "SHA-256 differs" if what == "records swapped" else said
    spoil(results / name)
    found = proof(results / name, capsys, "--without-tasks")
    assert found["code"] == 1
    assert any(said in finding for finding in found["findings"]), found["findings"]


def test_record_of_a_task_that_has_changed_since_is_no_second_one(incomplete, capsys):
    """Both stand there until the run ends."""
    whole = lines(incomplete / RECORDS)
    write(incomplete / RECORDS, [edited(whole[0], failed_earlier), *whole])
    assert proof(incomplete, capsys)["findings"] == []
    found = proof(incomplete, capsys, "--without-tasks")
    assert (found["findings"], found["records"]) == ([], len(whole))


# Where records cannot be played again


def read_otherwise(folder: Path) -> None:
    """As if a newer harness looked at the run."""
    path = folder / MANIFEST
    path.write_bytes(path.read_bytes().replace(b'"parser_version": "', b'"parser_version": "0.'))


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (left_out(RESPONSES), "responses, and"),
        (with_line(RECORDS, lambda data: data.pop("usage")), "cannot be scored again"),
    ],
)
def test_records_that_cannot_be_played_are_compared_by_their_counts(spoil, said, complete, capsys):
    """Which is noted; a missing response is found all the same."""
    read_otherwise(complete)
    found = proof(complete, capsys)
    assert (found["code"], len(found["notes"])) == (0, 1)
    assert "by their counts alone" in found["notes"][0]
    spoil(complete)
    assert any(said in finding for finding in proof(complete, capsys)["findings"])


def test_code_that_a_folder_names_is_not_run(complete, tmp_path, capsys):
    """A folder from somebody else may name any file as its prompt."""
    code = tmp_path / "prompt.py"
    code.write_text(f"open({str(tmp_path / 'was run')!r}, 'w')\n")
    path = complete / MANIFEST
    data = orjson.loads(path.read_bytes())
    data["provenance"]["source"] = str(code)
    data["identity"]["files"] = {}
    path.write_bytes(orjson.dumps(data))
    assert "would run the run's own code" in proof(complete, capsys)["notes"][0]
    assert not (tmp_path / "was run").exists()


# Lines that no harness wrote

ANYTHING = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-2, 2**40)
    | st.floats(allow_nan=False)
    | st.text(max_size=4),
    lambda inner: (
        st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2)
    ),
    max_leaves=4,
)


@pytest.mark.slow
@settings(
    max_examples=examples(150),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(data=st.data())
def test_sound_line_of_any_content_is_a_finding_and_no_defect(data, complete):
    """Any value in any place of a record or response, under right checksums."""
    name = data.draw(st.sampled_from([RECORDS, RESPONSES]))
    whole = lines(complete / name)
    record = decode_line(whole[0].rstrip(b"\n"))
    nodes = [place[:depth] for place in leaves(record) for depth in range(1, len(place) + 1)]
    place = data.draw(st.sampled_from(sorted(set(nodes), key=str)))
    value = data.draw(ANYTHING)
    spoilt = with_leaf(record, place, lambda old: value)
    write(complete / name, [encode_line(spoilt), *whole[1:]])
    try:
        with looking(complete, RUNNING) as first:
            found = first()
    finally:
        write(complete / name, whole)
    # the bytes that were sent count only where the endpoint reports no usage
    unread = place[0] in ("seconds", "tries", "endpoint", "format", "task", "sent") or place[
        :2
    ] == (
        "completion",
        "model",
    )
    same = orjson.loads(orjson.dumps(spoilt)) == record  # an infinite number is written as null
    assert found is not None or unread or same or place[0] == "completion"


def test_line_with_a_right_checksum_that_is_no_json_is_found(complete, capsys):
    """A checksum can be right by design."""
    from zlib import crc32

    payload = b"{nonsense"
    line = b'%b,"crc":"%08x"}\n' % (payload, crc32(payload))
    for name in (RECORDS, RESPONSES, FAILURES, EVENTS):
        with (complete / name).open("ab") as file:
            file.write(line)
    findings = proof(complete, capsys)["findings"]
    assert sum("torn or changed" in finding for finding in findings) == 4


# DailyMobility


@pytest.mark.slow
def test_planned_day_is_what_its_response_gives(tmp_path, capsys):
    """A day that was moved to other places, with the measures that it would have, is found."""
    out = ["--results-dir", str(tmp_path)]
    assert (
        main(
            [
                "run",
                "dailymobility",
                "--model",
                "baseline/commuter",
                "--name",
                "commuter",
                *SHIPPED,
                "--ratio",
                "0.05",
                *out,
            ]
        )
        == 0
    )
    folder = tmp_path / "commuter"
    assert proof(folder, capsys)["findings"] == []
    path = folder / "inference_results_beijing.jsonl"
    whole = lines(path)

    def asleep(data: dict[str, Any]) -> None:
        data["intentions"] = [1] * 48

    write(path, [edited(whole[0], asleep), *whole[1:]])
    assert main(["reeval", *out]) == 0
    findings = proof(folder, capsys)["findings"]
    assert len(findings) == 1
    assert "is not what the saved responses give: " in findings[0] and "intentions" in findings[0]


@pytest.mark.slow
def test_agent_is_played_again_with_trust_alone(tmp_path, capsys):
    """Without it there is a note; with it a record that its replies do not give is found."""
    out = ["--results-dir", str(tmp_path), "--agent", str(ROOT / "examples" / "commuting_agent.py")]
    assert (
        main(
            [
                "run",
                "dailymobility",
                "--model",
                "baseline/commuter",
                "--name",
                "commuter",
                *SHIPPED,
                "--ratio",
                "0.05",
                *out,
            ]
        )
        == 0
    )
    folder = tmp_path / "commuter"
    assert proof(folder, capsys, "--trust")["notes"] == []
    path = folder / "inference_results_beijing.jsonl"
    whole = lines(path)
    write(path, [edited(whole[0], lambda data: data.update(intentions=[1] * 48)), *whole[1:]])
    execute(tmp_path, "reeval")
    found = proof(folder, capsys)
    assert (found["findings"], len(found["notes"])) == ([], 1)
    assert "is not what the saved responses give" in proof(folder, capsys, "--trust")["findings"][0]
