"""The example of docs/streamprofile.md: its steps, played and scored, give the figures of its
table."""

from __future__ import annotations

import asyncio
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence

import orjson

from harness.benchmark import Task
from harness.benchmarks.streamprofile.benchmark import StreamProfile
from harness.engine.play import play, recorded
from harness.model import JSON, Completion, Record, Request, RunFacts
from harness.scoring.scorer import Scorer
from tests.support import ROOT

PAGE = ROOT / "docs" / "streamprofile.md"
BENCHMARK = StreamProfile()
SETS = ("T_keep", "T_new", "D_decay", "D_cluster", "D_viral", "D_random")


def table(first: str) -> list[list[str]]:
    """Return the cells of the table whose header starts with `first`, without header and rule."""
    rows = re.split(
        r"\n\n", PAGE.read_text(encoding="utf-8").partition(f"\n| {first}")[2], maxsplit=1
    )[0].splitlines()
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in rows[2:]]


def tags(cell: str) -> list[str]:
    return [] if cell == "—" else cell.split(", ")


def step(number: str, cells: Sequence[str]) -> JSON:
    sets = {name: tags(cell) for name, cell in zip(SETS, cells, strict=True)}
    pool = [tag for listed in sets.values() for tag in listed]
    return {
        "step_id": int(number),
        "posts_text": "",
        "candidate_pool": pool,
        "ground_truth": {},
        "meta": sets,
    }


def records() -> Mapping[str, Record]:
    """Play the users of the page; the reply of a step without a prediction has no JSON."""
    rows: defaultdict[str, list[list[str]]] = defaultdict(list)
    for user, *cells in table("user | step"):
        rows[user].append(cells)
    made = {}
    for user, steps in rows.items():
        tasks = [step(number, sets) for number, *sets, _ in steps]
        line = {
            "user_id": user,
            "platform": "weibo",
            "total_steps": len(tasks),
            "prediction_tasks": tasks,
        }
        task = BENCHMARK.parse(line, "weibo")
        assert {given.asked for given in task.given.steps} == {2}
        made[user] = Record(
            user, orjson.loads(orjson.dumps(played(task, [tags(row[-1]) for row in steps])))
        )
    return made


def played(task: Task, predictions: Sequence[Sequence[str]]) -> JSON:
    async def ask(request: Request) -> Completion:
        at = next(
            n
            for n, given in enumerate(task.given.steps)
            if orjson.dumps(given.pool).decode() in str(request)
        )
        text = orjson.dumps(
            {"persona_summary": "p", "predicted_tags": predictions[at], "reasoning": ""}
        ).decode()
        return Completion(text if predictions[at] else "I cannot help with that.")

    return recorded(BENCHMARK, task, asyncio.run(play(BENCHMARK, task, ask)))


def figures(scored: Sequence[Record]) -> Mapping[str, float | None]:
    scorer, facts = Scorer(BENCHMARK, "weibo"), RunFacts("weibo", "m", "m", "own", len(scored), 0)
    report, _ = scorer.report(scorer.score(scored), facts)
    return {name: of.value for name, of in {**report.metrics, **report.secondary}.items()}


def shown(value: float | None) -> str:
    return "undefined" if value is None else f"{100 * value:.2f}"


def test_the_example_of_the_page_has_the_figures_that_the_harness_computes():
    """Every cell of the table of figures is what a report has of user A, of user B, and of both."""
    users = records()
    assert [one["outcome"] for one in users["A"].data["steps"]] == ["valid", "valid", "no_json"]
    columns = [figures([users["A"]]), figures([users["B"]]), figures(list(users.values()))]
    expected = table("figure, %")
    assert len(expected) == 14
    assert [[name, *(shown(of[name]) for of in columns)] for name, *_ in expected] == expected
