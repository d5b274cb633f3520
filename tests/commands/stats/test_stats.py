"""`stats`: what may be ranked, what tables say in each of their forms, and Excel files read back as
XML."""

from __future__ import annotations

import copy
import csv
import hashlib
import io
import os
import re
import subprocess
import sys
import zipfile
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import msgspec
import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness import leaderboard
from harness.benchmark import metrics_of
from harness.benchmarks import registry, streamprofile
from harness.benchmarks.streamprofile.benchmark import published
from harness.benchmarks.streamprofile.summary import RELEASE
from harness.cli import main
from harness.commands.stats.notes import notes
from harness.commands.stats.run_reports import RunReport, RunSettings, read
from harness.commands.stats.standings import AVERAGE, Standing, StandingFigure, standings
from harness.commands.stats.workbooks import workbooks
from harness.document import Cell, Table
from harness.reporting import markdown
from harness.reporting.xlsx import titles, workbook
from harness.scoring.reports import Report, declared
from tests.support import examples
from tests.support.commands import execute

Told = pytest.CaptureFixture[str]
DECLARED = {name: declared(registry.find(name)) for name in registry.names()}
PLATFORMS = tuple(DECLARED["streamprofile"]["subsets"])
XML = "{http://schemas.openxmlformats.org/spreadsheetml/2006/main}"

UNITS: dict[str, Any] = DECLARED["streamprofile"]["metric_units"]
RANKED_BY = {name: of["ranked_by"] for name, of in UNITS.items() if "ranked_by" in of}
WANTED = ("Recall", "Error_Peer", "F1^NS", "F1^NS (release code)", "FWT Error_Peer")
SHOWN = (*WANTED, *map(RANKED_BY.__getitem__, WANTED))
REPORT: dict[str, Any] = {
    **DECLARED["streamprofile"],
    "metric_units": {name: UNITS[name] for name in SHOWN},
    "format": 2,
    "benchmark": "streamprofile",
    "prompt_version": "1",
    "prompt": "own",
    "subset": "weibo",
    "model": "vendor/模型",
    "name": "one",
    "coverage": {"expected_users": 40, "scored_users": 40, "failed_users": 0, "complete": True},
    "metrics": {
        "Recall": {"value": 0.34625, "ci95": [0.3, 0.4], "users": 40},
        "Error_Peer": {"value": 0.125, "ci95": [0.1, 0.2], "users": 39},
        "F1^NS": {"value": None, "ci95": None, "users": 0},
    },
    "secondary": {
        "F1^NS (release code)": {"value": 0.25, "ci95": None, "users": None},
        "FWT Error_Peer": {"value": -0.015, "ci95": [-0.02, 0.01], "users": 31},
    },
    "diagnostics": {"answers": 200, "valid_answers": 200, "invalid": {"length": 0}, "breaches": {}},
    "run": {
        "ratio": 1.0,
        "users_in_tasks": 40,
        "temperature": 0.0,
        "extra_body": {},
        "persona": True,
        "tasks_sha256": "ab" * 32,
        "files": {"prompt_own.txt": "cd" * 32},
        "created": "2026-01-01",
        "harness": "0.1.0",
    },
    "usage": {"requests": 210, "prompt_tokens": 1_234_567, "completion_tokens": 8_900, "untold": 2},
    "notes": ["这些任务是 synthetic 的"],
}


def write(
    results: Path, run: str, changes: Mapping[str, Any] | None = None, /, **parts: Mapping[str, Any]
) -> Path:
    """A report of `run`; `changes` replace whole keys, `parts` single values within one."""
    data = copy.deepcopy(REPORT) | dict(changes or {})
    for name, part in parts.items():
        data[name] |= part
    values = data["metrics"] | data["secondary"]
    data["secondary"] = {
        by: values[name] for name, by in RANKED_BY.items() if name in values
    } | data["secondary"]
    path = results / run / f"eval_report_{data['subset']}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(orjson.dumps(data))
    return path


def scored(
    run: str,
    value: float | None = 0.5,
    *,
    subset: str = "weibo",
    metric: str = "Recall",
    prompt: str = "own",
    version: str = "1",
    tasks: str = "",
    users: int = 40,
    expected: int = 40,
    complete: bool = True,
    answers: int = 200,
    invalid: int = 0,
    values: Mapping[str, Any] | None = None,
    chance: Mapping[str, float] | None = None,
) -> RunReport:
    """A report with one metric; complete unless stated otherwise. Its answers keep the rules."""
    benchmark = "dailymobility" if subset == "beijing" else "streamprofile"
    coverage = {
        "expected_users": expected,
        "scored_users": users,
        "failed_users": 0,
        "complete": complete,
    }
    data = {
        **DECLARED[benchmark],
        "benchmark": benchmark,
        "prompt": prompt,
        "prompt_version": version,
        "subset": subset,
        "model": "m",
        "name": run,
        "coverage": coverage,
        "metrics": (
            {name: {"value": value} for name in (metric, RANKED_BY.get(metric, metric))}
            | dict(values or {})
        ),
        "diagnostics": {
            "answers": answers,
            "valid_answers": answers - invalid,
            "invalid": {"length": invalid},
            "breaches": {},
        },
        "chance": dict(chance or {}),
        "notes": [],
    }
    return RunReport(
        run,
        msgspec.convert(data, Report),
        RunSettings(users_in_tasks=40, tasks_sha256=tasks or subset),
    )


def table(*reports: RunReport, with_published: bool = False) -> Standing:
    return standings(reports, published=with_published)[0]


def shown(figure: StandingFigure) -> float:
    """A figure of Recall as tables have it: in percent with two decimals."""
    metric = metrics_of(registry.find("streamprofile"))["Recall"]
    assert metric is not None
    assert figure.shown.value is not None
    return metric.shown(figure.shown.value)


def places(made: Standing, column: str = "weibo") -> dict[str, str | None]:
    return {
        row.name: figure.place if (figure := row.figures[column]) else None for row in made.rows
    }


# What may be ranked


