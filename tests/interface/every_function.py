"""Every public function, as a user writes it. `mypy --strict` checks this file, and a test executes
it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import harness
from harness import (
    BadInput,
    EndpointStopped,
    HarnessError,
    LoadedRun,
    aresume,
    arun,
    compare,
    export,
    leaderboard,
    list_runs,
    load_run,
    reeval,
    resume,
    run,
    verify,
)
from harness.extensions.budget import Budget
from harness.extensions.hedging import Hedge
from harness.model import Snapshots

RESULTS = Path("results")
seen: list[int] = []


def note(snapshots: Snapshots) -> None:
    seen.append(sum(one.subsets[0].done for one in snapshots))


def blocking() -> list[LoadedRun]:
    made = run(
        "streamprofile",
        model=["baseline/recency", "baseline/frequency"],
        subset="weibo",
        demo=True,
        limit=3,
        concurrency=8,
        timeout=30,
        temperature=0.0,
        extra_body={"top_k": 20},
        extra_header={"X-Team": "blue"},
        settings={"persona": False},
        html=False,
        extensions=[Budget("2Mtok"), Hedge(3.0)],
        results_dir=RESULTS,
        progress=note,
    )
    resumed: list[LoadedRun] = resume(name="demo-recency", results_dir=RESULTS, max_retries=2)
    again: list[LoadedRun] = reeval(results_dir=RESULTS, reparse=True, html=False)
    return [*made, *resumed, *again]


async def awaited() -> list[LoadedRun]:
    made: list[LoadedRun] = await arun(
        model="baseline/random", subset="weibo", demo=True, limit=2, html=False
    )
    return [*made, *await aresume(results_dir=RESULTS)]


def told() -> tuple[int, str]:
    try:
        run(model="baseline/recency", limit=0)
    except (BadInput, EndpointStopped) as error:
        return error.exit_code, str(error)
    except HarnessError as error:
        return len(error.runs), str(error)
    return 0, ""


if __name__ == "__main__":
    runs = blocking() + asyncio.run(awaited())
    one: LoadedRun = load_run(RESULTS / "demo-recency", "weibo")
    findings = compare(one, "demo-frequency", results_dir=RESULTS, resamples=1000)
    table, proofs = leaderboard(metric="Recall"), verify("demo-recency")
    export("demo-recency", format="jsonl", rows="users")
    print(
        harness.__version__,
        len(runs),
        one.complete,
        findings,
        len(table),
        len(proofs),
        len(list_runs()),
        told(),
    )
