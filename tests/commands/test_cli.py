"""The command line at its edges: output that fails, signals, arguments that cannot be meant, files
that are spoilt."""

from __future__ import annotations

import errno
import gc
import io
import os
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

import numpy as np
import orjson
import pytest

from harness.analysis.saved_runs import SavedRun
from harness.benchmarks.streamprofile.benchmark import StreamProfile
from harness.benchmarks.streamprofile.synth import generate
from harness.cli import _Signalled, main
from harness.commands import notices
from harness.commands.parser import parsed
from harness.engine import events, session
from harness.errors import BadInput
from harness.options import options
from harness.store import manifest
from harness.store.lock import RunLock
from harness.ui.console import console
from tests.support import ROOT
from tests.support.commands import execute
from tests.support.scripted import baseline, serving

Told = pytest.CaptureFixture[str]
USERS = 2
MERGED = "harness.engine.finish.ReportScores.report"


def run(tasks: Path, results: Path, *more: str) -> int:
    where = ["--tasks-dir", str(tasks), "--results-dir", str(results)]
    return main(["run", "--model", "baseline/recency", "--platform", "weibo", *where, *more])


@pytest.fixture(scope="module")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tasks")
    (folder / "weibo_inference_tasks.jsonl").write_bytes(b"".join(generate("weibo", USERS, 5, 2.0)))
    return folder