def test_best_and_second_best_are_marked_and_equal_figures_share_their_place():
    """Equal is what is printed alike: a digit that nobody sees makes no one better."""
    made = table(
        scored("a", 0.30004), scored("b", 0.3), scored("c", 0.2), scored("d", 0.2), scored("e", 0.1)
    )
    assert places(made) == {"a": "best", "b": "best", "c": "second", "d": "second", "e": None}


@pytest.mark.parametrize(
    ("metric", "subset"),
    [("Error_Viral", "weibo"), ("FWT Error_Viral", "weibo"), ("JSD_per_slot", "beijing")],
)
def test_of_errors_and_divergences_the_lowest_is_best(metric, subset):
    """So too of the change of an error from step to step."""
    made = table(
        *(
            scored(name, value, subset=subset, metric=metric)
            for name, value in (("a", 0.2), ("b", 0.1))
        )
    )
    assert places(made, subset) == {"a": "second", "b": "best"}


@pytest.mark.parametrize(
    ("metric", "recall", "f1", "place"),
    [
        (
            "Recall",
            (0.4, [0.3, 0.5]),
            (0.1, None),
            "best",
        ),  # another headline figure does not matter
        ("Recall", (0.4, [0.2, 0.5]), (0.4, None), None),  # chance is in the interval
        ("Recall", (0.4, None), (0.4, None), "best"),  # without one the figure decides
        ("Error_Viral", (0.4, [0.3, 0.5]), (0.4, [0.3, 0.5]), "best"),
        ("Error_Viral", (0.4, [0.3, 0.5]), (0.2, None), None),  # keeps tags, and finds none
        ("FWT Recall", (0.2, None), (0.4, None), None),
    ],
)
def test_run_that_is_not_better_than_chance_is_never_marked(metric, recall, f1, place):
    """In the table of a headline figure by that figure, in any other by all of them; no other is
    best instead."""
    values = {
        name: {"value": value, "ci95": interval}
        for names, (value, interval) in (
            (("Recall", "Recall (cut)"), recall),
            (("F1^NS", "F1^NS (cut)"), f1),
        )
        for name in names
    }
    own = 0.0 if metric.startswith("Error") else 0.9
    weak = scored("a", own, metric=metric, values=values, chance={"Recall": 0.2, "F1^NS": 0.2})
    made = standings([weak, scored("b", 0.1, metric=metric)], published=False)
    assert places(next(of for of in made if of.metric.name == metric)) == {
        "a": place,
        "b": "second",
    }


@pytest.mark.parametrize(
    "odd", [{"complete": False}, {"prompt": "authors"}, {"version": "2"}, {"tasks": "x"}]
)
def test_only_complete_runs_of_one_prompt_and_tasks_file_are_ranked(odd):
    """The highest figure is no best where it stands for something else; and where it is complete,
    no other is."""
    made = table(scored("a", 0.9, **odd), scored("b", 0.3), scored("c", 0.2))
    best = ["best", "second"] if "complete" in odd else ["second", None]
    assert places(made) == {"a": None, **dict(zip("bc", best, strict=True))}


def ranks(results: Path, capsys: Told) -> dict[str, str]:
    """Of each run the place of its Recall."""
    execute(results, "stats", "--format", "csv", "--metric", "Recall")
    return {
        line["run"]: line["place"] for line in csv.DictReader(io.StringIO(capsys.readouterr().out))
    }


@pytest.mark.parametrize("prompt", ["p.txt", "agent a.py"])
def test_two_prompts_or_agents_of_one_name_are_not_ranked_against_each_other(
    prompt, tmp_path, capsys
):
    """A name says nothing of what is in a file: its SHA-256 does, and where a report has none,
    nobody knows."""
    for run, digest in {"a": "1" * 64, "b": "2" * 64, "c": "1" * 64}.items():
        write(tmp_path, run, {"prompt": prompt}, run={"files": {f"prompt_{prompt}": digest}})
    for run in ("d", "e"):
        write(tmp_path, run, {"prompt": prompt}, run={"files": {}})
    assert ranks(tmp_path, capsys) == {"a": "best", "b": "", "c": "best", "d": "", "e": ""}


def test_reports_have_the_sha256_of_their_prompt(tmp_path):
    """From the run on: tables read it there, and show its beginning."""
    prompt = tmp_path / "p.txt"
    prompt.write_bytes(
        (Path(streamprofile.__file__).parent / "prompt.txt").read_bytes() + "请\n".encode()
    )
    where = ["--prompt", str(prompt), "--results-dir", str(tmp_path / "results"), "--no-html"]
    assert (
        main(
            [
                "run",
                "--demo",
                "--model",
                "baseline/recency",
                "--platform",
                "weibo",
                "--name",
                "a",
                *where,
            ]
        )
        == 0
    )
    found = read(tmp_path / "results" / "a" / "eval_report_weibo.json")
    digest = hashlib.sha256(prompt.read_bytes()).hexdigest()
    assert found.file_hashes == (digest,)
    assert found.about == f"baseline/recency, p.txt ({digest[:12]}…) prompt, synthetic tasks"


def test_one_run_alone_is_not_the_best():
    """There is nothing that it would be better than."""
    assert places(table(scored("a", 0.9), scored("b", None))) == {"a": None, "b": None}


def test_average_is_blank_and_unranked_unless_all_five_platforms_are_complete():
    """Over fewer platforms it would compare with nothing."""
    whole = [
        scored("whole", 0.1 * number, subset=subset) for number, subset in enumerate(PLATFORMS, 1)
    ]
    part = [scored("part", 0.9, subset=subset, complete=subset != "douban") for subset in PLATFORMS]
    four = [scored("four", 0.9, subset=subset) for subset in PLATFORMS[:4]]
    averages = {row.name: row.figures[AVERAGE] for row in table(*whole, *part, *four).rows}
    assert averages["part"] is averages["four"] is None
    assert averages["whole"] is not None and shown(averages["whole"]) == 30.0


# What was published


