"""Fields of every file that a run leaves, each odd in turn, under every command that reads them."""

from __future__ import annotations

import os
import random
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any
from zlib import crc32

import orjson
import pytest

from harness.benchmarks.dailymobility import synth
from harness.benchmarks.streamprofile.synth import generate
from harness.store.log import decode_line, encode_line
from tests.corpus.command import Commands, put, tree
from tests.corpus.values import put as changed

CASES = 5
"""Of each file; there are thousands."""

VALUES: tuple[Any, ...] = (
    ...,
    None,
    True,
    -1,
    0,
    0.5,
    2**62,
    1e308,
    "",
    "x",
    "猫" * 2000,
    "\x1b[2J\n<b>",
    [],
    {},
)
VALUES += ([None], [[[]]], {"a": 1})


@dataclass(frozen=True)
class Kind:
    """Two runs of a benchmark: the first is written into, the other is beside it in tables and
    comparisons."""

    subset: str
    options: tuple[str, ...]
    models: tuple[str, str]

    @property
    def folder(self) -> Path:
        return Path("results", self.models[0].removeprefix("baseline/"))

    def make(self, command: Commands) -> None:
        if self.subset == "weibo":
            put("tasks/weibo_inference_tasks.jsonl", b"".join(generate("weibo", 3, 5, 2.0)))
        else:
            for name, content in synth.files(4, 5).items():
                put(Path("tasks/dailymobility", name), content)
        for model in self.models:
            named = ("--name", model.removeprefix("baseline/"))
            assert command("run", *self.options, "--model", model, *named) == 0, command.said

    def few(self) -> Iterator[tuple[str, ...]]:
        """The commands of each way to read a manifest: for a table, a proof, a page, new scores,
        and to go on."""
        one, other = (model.removeprefix("baseline/") for model in self.models)
        named = ("--name", one)
        yield from (
            ("status",),
            ("verify", *named),
            ("report", *named),
            ("compare", one, other, "--resamples", "1000"),
        )
        yield from (("reeval", *named), ("resume",))

    def commands(self) -> Iterator[tuple[str, ...]]:
        """Only the last three write into the runs. What reads one run alone reads the one that is
        written into."""
        one, other = (model.removeprefix("baseline/") for model in self.models)
        named = ("--name", one)
        yield from (("status",), ("verify", *named), ("verify", "--without-tasks"), ("report",))
        yield ("report", *named, "--users", "all", "--with-posts")
        yield from (
            ("stats", "--format", "csv"),
            ("stats", "--json"),
            ("compare", one, other, "--resamples", "1000"),
        )
        yield from (("reeval", *named), ("reeval", *named, "--reparse", "--no-html"), ("resume",))


WEIBO = Kind("weibo", ("--platform", "weibo"), ("baseline/random", "baseline/recency"))
BEIJING = Kind("beijing", ("dailymobility",), ("baseline/commuter", "baseline/random-day"))
KINDS = (WEIBO, BEIJING)
FILES = ("inference_results_{}.jsonl", "responses_{}.jsonl", "run_{}.json", "eval_report_{}.json")


def places(data: Any, above: str = "") -> Iterator[str]:
    """Dotted names of everything in an object, of lists the first item."""
    items = (
        data.items()
        if type(data) is dict
        else [("0", data[0])]
        if type(data) is list and data
        else ()
    )
    for name, value in items:
        if "." not in name:
            yield f"{above}{name}"
            yield from places(value, f"{above}{name}.")


def odd(path: Path, rng: random.Random) -> Iterator[tuple[str, bytes, bool]]:
    """A file with one value odd, of lines the first, under a right checksum; with words for what
    was done, and whether it was drawn.

    A manifest lacks every second of its fields in turn, those that all benchmarks have only in the
    first one's run.
    """
    whole = path.read_bytes()
    first, _, others = whole.partition(b"\n")
    document = decode_line(first) if path.suffix == ".jsonl" else orjson.loads(whole)
    known = list(places(document))
    drawn = [(rng.choice(known), rng.choice(VALUES)) for _ in range(CASES)]
    whose = {"run_weibo.json": "", "run_beijing.json": "identity."}.get(path.name)
    lacking = [] if whose is None else [(place, ...) for place in known if place.startswith(whose)]
    lacking = lacking[::2]
    for number, (place, value) in enumerate([*lacking, *drawn]):
        try:
            made = changed(document, place, value)
            content = encode_line(made) + others if path.suffix == ".jsonl" else orjson.dumps(made)
        except TypeError:  # what cannot be written is nobody's line
            continue
        yield f"{path.name}: {place}: {value!r:.40}", content, number >= len(lacking)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.subset)