@pytest.fixture(scope="module")
def finished(tasks: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A results folder with one complete run, for looking at only."""
    folder = tmp_path_factory.mktemp("finished")
    assert run(tasks, folder, "--name", "whole") == 0
    return folder


@pytest.fixture
def results(finished: Path, tmp_path: Path) -> Path:
    """A copy of it, to spoil."""
    return Path(shutil.copytree(finished, tmp_path / "results"))


def done(folder: Path) -> int:
    return len((folder / "inference_results_weibo.jsonl").read_bytes().splitlines())


# Output


@contextmanager
def closed_pipe() -> Iterator[TextIO]:
    """What `| head` leaves behind when it has had enough."""
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as stream:
        yield stream


@contextmanager
def full_disk() -> Iterator[TextIO]:
    with Path("/dev/full").open("w") as stream:
        yield stream


UNWRITABLE = pytest.mark.parametrize("output", [closed_pipe, full_disk])
Output = Callable[[], Any]


@UNWRITABLE
def test_output_that_cannot_be_written_never_ends_a_run(output, tasks, tmp_path, monkeypatch):
    """The run goes on to its end in silence, and its exit code is that of its work."""
    with output() as stream:
        monkeypatch.setattr("sys.stdout", stream)
        assert run(tasks, tmp_path) == 0
    assert done(tmp_path / "recency") == USERS


@UNWRITABLE
@pytest.mark.parametrize("command", ["status", "stats", "verify"])
def test_tables_that_cannot_be_written_are_no_error(command, output, results, monkeypatch):
    """A display that nobody can see is dropped."""
    with output() as stream:
        monkeypatch.setattr("sys.stdout", stream)
        execute(results, command)


@pytest.mark.parametrize(
    ("output", "code", "expected_text"),
    [(closed_pipe, 0, ""), (full_disk, 4, "No space left on device")],
)
def test_json_that_is_lost_is_told_unless_its_reader_went_away(
    output,
    code,
    expected_text,
    results,
    monkeypatch,
    capsys,
):
    """What another program was to read must not vanish under exit code 0; `| head` has had what it
    wanted."""
    with output() as stream:
        monkeypatch.setattr("sys.stdout", stream)
        assert main(["status", "--json", "--results-dir", str(results)]) == code
    shown = capsys.readouterr().err
    assert expected_text in shown and len(shown.splitlines()) == bool(expected_text)


def test_output_that_fails_at_the_very_end_is_told(monkeypatch, capsys):
    """The help stays in a buffer until the command has ended; even then a full disk is one
    sentence."""
    with full_disk() as stream:
        monkeypatch.setattr("sys.stdout", stream)
        assert main(["--help"]) == 4
    assert capsys.readouterr().err == "harness: cannot write the output: No space left on device\n"


@UNWRITABLE
def test_error_that_cannot_be_told_keeps_its_exit_code(output, tmp_path, monkeypatch):
    """Without a place for the sentence there is still the code."""
    with output() as stream:
        monkeypatch.setattr("sys.stderr", stream)
        execute(tmp_path, "resume", "--name", "none", code=2)


def test_process_without_standard_streams_works(results, monkeypatch):
    """Both may be closed, as `>&- 2>&-` does."""
    monkeypatch.setattr("sys.stdout", None)
    monkeypatch.setattr("sys.stderr", None)
    execute(results, "status")
    execute(results, "resume", "--name", "none", code=2)


def test_characters_that_the_output_lacks_are_written_as_escapes(tasks, tmp_path, monkeypatch):
    """A Chinese name on an ASCII terminal is readable to a program at least, and no error."""
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr("sys.stdout", stream)
    assert run(tasks, tmp_path, "--name", "中文") == 0
    assert b"\\u4e2d\\u6587" in stream.buffer.getvalue()  # type: ignore[attr-defined]


class Hung(io.StringIO):
    """A terminal that has gone: it has no descriptor that could be turned elsewhere."""

    def write(self, text: str) -> int:
        raise OSError(errno.EIO, os.strerror(errno.EIO))


def test_console_without_a_descriptor_falls_silent_too(monkeypatch, capsys):
    """After the first failure nothing more is written."""
    monkeypatch.setattr("sys.stdout", Hung())
    screen = console()
    for _ in range(3):
        screen.print("x")
    assert capsys.readouterr().err.count("Input/output error") == 1


def test_errors_never_stand_among_the_results(monkeypatch, tmp_path, capsys):
    """Without stderr a sentence is dropped: stdout may be read by another program."""
    monkeypatch.setattr("sys.stderr", None)
    execute(tmp_path, "resume", "--name", "none", code=2)
    assert capsys.readouterr().out == ""


def test_console_shows_names_as_they_are(capsys):
    """No markup and no emoji: what a name holds is what is seen."""
    console().print("[red]y :smile: [/]")
    assert capsys.readouterr().out == "[red]y :smile: [/]\n"


# Signals


@pytest.mark.parametrize(
    ("number", "code"),
    [(signal.SIGTERM, 143), (signal.SIGUSR1, 143), (signal.SIGINT, 130), (signal.SIGHUP, 129)],
    ids=str,
)
def test_signal_before_the_engine_listens_ends_the_command_in_words(
    number,
    code,
    tasks,
    tmp_path,
    monkeypatch,
    capsys,
):
    """While the tasks are indexed too, a signal is an exit code and a word, and leaves no lock and
    no handler."""
    before = {
        each: signal.getsignal(each) for each in (signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP)
    }

    def indexing(*_: object) -> None:
        assert (
            signal.getsignal(number) is not signal.SIG_DFL
        )  # else this very process would be killed
        try:
            signal.raise_signal(number)
        except Exception as error:
            raise AssertionError(
                "an ordinary handler of errors must not swallow a signal"
            ) from error

    monkeypatch.setattr("harness.engine.files.open_index", indexing)
    assert run(tasks, tmp_path) == code
    assert capsys.readouterr().err == "harness: interrupted\n"
    assert {each: signal.getsignal(each) for each in before} == before


def ended(at_exit: str) -> subprocess.CompletedProcess[str]:
    """Run a command as a process does that does nothing else, with a last step."""
    program = (
        "import atexit, gc, signal, sys; from harness.cli import main; atexit.register(lambda:"
        f" {at_exit})"
    )
    command = [sys.executable, "-c", f"{program}; sys.exit(main())", "config", "--help"]
    environment = os.environ | {"PYTHONHASHSEED": "0"}
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment)


def test_process_ends_without_another_collection_of_garbage_and_ctrl_c_then_shows_no_traceback():
    """A collection would look at every object, and find nothing to close; Python that calls a
    command goes on, and collects. Python's own handler of Ctrl-C would raise in whatever the
    interpreter's last steps are at."""
    process = ended(
        "(print(gc.get_freeze_count() > 0, flush=True), signal.raise_signal(signal.SIGINT))"
    )
    assert (process.returncode, process.stderr) == (-signal.SIGINT, "")
    assert process.stdout.startswith("usage: ") and process.stdout.endswith("\nTrue\n")
    before = gc.get_freeze_count()
    assert main(["config", "--help"]) == 0 and gc.get_freeze_count() == before


def test_ignored_hangup_stays_ignored(tasks, tmp_path, monkeypatch):
    """Under `nohup` a terminal that closes ends nothing, neither before the engine listens nor in
    it."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    sent = []

    def look(body: dict[str, Any]) -> tuple[int, bytes]:
        sent.append(os.kill(os.getpid(), signal.SIGHUP))
        return baseline(body)

    try:
        with serving(look) as server:
            assert run(tasks, tmp_path, "--api-url", server.url) == 0
        assert sent and signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_signal_during_one_run_begins_no_other(results, monkeypatch):
    """A signal is not an error of the run at hand, after which the others would have their turn."""
    shutil.copytree(results / "whole", results / "second")
    begun = []

    def proving(run: SavedRun, *_: object) -> int:
        begun.append(run.name)
        assert signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL
        signal.raise_signal(signal.SIGTERM)
        return 0

    monkeypatch.setattr("harness.commands.verify.proving.prove", proving)
    execute(results, "verify", code=143)
    assert begun == ["second"]


# Manifests and reports that are spoilt


def changed(path: Path, name: str, value: Any) -> None:
    """Sets a field of a manifest, by its dotted name; `...` takes it out."""
    data = orjson.loads(path.read_bytes())
    *sections, field = name.split(".")
    place = data
    for section in sections:
        place = place[section]
    if value is ...:
        del place[field]
    else:
        place[field] = value
    path.write_bytes(orjson.dumps(data))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("identity.benchmark", ...),
        ("identity.benchmark", 5),
        ("identity.model", ...),
        ("identity.model", None),
        ("identity.sampling", ...),
        ("identity.sampling", []),
        ("identity.sampling.model", "m"),
        ("identity.sampling.top_k", 5),
        ("identity.sampling.temperature", "0"),
        ("identity.sampling.seed", 1.5),
        ("identity.sampling.max_tokens", True),
        ("identity.sampling.extra_body", None),
        ("identity.settings", ...),
        ("identity.settings", "own"),
        ("identity.files", ...),
        ("identity.files", ["x"]),
        ("provenance.endpoint", ...),
        ("provenance.endpoint", 3),
        ("provenance.key_from", ...),
        ("provenance.source", 3),
        ("provenance.provider", 3),
        ("provenance.providers_file", []),
        ("provenance.quirks", "no_temperature"),
        ("provenance.headers", [3]),
        ("tuning.learned_limit", "many"),
        ("tasks.path", ...),
        ("tasks.path", 3),
        ("tasks.sha256", ...),
        ("tasks.users", "2"),
        ("tasks.users", True),
        ("selection.ratio", ...),
        ("selection.ratio", 0),
        ("selection.ratio", 1.5),
        ("selection.ratio", True),
        ("selection.sample_seed", ...),
        ("selection.sample_seed", -1),
        ("selection.sample_seed", 1.0),
        ("selection.repeats", 0),
        ("selection.repeats", 101),
        ("selection.repeats", "3"),
        ("counts.users", "2"),
        ("counts.failed", None),
        ("times.created", ...),
        ("times.updated", 5),
        ("times.seconds", "1"),
        ("format", 2),
        ("format", ...),
        ("state", "done"),
        ("subset", ...),
        ("results_sha256", 5),
    ],
)
def test_manifest_is_refused_by_file_and_field(field, value, results):
    """Whatever a command later relies on is looked at when the manifest is read."""
    path = results / "whole" / "run_weibo.json"
    changed(path, field, value)
    with pytest.raises(BadInput) as refused:
        manifest.load(path)
    assert str(refused.value).startswith(f"{path}: field {field}")


@pytest.mark.parametrize(
    "field", ["provenance.source", "counts.users", "times.updated", "identity.sampling.seed"]
)
def test_manifest_may_lack_what_nobody_relies_on(field, results):
    """Fields that come with time are no condition."""
    path = results / "whole" / "run_weibo.json"
    changed(path, field, ...)
    assert manifest.load(path) is not None


@pytest.mark.parametrize("command", ["status", "verify", "reeval", "resume"])
def test_one_spoilt_manifest_keeps_no_other_run_from_its_turn(command, results, capsys):
    """It is reported in one sentence, the other run is worked on, and the exit code says that not
    all was well."""
    shutil.copytree(results / "whole", results / "bad")
    changed(results / "whole" / "run_weibo.json", "state", "incomplete")
    changed(results / "bad" / "run_weibo.json", "provenance", {})
    execute(results, command, code=2)
    shown = capsys.readouterr()
    [line] = shown.err.splitlines()
    assert line.startswith(f"harness: {results}/bad/run_weibo.json: field provenance.endpoint: ")
    assert "whole" in shown.out


def test_worse_codes_stay_beside_a_spoilt_manifest(results):
    """Bad input is the least that the exit code says, not the most."""
    shutil.copytree(results / "whole", results / "bad")
    (results / "bad" / "run_weibo.json").write_bytes(b"{")
    lock = RunLock(results / "whole" / "run_weibo.lock", lambda: 0.0)
    try:
        execute(results, "verify", code=4)
    finally:
        lock.release()


def test_run_that_cannot_be_read_keeps_no_other_from_the_table(results, capsys):
    """`status` tells what it can of all others."""
    shutil.copytree(results / "whole", results / "bad")
    (results / "bad" / "inference_results_weibo.jsonl").unlink()
    (results / "bad" / "inference_results_weibo.jsonl").mkdir()
    execute(results, "status", "--json", code=4)
    shown = capsys.readouterr()
    assert [row["name"] for row in orjson.loads(shown.out)] == ["whole"]
    assert "bad, weibo: cannot read" in shown.err


@pytest.mark.parametrize(
    "content", [b"{", b"[]", b'{"coverage": {"complete": true}, "metrics": []}']
)
def test_one_spoilt_report_keeps_no_other_from_the_tables(content, results, capsys):
    """It is reported, left out, and the exit code is that of a bad input."""
    (results / "bad").mkdir()
    (results / "bad" / "eval_report_weibo.json").write_bytes(content)
    execute(results, "stats", "--json", code=2)
    shown = capsys.readouterr()
    assert "bad/eval_report_weibo.json: not a report that this version reads" in shown.err
    assert list(orjson.loads(shown.out)["Recall"]) == ["whole"]


# Arguments


def test_users_of_a_page_are_counted_whatever_zeros_lead(tmp_path, capsys):
    words = ["report", "--users", f"{'0' * 9}999999999999", "--results-dir", str(tmp_path)]
    assert main(words) == 2
    assert "expected a whole number from 0 to 1000000" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words",
    [
        "--sample-seed -1",
        "--sample-seed 4294967296",
        "--seed 9223372036854775808",
        "--seed -9223372036854775809",
        "--max-retries 1001",
        "--max-retries -1",
        "--parse-retries 1001",
        "--concurrency 100001",
        "--concurrency 0",
        "--auto-ceiling 100001",
        "--max-tokens 9223372036854775808",
        "--temperature nan",
        "--temperature inf",
        "--temperature -0.5",
        "--temperature warm",
        "--top-p 0",
        "--top-p 1.01",
        "--top-p nan",
        "--ratio nan",
        "--timeout inf",
        "--timeout 1e9",
        "--max-outage 1e99",
        "--rpm inf",
        "--name=",
        "--model=",
        "--model= ",
        "--platform=",
        "--tasks-dir=",
        "--results-dir=",
        "--name /etc",
        "--name ..",
        "--name .hidden",
        "--name a\\b",
        f"--name {'名' * 67}",
        f"--tasks-dir {'a' * 300}",
    ],
)
def test_argument_that_cannot_be_meant_is_a_usage_error(words, tmp_path, monkeypatch, capsys):
    """The option is named, exit 2, and nothing has been begun."""
    monkeypatch.chdir(tmp_path)
    option = words.replace("=", " ").split(" ")[0]
    assert (
        main(
            ["run", "--model", "baseline/recency", *words.split(" ", 1 if "= " not in words else 0)]
        )
        == 2
    )
    assert option in capsys.readouterr().err.partition("error: argument ")[2].partition(":")[
        0
    ].split("/")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("words", "nearest"),
    [
        ("run --modle m", "--model"),
        ("run --limti=3", "--limit"),
        ("run --max_tokens 3", "--max-tokens"),
        ("run --concurency 3 --model m", "--concurrency"),
        ("run dailymobility --agent-sed 3", "--agent-seed"),
        ("stats --pub", "--published"),
        ("status --result-dir x", "--results-dir"),
        ("verify --without_tasks", "--without-tasks"),
        ("run --xyzzyx", None),
    ],
)
def test_unknown_option_is_answered_by_the_nearest_known_one(words, nearest, capsys):
    """One line, without the list of all options, which `--help` has."""
    assert main(words.split()) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "--help" in line and "usage:" not in line
    assert (f"did you mean {nearest}?" in line) if nearest else ("did you mean" not in line)


@pytest.mark.parametrize(
    ("words", "end"),
    [
        ("staus", "did you mean status?"),
        ("config staus", "did you mean status?"),
        ("xyzzyx", "; there are run, resume, report, "),
        (
            "run streamprofil --demo",
            "did you mean streamprofile? (others are named as FILE.py or package.module:Name)",
        ),
        ("run xyzzyx --demo", "; there are streamprofile, dailymobility (others are "),
        ("run --demo --subset weibos", "did you mean weibo?"),
        ("fetch --subset Weibos", "did you mean weibo?"),
        ("run --demo --subset xyzzyx", "; there are zhihu, weibo, "),
        ("run --demo --primary Recal", "did you mean Recall?"),
        ("run --demo --primary recall", "did you mean Recall?"),
        ("run --demo --primary xyzzyx", "; there are Precision, Recall, "),
        ("run --demo --model baseline/recenc", "did you mean baseline/recency?"),
        ("run --model m --provider deepsek", "did you mean deepseek?"),
        ("run --model m --queue xyzzyx", "; there are none"),
        ("run --demo --subset weibo,zhihu", "got 'weibo,zhihu': give the option once for each"),
        ("status --subset weibo,zhihu", "got 'weibo,zhihu': give the option once for each"),
        ("run --demo --model baseline/recency,baseline/random", ": give --model once for each"),
    ],
)
def test_unknown_name_is_answered_by_the_nearest_known_one(
    words, end, tmp_path, monkeypatch, capsys
):
    """Without a near one by all of them; for a list with commas by how an option is given several
    values."""
    monkeypatch.chdir(tmp_path)
    assert main(words.split()) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert end in line
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "words",
    [
        "--sample-seed 0",
        "--sample-seed 4294967295",
        "--seed -9223372036854775808",
        "--temperature 0",
        "--top-p 1",
        "--max-retries 0",
        "--max-retries 1000",
        "--concurrency 100000",
        "--concurrency auto",
        f"--name {'名' * 66}",
        "--name [x]*",
    ],
)
def test_arguments_at_their_bounds_are_taken(words):
    """Bounds are themselves allowed."""
    parsed(["run", "--model", "m", *words.split()])


@pytest.mark.parametrize("command", ["status", "verify", "resume", "reeval"])
@pytest.mark.parametrize(
    "option", ["--name=", "--model=", "--platform=", "--name=/etc", "--name=a/../b"]
)
def test_empty_or_leading_names_are_refused_in_every_command(command, option, results, capsys):
    """An unset variable must not mean every run, and no name may lead out of the results folder."""
    before = {path: path.stat().st_mtime_ns for path in results.rglob("*")}
    execute(results, command, option, code=2)
    assert "error: argument --" in capsys.readouterr().err
    assert {path: path.stat().st_mtime_ns for path in results.rglob("*")} == before


OF_RUNS = (
    "compare",
    "export",
    "merge",
    "reeval",
    "remove",
    "report",
    "resume",
    "stats",
    "status",
    "verify",
)


@pytest.mark.parametrize("command", OF_RUNS)
def test_every_command_takes_runs_by_position_and_by_name(command):
    """Both may be mixed and repeated; without either there are none."""
    for words in (
        ["a", "b"],
        ["--name", "a", "--name=b"],
        ["a", "--name", "b"],
        ["--name", "a", "b"],
    ):
        assert parsed([command, *words]).args.runs == ["a", "b"]
    assert not parsed([command]).args.runs


@pytest.mark.parametrize("command", ["compare", "merge", "remove"])
def test_command_that_needs_a_run_refuses_none(command):
    assert main([command]) == 2


@pytest.mark.parametrize(
    "command", ["export", "reeval", "report", "resume", "stats", "status", "verify"]
)
def test_name_of_no_run_is_refused_with_those_that_exist(command, results, capsys):
    """Also beside a name that a run has: the command leaves nothing out."""
    execute(results, command, "whole", "nobody", code=2)
    assert "nobody" in (told := capsys.readouterr().err) and "whole" in told


def theirs(folder: Path, tasks: Path) -> Path:
    """Results as the authors' runner writes them, of the first user's first step."""
    user = orjson.loads((tasks / "weibo_inference_tasks.jsonl").read_bytes().splitlines()[0])
    step = user["prediction_tasks"][0]
    answer = {
        "step_id": step["step_id"],
        "prediction": [],
        "ground_truth": step["ground_truth"],
        "reasoning": "好",
    }
    saved = {name: user[name] for name in ("user_id", "platform", "username")}
    folder.mkdir(parents=True)
    path = folder / "inference_results_weibo.jsonl"
    path.write_bytes(
        orjson.dumps(saved | {"steps": [answer | {"metrics": {}, "persona_summary": ""}]}) + b"\n"
    )
    return path


@pytest.mark.parametrize(("name", "code"), [("*", 2), ("whol[e]", 2), ("w????", 2), ("whole", 1)])
def test_name_is_no_pattern(name, code, tasks, tmp_path):
    """`reeval --name '*'` is about the run of that very name: others are not scored again."""
    path = theirs(tmp_path / "whole", tasks)
    before = path.read_bytes()
    assert (
        main(["reeval", "--name", name, "--tasks-dir", str(tasks), "--results-dir", str(tmp_path)])
        == code
    )
    assert (path.read_bytes() == before) == (code == 2)


@pytest.mark.parametrize(
    "words", [["status", "--tasks-dir", "a\udcff"], ["run", "--model", "\udcff"], ["\udcff"]]
)
def test_argument_that_is_no_text_is_one_sentence(words, capsys):
    """Bytes that are not UTF-8 cannot stand in a run's files."""
    assert main(words) == 2
    assert capsys.readouterr().err == f"harness: {words[-1]!r} is not text in UTF-8\n"


def test_names_derived_from_models_have_the_same_rules():
    """A model's name may be longer than a folder's can be."""
    assert options.run_name(None, "Qwen/Qwen3-8B") == "Qwen3-8B"
    with pytest.raises(BadInput, match="200 bytes at most: name it with --name"):
        options.run_name(None, "org/" + "m" * 201)
    with pytest.raises(BadInput, match="cannot name a run's folder"):
        options.run_name(None, "org/..")


RESERVED = [
    "index.html",
    "Index.HTML",
    "index.html.",
    "metric_excels",
    "METRIC_EXCELS",
    "metric_excel\u017f",  # a long s, which a file system without letter case takes for an s
    "index.html.host-17.new",
    "x.New",
    "x.lock",
    "x.torn",
    "x.before-20260102T030405Z",
]


def named(way: str, name: str, folder: Path) -> list[str]:
    """The arguments that give a run its name in one of the three ways."""
    if way == "option":
        return ["--model", "m", "--name", name]
    if way == "model":
        return ["--model", f"org/{name}"]
    file = folder / "mine.toml"
    file.write_text(f'[queues]\none = [{{ model = "m", name = "{name}" }}]\n', encoding="utf-8")
    return ["--providers", str(file), "--queue", "one"]


@pytest.mark.parametrize("way", ["option", "model", "queue"])
@pytest.mark.parametrize("name", RESERVED)
def test_no_run_takes_a_name_that_the_results_folder_uses(name, way, tasks, tmp_path, capsys):
    """In whatever letter case, since some file systems know none; one sentence, and nothing is
    made."""
    given = [
        *named(way, name, tmp_path),
        "--platform",
        "weibo",
        "--api-url",
        "http://127.0.0.1:9/v1",
    ]
    execute(tmp_path / "out", "run", *given, "--tasks-dir", str(tasks), code=2)
    told = capsys.readouterr().err
    assert (
        len(told.splitlines()) == 1 and repr(name) in told and "--name" in told and "queue" in told
    )
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "name", ["index", "index.html5", "metric", "new", "lock.v2", "before-noon", "索引.html"]
)
def test_names_like_those_of_the_results_folder_are_free(name):
    """Only the very names and endings are taken."""
    assert options.new_run_name(name, "") == name
    assert options.new_run_name(None, f"org/{name}") == name


