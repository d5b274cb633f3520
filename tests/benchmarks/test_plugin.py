"""A benchmark in a file of its own that declares everything (`tests/data/visits`), and what authors
get wrong."""

from __future__ import annotations

import shutil
import sys
from hashlib import sha256
from pathlib import Path
from typing import Any

import orjson
import pytest

from harness.analysis import trust
from harness.benchmarks import registry
from harness.errors import BadInput
from tests.support.plugins import STARS, VISITS, Commands, changed, foreign
from tests.support.scripted import completion, serving

EVERYWHERE = ("--model", "baseline/everywhere", "--no-html")


@pytest.fixture
def harness(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Commands:
    return Commands(tmp_path / "results", capsys)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """The benchmark as its author has it."""
    return Path(shutil.copy(VISITS, tmp_path / "visits.py"))


@pytest.fixture
def done(harness: Commands, tasks: Path, file: Path) -> Commands:
    """A results folder with one run."""
    harness("run", file, *EVERYWHERE, "--tasks-dir", tasks)
    return harness


def test_figures_are_those_of_the_author_and_undefined_ones_are_none(done):
    """North visits 18 times, all of which are found; the mean of rates would be over 9 visitors."""
    north, south = done.report("everywhere", "north"), done.report("everywhere", "south")
    records = [
        orjson.loads(line)
        for line in done.text("everywhere", "inference_results_north.jsonl").splitlines()
    ]
    visits = sum(record["visited"] for record in records)
    hits = sum((record["metrics"]["Hit rate"] or 0) * record["visited"] for record in records)
    assert north["metrics"]["Hit rate"]["value"] == pytest.approx(hits / visits)
    assert south["metrics"] == {
        name: {"value": None, "ci95": None, "users": 6} for name in ("Hit rate", "Detour")
    }
    assert north["bounds"] is None and north["distribution"] == {}
    assert "Hit rate n/a, Detour n/a" in done.out
    text = done.text("everywhere", "eval_report_north.txt")
    assert f"{visits} visits of 12 visitors in the north." in text and "km" in text


def test_undefined_values_are_left_out_of_means_too(harness, tasks, file):
    """Without statistics of its own the figures are means over those who have a value."""
    changed(file, "    scoring = Hits()\n", "")
    changed(file, "scored.totals[1]:.0f} visits", "scored.users} visits")
    harness("run", file, *EVERYWHERE, "--tasks-dir", tasks)
    data = harness.report("everywhere", "north")
    assert data["metrics"]["Hit rate"]["users"] == 9 and data["metrics"]["Detour"]["users"] == 9
    assert harness.report("everywhere", "south")["metrics"]["Detour"] == {
        "value": None,
        "ci95": None,
        "users": 0,
    }
    harness("verify")
    harness("stats")
    harness("report")


@pytest.mark.slow
def test_every_command_reads_the_run(done, tasks, file, tmp_path):
    done("run", file, *EVERYWHERE, "--name", "b", "--no-hints", "--tasks-dir", tasks)
    before = done.text("everywhere", "inference_results_north.jsonl")
    done("reeval")
    done("reeval", "--reparse")
    assert done.text("everywhere", "inference_results_north.jsonl") == before
    assert "12 of 12 users, complete: sound" in done("verify") and "note" not in done.out
    done("verify", "--without-tasks")
    done("report", "--name", "everywhere", "--users", "all")
    assert "Card of 1: pool" in done.text("everywhere", "eval_report_north.html")
    done("report")
    for words in (
        ("--format", "latex"),
        ("--format", "markdown"),
        ("--format", "csv"),
        ("--json",),
        (),
    ):
        done("stats", *words)
    assert "no hints" in done.out or "hints" in done.out
    assert "Detour, km (lower is better)" in done.out
    assert done.json("status", "--json")
    done("compare", "everywhere", "b", "--full")
    assert "visits" in done.out
    assert done.json("compare", "everywhere", "b", "--json")["pairs"]
    done("sample", file, "--ratio", "0.5", "--platform", "north", "--tasks-dir", tasks)
    done("run", file, *EVERYWHERE, "--name", "c", "--ratio", "0.5", "--tasks-dir", tasks)
    done("resume")
    assert "nothing to resume" in done.out


def test_invalid_answers_are_counted_by_kind(harness, tasks, file):
    harness("run", file, "--model", "baseline/refuses", "--tasks-dir", tasks, "--subset", "north")
    data = harness.report("refuses", "north")
    assert data["diagnostics"]["invalid"] == {"no_json": 12}
    assert (
        data["metrics"]["Detour"]["value"] is None and data["metrics"]["Hit rate"]["value"] == 0.0
    )
    assert data["usage"]["requests"] == 36
    harness("verify")
    harness("report", "--name", "refuses")
    assert "I had rather not." in harness.text("refuses", "eval_report_north.html")


def test_settings_are_flags_part_of_the_run_and_read_back(harness, tasks, file):
    shots = file.with_name("shots.txt")
    shots.write_text("For example: park.\n")
    flags = (
        "--history-length",
        "1",
        "--no-hints",
        "--style",
        "long",
        "--scale",
        "2.5",
        "--few-shot",
        shots,
    )
    words = ("run", file, *EVERYWHERE, "--tasks-dir", tasks, "--ratio", "0.5")
    harness(*words, *flags)
    manifest = orjson.loads(harness.text("everywhere", "run_north.json"))
    settings = manifest["identity"]["settings"]
    expected = {
        "history_length": 1,
        "hints": False,
        "style": "long",
        "scale": 2.5,
        "few_shot": "shots.txt",
    }
    assert settings.items() >= expected.items() and settings["most"] is None
    assert harness.text("everywhere", "few_shot_shots.txt") == shots.read_text()
    harness("verify")
    assert "note" not in harness.out
    harness("reeval", "--reparse")
    assert "everywhere" in harness("stats", "--format", "csv") and "style long" in harness.out
    assert "settings.scale" in harness.refused(*words, *flags[:5], "--scale", "3", *flags[7:])
    assert "settings" in harness.refused(*words)
    shots.write_text("For example: zoo.\n")
    assert "files.few_shot_shots.txt" in harness.refused(*words, *flags)
    harness(
        "run",
        file,
        *EVERYWHERE,
        "--tasks-dir",
        tasks,
        *flags,
        "--allow",
        "files.few_shot_shots.txt",
    )


@pytest.mark.parametrize(
    "words",
    [
        ("--history-length", "x"),
        ("--style", "loud"),
        ("--scale", "nan"),
        ("--history-length", "9" * 30),
        ("--hints",),
    ],
)
def test_a_setting_of_another_type_is_a_mistake_of_usage(harness, tasks, file, words):
    harness("run", file, *EVERYWHERE, "--tasks-dir", tasks, *words, code=2)
    assert words[0] in harness.err


def test_help_explains_the_settings_of_this_benchmark_alone(harness, file):
    harness("run", file, "--help")
    assert (
        "--no-hints" in harness.out
        and "100% of them" in harness.out
        and "--no-persona" not in harness.out
    )


def test_a_file_that_is_not_there_is_named(harness, tasks, file):
    words = ("run", file, *EVERYWHERE, "--tasks-dir", tasks)
    assert "no-such.txt" in harness.refused(*words, "--few-shot", "no-such.txt")
    (tasks / "visits" / "distances.json").unlink()
    assert "distances.json" in harness.refused(*words)


# The class of a run


def unfinished(harness: Commands, tasks: Path, spec: object, *settings: object) -> None:
    """A run with users left, since the endpoint refused two."""
    left = [1, 2]

    def reply(body: dict[str, Any]) -> tuple[int, bytes]:
        if left and left.pop():
            return 400, b'{"error": {"message": "too long"}}'
        return 200, completion('{"visits": ["zoo"]}')

    with serving(reply) as server:
        words = (
            "--model",
            "m",
            "--tasks-dir",
            tasks,
            "--api-url",
            server.url,
            "--subset",
            "north",
            "--no-html",
        )
        harness("run", spec, *words, *settings, code=1)


def finished(harness: Commands, *words: object, code: int = 0, refuses: bool = False) -> None:
    """The run goes on, where everything is answered, or refused."""
    answer = (
        (400, b'{"error": {"message": "too long"}}')
        if refuses
        else (200, completion('{"visits": ["zoo"]}'))
    )
    with serving(lambda body: answer) as server:
        harness("resume", "--name", "m", "--api-url", server.url, "--no-html", *words, code=code)


def test_a_changed_file_is_another_configuration(harness, tasks, file):
    """Like a changed prompt; the run goes on with its own copy, or with the file as it is where
    that is allowed."""
    unfinished(harness, tasks, file)
    changed(file, "Which ones?", "Which?")
    words = (
        "run",
        file,
        "--model",
        "m",
        "--tasks-dir",
        tasks,
        "--subset",
        "north",
        "--api-url",
        "http://127.0.0.1:9/v1",
    )
    assert "files.benchmark_visits.py" in harness.refused(*words)
    assert "files.benchmark_visits.py" in refused_to_resume(harness, "--benchmark", file)
    finished(harness)
    assert (
        "files.benchmark_visits.py was changed or deleted since the run began: resuming with the"
        " run's own copy" in harness.out
    )
    assert "Which ones?" in harness.text("m", "benchmark_visits.py")
    harness("verify")
    assert "changed since" in harness.refused("verify", "--benchmark", file)
    assert "changed since" in harness.refused("reeval", "--benchmark", file)


def refused_to_resume(harness: Commands, *words: object) -> str:
    return harness.refused("resume", "--name", "m", "--api-url", "http://127.0.0.1:9/v1", *words)


@pytest.mark.parametrize("is_named", [True, False])
def test_a_changed_file_that_is_allowed_takes_the_place_of_the_copy(harness, tasks, file, is_named):
    unfinished(harness, tasks, file)
    changed(file, "Which ones?", "Which?")
    again = ("--benchmark", file) if is_named else ()
    finished(harness, *again, "--allow", "files.benchmark_visits.py")
    assert "Which ones?" not in harness.text("m", "benchmark_visits.py")
    assert "Continued although files.benchmark_visits.py" in harness.text(
        "m", "eval_report_north.txt"
    )
    harness("reeval")


def test_a_run_of_this_user_needs_its_file_no_more(harness, tasks, file):
    unfinished(harness, tasks, file)
    file.unlink()
    finished(harness)
    for words in (("reeval",), ("verify",), ("report", "--name", "m"), ("stats",), ("status",)):
        harness(*words)


def test_a_run_of_somebody_else_runs_no_code_without_a_word(done, tasks, file, tmp_path):
    """With --trust, or with the file named again, it does; its page can be made without."""
    marker = tmp_path / "was-run"
    done("run", file, *EVERYWHERE, "--name", "b", "--no-hints", "--tasks-dir", tasks)
    for name in ("everywhere", "b"):
        foreign(done.results / name)
        copy = done.results / name / "benchmark_visits.py"
        copy.write_text(f"__import__('pathlib').Path({str(marker)!r}).touch()\n{copy.read_text()}")
        for path in copy.parent.glob("run_*.json"):
            data = orjson.loads(path.read_bytes())
            data["identity"]["files"]["benchmark_visits.py"] = sha256(copy.read_bytes()).hexdigest()
            path.write_bytes(orjson.dumps(data))
    for words in (("reeval",), ("verify",), ("compare", "everywhere", "b")):
        done(*words, code=2)
        assert "--trust" in done.err
    done("report", "--name", "everywhere", "--subset", "north")
    assert "--trust" in done.err
    page = done.text("everywhere", "eval_report_north.html")
    assert "visits of 12 visitors in the north." in page and "Card of 1" not in page
    assert "Cards are plain" in page
    done("stats")
    assert "that you have not run before" in done.out and "--trust" not in done.out
    done("report")
    done("status")
    done("verify", "--without-tasks")
    assert not marker.exists()
    for words in (
        ("reeval", "--name", "b"),
        ("verify", "--name", "b"),
        ("compare", "everywhere", "b"),
    ):
        done(*words, "--trust")
    assert marker.exists()


@pytest.mark.slow
def test_a_run_of_somebody_else_can_be_read_with_the_file_as_one_has_it(done, tasks, file):
    done("run", file, *EVERYWHERE, "--name", "b", "--no-hints", "--tasks-dir", tasks)
    for name in ("everywhere", "b"):
        foreign(done.results / name)
    for words in (
        ("verify",),
        ("reeval",),
        ("report", "--name", "b"),
        ("compare", "everywhere", "b"),
    ):
        done(*words, "--benchmark", file)
        assert not done.err
    assert "is a run of visits, and" in done.refused(
        "verify", "--name", "b", "--subset", "north", "--benchmark", STARS
    )


def test_a_benchmark_can_be_named_by_its_module(harness, tasks, file, tmp_path, monkeypatch):
    package = tmp_path / "lib" / "my_benchmarks"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    shutil.copy(file, package / "places.py")
    monkeypatch.syspath_prepend(str(package.parent))
    unfinished(harness, tasks, "my_benchmarks.places:Visits")
    finished(harness)
    for words in (("reeval",), ("verify",), ("report", "--name", "m")):
        harness(*words)
    assert (harness.results / "m" / "benchmark_places.py").read_bytes() == file.read_bytes()
    for name in [name for name in sys.modules if name.startswith("my_benchmarks")]:
        monkeypatch.delitem(sys.modules, name)
    assert "expected a class" in harness.refused("run", "my_benchmarks.places:Nothing", *EVERYWHERE)
    assert "no_such_package:Visits: " in harness.refused(
        "run", "no_such_package:Visits", *EVERYWHERE
    )


def test_a_kept_module_with_a_class_and_its_heir_gives_the_class_that_was_named(
    harness, tasks, file, tmp_path, monkeypatch
):
    package = tmp_path / "lib" / "two_classes"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    zeros = 'return {"Hit rate": 0.0, "Detour": 0.0}'
    heir = f"\n\nclass Heir(Visits):\n    def measure(self, task, answer):\n        {zeros}\n"
    (package / "places.py").write_text(file.read_text() + heir)
    monkeypatch.syspath_prepend(str(package.parent))
    harness(
        "run", "two_classes.places:Visits", *EVERYWHERE, "--tasks-dir", tasks, "--subset", "north"
    )
    before = harness.text("everywhere", "inference_results_north.jsonl")
    foreign(harness.results / "everywhere")
    for words in (("reeval",), ("verify",)):
        harness(*words, "--trust")
    assert harness.text("everywhere", "inference_results_north.jsonl") == before


def test_a_class_that_a_package_imports_is_kept_as_the_file_that_defines_it(
    harness, tasks, file, tmp_path, monkeypatch
):
    package = tmp_path / "lib" / "imports_another"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("from .places import Visits\n")
    shutil.copy(file, package / "places.py")
    monkeypatch.syspath_prepend(str(package.parent))
    harness("run", "imports_another:Visits", *EVERYWHERE, "--tasks-dir", tasks, "--subset", "north")
    assert harness.text("everywhere", "benchmark_places.py") == file.read_text()
    foreign(harness.results / "everywhere")
    harness("reeval", "--trust")


def test_a_second_name_of_a_class_is_no_second_class(harness, tasks, file, tmp_path, monkeypatch):
    file.write_text(f"{file.read_text()}\n\nPlaces = Visits\n")
    harness("run", file, *EVERYWHERE, "--tasks-dir", tasks, "--subset", "north")
    folder = tmp_path / "second_name"
    folder.mkdir()
    shutil.copy(file, folder / "second_name_of.py")
    monkeypatch.syspath_prepend(str(folder))
    words = ("--name", "b", "--tasks-dir", tasks, "--subset", "north")
    harness("run", "second_name_of:Places", *EVERYWHERE, *words)
    foreign(harness.results / "b")
    harness("reeval", "--name", "b", "--trust")


def test_a_copy_of_another_benchmark_is_refused(done):
    foreign(done.results / "everywhere")
    for path in (done.results / "everywhere").glob("run_*.json"):
        data = orjson.loads(path.read_bytes())
        data["identity"]["benchmark"] = "visitors"
        path.write_bytes(orjson.dumps(data))
    done("reeval", "--trust", code=2)
    assert "everywhere is a run of visitors, and its copy benchmark_visits.py is visits" in done.err


# Files of settings


TWO_FILES = (
    "few_shot: Path | None = None",
    "few_shot: Path | None = None\n        more: Path | None = None",
)


@pytest.fixture
def shots(tmp_path: Path, file: Path) -> list[Path]:
    """Files for two settings, of one name in two folders."""
    changed(file, *TWO_FILES)
    changed(
        file,
        "self.settings.scale * extra",
        "self.settings.scale * extra * len(self.settings.more.read_text())",
    )
    made = [tmp_path / folder / "g.txt" for folder in ("one", "two")]
    for path, text in zip(made, ("For example: park.\n", "more"), strict=True):
        path.parent.mkdir()
        path.write_text(text)
    return made


def with_files(shots: list[Path]) -> tuple[object, ...]:
    return ("--few-shot", shots[0], "--more", shots[1])


@pytest.mark.slow
@pytest.mark.parametrize("is_there", [True, False])
def test_a_run_with_files_of_settings_is_scored_again_from_its_own_copies(
    harness, tasks, file, shots, is_there
):
    harness("run", file, *EVERYWHERE, "--tasks-dir", tasks, *with_files(shots))
    before = harness.text("everywhere", "inference_results_north.jsonl")
    report = harness.report("everywhere", "north")
    if not is_there:
        for path in shots:
            path.unlink()
    for words in (
        ("reeval",),
        ("reeval", "--reparse"),
        ("verify",),
        ("report", "--name", "everywhere"),
    ):
        harness(*words)
        assert "note" not in harness.out and not harness.err
    assert harness.text("everywhere", "inference_results_north.jsonl") == before
    again = harness.report("everywhere", "north")
    assert again["metrics"] == report["metrics"] and again["prompt"] == report["prompt"] == "g.txt"
    (harness.results / "everywhere" / "more_g.txt").write_text("mo")
    assert "more_g.txt is not what the run was given" in refused_all(harness, "reeval")


def test_a_copy_that_went_is_replaced_by_the_original_as_it_was_alone(harness, tasks, file, shots):
    harness("run", file, *EVERYWHERE, "--tasks-dir", tasks, *with_files(shots))
    (harness.results / "everywhere" / "more_g.txt").unlink()
    harness("reeval")
    harness("verify", code=1)
    assert "more_g.txt is not the file that this run was made with, or is missing" in harness.out
    shots[1].write_text("mor")
    assert "more_g.txt has changed since" in refused_all(harness, "reeval")
    shots[1].unlink()
    assert f"cannot read {shots[1]}" in refused_all(harness, "reeval")
    foreign(harness.results / "everywhere")
    shots[1].write_text("more")
    assert "has no copy more_g.txt" in refused_all(harness, "reeval", "--benchmark", file)


def test_runs_with_files_are_compared(harness, tasks, file, shots):
    words = ("run", file, *EVERYWHERE, "--tasks-dir", tasks, *with_files(shots))
    harness(*words)
    harness(*words, "--name", "b", "--no-hints")
    for path in shots:
        path.unlink()
    for more in ((), ("--tasks-dir", tasks)):
        harness("compare", "everywhere", "b", *more)
    harness("stats")


def refused_all(harness: Commands, *words: object) -> str:
    harness(*words, code=2)
    return harness.err


def test_files_of_somebody_else_are_the_copies(harness, tasks, file, shots):
    harness("run", file, *EVERYWHERE, "--tasks-dir", tasks, *with_files(shots))
    foreign(harness.results / "everywhere")
    for path in shots:
        path.write_text("other")
    for words in (("reeval",), ("reeval", "--reparse"), ("verify",)):
        harness(*words, "--benchmark", file)


def test_each_file_of_a_setting_is_compared_with_its_own_original(harness, tasks, file, shots):
    unfinished(harness, tasks, file, *with_files(shots))
    manifest = orjson.loads(harness.text("m", "run_north.json"))
    assert manifest["provenance"]["sources"] == {"few_shot": str(shots[0]), "more": str(shots[1])}
    shots[1].write_text("other")
    finished(harness, code=1, refuses=True)
    assert "m: files.more_g.txt was changed or deleted since the run began" in harness.out
    shots[0].unlink()
    finished(harness, "--allow", "files.more_g.txt")
    assert "m: files.few_shot_g.txt was changed or deleted since the run began" in harness.out
    assert harness.text("m", "more_g.txt") == "other" and "park" in harness.text(
        "m", "few_shot_g.txt"
    )
    harness("reeval")


def test_files_where_they_were_have_not_changed(harness, tasks, file, shots):
    """Whatever their names begin with."""
    shots[0] = shots[0].rename(shots[0].with_name("few_shot_more_g.txt"))
    unfinished(harness, tasks, file, *with_files(shots))
    finished(harness)
    assert "changed or went" not in harness.out and "few_shot" not in harness.out
    harness("verify")
    assert "note" not in harness.out


def test_originals_are_part_of_what_is_known(harness, tasks, file, shots):
    unfinished(harness, tasks, file, *with_files(shots))
    path = harness.results / "m" / "run_north.json"
    data = orjson.loads(path.read_bytes())
    data["provenance"]["sources"]["more"] = "/etc/hostname"
    path.write_bytes(orjson.dumps(data))
    assert trust.NOT_RUN_BEFORE in refused_all(harness, "reeval")


def test_two_files_of_one_kept_name_are_refused(harness, tasks, file, shots):
    changed(
        file,
        "more: Path | None = None",
        "more: Path | None = None\n        few: Path | None = None",
    )
    other = shots[0].with_name("shot_g.txt")
    other.write_text("x")
    words = ("run", file, *EVERYWHERE, "--tasks-dir", tasks, *with_files(shots), "--few", other)
    assert "few_shot_g.txt" in harness.refused(*words)


def test_code_among_the_files_of_somebody_else_needs_trust(harness, tasks, file, shots):
    shots[1] = shots[1].rename(shots[1].with_name("g.py"))
    harness("run", file, *EVERYWHERE, "--tasks-dir", tasks, *with_files(shots))
    foreign(harness.results / "everywhere")
    for words in (("reeval",), ("verify",), ("reeval", "--reparse")):
        assert "--trust" in refused_all(harness, *words, "--benchmark", file)
        harness(*words, "--benchmark", file, "--trust")


@pytest.mark.parametrize("field", ["run", "benchmark", "benchmark_more", "eval", "users"])
def test_a_file_setting_whose_copy_could_replace_a_file_of_the_run_is_refused(
    harness, tasks, file, field
):
    changed(file, "few_shot: Path | None = None", f"{field}: Path | None = None")
    changed(file, "self.settings.few_shot.read_text() if self.settings.few_shot else", "")
    error = harness.refused("run", file, *EVERYWHERE, "--tasks-dir", tasks)
    assert f"Settings.{field}: " in error and "the run's folder" in error


CHECK = """scale: float = 1.0

        def __post_init__(self):
            if self.scale <= 0:
                raise ValueError("the scale must be above 0")
"""


def test_a_value_that_settings_refuse_is_a_bad_input(harness, tasks, file):
    text = file.read_text().replace("        scale: float = 1.0\n", "")
    last = "        few_shot: Path | None = None\n"
    file.write_text(text.replace(last, f"{last}        {CHECK}"))
    words = ("run", file, *EVERYWHERE, "--tasks-dir", tasks)
    assert "--scale: the scale must be above 0" in harness.refused(*words, "--scale", "0")
    harness(*words, "--scale", "2")
    for path in (harness.results / "everywhere").glob("run_*.json"):
        data = orjson.loads(path.read_bytes())
        data["identity"]["settings"]["scale"] = 0.0
        path.write_bytes(orjson.dumps(data))
    assert "identity.settings: the scale must be above 0" in refused_all(
        harness, "reeval", "--trust"
    )


def test_settings_that_fail_on_a_value_name_the_flag(harness, tasks, file):
    last = "        few_shot: Path | None = None\n"
    check = "\n        def __post_init__(self):\n            assert 1 / (self.history_length - 1)\n"
    changed(file, last, f"{last}{check}")
    error = harness.refused("run", file, *EVERYWHERE, "--tasks-dir", tasks, "--history-length", "1")
    assert "--history-length: ZeroDivisionError: division by zero" in error


def test_defaults_that_settings_refuse_are_the_authors_mistake(harness, tasks, file):
    last = "        few_shot: Path | None = None\n"
    changed(
        file,
        last,
        f"{last}        {CHECK.replace('<= 0', '<= 1').replace('scale: float = 1.0', '')}",
    )
    error = harness.refused("run", file, *EVERYWHERE, "--tasks-dir", tasks)
    assert "Visits.Settings: its defaults are refused: the scale must be above 0" in error


def test_two_versions_of_a_file_have_each_their_own_baselines(harness, tasks, file):
    """Both runs go on in one session, where the first two requests of each were refused."""
    before = """    line = messages[-1]"""
    changed(file, "def everywhere(", "CALLS = [1, 2]\n\n\ndef everywhere(")
    changed(file, before, f"    if CALLS:\n        return 1 / CALLS.clear()\n{before}")
    words = ("--model", "baseline/everywhere", "--tasks-dir", tasks, "--subset", "north")
    harness("run", file, *words, "--name", "all", code=1)
    changed(file, 'line.split(", ")', 'line.split(", ")[:1]')
    harness("run", file, *words, "--name", "first", code=1)
    harness("resume")
    answers = {
        name: [
            len(orjson.loads(line)["answer"])
            for line in harness.text(name, "inference_results_north.jsonl").splitlines()
        ]
        for name in ("all", "first")
    }
    assert min(answers["all"]) >= 3 and set(answers["first"]) == {1}
    harness("verify")


def test_a_model_that_is_missing_is_asked_for_with_a_baseline_of_this_benchmark(
    harness,
):
    assert "(baseline/four-stars needs no endpoint)" in harness.refused("run", STARS)


# What authors get wrong

STATIC = {
    "a syntax error": ("def parse(", "def parse((", "line 88"),
    "an error as it is loaded": (
        "import numpy as np",
        "import numpy as np\n1 / 0",
        "ZeroDivisionError",
    ),
    "an end of the process": (
        "import numpy as np",
        "import numpy as np\nraise SystemExit(3)",
        "SystemExit: 3",
    ),
    "no class": ("class Visits(Benchmark):", "class Visits:", "found none"),
    "two classes": (
        "class Visits(",
        "class Other(Benchmark):\n    pass\n\n\nclass Visits(",
        "found 2 (Other, Visits)",
    ),
    "a missing method": ("def measure(", "def measures(", "measure: has to be written"),
    "a metric that is none": (
        'Metric("Hit rate"),',
        '"Hit rate",',
        "metrics: expected a tuple of Metric",
    ),
    "a definition that is none": (
        'Metric("Hit rate"),',
        'Metric("Hit rate", definition=3),',
        "expected a definition",
    ),
    "ranked by no metric": (
        'Metric("Hit rate"),',
        'Metric("Hit rate", ranked_by="Hits"),',
        "'Hits': no such metric",
    ),
    "a metric twice": ('Metric("Hit rate"),', 'Metric("detour"),', "duplicate name detour"),
    "a metric whose name is taken": (
        'Metric("Hit rate"),',
        'Metric("Units"),',
        "'Units': `stats` uses this name",
    ),
    "another direction": ('better="lower"', 'better="low"', 'better is "higher" or "lower"'),
    "bounds upside down": ("bounds=(0, None)", "bounds=(4, 0)", "bounds are"),
    "a headline of no metric": (
        'headline = ("Hit rate", "Detour")',
        'headline = ("Recall",)',
        "no such metric",
    ),
    "a name that is no word": ('name = "visits"', 'name = "my visits"', "name: expected a word"),
    "a name that ships": ('name = "visits"', 'name = "streamprofile"', "a benchmark that ships"),
    "a subset whose name is the mean's": ('"north": ', '"all": ', "subsets: all"),
    "a field that hides a method": (
        'version = "2"',
        'warn = ("Detour",)',
        "warn: the harness calls this",
    ),
    "a field that hides a property": ('version = "2"', "configuration = 3", "configuration: "),
    "a member that belongs to an object": (
        'version = "2"',
        "card = max",
        "belongs to the object `cards`",
    ),
    "a headline of its own": (
        'version = "2"',
        'headline = ("Hit rate",)',
        "headline: belongs to the object `scoring`",
    ),
    "an attribute of an object": (
        'version = "2"',
        'user = "visitor"',
        "user: belongs to the object `about`",
    ),
    "a waiver of its own": (
        'version = "2"',
        "waived = {}",
        "waived: belongs to the object `about`",
    ),
    "a remark of its own": (
        'version = "2"',
        "def remark(self, task): ...",
        "remark: belongs to the object `about`",
    ),
    "columns of cards": (
        'version = "2"',
        "card_columns = ()",
        "card_columns: belongs to the object `cards`",
    ),
    "a field of an object that is set in its class": (
        '    task_files = TaskFiles(key_field="id", ',
        "    class Files(TaskFiles):\n        key_field = 'id'\n\n    task_files = Files(",
        "key_field: Files sets it",
    ),
    "an object of another class": (
        "cards = VisitorCards()",
        "cards = VisitorCards",
        "cards: expected an object of",
    ),
    "live figures of no metric": (
        "class Hits(Scoring):",
        'class Hits(Scoring):\n    live = ("Hits",)',
        "live: 'Hits': no such metric",
    ),
    "live figures that are no tuple": (
        "class Hits(Scoring):",
        'class Hits(Scoring):\n    live = "Detour"',
        "live: expected a tuple",
    ),
    "a title that is none": ('user="visitor"', "title=3", "title: expected text"),
    "no subset": ("subsets = {", "subset = {", "subsets: expected"),
    "a tasks file elsewhere": (
        '"visits/north.jsonl"',
        '"../north.jsonl"',
        "below the tasks folder",
    ),
    "secondary metrics that are none": (
        "class Hits(Scoring):",
        "class Hits(Scoring):\n    secondary = 3",
        "secondary: expected",
    ),
    "a baseline that is none": ('"refuses": refuses', '"refuses": "no"', "baselines: expected"),
    "settings that are no dataclass": ("    @dataclass(frozen=True)\n", "", "no dataclass"),
    "a setting without a default": (
        "scale: float = 1.0",
        "scale: float = field(default_factory=float)",
        "has no default",
    ),
    "a setting of another type": ("scale: float = 1.0", "scale: list = ()", "a setting is text"),
    "a default of another type": ("scale: float = 1.0", 'scale: float = "a"', "expected a number"),
    "an annotation of nothing": ("scale: float = 1.0", "scale: 'Nothing' = 1.0", "Nothing"),
    "a setting that is an option": (
        "scale: float = 1.0",
        "seed: float = 1.0",
        "--seed is an option",
    ),
    "a setting that a report has otherwise": (
        "scale: float = 1.0",
        "tasks: float = 1.0",
        "reports use this name",
    ),
}


@pytest.mark.parametrize("what", STATIC)
def test_a_class_that_cannot_be_used_is_refused_in_one_sentence(harness, tasks, file, what):
    before, after, words = STATIC[what]
    changed(file, before, after)
    assert words in harness.refused("run", file, *EVERYWHERE, "--tasks-dir", tasks)
    assert not (harness.results / "everywhere").exists()


BEFORE_ANY_REQUEST = {
    "parse gives no task": (
        'return Task(line["id"], ',
        'return dict(key=line["id"], ',
        "parse returned",
    ),
    "parse fails on its own": (
        "for name in (",
        "self.nothing.more\n        for name in (",
        "visits",
    ),
    "no value of a metric": (
        '{"Hit rate": None, "Detour": None}',
        '{"Hit rate": None}',
        "expected a value of each",
    ),
    "a value that is none": (
        '{"Hit rate": None, "Detour": None}',
        '{"Hit rate": "a", "Detour": None}',
        "a number",
    ),
    "prepare hides an object": (
        "self.examples = ",
        "self.records = []\n        self.examples = ",
        "self.records",
    ),
    "prepare fails": (
        "self.examples = ",
        "self.examples = 1 / 0\n        self.examples = ",
        "ZeroDivisionError",
    ),
}


@pytest.mark.parametrize("what", BEFORE_ANY_REQUEST)
def test_what_is_wrong_with_tasks_and_values_is_found_before_anything_is_paid_for(
    harness, tasks, file, what
):
    before, after, words = BEFORE_ANY_REQUEST[what]
    changed(file, before, after)
    changed(file, "    scoring = Hits()\n", "")
    assert words in harness.refused("run", file, *EVERYWHERE, "--tasks-dir", tasks)
    assert not list(harness.results.glob("*/responses_*.jsonl")) or not any(
        path.stat().st_size for path in harness.results.glob("*/responses_*.jsonl")
    )


WHILE_PLAYED = {
    "play gives what is no JSON": (
        "return await chat.json([",
        "return object() or await chat.json([",
        "as JSON",
    ),
    "an invalid reply that is valid": (
        "read=read)",
        'read=lambda reply: (_ for _ in ()).throw(InvalidReply("valid")))',
        "as a word",
    ),
    "play fails": ("past = given", "past = 1 / 0 or given", "ZeroDivisionError"),
    "statistics of another shape": (
        "return rows",
        "return rows[:-1]",
        "statistics: expected a row",
    ),
    "statistics that are no numbers": ("return rows", "return [['x']]", "statistics"),
    "figures of another shape": (
        "totals[:, 2] / totals[:, 3]], axis=1)",
        "totals[:, 2]], axis=0)",
        "figures: expected",
    ),
    "sections fail": (
        'yield Heading("Visits")',
        "yield Heading(1 / 0)",
        "sections: ZeroDivisionError",
    ),
    "sections of no block": (
        'yield Heading("Visits")',
        'yield "Visits"',
        "expected a block of a report, got str",
    ),
    "a block of no text": (
        'yield Heading("Visits")',
        "yield Heading(5)",
        "Heading: Expected `str`",
    ),
    "a table of unequal rows": ('(("hits",', '(("hits", "x",', "a row of another length"),
}


@pytest.mark.parametrize("what", WHILE_PLAYED)
def test_what_fails_later_names_the_benchmark_and_loses_nothing(harness, tasks, file, what):
    before, after, words = WHILE_PLAYED[what]
    changed(file, before, after)
    harness("run", file, *EVERYWHERE, "--tasks-dir", tasks, code=2)
    assert words in harness.out + harness.err and "benchmark visits" in harness.out + harness.err
    shutil.copy(VISITS, file)
    harness("resume", "--benchmark", file, "--allow", "files.benchmark_visits.py")
    assert harness.report("everywhere", "north")["coverage"]["complete"]


@pytest.mark.parametrize(
    "what", ["raise ValueError('no card')", "yield 'a card'", "yield Quote('a', 5)"]
)
def test_a_card_that_fails_costs_the_page_alone(harness, tasks, file, what):
    changed(file, "for reply in replies:", f"{what}\n        for reply in replies:")
    harness("run", file, "--model", "baseline/everywhere", "--tasks-dir", tasks)
    assert "the page could not be made: benchmark visits, user 0, card: " in harness.err
    harness("report", "--name", "everywhere", code=2)
    assert "card: " in harness.err


def test_a_baseline_that_fails_is_refused_without_other_tries(harness, tasks, file):
    changed(file, 'return "I had rather not."', "return 1 / 0")
    harness("run", file, "--model", "baseline/refuses", "--tasks-dir", tasks, code=3)
    assert "the baseline baseline/refuses failed: ZeroDivisionError" in harness.out + harness.err


def test_a_class_is_found_by_name_file_or_module_alone():
    for spec in ("nothing", "no:1", "a b:C", ""):
        with pytest.raises(BadInput, match="unknown benchmark"):
            registry.find(spec)
    with pytest.raises(BadInput, match="cannot read"):
        registry.find("no-such-file.py")