@pytest.mark.parametrize("name", FILES)
def test_an_odd_value_anywhere_is_refused_or_harms_nothing(command, kind, name):
    """No traceback, no defect, and no sentence longer than a screen, whichever command meets it."""
    kind.make(command)
    shutil.copytree("results", "kept")
    path = kind.folder / name.format(kind.subset)
    manifest = kind.folder / f"run_{kind.subset}.json"
    for what, content, drawn in odd(path, random.Random(name)):
        put(path, content)
        if path.name.startswith("inference_results"):  # as whoever wrote it would adjust it
            known = orjson.loads(manifest.read_bytes())
            put(manifest, orjson.dumps({**known, "results_sha256": sha256(content).hexdigest()}))
        for words in kind.commands() if drawn else kind.few():
            code = command(*words)
            assert code in (0, 1, 2, 4), (what, words, command.said)
            errors = [line for line in command.said.splitlines() if line.startswith("harness: ")]
            assert all(len(line) < 2100 and "\x1b" not in line for line in errors), (what, words)
            assert "Warning" not in command.said, (what, words, command.said)
        shutil.rmtree("results")
        shutil.copytree("kept", "results")


# Each of these had another end once


def first_line(path: Path, place: str, value: Any, every: bool = False) -> None:
    """Sets one place in the first record or response, or in all of them, under right checksums."""
    first, *others = path.read_bytes().splitlines()
    lines = [first, *others] if every else [first]
    made = [encode_line(changed(decode_line(line), place, value)) for line in lines]
    path.write_bytes(b"".join([*made, *(line + b"\n" for line in ([] if every else others))]))


@pytest.mark.parametrize(
    ("kind", "place", "value"),
    [
        *((WEIBO, "steps.0.outcome", value) for value in (None, 0, -1, 0.5, True)),
        *((WEIBO, "steps.0.repairs", value) for value in ([0], [None])),
        (WEIBO, "steps", []),
        *((BEIJING, "invalid", value) for value in (-1, 0.5, True)),
        *((BEIJING, "mode", value) for value in (None, 0)),
        (BEIJING, "visited_aois.0", "\x1b]0;x\x07\n" + "y" * 100_000),
        *((kind, "usage.prompt_tokens", value) for kind in KINDS for value in (2**62, -1, "x")),
    ],
)
def test_a_record_that_cannot_be_counted_is_named_and_kept(command, kind, place, value):
    """By user and run, and nothing of the run is changed."""
    kind.make(command)
    path = kind.folder / f"inference_results_{kind.subset}.jsonl"
    first_line(path, place, value)
    before = tree(kind.folder)
    user = decode_line(path.read_bytes().splitlines()[0])["user_id"]
    assert command("reeval", "--name", kind.folder.name) == 2
    assert (
        f"{kind.folder.name}, {kind.subset}: user {user}" in command.said
        and len(command.said) < 600
    )
    assert tree(kind.folder) == before


def test_a_record_nested_deeper_than_can_be_written_is_named(command):
    """Readers of JSON take more levels than writers."""
    WEIBO.make(command)
    path = WEIBO.folder / "inference_results_weibo.jsonl"
    first, *others = path.read_bytes().splitlines(keepends=True)
    data = orjson.dumps({**decode_line(first.rstrip()), "z": "<here>"})
    payload = data.replace(b'"<here>"', b"[" * 300 + b"]" * 300)[:-1]
    path.write_bytes(b'%b,"crc":"%08x"}\n' % (payload, crc32(payload)) + b"".join(others))
    assert command("reeval", "--name", "random") == 2
    assert "the saved record has another shape" in command.said