def test_run_of_an_older_version_under_a_reserved_name_can_still_be_looked_at(results, capsys):
    """Only new runs are refused such a name."""
    (results / "whole").rename(results / "x.new")
    execute(results, "status", "--name", "x.new")
    assert "x.new" in capsys.readouterr().out


@pytest.mark.parametrize("command", ["report", "stats"])
def test_what_a_results_folder_gets_of_its_own_is_reserved(command, results):
    """Each new entry at the top of the folder, of `stats` and `report`, is one that no run can be
    named."""
    before = set(results.iterdir())
    more = ["--excel"] if command == "stats" else []
    execute(results, command, *more)
    made = {path.name for path in set(results.iterdir()) - before}
    assert made
    for name in made:
        with pytest.raises(BadInput):
            options.new_run_name(name, "")


# What is shown


# Folders and disks that cannot be written


@contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    """The kernel lets no file grow beyond `size` bytes: a write fails in its middle, as on a full
    disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_tables_that_do_not_fit_on_the_disk_are_one_sentence(results, capsys):
    """Exit 4 with the file's name; the library that writes workbooks adds no words, and half a file
    is not left."""
    with files_of_at_most(1000):
        execute(results, "stats", "--excel", code=4)
    shown = capsys.readouterr().err
    assert shown.count("\n") == 1 and ".xlsx: File too large" in shown
    assert not list((results / "metric_excels").iterdir())


def test_package_that_is_not_installed_is_told_with_what_to_do(capsys, monkeypatch):
    """As with a Python that is not the one of `make`: one sentence, and no defect of the
    harness."""

    def missing(name: str) -> None:
        raise ModuleNotFoundError("No module named 'rich'", name="rich.console")

    monkeypatch.setattr("harness.commands.parser.module_of", missing)
    assert main(["status"]) == 4
    said = capsys.readouterr().err
    assert (
        "'rich.console' is not installed" in said
        and ".venv/bin/harness" in said
        and "defect" not in said
    )


@pytest.mark.parametrize(
    ("python", "script", "found", "expected_text"),
    [
        ("here/.venv/bin/python", True, "", [".venv/bin/harness"]),
        ("here/.venv/bin/python", True, "here/.venv/bin", ["harness"]),
        ("usr/bin/python3", True, "here/.venv/bin", ["{}/usr/bin/harness"]),
        ("usr/bin/python3", False, "here/.venv/bin", ["{}/usr/bin/python3", "-P", "-m", "harness"]),
        ("usr/bin/python3", False, "usr/bin", ["python3", "-P", "-m", "harness"]),
    ],
)
def test_command_to_resume_is_the_script_of_the_python_that_has_the_packages(
    python,
    script,
    found,
    expected_text,
    tmp_path,
    monkeypatch,
):
    """By its path, shortened where it lies below the working folder; by its name only where the
    shell finds that one. Without it the Python, which then does not import from the working
    folder."""
    (tmp_path / "here").mkdir()
    executable = tmp_path / python
    executable.parent.mkdir(parents=True)
    if script:
        executable.with_name("harness").touch()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setattr(sys, "executable", str(executable))
    monkeypatch.setattr(
        "shutil.which", lambda name: str(tmp_path / found / name) if found else None
    )
    assert notices._this_program() == [word.format(tmp_path) for word in expected_text]


def test_details_of_a_defect_that_cannot_be_kept_are_no_second_defect(monkeypatch, capsys):
    """Where even the temporary folder is full, the sentence still comes."""

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("tempfile.NamedTemporaryFile", full)
    monkeypatch.setattr("harness.commands.status.execute", lambda args: 1 / 0)
    assert main(["status"]) == 70
    assert "ZeroDivisionError" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("signalled", "code"), [(KeyboardInterrupt(), 130), (_Signalled(143), 143)]
)
def test_signal_that_comes_while_a_class_is_made_is_one(signalled, code, monkeypatch, capsys):
    """Python 3.11 hands it on as the cause of a RuntimeError: an interruption, and no defect of the
    harness."""

    def executed(arguments: list[str], *, may_restart: bool) -> int:
        raise RuntimeError("Error calling __set_name__") from signalled

    monkeypatch.setattr("harness.cli._main", executed)
    assert main(["status"]) == code
    assert capsys.readouterr().err == "harness: interrupted\n"


def test_signal_that_breaks_the_end_of_an_event_loop_is_one(monkeypatch, capsys):
    def executed(arguments: list[str], *, may_restart: bool) -> int:
        try:
            raise _Signalled(143)
        finally:
            raise RuntimeError("Attempted to exit a cancel scope that isn't the current task's")

    monkeypatch.setattr("harness.cli._main", executed)
    assert main(["status"]) == 143
    assert capsys.readouterr().err == "harness: interrupted\n"


# Memory that runs out


def more_than_there_is(*_: object, **__: object) -> None:
    """What numpy raises by itself."""
    np.empty(1 << 60, np.uint8)


def bare(*_: object, **__: object) -> None:
    raise MemoryError


def of_another_class(*_: object, **__: object) -> None:
    raise ValueError("Not enough memory to allocate buffer for parsing: line 1 column 1 (char 0)")


@pytest.mark.slow
@pytest.mark.parametrize("lacking", [more_than_there_is, bare, of_another_class])
@pytest.mark.parametrize("where", ["finish", "write_report"])
def test_score_that_no_memory_is_left_for_is_one_sentence_and_can_be_made_later(
    where,
    lacking,
    tasks,
    tmp_path,
    monkeypatch,
    capsys,
):
    """Exit 4, which says what was being done; `reeval` makes the report of the very records."""
    with monkeypatch.context() as patched:
        patched.setattr(session, where, lacking)
        assert run(tasks, tmp_path, "--name", "whole") == 4
    [told] = capsys.readouterr().err.splitlines()
    assert (
        "no memory left to score weibo" in told
        and "records are saved" in told
        and "`reeval`" in told
    )
    assert done(tmp_path / "whole") == USERS
    execute(tmp_path, "reeval", "--name", "whole", "--tasks-dir", str(tasks))
    assert (tmp_path / "whole" / "eval_report_weibo.txt").exists()


@pytest.mark.parametrize("lacking", [more_than_there_is, bare])
def test_page_that_no_memory_is_left_for_changes_no_run(
    lacking,
    tasks,
    tmp_path,
    monkeypatch,
    capsys,
):
    """A run's page is made last, and is reported as any that cannot be made."""
    from harness.reporting import pages

    monkeypatch.setattr(pages, "write_page", lacking)
    assert run(tasks, tmp_path, "--name", "whole") == 0
    [told] = capsys.readouterr().err.splitlines()
    assert "the page could not be made: no memory left" in told and "`report` tries again" in told


