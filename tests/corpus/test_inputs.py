"""Bad input through the real command: one sentence with file, line and field, exit 2, nothing
written, no traceback.

What is put where a file is read is made by the modules beside; docs/design.md, section 6, says what
becomes of it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import orjson
import pytest

from harness.benchmarks.dailymobility import groundtruth
from tests.corpus import Case, mobility, settings, tasks
from tests.corpus.command import BAD_INPUT, MODEL, RUN, TASKS, Commands, put, works_afterwards
from tests.support.scripted import baseline, serving


@pytest.mark.parametrize("case", tasks.BAD, ids=lambda case: case.name)
def test_bad_tasks_file_is_refused_before_anything_is_written(command, case):
    """Whatever is wrong with a line, the complaint names file, line and field; good tasks then
    run."""
    put(TASKS, case.content)
    command.refuses(case, *RUN)
    assert TASKS.name in command.said


def test_good_tasks_run_after_all_the_bad_ones(command):
    """Neither the cache of indexes nor a folder keeps anything of what was refused."""
    for case in tasks.BAD:
        put(TASKS, case.content)
        assert command(*RUN) == BAD_INPUT, case.name
    works_afterwards(command)


@pytest.mark.parametrize("case", tasks.USED, ids=lambda case: case.name)
def test_odd_tasks_file_runs_and_verifies(command, case):
    """What is unusual and means something is taken as it is, to a report and a sound folder."""
    put(TASKS, case.content)
    assert command(*RUN) == 0, command.said
    assert command("verify") == 0, command.said
    assert command("reeval") == 0, command.said
    assert orjson.loads(Path("results/recency/eval_report_weibo.json").read_bytes())["coverage"][
        "complete"
    ]


@pytest.mark.parametrize("field", tasks.FIELDS)
def test_a_wrong_value_in_any_field_is_refused_with_its_place_or_means_something(command, field):
    """Of each odd value in a field the command either names line and field, or makes a whole
    run."""
    taken = []
    for case in tasks.odd(field):
        put(TASKS, tasks.GOOD + case.content)
        if command("sample", "--ratio", "1", "--platform", "weibo", "--force") == 0:
            taken.append(case.content)
            continue
        assert f"{TASKS}, line 2" in command.said, case.name
        assert tasks.shown(field) in command.said or "JSON" in command.said, case.name
    assert len(taken) < 15
    put(TASKS, tasks.GOOD + b"\n".join(taken))
    assert command(*RUN) == 0, command.said
    assert command("verify") == 0, command.said


def test_the_same_user_in_files_of_two_platforms_is_two_users(command):
    """Keys are a platform's own."""
    put(TASKS, tasks.GOOD)
    put(
        "tasks/zhihu_inference_tasks.jsonl", tasks.line({**tasks.user("good"), "platform": "zhihu"})
    )
    assert command(*RUN, "--platform", "zhihu") == 0
    assert command("verify") == 0


@pytest.mark.parametrize(
    "end", [b'", "x"}\n', b"}\n"], ids=["a field that is bad", "a text without end"]
)
def test_a_line_of_50_megabytes_is_refused_in_a_short_sentence(command, end):
    """The complaint names the line and repeats nothing of it."""
    put(TASKS, tasks.fifty_megabytes(end))
    command.refuses(Case("50 MB", b"", ("line 2", "JSON")), *RUN)


def unreadable(path: Path) -> Iterator[str]:
    """What may stand where a file is expected, one after the other, with its name."""
    for name in ("directory", "pipe", "dead link", "link to itself", "device"):
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.is_dir():
            path.rmdir()
        path.unlink(missing_ok=True)
        match name:
            case "directory":
                path.mkdir()
            case "pipe":
                os.mkfifo(path)
            case "device":
                path.symlink_to("/dev/null")
            case _:
                path.symlink_to("nowhere" if name == "dead link" else path.name)
        yield name
    path.unlink()


def refuses_what_is_no_file(command: Commands, path: Path, *words: object) -> None:
    for name in unreadable(path):
        assert command(*words) == BAD_INPUT, f"{name}: {command.said}"
        assert path.name in command.said, name


def test_what_is_no_file_is_refused_as_tasks(command):
    """A folder, a pipe that nobody writes to, a link to nowhere: said at once, and nothing
    waits."""
    refuses_what_is_no_file(command, TASKS, *RUN)
    works_afterwards(command)


@pytest.mark.parametrize(
    "name", ["../up", "a/b", "a\x00b", "a\nb", "..", ".", "", "/abs", "a\x1b[2J", "x" * 300]
)
def test_a_name_that_is_no_folder_of_the_results_is_refused(command, name):
    """A run's name cannot lead elsewhere, nor hold what a terminal obeys."""
    put(TASKS, tasks.GOOD)
    command.refuses(Case(name, b""), *RUN, "--name", name)


@pytest.mark.parametrize(
    "name",
    ["../weibo", "weibo/../zhihu", "weibo\x00", "weibo\n", "", "*", "微博", "we[i]bo", "beijing"],
)
def test_an_unknown_platform_is_refused(command, name):
    """A platform is one of the five, whatever path or pattern it looks like."""
    put(TASKS, tasks.GOOD)
    command.refuses(Case(name, b""), "run", *MODEL, "--platform", name)
    assert command("sample", "--ratio", "0.5", "--platform", name) == BAD_INPUT