def test_a_step_that_is_missing_or_doubled_is_no_score_of_its_user(command):
    """Of our own records it is named; the authors' users without all their steps are left out of
    what is covered."""
    WEIBO.make(command)
    path = WEIBO.folder / "inference_results_weibo.jsonl"
    records = [decode_line(line) for line in path.read_bytes().splitlines()]
    records[0]["steps"] += records[0]["steps"][:1]
    path.write_bytes(b"".join(map(encode_line, records)))
    assert command("reeval", "--name", "random") == 2 and "duplicate step_id 1" in command.said
    records[0]["steps"] = records[0]["steps"][1:-1]
    path.write_bytes(b"".join(map(encode_line, records)))
    assert command("reeval", "--name", "random") == 2 and "steps are missing" in command.said
    theirs = Path("results/theirs/inference_results_weibo.jsonl")
    bare = [
        {
            "user_id": one["user_id"],
            "steps": [{name: step[name] for name in ("step_id", "prediction")} for step in steps],
        }
        for one in records
        if (steps := one["steps"])
    ]
    put(theirs, b"\n".join(map(orjson.dumps, bare)))
    report = theirs.with_name("eval_report_weibo.json")
    assert command("reeval", "--name", "theirs") == 1, command.said
    assert (
        "1 of its users lack steps of their tasks, or have one twice, and are not scored"
        in command.said
    )
    coverage = orjson.loads(report.read_bytes())["coverage"]
    assert (coverage["scored_users"], coverage["expected_users"], coverage["complete"]) == (
        2,
        3,
        False,
    )
    bare[1]["steps"] *= 2
    put(theirs, b"\n".join(map(orjson.dumps, bare)))
    assert command("reeval", "--name", "theirs") == 1, command.said
    assert orjson.loads(report.read_bytes())["coverage"]["scored_users"] == 1
    assert command("report", "--name", "theirs") == 0, command.said
    Path("tasks").rename("elsewhere")
    assert command("report", "--name", "theirs") == 0, command.said
    assert "without its tasks" in command.said


def test_what_compare_cannot_use_is_named_with_its_file(command):
    """Both runs have the user; a metric that is none ends in a sentence, and in no warning of a
    library."""
    WEIBO.make(command)
    whole = (WEIBO.folder / "inference_results_weibo.jsonl").read_bytes()
    for place, value in (
        ("steps.0.metrics.Recall", "x" * 5000),
        ("steps.0.metrics.Recall_Novelty", 1e308),
    ):
        first_line(put(WEIBO.folder / "inference_results_weibo.jsonl", whole), place, value)
        assert command("compare", "recency", "random") == 2
        assert f"{WEIBO.folder}/inference_results_weibo.jsonl: user synth-weibo-" in command.said
        assert "Warning" not in command.said and len(command.said) < 600
    BEIJING.make(command)
    first_line(BEIJING.folder / "inference_results_beijing.jsonl", "invalid", -1)
    assert command("compare", "commuter", "random-day") == 2
    assert str(BEIJING.folder) in command.said


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.subset)
def test_a_response_of_another_shape_takes_no_page_away(command, kind):
    """It is none of ours, so that it is not shown, and no sound record is blamed."""
    kind.make(command)
    path = kind.folder / f"responses_{kind.subset}.jsonl"
    for place, value in (("completion.reasoning", -1), ("completion.finish_reason", [None])):
        first_line(path, place, value)
        assert command("report", "--name", kind.folder.name, "--users", "all") == 0, command.said


def test_counts_that_no_endpoint_sends_overflow_nothing(command):
    """A response that says so is none of ours, and is requested again."""
    WEIBO.make(command)
    first_line(
        WEIBO.folder / "responses_weibo.jsonl", "completion.prompt_tokens", 2**63, every=True
    )
    assert command("reeval", "--reparse", "--name", "random") == 0, command.said
    assert "could not be played again" in command.said


MANIFEST_FIELDS = (
    *(("times.schedule", value) for value in ("x", 1e308, {"a": 1})),
    *(
        (f"times.schedule.{name}", value)
        for name in ("seconds", "lower_bound_seconds", "slots")
        for value in ("", [])
    ),
    *((f"times.schedule.{name}", value) for name in ("ratio", "seconds") for value in ("x", ...)),
    *((f"times.schedule.{name}", "x") for name in ("runs", "event_loop")),
    *(
        (f"tuning.{name}", value)
        for name in ("concurrency", "floor", "ceiling", "rpm")
        for value in ("x", [None], 0)
    ),
    *(
        (f"tuning.{name}", value)
        for name in ("timeout", "stall", "max_outage", "max_retries")
        for value in (None, "x")
    ),
    *(("tuning.stream", ""), ("tuning.durability", 3), ("provenance.endpoint", "")),
)