@pytest.mark.parametrize(
    ("command", "place"),
    [
        ("stats", "harness.reporting.xlsx.workbook"),
        ("report", "harness.reporting.html.page"),
        ("reeval", MERGED),
    ],
)
@pytest.mark.parametrize("lacking", [more_than_there_is, bare])
def test_memory_that_runs_out_in_a_command_is_one_sentence(
    lacking,
    command,
    place,
    results,
    tasks,
    monkeypatch,
    capsys,
):
    """Exit 4, with the command's name, and what was there is intact."""
    before = {path: path.read_bytes() for path in results.rglob("*inference*") if path.is_file()}
    monkeypatch.setattr(place, lacking)
    more = {"stats": ["--excel"], "report": []}
    where = more.get(command, ["--tasks-dir", str(tasks)])
    execute(results, command, *where, code=4)
    [told] = capsys.readouterr().err.splitlines()
    assert f"no memory left for `harness {command}`" in told and "intact" in told
    assert {path: path.read_bytes() for path in before} == before


def test_memory_error_of_concurrent_tasks_is_one(monkeypatch, capsys):
    """Task groups wrap what their tasks raise, more than once where they are nested."""
    lacking = ExceptionGroup("one", [ExceptionGroup("two", [ValueError("x"), MemoryError("8 GB")])])
    monkeypatch.setattr("harness.commands.status.execute", lambda args: raised(lacking))
    assert main(["status"]) == 4
    assert "no memory left for `harness status` (8 GB)" in capsys.readouterr().err


