"""A run's folder that somebody wrote into: a damaged file is named or set aside, and nothing else
is lost."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest

from harness.benchmarks.streamprofile.synth import generate
from harness.store.log import decode_line, encode_line
from tests.corpus import Case, tasks
from tests.corpus.command import BAD_INPUT, RUN, TASKS, Commands, put
from tests.corpus.test_inputs import unreadable
from tests.corpus.values import ODD, RAW, put_raw
from tests.corpus.values import put as changed
from tests.support.scripted import baseline, serving

FOLDER = Path("results/recency")
MANIFEST, RESULTS = FOLDER / "run_weibo.json", FOLDER / "inference_results_weibo.jsonl"
RESPONSES, FAILURES = FOLDER / "responses_weibo.jsonl", FOLDER / "failures_weibo.jsonl"
REPORT = FOLDER / "eval_report_weibo.json"
READERS = (("status",), ("resume",), ("verify",), ("reeval",), ("reeval", "--reparse"), RUN)


@pytest.fixture
def whole(command: Commands) -> dict[Path, bytes]:
    """The files of a complete run of three users."""
    put(TASKS, b"".join(generate("weibo", 3, 5, 2.0)))
    assert command(*RUN) == 0, command.said
    return {path: path.read_bytes() for path in FOLDER.iterdir() if path.is_file()}


def restore(files: dict[Path, bytes]) -> None:
    shutil.rmtree(FOLDER)
    for path, content in files.items():
        put(path, content)


def sections(manifest: dict[str, Any]) -> Iterator[str]:
    for name, value in manifest.items():
        yield name
        if type(value) is dict:
            yield from (f"{name}.{inner}" for inner in value)


BAD_MANIFESTS = (
    Case("empty", b"", ("JSON",)),
    Case("a list", b"[]", ("format",)),
    Case("depth", b"[" * 100_000, ("JSON",)),
    Case("NUL bytes", b"\x00" * 500, ("JSON",)),
    Case("a format to come", b'{"format": 2}', ("format",)),
)


def test_a_bad_manifest_is_named_by_every_command(command, whole):
    """File and field are named with exit 2, nothing is changed, and a good copy put back works
    again."""
    for case in BAD_MANIFESTS:
        put(MANIFEST, case.content)
        for words in READERS:
            command.refuses(case, *words)
            assert MANIFEST.name in command.said
    restore(whole)
    assert command("verify") == 0


def test_an_odd_value_in_any_field_of_a_manifest_is_refused_or_of_no_account(command, whole):
    """Wherever it stands, `status` either works or names file and field; no value ends in a
    traceback."""
    manifest = orjson.loads(whole[MANIFEST])
    refused = 0
    for field in sections(manifest):
        for value in (*ODD[:3], *ODD[6:9], *ODD[-4:]):
            put(MANIFEST, orjson.dumps(changed(manifest, field, value)))
            refused += command("status") == BAD_INPUT
        for raw in RAW:
            put(MANIFEST, put_raw(manifest, field, raw))
            refused += command("status") == BAD_INPUT
    assert refused > 100


@pytest.mark.parametrize(
    "field",
    [
        "identity.settings",
        "identity.files",
        "identity.model",
        "tasks.path",
        "provenance",
    ],
)
def test_odd_values_of_a_manifest_end_no_command_in_a_traceback(command, whole, field):
    """What only some commands read is checked by them."""
    manifest = orjson.loads(whole[MANIFEST])
    for value in (
        "",
        "../../x",
        "a\x00b",
        "x" * 5000,
        {},
        {"a": {"b": []}},
        {"../../x": "0"},
        {"prompt": 3},
    ):
        put(MANIFEST, orjson.dumps(changed(manifest, field, value)))
        for words in READERS:
            command(*words)
        restore(whole)


def test_what_is_no_file_in_a_runs_folder_is_refused(command, whole):
    """A folder, a pipe or a dead link in place of manifest, results, responses or failures: said,
    and no waiting."""
    for path in (MANIFEST, RESULTS, RESPONSES, FAILURES):
        for words in (("status",), ("verify",), ("reeval",), RUN):
            for name in unreadable(path):
                assert command(*words) in (0, 1, 2, 4), name
            restore(whole)


DAMAGES = (
    b"",
    b"\x00" * 1000,
    b"\xff\xfe",
    b"{}",
    b'{"user_id": "x"}',
    b"[" * 100_000,
    b'{"user_id":"x","crc":"00000000"}',
    b"\r\n\r\n",
)


@pytest.mark.parametrize("path", [RESULTS, RESPONSES, FAILURES], ids=lambda path: path.name)
def test_damaged_lines_are_set_aside_and_what_they_held_is_owed_again(command, whole, path):
    """Whatever stands between the good lines, the run goes on to the same results, and verifies."""
    task = decode_line(whole[RESULTS].splitlines()[0])
    failure = {
        "user_id": task["user_id"],
        "boundary": "endpoint",
        "kind": "x",
        "detail": "",
        "tries": 1,
    }
    for damage in DAMAGES:
        first, *others = whole[path].splitlines(keepends=True) or [
            encode_line({**failure, "task": task["task"], "time": 0})
        ]
        put(path, first + first[: len(first) // 2] + b"\n" + damage + b"\n" + b"".join(others))
        assert command("verify") == 1
        assert command(*RUN) == 0, command.said
        assert command("verify") == 0, command.said
        assert RESULTS.read_bytes() == whole[RESULTS]
        restore(whole)


def odd_lines(line: bytes) -> Iterator[bytes]:
    """A sound line with each of its fields odd in turn: another program, or another version, knew
    the checksum."""
    data = decode_line(line)
    for name in data:
        for value in (..., None, "", -1, 2**63, [[None]], {"a": 1}):
            yield encode_line(changed(data, name, value))


@pytest.mark.parametrize("path", [RESULTS, RESPONSES, FAILURES], ids=lambda path: path.name)
def test_a_sound_line_of_another_shape_ends_no_command_in_a_traceback(command, whole, path):
    """A checksum says that nothing happened to a line, and not that it is one of ours."""
    task = decode_line(whole[RESULTS].splitlines()[0])
    failure = {
        "user_id": task["user_id"],
        "boundary": "endpoint",
        "kind": "x",
        "detail": "",
        "tries": 1,
    }
    line = (
        whole[path].splitlines()[0]
        if whole[path]
        else encode_line({**failure, "task": task["task"], "time": 0}).strip()
    )
    for odd in odd_lines(line):
        for words in (
            ("status",),
            ("verify",),
            ("reeval", "--no-html"),
            ("reeval", "--reparse", "--no-html"),
        ):
            put(path, odd)
            command(*words)
        restore(whole)


def test_a_damaged_report_is_named_by_stats(command, whole):
    """The others are shown, and this one is named."""
    report = orjson.loads(whole[REPORT])
    for content in (
        b"",
        b"[]",
        b"{}",
        b"\x00",
        orjson.dumps(changed(report, "metrics", [])),
        b"[" * 100_000,
    ):
        put(REPORT, content)
        assert command("stats") == BAD_INPUT
        assert REPORT.name in command.said


def test_bad_results_of_the_authors_runner_are_named(command):
    """File, line and field of what `reeval` cannot score; the file stays as it is."""
    put(TASKS, tasks.GOOD)
    path = Path("results/theirs/inference_results_weibo.jsonl")
    good: dict[str, Any] = {"user_id": "good", "steps": [{"step_id": 1, "prediction": ["猫"]}]}
    bad = [
        *(
            orjson.dumps(changed(good, name, value))
            for name in good
            for value in (None, {}, "", 0.5, [[]], [None])
        ),
        *(put_raw(good, "steps.0.step_id", raw) for raw in RAW),
        orjson.dumps(changed(good, "steps.0.step_id", 9)),
        put_raw({**good, "x": 0}, "x", b"[" * 300 + b"]" * 300),
        orjson.dumps(good) + b"\n" + orjson.dumps(good),
        b"{",
        b"[" * 100_000,
    ]
    for content in bad:
        if content.startswith(b'{"user_id":""'):
            continue
        put(path, content)
        assert command("reeval") == BAD_INPUT, content[:200]
        assert path.read_bytes() == content
    put(path, orjson.dumps(good))
    assert command("reeval") == 1, command.said


@pytest.mark.parametrize("how", ["grown", "truncated", "replaced", "rewritten", "gone"])
def test_a_tasks_file_that_changes_in_mid_run_costs_no_saved_user(command, how):
    """The run ends with what it indexed or stops saying so; the next one takes up the file as it is
    then."""
    lines = list(generate("weibo", 6, 5, 2.0))
    put(TASKS, b"".join(lines))
    whole, asked = TASKS.stat().st_size, 0

    def script(body: dict[str, Any]) -> tuple[int, bytes]:
        nonlocal asked
        asked += 1
        if asked == 2:
            change(how, lines, whole)
        return baseline(body)

    with serving(script) as server:
        words = (
            "run",
            "--model",
            "m",
            "--platform",
            "weibo",
            "--api-url",
            server.url,
            "--api-key",
            "sk-test",
        )
        first = command(*words, "--concurrency", "1")
        assert first in (0, 4), command.said
        assert first == 0 or "has changed" in command.said
        put(TASKS, b"".join(lines))
        os.utime(TASKS, ns=(1, 1))
        assert command(*words) == 0, command.said
    assert command("verify") == 0, command.said


def change(how: str, lines: list[bytes], size: int) -> None:
    match how:
        case "grown":
            with TASKS.open("ab") as file:
                file.write(next(iter(generate("weibo", 1, 6, 2.0))))
        case "truncated":
            os.truncate(TASKS, size // 3)
        case "rewritten":
            TASKS.write_bytes(b" " * size)
        case "replaced":
            other = TASKS.with_name("other")
            other.write_bytes(b"".join(reversed(lines)))
            other.replace(TASKS)
        case _:
            TASKS.unlink()