def test_published_recall_averages_its_platforms_and_f1_does_not():
    """The release prints a mean for Recall; `Overall` of F1^NS is another thing, kept as
    printed."""
    percent = metrics_of(registry.find("streamprofile"))["Recall"]
    assert percent is not None
    figures = {
        name: {
            model: {column: percent.shown(value) for column, value in of.items()}
            for model, of in models.items()
        }
        for name, models in published().figures.items()
    }
    assert {name: len(models) for name, models in figures.items()} == {"Recall": 14, RELEASE: 14}
    for models in figures.values():
        assert all(list(model) == [AVERAGE, *PLATFORMS] for model in models.values())
    off = {
        name: [
            abs(of[AVERAGE] - sum(of[platform] for platform in PLATFORMS) / 5)
            for of in models.values()
        ]
        for name, models in figures.items()
    }
    assert max(off["Recall"]) < 0.0101
    assert min(off[RELEASE]) == pytest.approx(0.0, abs=0.01) and max(off[RELEASE]) > 5


def test_published_f1_is_shown_with_the_definition_that_it_has(tmp_path, capsys):
    """The release code leaves out users whom ours counts: both are shown, published rows only in
    its table."""
    write(tmp_path, "a", metrics={"F1^NS": {"value": 0.2, "ci95": None, "users": 40}})
    execute(tmp_path, "stats", "--published", "--format", "csv")
    lines = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    rows = Counter((line["metric"], line["published"]) for line in lines)
    assert rows == {
        **{(name, "no"): 1 for name in ("Recall", "F1^NS", RELEASE)},
        **{(name, "yes"): 14 * 6 for name in ("Recall", RELEASE)},
    }


@pytest.mark.parametrize("name", registry.names())
def test_every_excel_file_has_the_definition_of_its_metric(name):
    """So that two metrics of nearly one name are not mistaken for each other."""
    of = registry.find(name)
    subset = next(iter(of.subsets))
    made = [
        scored("a", subset=subset, metric=metric.name)
        for metric in (*of.metrics, *of.scoring.secondary)
    ]
    notes = {
        title: sheets[0].notes[0]
        for title, sheets in workbooks(standings(made, published=False), made)
    }
    definitions = {
        metric.name: metric.definition for metric in (*of.metrics, *of.scoring.secondary)
    }
    assert all(definitions.values()) and len(set(definitions.values())) == len(definitions)
    notes.pop("summary")
    shown = [
        definition for name, definition in definitions.items() if name not in RANKED_BY.values()
    ]
    assert all(definition in note for definition, note in zip(shown, notes.values(), strict=True))


def test_published_scores_stand_beside_runs_and_are_never_ranked():
    """After the runs, figures as printed, and no place taken from a run."""
    made = table(scored("GPT-5.1", 0.3), scored("b", 0.2), with_published=True)
    assert [row.label for row in made.rows[:3]] == ["GPT-5.1", "b", "GPT-4o-mini (published)"]
    ranked = [any(figure and figure.place for figure in row.figures.values()) for row in made.rows]
    assert ranked == [True, True] + [False] * (len(made.rows) - 2)
    printed = {
        row.label: [shown(figure) for figure in row.figures.values() if figure] for row in made.rows
    }
    assert printed["Gemini-3-Flash (published)"] == [52.26, 62.95, 46.76, 50.09, 48.37, 53.15]


def test_published_table_can_be_had_without_any_run(tmp_path, capsys):
    """And where it is not asked for, no run is an error."""
    where = ["--results-dir", str(tmp_path)]
    assert main(["stats", "--published", "--format", "csv", *where]) == 0
    lines = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert (
        len(lines) == 2 * 14 * 6
        and {line["metric"] for line in lines} == {"Recall", RELEASE}
        and {line["published"] for line in lines} == {"yes"}
    )
    assert main(["stats", *where]) == 2
    assert "run something first" in capsys.readouterr().err


# Reading reports