def raised(error: Exception) -> None:
    raise error


SHORT_OF_MEMORY = """
import resource, sys
from harness import cli
from harness.engine import session
from harness.engine.finish import finish

def short(*given, **named):
    used = next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmSize")) << 10
    resource.setrlimit(resource.RLIMIT_AS, (used + (24 << 20), resource.RLIM_INFINITY))
    return finish(*given, **named)

session.finish = short
sys.exit(cli.main(sys.argv[1:]))
"""


@pytest.mark.slow
@pytest.mark.skipif(
    not Path("/proc/self/status").exists(), reason="asks Linux how much memory is in use"
)
def test_library_that_would_end_the_process_for_want_of_memory_does_not(tmp_path):
    """OpenBLAS calls `exit(1)` where it finds none, or tries for ever; the limit here is the
    system's own."""
    words = [
        "run",
        "dailymobility",
        "--model",
        "baseline/commuter",
        "--limit",
        "3",
        "--tasks-dir",
        ROOT / "harness" / "sample",
        "--results-dir",
        tmp_path,
    ]
    process = subprocess.run(
        [sys.executable, "-c", SHORT_OF_MEMORY, *words],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert process.returncode == 4, process.stderr
    [told] = process.stderr.splitlines()
    assert "no memory left to score beijing" in told and "`reeval`" in told


def test_unknown_baseline_is_refused_before_anything_is_opened(tmp_path, capsys):
    """Also by a preview; no folder is made for it, and nothing is said of what it will do."""
    words = ["run", "--demo", "--model", "baseline/nobody", "--results-dir", str(tmp_path / "r")]
    assert main(words) == 2
    assert not capsys.readouterr().out
    assert main([*words, "--dry-run"]) == 2
    assert not (tmp_path / "r").exists()


def test_stopped_run_of_which_everyone_is_done_is_not_called_incomplete():
    """Only its report is left to make."""
    benchmark = StreamProfile(StreamProfile.Settings())
    some, everyone = (
        notices._left_open(events.LeftOpen("weibo", benchmark, done, 40, {}, 0))
        for done in (39, 40)
    )
    assert "INCOMPLETE" in some and "INCOMPLETE" not in everyone