def test_fields_that_only_resume_or_a_report_reads_are_checked_with_the_others(
    command,
):
    """File and field, before anything is opened."""
    WEIBO.make(command)
    path = WEIBO.folder / "run_weibo.json"
    manifest = orjson.loads(path.read_bytes())
    for field, value in MANIFEST_FIELDS:
        put(path, orjson.dumps(changed(manifest, field, value)))
        assert command("resume") == 2, (field, value)
        named = (
            re.escape(f"{path}: field {'.'.join(field.split('.')[:2])}") + r"[.\w\[\]]*: expected "
        )
        assert re.search(named, command.said), (field, value)
    put(path, orjson.dumps(manifest))
    assert command("resume") == 0


def test_a_report_of_another_name_or_format_is_drawn_by_nobody(command):
    """What `stats` refuses `report` does, too: it would stand there under a name that is not its
    own."""
    WEIBO.make(command)
    report = WEIBO.folder / "eval_report_weibo.json"
    whole = orjson.loads(report.read_bytes())
    bad = [
        changed(whole, "format", 99),
        changed(whole, "metrics.Recall.value", True),
        changed(whole, "metrics.Recall", {"value": None, "ci95": True, "users": 0}),
        changed(whole, "subset", "zhihu"),
    ]
    for one in bad:
        put(report, orjson.dumps(one))
        for words in (("report",), ("report", "--name", "random"), ("stats",)):
            assert command(*words) == 2, words
            assert str(report) in command.said
    BEIJING.make(command)
    put(report, orjson.dumps(whole))
    report = BEIJING.folder / "eval_report_beijing.json"
    put(
        report,
        orjson.dumps(
            changed(orjson.loads(report.read_bytes()), "secondary.Score (asbench).ci95", True)
        ),
    )
    assert command("report") == 2
    assert str(report) in command.said and "recency" in Path("results/index.html").read_text()


@pytest.mark.parametrize("name", ["eval_report_weibo.json", "eval_report_weibo.txt"])
def test_a_pipe_in_place_of_a_report_keeps_nobody_waiting(command, name):
    """Nobody writes into it; who makes a report puts one in its place."""
    WEIBO.make(command)
    (WEIBO.folder / name).unlink()
    os.mkfifo(WEIBO.folder / name)
    for words in (("stats",), ("report",), ("report", "--name", "random"), ("verify",)):
        command(*words)
    assert command("reeval") == 0, command.said
    assert command("verify") == 0, command.said


@pytest.mark.parametrize("name", ["random", "recency"])
def test_a_folder_whose_name_is_no_text_is_named_and_keeps_no_other_out(command, name):
    """Manifests and reports hold text: another name helps."""
    WEIBO.make(command)
    os.rename(os.fsencode(f"results/{name}"), b"results/\xff\xfe")  # noqa: PTH104, a Path has no bytes
    for words in (
        ("status", "--json"),
        ("verify", "--json"),
        ("reeval",),
        ("reeval", "--reparse"),
        ("resume",),
    ):
        assert command(*words) == 2, command.said
        assert "the name of this folder is not text in UTF-8" in command.said
        assert command(*words, "--name", "recency" if name == "random" else "random") == 0, (
            command.said
        )


def test_a_prompt_that_cannot_be_read_is_named(command):
    """As on a disk that fails."""
    WEIBO.make(command)
    prompt = WEIBO.folder / "prompt_own.txt"
    prompt.unlink()
    prompt.symlink_to("/proc/self/mem")
    assert command("verify", "--name", "random") == 4
    assert f"cannot read {prompt}" in command.said


@pytest.mark.parametrize(
    "words",
    [
        ("report", "--name", "random", "--out", "results/random/inference_results_weibo.jsonl"),
        ("report", "--out", "tasks/weibo_inference_tasks.jsonl"),
        ("report", "--out", "."),
        ("report", "--out", "a\x00.html"),
        ("stats", "--format", "csv", "--into", "tasks/weibo_inference_tasks.jsonl"),
        ("stats", "--format", "csv", "--into", "/"),
        ("compare", "random", "recency", "--out", "results/random/run_weibo.json"),
        ("compare", "random", "recency", "--html", ""),
        ("synth", "--users", "1", "--platform", "weibo", "--out", "tasks"),
        ("synth", "--users", "1", "--out", "tasks"),
    ],
)
def test_no_output_takes_the_place_of_tasks_or_records(command, words):
    """Nor of anything else: what is refused writes nothing, also where only one of its files is
    there."""
    WEIBO.make(command)
    before = tree(Path())
    assert command(*words) == 2
    assert tree(Path()) == before