def places_in(data: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The way to every value of a JSON document."""
    if path:
        yield path
    for key in (
        data if isinstance(data, dict) else range(len(data)) if isinstance(data, list) else ()
    ):
        yield from places_in(data[key], (*path, key))


ODD: tuple[Any, ...] = (..., None, "", -1, 1e308, True, [], {}, [[None]], {"a": 1}, "值", [1, 2, 3])


def odd_reports() -> Iterator[dict[str, Any]]:
    """The report with each of its values odd in turn, or missing."""
    for path in places_in(REPORT):
        for odd in ODD:
            data = copy.deepcopy(REPORT)
            inner: Any = data
            for key in path[:-1]:
                inner = inner[key]
            if odd is ...:
                del inner[path[-1]]
            else:
                inner[path[-1]] = odd
            yield data


@pytest.mark.slow
def test_damaged_reports_are_told_or_read_and_keep_no_other_from_the_tables(tmp_path, capsys):
    """Whatever stands in a field, or is missing, reading, writing and printing meet no surprise."""
    write(tmp_path, "good")
    for number, data in enumerate(odd_reports()):
        (tmp_path / f"odd{number}").mkdir()
        (tmp_path / f"odd{number}" / "eval_report_weibo.json").write_bytes(orjson.dumps(data))
    for form in ("table", "markdown", "latex", "csv"):
        execute(tmp_path, "stats", "--format", form, "--published", code=2)
        shown = capsys.readouterr()
        assert "good" in shown.out
        assert set(re.sub(r"harness: \S+: ", "", shown.err).splitlines()) <= {
            "not a report that this version reads: regenerate it with `reeval`",
            *(f"a report of format {odd!r}, not 4: regenerate it with `reeval`" for odd in ODD),
            *(f"not the report that its name says but one of the subset {odd!r}" for odd in ODD),
            *(f"a report of 'streamprofile' on {odd!r}, which it does not have" for odd in ODD),
            *(f"a report of {odd!r} on 'weibo', which it does not have" for odd in ODD),
            "a report of 'streamprofile' on 'weibo', which it does not have",
        }


@pytest.mark.parametrize(
    ("changes", "expected_text"),
    [
        ({"format": 5}, "a report of format 5, not 4: regenerate it with `reeval`"),
        ({"subset": "twitter"}, "a report of 'streamprofile' on 'twitter', which it does not have"),
    ],
)
def test_report_without_a_place_is_told_and_the_others_are_shown(
    changes, expected_text, tmp_path, capsys
):
    """The exit code is that of a bad input."""
    write(tmp_path, "good")
    bad = write(tmp_path, "bad", changes)
    execute(tmp_path, "stats", "--json", code=2)
    shown = capsys.readouterr()
    assert shown.err == f"harness: {bad}: {expected_text}\n"
    assert list(orjson.loads(shown.out)["Recall"]) == ["good"]


def test_report_under_the_name_of_another_platform_is_told(tmp_path, capsys):
    """A copied file must not silently take a platform's place."""
    path = write(tmp_path, "one")
    path.rename(path.with_name("eval_report_zhihu.json"))
    execute(tmp_path, "stats", code=2)
    assert (
        "not the report that its name says but one of the subset 'weibo'" in capsys.readouterr().err
    )


@pytest.mark.parametrize(
    "form", ["--json", "--format=table", "--format=markdown", "--format=latex", "--format=csv"]
)
def test_folder_whose_name_is_no_text_is_shown_escaped(form, tmp_path, capsys):
    """Bytes that are no UTF-8 neither end the command nor spoil a file."""
    (tmp_path / os.fsdecode(b"bad\xff")).mkdir()
    (tmp_path / os.fsdecode(b"bad\xff") / "eval_report_weibo.json").write_bytes(
        orjson.dumps(REPORT)
    )
    execute(tmp_path, "stats", form)
    assert "xff" in capsys.readouterr().out


# What stands beneath


def beneath(results: Path, capsys: Told, *words: str) -> str:
    """What `stats` prints of the Recall of all runs, in Markdown, without its escapes."""
    execute(results, "stats", "--format", "markdown", "--metric", "Recall", *words)
    return capsys.readouterr().out.replace("\\", "")


def unfinished(results: Path, run: str, *subsets: str) -> None:
    """A run without reports, as one that was killed."""
    (results / run).mkdir(exist_ok=True)
    for subset in subsets:
        (results / run / f"run_{subset}.json").write_bytes(b"{}")


NOBODY: dict[str, Any] = {
    "metrics": {"Recall": {"value": None, "ci95": None, "users": 0}},
    "coverage": REPORT["coverage"] | {"scored_users": 0, "failed_users": 40, "complete": False},
}


def test_runs_without_a_row_are_told_under_the_tables(tmp_path, capsys):
    """Those of which no user is scored, and those without a report yet; among named runs only
    these."""
    write(tmp_path, "one")
    write(tmp_path, "坏", NOBODY)
    unfinished(tmp_path, "one", "weibo", "zhihu")
    unfinished(tmp_path, "b", "douban")
    nobody, why = (
        "Left out: 坏 on weibo (no user is scored).",
        "(unfinished: no report yet; resume continues, report --name",
    )
    shown = beneath(tmp_path, capsys)
    assert (
        nobody in shown
        and f"Left out: b on douban; one on zhihu {why}" in shown
        and "| 坏" not in shown
    )
    unfinished(tmp_path, "c", "weibo")
    shown = beneath(tmp_path, capsys, "one", "b")
    assert nobody not in shown and f"Left out: b on douban; one on zhihu {why}" in shown
    execute(tmp_path, "stats", "--format", "latex")
    assert f"% {nobody}" in capsys.readouterr().out.splitlines()


@pytest.mark.parametrize(
    ("runs", "names", "expected_text"),
    [
        (
            "b",
            (),
            (
                "no reports under {0}, but 2 unfinished runs: resume continues, report --name NAME"
                " scores what exists"
            ),
        ),
        ("b", ("b",), "no reports of 'b' under {0}, but 2 unfinished runs: resume continues"),
        ("坏", (), "no user is scored in 坏 on weibo under {0}"),
        (
            "坏b",
            (),
            "no user is scored in 坏 on weibo under {0}, and 2 unfinished runs: resume continues",
        ),
        ("", (), "no reports under {0}: run something first"),
    ],
)
def test_nothing_to_show_is_told_with_what_there_is(runs, names, expected_text, tmp_path, capsys):
    """Who has runs that were killed need not run something first."""
    if "坏" in runs:
        write(tmp_path, "坏", NOBODY)
    if "b" in runs:
        unfinished(tmp_path, "b", "douban", "zhihu")
    execute(tmp_path, "stats", *names, code=2)
    assert expected_text.format(tmp_path) in capsys.readouterr().err


@pytest.mark.parametrize(
    ("sampling", "expected_text"),
    [
        ({"temperature": 0.9, "seed": 2**40}, "temperature 0.9, seed 1099511627776"),
        (
            {"temperature": 1, "top_p": 0.5, "max_tokens": 100},
            "temperature 1, top_p 0.5, max_tokens 100",
        ),
        ({"extra_body": {"思考": False}, "seed": 0}, 'seed 0, extra_body {"思考":false}'),
        ({"persona": False, "seed": 3}, "no persona, seed 3"),
        ({"structured": "json_schema", "seed": 3}, "seed 3, structured json_schema"),
    ],
)
def test_sampling_that_is_not_the_default_is_told(sampling, expected_text, tmp_path):
    """Two runs of one model and prompt that were asked otherwise do not read alike."""
    assert (
        read(write(tmp_path, "one", run=sampling)).about
        == f"vendor/模型, own prompt, {expected_text}, synthetic tasks"
    )


def test_long_members_of_requests_that_begin_alike_do_not_read_alike(tmp_path):
    """What is cut has the beginning of its SHA-256."""
    bodies = [{"a": "长" * 100, "b": number} for number in (1, 2)]
    one, two = (read(write(tmp_path, "one", run={"extra_body": body})).about for body in bodies)
    assert one != two and max(len(one), len(two)) < 150


def test_bold_among_runs_of_unlike_settings_says_so(tmp_path, capsys):
    """They are ranked all the same, and the note names what is unlike; runs that are not ranked do
    not count."""
    for run in ("a", "b"):
        write(tmp_path, run)
    write(tmp_path, "part", run={"seed": 3}, coverage={"complete": False})
    assert "other settings" not in beneath(tmp_path, capsys)
    write(tmp_path, "warm", run={"temperature": 0.9, "seed": 3})
    write(tmp_path, "plain", run={"persona": False})
    said = (
        "Ranked together with other settings: plain: no persona; warm: temperature 0.9, seed 3.\n"
    )
    assert said in beneath(tmp_path, capsys)


def invalid(valid: int, **kinds: int) -> dict[str, Any]:
    return {"valid_answers": valid, "invalid": kinds}


def test_runs_with_invalid_answers_are_told_the_worst_first(tmp_path, capsys):
    """A run's of all its platforms together, with what becomes of such answers."""
    write(tmp_path, "few", {"diagnostics": invalid(199, length=1)})
    write(tmp_path, "全", {"diagnostics": invalid(0, length=60, refusal=40)})
    write(tmp_path, "全", {"subset": "zhihu", "diagnostics": invalid(50)})
    write(tmp_path, "none")
    assert "\nInvalid answers count as empty: 全 100 of 150, few 1 of 200.\n" in beneath(
        tmp_path, capsys
    )
    execute(tmp_path, "stats", "--json")
    figure = orjson.loads(capsys.readouterr().out)["Recall"]["全"]["weibo"]
    assert (figure["answers"], figure["invalid"]) == (100, 100)
    execute(tmp_path, "stats", "--excel")
    page = Page((tmp_path / "metric_excels" / "summary.xlsx").read_bytes())
    assert page.row(1)[6:8] == ["answers", "invalid"]
    assert [page.row(number)[0] for number in range(2, 6)] == ["few", "none", "全", "全"]
    assert page.row(5)[:8] == ["全", "streamprofile", "weibo", 40, 40, 0, 100, 100]


def test_invalid_days_are_told_by_what_they_count_as():
    """A day of nobody's is no empty one: who gives none stays at home."""
    made = table(scored("甲", subset="beijing", metric="Score", answers=100, invalid=100))
    assert notes([made]) == [
        "Invalid days count as stayed home with the intention other: 甲 100 of 100."
    ]


def test_notes_name_ten_and_count_the_others():
    """However many runs there are, a note stays one that is read."""
    part = [
        scored(f"r{number:02}", complete=False, users=number, invalid=1) for number in range(13)
    ]
    told = [note for note in notes([table(*part)]) if "more" in note]
    assert len(told) == 3 and all(note.endswith(" and 3 more.") for note in told)
    assert all("r09 on weibo 9 of 40 and" in note and "r10" not in note for note in told[:2])


# Excel files, read back


class Page:
    """A sheet of a workbook as its XML has it: values by cell (`B2`), and the format of each."""

    def __init__(self, content: bytes, number: int = 1) -> None:
        with zipfile.ZipFile(io.BytesIO(content)) as whole:
            self.xml = whole.read(f"xl/worksheets/sheet{number}.xml").decode()
            book = ElementTree.fromstring(whole.read("xl/workbook.xml"))
            self.titles = [sheet.attrib["name"] for sheet in book.iter(f"{XML}sheet")]
            strings = ElementTree.fromstring(whole.read("xl/sharedStrings.xml"))
            texts = ["".join(part.text or "" for part in item.iter(f"{XML}t")) for item in strings]
            styles = ElementTree.fromstring(whole.read("xl/styles.xml"))
        codes = {
            form.attrib["numFmtId"]: form.attrib["formatCode"]
            for form in styles.iter(f"{XML}numFmt")
        }
        codes |= {
            "0": "General",
            "2": "0.00",
            "3": "#,##0",
        }  # ECMA-376, 18.8.30: formats without a definition
        fonts = [
            {mark.tag.removeprefix(XML) for mark in font}
            for font in styles.iterfind(f"{XML}fonts/*")
        ]
        forms = [form.attrib for form in styles.iterfind(f"{XML}cellXfs/*")]
        looks = [(codes[form["numFmtId"]], fonts[int(form["fontId"])]) for form in forms]
        self.values: dict[str, str | float] = {}
        self.looks: dict[str, tuple[str, set[str]]] = {}
        for cell in ElementTree.fromstring(self.xml).iter(f"{XML}c"):
            value = cell.find(f"{XML}v")
            if value is not None and value.text is not None:
                is_text = cell.attrib.get("t") == "s"
                self.values[cell.attrib["r"]] = (
                    texts[int(value.text)] if is_text else float(value.text)
                )
                self.looks[cell.attrib["r"]] = looks[int(cell.attrib.get("s", 0))]

    def row(self, number: int) -> list[str | float]:
        return [
            value for cell, value in self.values.items() if re.sub(r"\D", "", cell) == str(number)
        ]


def test_workbook_reads_back_with_its_numbers_and_their_looks():
    """Numbers are numbers with two decimals or none; marked, bold and underlined show."""
    cells = (
        Cell("", 12.5),
        Cell("", 3.25, partial=True),
        Cell("", 1, place="best"),
        Cell("", 2, place="second"),
        Cell("", 1234, 0),
    )
    page = Page(workbook([Table(("run", *"abcde"), (("甲", *cells),))]))
    assert page.row(2) == ["甲", 12.5, 3.25, 1.0, 2.0, 1234.0]
    assert [page.looks[cell][0] for cell in ("B2", "C2", "F2")] == ["0.00", '0.00"*"', "#,##0"]
    assert "b" in page.looks["D2"][1] and "u" in page.looks["E2"][1]
    assert not {"b", "u"} & page.looks["B2"][1]


@pytest.mark.parametrize(
    "name",
    ["=1+1", "@x", "{=1}", "http://a.b/", "+1", "007", "'a", "a\x00b\x1b", "\ufffe", "x" * 99],
)
def test_text_stays_text_whatever_it_looks_like(name):
    """No formula, link or number is made of a run's name, and no character spoils the file."""
    page = Page(workbook([Table((name, name), ((name, name),), name, (name,))]))
    plain = re.sub("[\x00\x1b\ufffe]", "\ufffd", name)
    assert page.row(2) == [plain, plain] and page.row(1) == [plain, plain]
    assert "<f>" not in page.xml and "hyperlink" not in page.xml


def test_columns_are_as_wide_as_what_they_hold_and_chinese_is_two_wide():
    """The heading row and the first column stay in sight."""

    def widths(name: str) -> list[float]:
        xml = Page(workbook([Table(("run", "xiaohongshu"), ((name, Cell("1", 1)),))])).xml
        assert 'topLeftCell="B2"' in xml and 'state="frozen"' in xml
        return [float(width) for width in re.findall(r'<col [^>]*?width="([\d.]+)"', xml)]

    latin, chinese, long = widths("a" * 20), widths("模" * 20), widths("a" * 500)
    assert latin[0] > 20 and latin[1] > len("xiaohongshu")
    assert chinese[0] > 40
    assert 50 < long[0] < 70


@settings(max_examples=examples(50), deadline=None)
@given(st.lists(st.text(max_size=40), max_size=6))
def test_sheet_names_are_such_as_excel_takes(wanted):
    """Any text becomes one: short enough, of allowed characters, and no two alike."""
    made = titles(wanted)
    assert len(made) == len(wanted) == len({name.lower() for name in made})
    for name in made:
        assert 0 < len(name.encode("utf-16-le")) <= 62 and not set("[]:*?/\\") & set(name)
        assert name[0] != "'" != name[-1] and name.lower() != "history"
    workbook([Table(("a",), (), name) for name in wanted] or [Table((), ())])


def test_two_commands_may_write_the_same_excel_file(tmp_path):
    """Whichever ends last has it; neither takes the other's unfinished file."""
    code = "import sys; from pathlib import Path; from harness.reporting.xlsx import write\n"
    code += (
        "from harness.document import Table\nfor _ in range(50): write(Path(sys.argv[1]),"
        " [Table(('b',), (('c',),))])"
    )
    words = [sys.executable, "-c", code, str(tmp_path / "same.xlsx")]
    started = [subprocess.Popen(words, stderr=subprocess.PIPE) for _ in range(2)]
    assert [(process.communicate()[1], process.returncode) for process in started] == [(b"", 0)] * 2
    assert [path.name for path in tmp_path.iterdir()] == ["same.xlsx"]


def test_excel_files_hold_the_figures_of_the_reports(tmp_path):
    """A file a metric, in percent with two decimals, platforms in the order of the papers,
    incomplete ones marked."""
    for subset in PLATFORMS:
        write(tmp_path, "五个", {"subset": subset})
    write(tmp_path, "=1+1", coverage={"scored_users": 7, "complete": False})
    write(tmp_path, "低", metrics={"Recall": {"value": 0.1, "ci95": None, "users": 40}})
    execute(tmp_path, "stats", "--excel")
    out = tmp_path / "metric_excels"
    assert {path.stem for path in out.iterdir()} == {
        *("Recall", "Error_Peer", "F1^NS", "F1^NS (release code)", "FWT Error_Peer", "summary")
    }
    page = Page((out / "Recall.xlsx").read_bytes())
    assert page.titles == ["Recall", "notes"]
    assert page.row(4) == ["低", 10.0, "vendor/模型, own prompt, synthetic tasks"]
    assert "b" in page.looks["C3"][1] and "u" in page.looks["C4"][1]
    assert page.row(1) == ["run", *PLATFORMS, "Avg.", "what"]
    assert page.row(2) == ["=1+1", 34.62, "vendor/模型, own prompt, synthetic tasks"]
    assert page.row(3) == ["五个", *[34.62] * 5, 34.62, "vendor/模型, own prompt, synthetic tasks"]
    assert (page.looks["C2"][0], page.looks["C3"][0]) == ('0.00"*"', "0.00")


def test_summary_has_every_metric_with_intervals_coverage_and_tokens(tmp_path):
    """First a sheet of all runs and subsets, then one a metric."""
    write(tmp_path, "one")
    write(tmp_path, "one", {"subset": "zhihu"}, coverage={"scored_users": 30, "complete": False})
    execute(tmp_path, "stats", "--excel")
    content = (tmp_path / "metric_excels" / "summary.xlsx").read_bytes()
    runs, recall = Page(content), Page(content, 2)
    assert runs.titles == [
        "Runs",
        "Recall",
        "Error_Peer",
        "F1^NS",
        "F1^NS (release code)",
        "FWT Error_Peer",
        "notes",
    ]
    assert runs.row(2)[:5] == ["one", "streamprofile", "zhihu", 30, 40]
    assert runs.row(3)[:9] == ["one", "streamprofile", "weibo", 40, 40, 0, 200, 0, 1]
    assert runs.row(3)[14:18] == [210, 1_234_567, 8_900, 2]
    assert recall.row(1)[:7] == ["run", "zhihu", "from", "to", "weibo", "from", "to"]
    assert recall.row(2) == [
        *("one", 34.62, 30.0, 40.0, 34.62, 30.0, 40.0),
        *(70, 80, 420, 2_469_134, 17_800, "vendor/模型", "own prompt", 1, "synthetic"),
    ]


# Text


TABLE = Table(
    ("run", "a_b"),
    (
        ("--x|y_[1]", Cell("-1.50", place="best", partial=True)),
        ("模型 & Co", ""),
        ("z", Cell("2.00", place="second", note="3-4")),
    ),
    "F1^NS, %",
    rules=(1,),
)


def test_markdown_shows_names_as_they_are_and_the_best_in_bold():
    """What would be markup in a name is escaped."""
    assert markdown.rendered([TABLE], ["*: 不全"]).splitlines() == [
        "**F1^NS, %**",
        "",
        "| run | a\\_b |",
        "| --- | ---: |",
        "| --x\\|y\\_\\[1\\] | **-1.50**\\* |",
        "| 模型 \\& Co |  |",
        "| z | <ins>2.00</ins> (3-4) |",
        "",
        "\\*: 不全",
    ]


@pytest.mark.parametrize("form", ["table", "markdown", "latex"])
def test_synthetic_tasks_are_told_with_the_table_and_not_in_a_comment(form, tmp_path, capsys):
    """A table that is pasted into a paper beside published scores still says so, and of which
    runs."""
    write(tmp_path, "made-up")
    for runs, said in ((1, "All runs: synthetic tasks"), (2, "made-up: synthetic tasks")):
        if runs == 2:
            write(tmp_path, "real", {"notes": []})
        execute(tmp_path, "stats", "--format", form, "--metric", "Recall")
        shown = "\n".join(
            line for line in capsys.readouterr().out.splitlines() if not line.startswith("%")
        )
        assert said in " ".join(shown.split())


@pytest.mark.parametrize("form", ["markdown", "latex", "csv"])
def test_text_can_be_written_into_a_file_and_brings_no_excel_files(form, tmp_path, capsys):
    """What is written is what would be printed; with --excel the Excel files come, too."""
    results, into = tmp_path / "results", tmp_path / "表.md"
    write(results, "one")
    words = ["stats", "--results-dir", str(results), "--format", form]
    assert main(words) == 0
    shown = capsys.readouterr().out
    assert main([*words, "--into", str(into)]) == 0
    assert capsys.readouterr().out == "" and into.read_bytes().decode() == shown
    assert [path.name for path in results.iterdir()] == ["one"]
    assert main([*words, "--excel", "--out", str(tmp_path / "excel")]) == 0
    assert (tmp_path / "excel" / "Recall.xlsx").is_file()


def test_named_runs_are_shown_alone_and_ranked_among_themselves(tmp_path, capsys):
    """Excel files are written only with --excel, where --out says."""
    for name, recall in (("好", 0.9), ("中", 0.5), ("低", 0.1)):
        write(tmp_path, name, metrics={"Recall": {"value": recall, "ci95": None, "users": 40}})
    words = ["stats", "中", "低", "--results-dir", str(tmp_path)]
    assert main([*words, "--format", "markdown", "--metric", "Recall"]) == 0
    shown = capsys.readouterr().out
    assert "**50.00**" in shown and "<ins>10.00</ins>" in shown and "好" not in shown
    assert main(words) == 0
    assert (
        "every metric:" not in capsys.readouterr().out and not (tmp_path / "metric_excels").exists()
    )
    assert main([*words, "--excel", "--out", str(tmp_path / "excel")]) == 0
    assert Page((tmp_path / "excel" / "Recall.xlsx").read_bytes()).row(3)[:2] == ["低", 10.0]


def test_csv_has_a_line_a_figure_and_plain_numbers(tmp_path, capsys):
    """UTF-8 without a mark at its beginning; names with commas are quoted."""
    write(tmp_path, "a,b", coverage={"complete": False})
    execute(tmp_path, "stats", "--format", "csv", "--metric", "error_peer")
    shown = capsys.readouterr().out
    assert shown.startswith("benchmark,metric,run,")
    assert list(csv.DictReader(io.StringIO(shown))) == [
        {
            "benchmark": "streamprofile",
            "metric": "Error_Peer",
            "run": "a,b",
            "subset": "weibo",
            "value": "12.50",
            "unit": "%",
            "from": "10.00",
            "to": "20.00",
            "users": "39",
            "expected": "40",
            "answers": "200",
            "invalid": "0",
            "complete": "no",
            "place": "",
            "published": "no",
            "what": "vendor/模型, own prompt, synthetic tasks",
            "rank": "",
            "separable": "",
            "ranked_by": "Error_Peer (cut)",
            "ranked_value": "12.50",
            "ranked_users": "39",
            "following": "100.00",
            "chance": "",
            "chance_error": "",
            "approximate": "no",
            "bias": "",
        }
    ]


def test_json_tells_of_each_figure_what_csv_does(tmp_path, capsys):
    """Its interval, over how many of how many users it is, and its place; an average without
    records a place only."""
    for run in ("a", "b"):
        for subset in PLATFORMS:
            write(tmp_path, run, {"subset": subset})
    write(tmp_path, "b", metrics={"Recall": {"value": 0.1, "ci95": None, "users": 38}})
    execute(tmp_path, "stats", "--json", "--metric", "Recall")
    told = orjson.loads(capsys.readouterr().out)["Recall"]
    both = {
        "complete": True,
        "rank": None,
        "separable": None,
        "approximate": False,
        "ranked_by": "Recall (cut)",
        "following": 1.0,
        "chance": None,
        "chance_error": None,
        "bias": None,
    }
    complete = {**both, "expected": 40, "answers": 200, "invalid": 0}
    first = {
        "value": 0.34625,
        "ci95": [0.3, 0.4],
        "users": 40,
        "ranked_value": 0.34625,
        "ranked_users": 40,
    }
    second = {"value": 0.1, "ci95": None, "users": 38, "ranked_value": 0.1, "ranked_users": 38}
    assert told["a"]["weibo"] == {**first, "place": "best", **complete}
    assert told["b"]["weibo"] == {**second, "place": "second", **complete}
    nothing = dict.fromkeys(("ci95", "users", "expected", "answers", "invalid", "ranked_users"))
    mean = {"value": pytest.approx(0.34625), "ranked_value": pytest.approx(0.34625)}
    assert told["a"][AVERAGE] == {**mean, **nothing, **both, "place": "best"}


def test_json_keeps_published_scores_apart_from_runs(tmp_path, capsys):
    """A run may bear the very name of a published model."""
    write(tmp_path, "GPT-5.1")
    execute(tmp_path, "stats", "--json", "--published")
    told = orjson.loads(capsys.readouterr().out)
    assert told["Recall"]["GPT-5.1"]["weibo"]["value"] == 0.34625
    assert told["published"]["Recall"]["GPT-5.1"]["weibo"] == 38.65
    assert set(told["published"]) == {"source", "Recall", RELEASE}


def test_terminal_sets_the_best_in_bold_where_it_can(tmp_path, capsys, monkeypatch):
    """In a pipe nothing is bold, and nothing is said of it."""
    write(tmp_path, "a")
    write(tmp_path, "b", metrics={"Recall": {"value": 0.1, "ci95": None, "users": 40}})
    execute(tmp_path, "stats")
    assert "Bold" not in capsys.readouterr().out
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    execute(tmp_path, "stats")
    shown = capsys.readouterr().out
    assert (
        "\x1b[1m34.62\x1b[0m" in shown
        and "\x1b[4m10.00\x1b[0m" in shown
        and "Bold: best of its column" in shown
    )


@pytest.mark.parametrize("columns", ["20", "40", "80"])
def test_no_figure_is_cut_on_a_narrow_terminal(columns, tmp_path, capsys, monkeypatch):
    """Names are folded; figures stand whole, whatever becomes of the lines."""
    for subset in PLATFORMS:
        write(tmp_path, "很长的名字" * 10, {"subset": subset})
    monkeypatch.setenv("COLUMNS", columns)
    execute(tmp_path, "stats", "--metric", "Recall")
    shown = capsys.readouterr().out
    assert shown.count("34.62") == 6 and "xiaohongshu" in shown and "…" not in shown


@pytest.mark.parametrize(
    ("words", "expected_text"),
    [
        (["--metric", "Recal"], "no run has the metric 'Recal': did you mean Recall?"),
        (["--into", "x.csv"], "--into takes what --format markdown, latex or csv makes"),
        (["--json", "--format", "csv"], "--json prints JSON: leave out --format csv"),
        (["--out", "excel"], "--out is the folder for the files of --excel"),
    ],
)
def test_options_that_make_no_sense_are_refused(words, expected_text, tmp_path, capsys):
    """In one sentence, before anything is written."""
    write(tmp_path, "one")
    execute(tmp_path, "stats", *words, code=2)
    assert expected_text in capsys.readouterr().err
    assert not (tmp_path / "metric_excels").exists()


@pytest.mark.parametrize("form", ["table", "markdown", "latex"])
def test_only_columns_with_a_value_are_shown(form, tmp_path, capsys):
    """Files for programs keep all of them."""
    write(tmp_path, "one")
    words = ["stats", "--results-dir", str(tmp_path), "--metric", "Recall"]
    assert main([*words, "--format", form]) == 0
    shown = capsys.readouterr().out
    assert "weibo" in shown and not re.search("zhihu|Avg|rank ", shown)
    assert main([*words, "--json"]) == 0
    assert list(orjson.loads(capsys.readouterr().out)["Recall"]["one"]) == [*PLATFORMS, AVERAGE]


def test_subsets_restrict_columns_and_figures(tmp_path, capsys):
    """The average is then over these alone, of the runs that have them; other runs have no row."""
    for subset, value in (("weibo", 0.5), ("zhihu", 0.3), ("douban", 0.9)):
        write(
            tmp_path,
            "one",
            {"subset": subset},
            metrics={"Recall": {"value": value, "ci95": None, "users": 40}},
        )
    write(tmp_path, "other", {"subset": "douban"})
    words = [
        "stats",
        "--results-dir",
        str(tmp_path),
        "--metric",
        "Recall",
        "--subset",
        "zhihu",
        "--subset",
        "weibo",
    ]
    assert main([*words, "--json"]) == 0
    found = orjson.loads(capsys.readouterr().out)["Recall"]
    assert {run: list(figures) for run, figures in found.items()} == {
        "one": ["zhihu", "weibo", AVERAGE]
    }
    assert found["one"][AVERAGE]["value"] == pytest.approx(0.4)
    assert main(words) == 0
    assert capsys.readouterr().out.splitlines()[1].split() == ["run", "zhihu", "weibo", "Avg."]
    assert main([*words[:-1], "weibos"]) == 2
    assert "no subset 'weibos': did you mean weibo?" in capsys.readouterr().err


def test_leaderboard_returns_what_json_prints(tmp_path, capsys):
    """Every metric without a name; of a subset its figures alone."""
    for subset in ("weibo", "zhihu"):
        write(tmp_path, "one", {"subset": subset})
    for words, options in (
        ((), {}),
        (("--subset", "weibo"), {"subset": "weibo"}),
        (("--metric", "F1^NS"), {"metric": "F1^NS"}),
    ):
        execute(tmp_path, "stats", "--json", *words)
        data = orjson.loads(orjson.dumps(leaderboard(results_dir=tmp_path, **options)))
        assert data == orjson.loads(capsys.readouterr().out)


def test_chance_level_of_partial_runs_of_the_same_users_is_shown(tmp_path, capsys):
    """Where no run is complete; of different users there is no level that all have."""
    share = {
        "coverage": {"expected_users": 8, "scored_users": 8, "failed_users": 0, "complete": True}
    }
    for run in ("a", "b"):
        write(tmp_path, run, {**share, "chance": {"Recall": 0.25}}, run={"ratio": 0.2})
    words = ["stats", "--results-dir", str(tmp_path), "--metric", "Recall"]
    assert main(words) == 0
    assert ["chance", "25.00"] in [line.split() for line in capsys.readouterr().out.splitlines()]
    write(tmp_path, "c", {**share, "chance": {"Recall": 0.5}}, run={"ratio": 0.2})
    assert main(words) == 0
    assert "\nchance" not in capsys.readouterr().out


def test_records_that_are_not_read_are_not_announced(tmp_path, capsys):
    """Runs of more than 50,000 users have no ranks, and a line gives the reason."""
    many = {"expected_users": 60_000, "scored_users": 60_000, "failed_users": 0, "complete": True}
    for run in ("a", "b"):
        write(tmp_path, run, coverage=many, run={"users_in_tasks": 60_000})
    execute(tmp_path, "stats")
    shown = capsys.readouterr()
    assert "reading" not in shown.err and "a, b (more than 50,000 users on a subset)" in shown.out
