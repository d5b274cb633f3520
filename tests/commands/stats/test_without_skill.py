"""Strategies without skill, played from the command line: none looks best in any table, comparison
or last line."""

from __future__ import annotations

import csv
import io
import re
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from functools import partial
from itertools import chain
from pathlib import Path
from random import Random

import orjson
import pytest

from harness.benchmarks.streamprofile.baselines import ParsedPrompt, read
from harness.benchmarks.streamprofile.synth import generate
from harness.cli import main
from harness.model import JSON
from tests.support.before import sheets
from tests.support.scripted import Script, completion, serving

Told = pytest.CaptureFixture[str]
Choice = Callable[[ParsedPrompt, Random], Sequence[str]]
USERS = 60
HONEST = ("oracle-10", "oracle-30")
HEADLINE = ("Recall", "F1^NS")
ERRORS = ("Error_Peer", "Error_Viral", "Error_Decay", "Error_Random")
FURTHER = (
    *ERRORS,
    "Recall_Novelty",
    "Recall_Stability",
    "FWT Recall",
    "FWT Error_Viral",
    "FWT F1^NS (per step)",
)
SILENT = (
    *(
        "refusals",
        "empty-list",
        "foreign",
        "one-tag",
        "one-likely-tag",
        "sure-only",
        "empty-where-hard",
    ),
    *("foreign-where-hard", "refuses-where-hard", "half-foreign", "copies-the-prompt"),
)
"""Strategies that keep the rules of the task at fewer than nine of ten steps."""


def reply(tags: Sequence[str], **more: str) -> tuple[int, bytes]:
    made = {"persona_summary": "无", "predicted_tags": list(tags), "reasoning": "", **more}
    return 200, completion(orjson.dumps(made).decode())


def shuffled(reading: ParsedPrompt, rng: Random) -> list[str]:
    return rng.sample(reading.pool, len(reading.pool))


def popular(reading: ParsedPrompt, rng: Random) -> list[str]:
    """The tags of the posts of this step, most frequent first, then the pool."""
    seen = Counter(chain.from_iterable(reading.posts))
    return sorted(reading.pool, key=lambda tag: -seen[tag])[: reading.asked]


def recent(reading: ParsedPrompt, rng: Random) -> list[str]:
    seen = [tag for tag in chain.from_iterable(reading.posts) if tag in reading.pool]
    return list(dict.fromkeys([*seen, *reading.pool]))[: reading.asked]


def is_hard(reading: ParsedPrompt) -> bool:
    """Half of the steps, by a property that anybody can read in the prompt: few of the pool's tags
    were used."""
    used = set(chain.from_iterable(reading.posts))
    return len(used.intersection(reading.pool)) < 3


def unless_hard(tags: Sequence[str], reading: ParsedPrompt, rng: Random) -> Sequence[str]:
    return tags if is_hard(reading) else popular(reading, rng)


