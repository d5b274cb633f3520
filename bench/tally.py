"""What a results folder holds after a blow, what that cost, and the counts of a campaign."""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any

import orjson

from bench.blows import BLOWS, NONE, ORPHANED, Blow, Life
from harness.model import JSON
from harness.store.log import valid_lines
from harness.store.manifest import COMPLETE, load
from harness.store.run import RunFiles, runs

BAD_WORDS = ("Traceback", "defect of the harness", "Exception ignored", "never awaited")

PRICE = {"prompt": 2, "completion": 8, "batch": 0.5}
"""In CNY for a million tokens, and the factor of both in batches."""

Run = tuple[str, str]
"""Name and subset."""

User = tuple[str, str, str, int]
Reply = tuple[str, str, str, int, str, int]
"""Name, subset, user and repeat; of a reply also the request's digest and how often it was asked
before."""


@dataclass(slots=True)
class Seen:
    """A results folder that no process holds: how often each user has a record, and each reply is
    saved.

    `results` are the bytes of results files, `complete` the runs whose manifest says so, `torn` the
    lines set aside. `reused` counts the replies of other runs, and `costs` are those of the others,
    at `PRICE`.
    """

    users: Counter[User] = field(default_factory=Counter)
    replies: Counter[Reply] = field(default_factory=Counter)
    results: dict[Run, bytes] = field(default_factory=dict)
    complete: set[Run] = field(default_factory=set)
    torn: int = 0
    reused: int = 0
    costs: dict[Run, Fraction] = field(default_factory=dict)


def look(folder: Path) -> Seen:
    """Read a results folder. Raise `HarnessError` for a manifest that cannot be read."""
    seen = Seen()
    for files in runs(folder):
        _look_at(files, seen)
        torn = files.folder.glob(f"*_{files.subset}.*.torn")
        seen.torn += sum(len(path.read_bytes().splitlines()) for path in torn)
    return seen


def _look_at(files: RunFiles, seen: Seen) -> None:
    run = files.folder.name, files.subset
    records = [orjson.loads(line.text) for line in valid_lines(files.results)]
    seen.users.update((*run, record["user_id"], record.get("repeat", 1)) for record in records)
    replies = [orjson.loads(line.text) for line in valid_lines(files.responses)]
    seen.replies.update(
        (*run, reply["user_id"], reply.get("repeat", 1), reply["request"], reply["nth"])
        for reply in replies
    )
    own = [reply for reply in replies if "reused" not in reply]
    seen.reused += len(replies) - len(own)
    seen.costs[run] = sum(map(_cost, own), Fraction(0))
    if files.results.exists():
        seen.results[run] = files.results.read_bytes()
    manifest = load(files.manifest)
    if manifest and manifest.state == COMPLETE:
        seen.complete.add(run)


def _cost(reply: JSON) -> Fraction:
    """Return the cost of a reply by its tokens."""
    tokens, factor = reply["completion"], Fraction(PRICE["batch"]) if reply.get("batch") else 1
    return factor * Fraction(
        tokens["prompt_tokens"] * PRICE["prompt"]
        + tokens["completion_tokens"] * PRICE["completion"],
        10**6,
    )


def reported(folder: Path) -> dict[Run, Fraction]:
    """Return the costs in the reports of runs."""
    costs = {}
    for files in runs(folder):
        cost = orjson.loads(files.report("json").read_bytes())["cost"]
        costs[files.folder.name, files.subset] = Fraction(cost["amount"])
    return costs


def losses(before: Seen, now: Seen) -> dict[str, int]:
    """Users and replies that were there before and are not any more, and those that came though
    they were there."""
    return {
        "lost": len(before.users.keys() - now.users.keys()),
        "doubled": _beyond_one(now.users) - _beyond_one(before.users),
        "replies_lost": len(before.replies.keys() - now.replies.keys()),
        "replies_doubled": _beyond_one(now.replies) - _beyond_one(before.replies),
    }


def _beyond_one(counts: Counter[Any]) -> int:
    return counts.total() - len(counts)


def wrong_end(blow: Blow, life: Life) -> bool:
    """Return whether a process hung, or ended with another code than promised. An orphan's code
    nobody can ask for."""
    return life.hung or not (life.code in blow.codes or blow is ORPHANED)


def traced(life: Life) -> bool:
    """Return whether a process said what no user should have to read."""
    return any(words in life.said for words in BAD_WORDS)


@dataclass(slots=True)
class Tally:
    """What is counted of each blow, by its name, and of all runs; filled by several threads."""

    blows: Counter[tuple[str, str]] = field(default_factory=Counter)
    runs: Counter[str] = field(default_factory=Counter)
    findings: list[str] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def blow(self, name: str, **counts: int) -> None:
        with self.lock:
            self.blows.update({(name, what): number for what, number in counts.items()})

    def run(self, **counts: int) -> None:
        with self.lock:
            self.runs.update(counts)

    def finding(self, words: str) -> None:
        with self.lock:
            self.findings.append(words)
            print(f"FOUND: {words}", flush=True)

    @property
    def struck(self) -> int:
        return sum(self.blows[blow.name, "struck"] for blow in BLOWS)


COLUMNS = {
    "struck": "struck",
    "lost": "lost",
    "doubled": "doubled",
    "replies_lost": "replies lost",
    "replies_doubled": "replies doubled",
    "twice": "paid twice",
    "bound": "at most",
    "beyond": "beyond",
    "wrong_exit": "wrong exit",
    "traced": "tracebacks",
    "complete": "run complete",
}
"""Of a blow; `beyond` are the requests paid twice beyond what that blow may cost."""

ENDS = {
    "runs": "runs",
    "runs of streamprofile": "of StreamProfileBench",
    "runs of dailymobility": "of DailyMobility",
    "not_identical": "not identical",
    "other_replies": "with other replies",
    "unproven": "refused by verify",
    "other_cost": "with another cost",
    "left_over": "files left over",
    "pages": "pages missing, or unwanted",
    "twice": "requests paid twice",
    "torn": "torn lines set aside",
}


def told(tally: Tally, seconds: float) -> str:
    """Return the tables in plain text, and every finding."""
    head = f"{'':<20}" + "".join(f"  {title}" for title in COLUMNS.values())
    rows = [
        f"{blow.name:<20}"
        + "".join(
            f"  {tally.blows[blow.name, what]:>{len(title)}}" for what, title in COLUMNS.items()
        )
        for blow in (*BLOWS, NONE)
        if tally.blows[blow.name, "struck"]
    ]
    ends = [f"{tally.runs[what]:>8,}  {title}" for what, title in ENDS.items()]
    found = [f"FOUND: {words}" for words in tally.findings]
    return "\n".join([head, *rows, *ends, f"{seconds:>8,.0f}  seconds", *found])