@pytest.mark.parametrize(
    "model", ["a/..", "..", "a\x00b", "a\nb", "/", "", " ", "a/.hidden", "\x1b[2J"]
)
def test_a_model_whose_name_makes_no_folder_is_refused(command, model):
    """A model whose last part is no name needs --name, and one with signs of control is none."""
    put(TASKS, tasks.GOOD)
    words = (
        "run",
        "--model",
        model,
        "--platform",
        "weibo",
        "--api-url",
        "http://127.0.0.1:9/v1",
        "--api-key",
        "x",
    )
    command.refuses(Case(model, b""), *words)


def test_a_model_called_like_a_path_has_its_run_below_the_results(command, folder):
    """Only the last part of a model's name is its folder's."""
    put(TASKS, tasks.GOOD)
    with serving(baseline) as server:
        to = ("--api-url", server.url, "--api-key", "sk-test")
        assert command("run", "--model", "../../x", "--platform", "weibo", *to) == 0, command.said
    assert {path.name for path in folder.iterdir()} == {"tasks", "results"}
    assert {path.name for path in Path("results").iterdir()} == {".index", "x"}


# DailyMobility

DATA = Path("tasks/dailymobility")
MOBILITY = ("run", "dailymobility", "--model", "baseline/commuter", "--name", "commuter")


def put_city() -> None:
    for name, content in mobility.FILES.items():
        put(DATA / name, content)


@pytest.mark.parametrize(
    ("name", "cases"),
    [
        ("profiles.json", mobility.BAD_PROFILES),
        ("beijing.pb", mobility.BAD_MAPS),
        (mobility.RADII, mobility.BAD_ARRAYS),
    ],
)
def test_bad_data_of_a_city_is_refused(command, name, cases):
    """Profiles, map and ground truth: the complaint names the file and what was expected; good ones
    then run."""
    put_city()
    for case in cases:
        put(DATA / name, case.content)
        command.refuses(case, *MOBILITY)
        assert str(DATA) in command.said, case.name
    put_city()
    assert command(*MOBILITY) == 0, command.said
    assert command("verify") == 0, command.said


@pytest.mark.parametrize("name", ["profiles.json", "beijing.pb", mobility.RADII])
def test_what_is_no_file_is_refused_in_a_city(command, name):
    """A folder, a pipe or a dead link in place of any of the data is reported at once."""
    put_city()
    refuses_what_is_no_file(command, DATA / name, *MOBILITY)


SCORE = ("score-mobility", "--data", DATA)


@pytest.mark.parametrize(
    ("name", "cases"), [("a.json", mobility.BAD_LISTS), ("a.pkl", mobility.BAD_PICKLES)]
)
def test_bad_lists_to_score_are_refused(command, name, cases):
    """The complaint names the list and the row; what a pickle wants to run is not run."""
    put_city()
    for case in cases:
        command.refuses(case, *SCORE, put(name, case.content))
        assert name in command.said, case.name
    assert command(*SCORE, put(name, orjson.dumps(mobility.GOOD_LISTS))) == 0, command.said


@pytest.mark.parametrize("name", ["a.json", "a.pkl"])
def test_what_is_no_file_is_refused_as_lists(command, name):
    put_city()
    refuses_what_is_no_file(command, Path(name), *SCORE, name)


def test_a_truth_with_a_file_of_another_number_of_rows_is_refused(command):
    """Four files of as many residents each."""
    put_city()
    for name in groundtruth.FILES:
        short = f"{groundtruth.FOLDER}/{name}.npy"
        put(DATA / short, mobility.shortened(short))
        command.refuses(Case(name, b"", ("residents",)), *MOBILITY)
        put_city()


# Prompts, agents and settings


@pytest.mark.parametrize(
    ("name", "cases", "words"),
    [
        ("p.txt", settings.BAD_PROMPTS, (*RUN, "--prompt")),
        ("bench_task.py", settings.BAD_AUTHORS_PROMPTS, (*RUN, "--prompt")),
        ("agent.py", settings.BAD_AGENTS, (*MOBILITY, "--agent")),
        ("providers.toml", settings.BAD_PROVIDERS, (*RUN, "--providers")),
        ("config.yml", settings.BAD_CONFIGS, ("run", "--platform", "weibo", "--config")),
    ],
    ids=lambda value: value if type(value) is str else "",
)
def test_a_bad_file_of_settings_is_refused(command, name, cases, words):
    """The complaint names the file and what was expected there; a run without it then works."""
    put(TASKS, tasks.GOOD)
    put_city()
    for case in cases:
        command.refuses(case, *words, put(f"given/{name}", case.content))
        assert name in command.said or not case.words, case.name
    works_afterwards(command)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("p.txt", (*RUN, "--prompt")),
        ("bench_task.py", (*RUN, "--prompt")),
        ("agent.py", (*MOBILITY, "--agent")),
        ("providers.toml", (*RUN, "--providers")),
        ("config.yml", ("run", "--platform", "weibo", "--config")),
    ],
    ids=lambda value: value if type(value) is str else "",
)
def test_what_is_no_file_is_refused_as_settings(command, name, words):
    """A folder, a pipe or a dead link that an option names is reported at once."""
    put(TASKS, tasks.GOOD)
    put_city()
    refuses_what_is_no_file(command, Path(name), *words, name)