CHOICES: dict[str, Choice] = {
    "random": lambda reading, rng: shuffled(reading, rng)[: reading.asked],
    "first": lambda reading, rng: reading.pool[: reading.asked],
    "last": lambda reading, rng: reading.pool[-reading.asked :],
    "alphabet": lambda reading, rng: sorted(reading.pool)[: reading.asked],
    "longest": lambda reading, rng: sorted(reading.pool, key=len)[-reading.asked :],
    "whole-pool": lambda reading, rng: reading.pool,
    "whole-pool-shuffled": shuffled,
    "half-pool": lambda reading, rng: shuffled(reading, rng)[: len(reading.pool) // 2],
    "pool-twice": lambda reading, rng: reading.pool * 2,
    "one-more": lambda reading, rng: shuffled(reading, rng)[: reading.asked + 1],
    "one-tag": lambda reading, rng: reading.pool[:1],
    "one-likely-tag": lambda reading, rng: popular(reading, rng)[:1],
    "empty-list": lambda reading, rng: (),
    "foreign": lambda reading, rng: [f"不在候选之中{number}" for number in range(reading.asked)],
    "half-foreign": lambda reading, rng: [
        *reading.pool[: reading.asked // 2],
        *map(str, range(reading.asked)),
    ],
    "sure-only": lambda reading, rng: [
        tag for tag in recent(reading, rng) if tag in set(chain(*reading.posts))
    ],
    "empty-where-hard": partial(unless_hard, ()),
    "foreign-where-hard": partial(unless_hard, ("不在候选之中",)),
    "mix": lambda reading, rng: [*popular(reading, rng)[: reading.asked // 2], *reading.pool][
        : reading.asked
    ],
}
BASELINES: dict[str, Choice] = {"popular": popular, "recency": recent}
"""They read the posts: some skill where they are better than chance (here in Recall), though none
before the honest."""


def choosing(choice: Choice) -> Script:
    def script(body: JSON) -> tuple[int, bytes]:
        text = body["messages"][-1]["content"]
        return reply(choice(read(text), Random(text)))

    return script


def refusing_where_hard(body: JSON) -> tuple[int, bytes]:
    reading = read(body["messages"][-1]["content"])
    refusal = completion("抱歉，我无法回答这个问题。")
    return (200, refusal) if is_hard(reading) else reply(popular(reading, Random(0)))


def repeating() -> Script:
    """The first answer of a user again at every step, kept in the persona."""

    def script(body: JSON) -> tuple[int, bytes]:
        reading = read(body["messages"][-1]["content"])
        kept = re.findall(r"<(.*?)>", reading.persona)
        tags = kept or list(reading.pool[: reading.asked])
        return reply(tags, persona_summary="".join(f"<{tag}>" for tag in tags))

    return script


SCRIPTS: dict[str, Script] = {
    **{name: choosing(choice) for name, choice in (CHOICES | BASELINES).items()},
    "refusals": lambda body: (200, completion("抱歉，我无法回答这个问题。")),
    "copies-the-prompt": lambda body: (200, completion(body["messages"][-1]["content"])),
    "refuses-where-hard": refusing_where_hard,
    "repeats": repeating(),
}


def oracle(tasks: bytes, noise: float) -> Script:
    """The true tags of a step, each lost with a probability and then filled with others: skill, and
    the rules kept."""
    truths = {
        (line["username"], step["step_id"]): {*step["meta"]["T_new"], *step["meta"]["T_keep"]}
        for line in map(orjson.loads, tasks.splitlines())
        for step in line["prediction_tasks"]
    }

    def script(body: JSON) -> tuple[int, bytes]:
        text = body["messages"][-1]["content"]
        reading, rng = read(text), Random(text)
        (truth,) = [
            of for (name, step), of in truths.items() if name in text and f"第 {step} 步" in text
        ]
        found = [tag for tag in reading.pool if tag in truth and rng.random() > noise]
        return reply(list(dict.fromkeys([*found, *shuffled(reading, rng)]))[: reading.asked])

    return script


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, str]]:
    """The results of every strategy on the same users, and the last line of each run."""
    root = tmp_path_factory.mktemp("without_skill")
    tasks = root / "tasks" / "weibo_inference_tasks.jsonl"
    tasks.parent.mkdir()
    tasks.write_bytes(b"".join(generate("weibo", USERS, 5, 3.0)))
    scripts = SCRIPTS | {name: oracle(tasks.read_bytes(), int(name[-2:]) / 100) for name in HONEST}
    last_lines = dict[str, str]()
    for name, script in scripts.items():
        words = [
            "--tasks-dir",
            str(tasks.parent),
            "--results-dir",
            str(root / "results"),
            "--name",
            name,
            "--no-html",
        ]
        words += ["--allow-invalid"]  # some never answer
        with serving(script) as server, redirect_stdout(io.StringIO()) as shown:
            assert (
                main(
                    ["run", "--model", "m", "--platform", "weibo", *words, "--api-url", server.url]
                )
                == 0
            )
        last_lines[name] = [line for line in shown.getvalue().splitlines() if "Recall" in line][-1]
    return root / "results", last_lines


@pytest.fixture
def results(played: tuple[Path, dict[str, str]]) -> Path:
    return played[0]


def output(capsys: Told, *words: str) -> str:
    capsys.readouterr()
    assert main([*words]) == 0
    return capsys.readouterr().out


def metrics(names: Sequence[str]) -> list[str]:
    return [word for name in names for word in ("--metric", name)]


def honest_in_front(metric: str, runs: dict[str, JSON]) -> set[str]:
    """The honest runs whose figure, as shown, is the best of the column. Silence makes the fewest
    errors and has no place, and no other run is called the best instead."""
    shown = {
        run: round(of["value"] if of["ranked_value"] is None else of["ranked_value"], 4)
        for run, of in runs.items()
    }
    front = (min if "Error" in metric else max)(shown.values())
    return {run for run in HONEST if shown[run] == front}


@pytest.mark.slow
def test_no_strategy_without_skill_is_best_or_ranks_before_an_honest_one(results, capsys):
    """In JSON and CSV alike: places, ranks, and the order of the figures that rank."""
    assert len(SCRIPTS) >= 24
    where = ("--results-dir", str(results), *metrics((*HEADLINE, *FURTHER)))
    found = orjson.loads(output(capsys, "stats", "--json", *where))
    lines = list(csv.DictReader(io.StringIO(output(capsys, "stats", "--format", "csv", *where))))
    for metric in (*HEADLINE, *FURTHER):
        runs = {run: of["weibo"] for run, of in found[metric].items()}
        best = {run for run, of in runs.items() if of["place"] == "best"}
        assert best == honest_in_front(metric, runs), metric
        assert metric in FURTHER or best == {"oracle-10"}
        assert all(
            runs[run]["place"] is None
            for run in SCRIPTS
            if metric in FURTHER or run not in BASELINES
        )
        assert {
            line["run"] for line in lines if (line["metric"], line["place"]) == (metric, "best")
        } == best
    for metric in HEADLINE:
        runs = {run: of["weibo"] for run, of in found[metric].items()}
        for honest in HONEST:
            others = [of for run, of in runs.items() if run not in HONEST]
            assert all(of["ranked_value"] < runs[honest]["ranked_value"] for of in others)
            assert all(of["rank"] >= runs[honest]["rank"] for of in others)
        assert all(0.05 < of["chance"] < runs["oracle-30"]["ranked_value"] for of in runs.values())


@pytest.mark.slow
def test_who_chooses_when_to_answer_has_no_place_among_errors(results, capsys):
    """Neither a place nor a rank below nine of ten answers that keep the rules; JSON and CSV have
    the share."""
    where = (
        "--results-dir",
        str(results),
        *metrics((*ERRORS, "FWT Recall", "FWT F1^NS (per step)")),
    )
    found = orjson.loads(output(capsys, "stats", "--json", *where))
    for metric, runs in found.items():
        for run in SILENT:
            of = runs[run]["weibo"]
            assert (
                of["following"] < 0.9 and of["place"] is of["rank"] is of["ranked_value"] is None
            ), (metric, run)
        assert (
            runs["oracle-10"]["weibo"]["following"] == 1
            and runs["oracle-10"]["weibo"]["ranked_users"] > 0
        )
    note = output(
        capsys, "stats", "oracle-10", "refuses-where-hard", "--format", "markdown", *where
    )
    assert "83.3 % (27 of 60 users)" in note and "83.3 % (52 of 60 users)" in note


def cells(latex: str) -> dict[str, dict[str, str]]:
    """The cells of the platform of each run, by the caption of their table."""
    tables = re.findall(r"\\caption\{(.*?)\}\n(.*?)\\bottomrule", latex, re.S)
    rows = {
        caption: [line.strip(" \\&").split(" & ") for line in body.splitlines()]
        for caption, body in tables
    }
    return {caption: {row[0]: row[1] for row in of if len(row) > 1} for caption, of in rows.items()}


@pytest.mark.slow
def test_tables_for_papers_mark_and_show_what_ranks(results, capsys):
    """LaTeX, Markdown, the terminal and Excel: the number is the one that orders, the published one
    is in brackets."""
    where = ("--results-dir", str(results))
    found = cells(output(capsys, "stats", "--format", "latex", *where))
    assert len(found) == 2
    for of in found.values():
        assert [run for run, cell in of.items() if "textbf" in cell] == ["oracle-10"]
        assert re.fullmatch(r"[12]\d\.\d\d \(100\.00\)", of["whole-pool"])
        assert re.fullmatch(r"\d\d\.\d\d(?: ± \d\.\d\d)?", of["chance"])
    for form in ("markdown", "table"):
        text = output(capsys, "stats", "--format", form, *where)
        assert len(re.findall(r"[12]\d\.\d\d \(100\.00\)", text)) >= 6
        assert not re.search(r"(?<!\()100\.00", text)
    output(capsys, "stats", "--excel", "--out", str(results / "excel"), *where)
    for metric in HEADLINE:
        of = sheets(results / "excel" / f"{metric}.xlsx")[metric]
        assert max(cell for cell in of[: of.index("pool-twice")] if isinstance(cell, float)) < 95
        assert of[of.index("whole-pool") + 1] < 30 and 100.0 in of[of.index("whole-pool") :]


@pytest.mark.slow
def test_last_lines_and_reports_show_what_ranks_with_the_chance_level(
    played,
):
    """The figure of the whole pool is that of its first tags, and the line counts the answers
    against the rules."""
    results, last_lines = played
    recall = re.compile(r"Recall(?: \(cut\))? ([\d.]+)%")
    first = {run: float(recall.findall(line)[0]) for run, line in last_lines.items()}
    assert max(first, key=lambda run: first[run]) == "oracle-10"
    assert all(line.count("chance") == 2 for line in last_lines.values())
    assert (
        "as given 100.00%" in last_lines["whole-pool"]
        and "150 of 150 answers" in last_lines["whole-pool"]
    )
    report = orjson.loads((results / "whole-pool" / "eval_report_weibo.json").read_bytes())
    assert report["diagnostics"]["breaches"] == {"more_tags": 150}
    assert report["chance"].keys() >= set(HEADLINE) and report["detectable"].keys() == set(HEADLINE)


@pytest.mark.slow
@pytest.mark.parametrize("fake", ["whole-pool-shuffled", "refuses-where-hard", "recency"])
def test_compare_prefers_the_honest_one(fake, results, capsys):
    """In every primary figure, and the chance level is there."""
    words = (
        "compare",
        fake,
        "oracle-30",
        "--json",
        "--resamples",
        "1000",
        "--results-dir",
        str(results),
    )
    (pair,) = orjson.loads(output(capsys, *words, "--tasks-dir", str(results.parent / "tasks")))[
        "pairs"
    ]
    primary = [entry for entry in pair["figures"] if not entry["exploratory"]]
    assert [entry["outcome"] for entry in primary] == ["b_better", "b_better"]
    assert all(0.05 < entry["chance"] < entry["b"] for entry in primary)
