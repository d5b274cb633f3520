"""`python -m bench.faults`: runs under every fault of `endpoint_double`, and under total outages,
against calm ones.

Processes of `run` against endpoints' processes, several side by side; StreamProfileBench and
DailyMobility, whole replies and streams.

- *Transport faults*, each kind by itself and all mixed, at 10, 30 and 60 % of the tries: no user
  fails, the results file is byte-identical with that of a run without faults, and each request that
  the endpoint saw is a saved reply or a retry in the log. `--max-retries 30`: at 60 % a request
  fails more than 30 times in a row once in 7 million.
- *Content faults* at 30 % of the requests. Without asking again, the report counts each kind as
  often as the endpoint says that it served it; with asking again, what is invalid at the end and
  what was asked again make as many together. A repeat is byte-identical, also with transport faults
  at 40 % of the tries besides.
- *Outages* of 60 s in the middle, with `--max-retries` 2 (whole replies) and 0 (streams): no user
  fails, though one request alone is tried oftener than its retries allow. Were a single try of
  those not given back, its user would be a failure, at the latest with no retry at all.
  Byte-identical with a run without an outage.

Exit code 1 where anything differs.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path

import orjson

from bench.blows import ROOT
from bench.outage import KILLED, MANNERS, Mortal, Outage, mortal, settled, suffering
from bench.processes import run_command, stats, synthesise
from bench.tally import BAD_WORDS
from harness.model import JSON
from harness.store.log import valid_lines
from harness.store.run import RunFiles
from tests.support.endpoint_double.faults import CONTENT, STALL, STREAM, STREAM_STALL, TRANSPORT

RATES = (0.1, 0.3, 0.6)
CONTENT_RATE = 0.3
QUICK_TRANSPORT = tuple(kind for kind in TRANSPORT if kind != STALL)
"""Faults that no time-out is needed for."""
BOTH_RATE = CONTENT_RATE * (len(CONTENT) + len(QUICK_TRANSPORT)) / len(CONTENT)
"""Of content and transport faults together, so that content faults are those of `CONTENT_RATE`
alone."""

COUNTED = {"empty": "empty", "refusal": "refusal", "length": "length", "no-json": "no_json"}
"""Kind of an invalid answer in a report by the fault that makes it."""
REPAIRED = {"fenced": "fence", "broken": "syntax"}
"""Kind of a repair in a report by the fault that needs it."""

TUNING = ("--concurrency", "64", "--max-retries", "30")
IMPATIENT = ("--timeout", "2", "--stall-timeout", "1")
"""Only where an endpoint may stall: a busy machine lets some requests time out that are served."""
RETRIES_IN_OUTAGE = {False: 2, True: 0}
"""By whether replies are streamed."""

SAID = 600
"""Characters of a process's last words that a finding quotes."""

CALM = "none"
PARTS = ("transport", "content", "outage")


@dataclass(frozen=True, slots=True)
class Subject:
    """What is run; `halfway` is the number of requests after which an outage comes."""

    name: str
    benchmark: str
    model: str
    subset: str
    users: int
    halfway: int = 0


@dataclass(frozen=True, slots=True)
class Case:
    """One run. `row` is its row of the tables; runs that are `alike` have results files of the same
    bytes."""

    row: str
    subject: Subject
    stream: bool
    alike: str
    faults: tuple[str, ...] = ()
    rate: float = 0.0
    parse_retries: int = 2
    outage: Outage | None = None
    seed: int = 0

    @property
    def serving(self) -> tuple[str, ...]:
        faulty = (
            ("--fault-rate", f"{self.rate:g}", "--faults", ",".join(self.faults))
            if self.faults
            else ()
        )
        slow = ("--latency", "0.5") if self.outage else ()
        return (*faulty, *slow, "--seed", str(self.seed))

    @property
    def options(self) -> tuple[str, ...]:
        retries = ("--max-retries", str(self.allowed), "--concurrency", "8") if self.outage else ()
        stream = "on" if self.stream else "off"
        which = ("--platform", self.subject.subset, "--name", "run", "--stream", stream)
        patience = IMPATIENT if self.stalls else ()
        more = ("--parse-retries", str(self.parse_retries))
        return (self.subject.benchmark, *which, *TUNING, *patience, *retries, *more)

    @property
    def stalls(self) -> bool:
        """Whether requests time out."""
        return self.outage is not None or not {STALL, STREAM_STALL}.isdisjoint(self.faults)

    @property
    def allowed(self) -> int:
        """Retries of one request."""
        return RETRIES_IN_OUTAGE[self.stream]

    def __str__(self) -> str:
        form = "streams" if self.stream else "whole replies"
        return (
            f"{self.row} ({self.subject.name}, {form}, {self.rate:.0%}, parse retries"
            f" {self.parse_retries})"
        )


@dataclass(frozen=True, slots=True)
class Outcome:
    """`requests` is what the endpoint saw, `replies` what is saved, `retries` are counted by their
    kind.

    `most_tries` is that of the request that was tried most often.
    """

    code: int
    said: str
    results: bytes
    failed: int
    requests: int
    faults: Counter[str]
    replies: int
    retries: Counter[str]
    most_tries: int
    struck: bool
    diagnostics: JSON


def subjects(users: int) -> tuple[Subject, Subject]:
    """Return a subject of each benchmark: a user has five requests on average, a resident one."""
    return (
        Subject("StreamProfileBench", "streamprofile", "baseline/recency", "zhihu", users),
        Subject("DailyMobility", "dailymobility", "baseline/commuter", "beijing", 5 * users),
    )


def long_subjects(users: int) -> tuple[Subject, Subject]:
    """Return the same with so many users that half of the requests take a while: half a second
    each, eight at once."""
    return (
        Subject(
            "StreamProfileBench, long",
            "streamprofile",
            "baseline/recency",
            "zhihu",
            users,
            5 * users // 2,
        ),
        Subject(
            "DailyMobility, long",
            "dailymobility",
            "baseline/commuter",
            "beijing",
            5 * users,
            5 * users // 2,
        ),
    )


# What is run


def calm(subject: Subject) -> Case:
    return Case(CALM, subject, False, subject.name)


def transport(users: int, seed: int) -> list[Case]:
    """Each kind at each rate, and all mixed; those of streams with streams only."""
    cases = [calm(subject) for subject in subjects(users)]
    cases += [Case(CALM, subject, True, subject.name) for subject in subjects(users)]
    for rate, subject, stream in product(reversed(RATES), subjects(users), (False, True)):
        kinds = (*TRANSPORT, *STREAM) if stream else TRANSPORT
        mixed = Case(
            f"all mixed, {rate:.0%}", subject, stream, subject.name, kinds, rate, seed=seed
        )
        cases += [
            mixed,
            *(
                Case(kind, subject, stream, subject.name, (kind,), rate, seed=seed)
                for kind in kinds
            ),
        ]
    return cases


def some_transport(users: int, seed: int) -> list[Case]:
    """All kinds mixed, at one rate."""
    cases = [calm(subject) for subject in subjects(users)]
    for subject, stream in product(subjects(users), (False, True)):
        kinds = (*TRANSPORT, *STREAM) if stream else TRANSPORT
        cases.append(
            Case(
                f"all mixed, {RATES[1]:.0%}",
                subject,
                stream,
                subject.name,
                kinds,
                RATES[1],
                seed=seed,
            )
        )
    return cases


def content(some: Iterable[tuple[Subject, bool]], seed: int) -> list[Case]:
    """Of these subjects, as streams or not, a run and its repeat, and both with transport faults or
    asking again."""
    cases = []
    for subject, stream in some:
        for parse_retries in (0, 2):
            alike = f"{subject.name}, content, {stream}, {parse_retries}"
            row = "content, asked again" if parse_retries else "content"
            once = Case(
                row, subject, stream, alike, CONTENT, CONTENT_RATE, parse_retries, seed=seed
            )
            cases += [once, once]
            if not parse_retries:
                both = (*CONTENT, *QUICK_TRANSPORT)
                cases.append(
                    Case(
                        "content and transport",
                        subject,
                        stream,
                        alike,
                        both,
                        BOTH_RATE,
                        0,
                        seed=seed,
                    )
                )
    return cases


def outages(users: int, seconds: float) -> list[Case]:
    cases = [calm(subject) for subject in long_subjects(users)]
    for subject, stream, manner in product(long_subjects(users), (False, True), MANNERS):
        outage = Outage(manner, subject.halfway, seconds)
        cases.append(Case(manner, subject, stream, subject.name, outage=outage))
    return cases


def one_outage(users: int, seconds: float) -> list[Case]:
    subject = long_subjects(users)[1]
    outage = Outage(KILLED, subject.halfway, seconds)
    return [calm(subject), Case(KILLED, subject, False, subject.name, outage=outage)]


# A run


def tasks_of(subject: Subject, folder: Path) -> Path:
    return folder / f"tasks-{subject.name.replace(', ', '-')}"


def make_tasks(subject: Subject, folder: Path) -> None:
    platform = ("--platform", subject.subset) if subject.benchmark == "streamprofile" else ()
    synthesise(
        tasks_of(subject, folder), subject.benchmark, "--users", str(subject.users), *platform
    )


def play(case: Case, number: int, folder: Path) -> Outcome:
    """One run from nothing to its end."""
    results = folder / f"run-{number}"
    command = run_command(
        "URL", tasks_of(case.subject, folder), results, *case.options, model=case.subject.model
    )
    with mortal(*case.serving) as endpoint, suffering(endpoint, case.outage):
        command[command.index("URL")] = endpoint.url
        ended = subprocess.run(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            cwd=ROOT,
        )
        return outcome(case, results, ended, endpoint)


def outcome(
    case: Case, results: Path, ended: subprocess.CompletedProcess[str], endpoint: Mortal
) -> Outcome:
    files = RunFiles(results / "run", case.subject.subset)
    events = [orjson.loads(line.text) for line in valid_lines(files.events)]
    retries = [event for event in events if event["what"] in ("retry", "probe", "outage")]
    file = files.report("json")
    report = orjson.loads(file.read_bytes()) if file.exists() else {}
    return Outcome(
        ended.returncode,
        ended.stdout + endpoint.said(),
        files.results.read_bytes() if files.results.exists() else b"",
        sum(1 for _ in valid_lines(files.failures)),
        settled(endpoint),
        Counter(stats(endpoint.url)["faults"]),
        sum(1 for _ in valid_lines(files.responses)),
        Counter(event.get("kind", event["what"]) for event in retries),
        1 + max((event["try_number"] for event in retries), default=0),
        endpoint.struck,
        report.get("diagnostics", {}),
    )


# What must be true of it


def wrong(case: Case, seen: Outcome, like: bytes) -> list[str]:
    """Return what is not as promised; `like` are the bytes that the results file must have."""
    found = [] if seen.code == 0 else [f"exit code {seen.code}"]
    found += [f"it said {words}" for words in BAD_WORDS if words in seen.said]
    if seen.failed:
        found.append(f"{seen.failed} failures")
    if not seen.results or seen.results != like:
        found.append("the results file differs")
    found += _wrong_outage(case, seen) if case.outage else _wrong_counts(case, seen)
    if case.faults and not seen.faults:
        found.append("no fault was served")
    return found + _wrong_kinds(case, seen)


def _wrong_counts(case: Case, seen: Outcome) -> list[str]:
    """Return what is wrong with the counts: a request that timed out may never have come to the
    endpoint."""
    known = seen.replies + seen.retries.total()
    if seen.requests == known or (case.stalls and seen.requests <= known):
        return []
    return [
        f"{seen.requests} requests for {seen.replies} replies and {seen.retries.total()} retries"
    ]


def _wrong_outage(case: Case, seen: Outcome) -> list[str]:
    if not seen.struck:
        return ["the run was over before the outage"]
    return (
        []
        if seen.most_tries > case.allowed + 1
        else ["no request was tried oftener than its retries allow"]
    )


def _wrong_kinds(case: Case, seen: Outcome) -> list[str]:
    """Of runs that ask for nothing again; what others have asked again is compared over all of
    them."""
    if not set(CONTENT) & set(case.faults) or case.parse_retries:
        return []
    served = {kind: number for kind, number in seen.faults.items() if kind in CONTENT}
    told = counted(seen)
    return [] if served == told else [f"served {served}, counted {told}"]


def counted(seen: Outcome) -> dict[str, int]:
    """Return a report's invalid answers and repairs by the faults that make them; any other kind
    under its own name."""
    found = Counter[str]()
    for of, names in (("invalid", COUNTED), ("repaired", REPAIRED)):
        faults = {kind: fault for fault, kind in names.items()}
        found.update(
            {
                faults.get(kind, kind): number
                for kind, number in seen.diagnostics.get(of, {}).items()
            }
        )
    return dict(found)


def wrong_asking(again: Outcome, once: Outcome) -> list[str]:
    """Return what is wrong with a run that asked `again`, next to one that did not: each unusable
    reply is either."""
    served = sum(again.faults[kind] for kind in COUNTED)
    invalid = sum(again.diagnostics["invalid"].values())
    asked = again.replies - once.replies
    return (
        []
        if served == invalid + asked
        else [f"{served} served, {invalid} invalid at the end, {asked} asked again"]
    )


# The campaign


@dataclass(slots=True)
class Campaign:
    """`played` are the cases in their order, each with what came of it; `findings` by case, or of
    the whole."""

    played: list[tuple[Case, Outcome]] = field(default_factory=list)
    findings: list[str] = field(default_factory=list)
    not_identical: Counter[str] = field(default_factory=Counter)

    def rows(self, row: str) -> list[tuple[Case, Outcome]]:
        return [(case, seen) for case, seen in self.played if case.row == row]


def conduct(cases: Sequence[Case], folder: Path, workers: int) -> Campaign:
    """Plays all cases, the longest first, and judges them."""
    for subject in dict.fromkeys(case.subject for case in cases):
        make_tasks(subject, folder)
    order = sorted(
        range(len(cases)), key=lambda number: (cases[number].outage is None, -cases[number].rate)
    )
    with ThreadPoolExecutor(workers) as pool:
        playing = {number: pool.submit(play, cases[number], number, folder) for number in order}
        try:
            played = [playing[number].result() for number in range(len(cases))]
        finally:
            pool.shutdown(cancel_futures=True)
    return judged(list(zip(cases, played, strict=True)))


def judged(played: list[tuple[Case, Outcome]]) -> Campaign:
    campaign = Campaign(played)
    like: dict[str, Outcome] = {}
    for case, seen in played:
        first = like.setdefault(case.alike, seen)
        campaign.not_identical[case.row] += seen.results != first.results
        found = wrong(case, seen, first.results)
        if case.row == "content, asked again":
            found += wrong_asking(seen, like[case.alike.removesuffix("2") + "0"])
        if found:
            campaign.findings.append(f"{case}: {'; '.join(found)}; said {seen.said[-SAID:]!r}")
    return campaign


# The tables

WIDTH = 24
COLUMNS = ("runs", "requests", "faults", "retries", "users failed", "not identical")


def told(campaign: Campaign, seconds: float) -> str:
    """In plain text, with every finding."""
    mixed = [f"all mixed, {rate:.0%}" for rate in RATES]
    lines = [
        *_table(campaign, "transport faults", (CALM, *TRANSPORT, *STREAM, *mixed), "retried as"),
        *_contents(campaign),
        *_table(
            campaign,
            "content faults",
            ("content", "content, asked again", "content and transport"),
            "",
        ),
        *_outages(campaign),
        f"{len(campaign.played)} runs, {seconds:,.0f} seconds, {len(campaign.findings)} findings",
        *(f"FOUND: {words}" for words in campaign.findings),
    ]
    return "\n".join(lines)


def _table(campaign: Campaign, title: str, rows: Iterable[str], last: str) -> list[str]:
    lines = [_cells(row, campaign, bool(last)) for row in rows if campaign.rows(row)]
    return (
        [f"{title:<{WIDTH}}" + _aligned(COLUMNS) + (f"  {last}" if last else ""), *lines, ""]
        if lines
        else []
    )


def _cells(row: str, campaign: Campaign, kinds: bool) -> str:
    seen = [outcome for _, outcome in campaign.rows(row)]
    retries = sum((outcome.retries for outcome in seen), Counter[str]())
    numbers = (
        len(seen),
        sum(outcome.requests for outcome in seen),
        sum(outcome.faults.total() for outcome in seen),
        retries.total(),
        sum(outcome.failed for outcome in seen),
        campaign.not_identical[row],
    )
    how = ", ".join(f"{kind} {number:,}" for kind, number in retries.most_common()) if kinds else ""
    return (f"{row:<{WIDTH}}" + _aligned(f"{number:,}" for number in numbers) + f"  {how}").rstrip()


def _aligned(cells: Iterable[str]) -> str:
    return "".join(f"  {cell:>{len(title)}}" for cell, title in zip(cells, COLUMNS, strict=True))


def _contents(campaign: Campaign) -> list[str]:
    """How often each kind was served and counted, in runs that ask for nothing again."""
    seen = [
        outcome for row in ("content", "content and transport") for _, outcome in campaign.rows(row)
    ]
    if not seen:
        return []
    served = sum((outcome.faults for outcome in seen), Counter[str]())
    told = sum((Counter(counted(outcome)) for outcome in seen), Counter[str]())
    names = {kind: f"invalid, {name}" for kind, name in COUNTED.items()}
    names |= {kind: f"repaired, {name}" for kind, name in REPAIRED.items()}
    rows = [
        f"{kind:<{WIDTH}}  {served[kind]:>6,}  {told[kind]:>7,}  {names[kind]}" for kind in CONTENT
    ]
    return [f"{'content fault':<{WIDTH}}  served  counted  as", *rows, ""]


def _outages(campaign: Campaign) -> list[str]:
    titles = (
        "runs",
        "seconds",
        "requests",
        "retries",
        "most tries of a request",
        "users failed",
        "not identical",
    )
    lines = []
    for row in MANNERS:
        if not (played := campaign.rows(row)):
            continue
        seen = [outcome for _, outcome in played]
        numbers = (
            str(len(seen)),
            "/".join({f"{case.outage.seconds:g}" for case, _ in played if case.outage}),
            f"{sum(outcome.requests for outcome in seen):,}",
            f"{sum(outcome.retries.total() for outcome in seen):,}",
            str(max(outcome.most_tries for outcome in seen)),
            str(sum(outcome.failed for outcome in seen)),
            str(campaign.not_identical[row]),
        )
        cells = "".join(
            f"  {cell:>{len(title)}}" for cell, title in zip(numbers, titles, strict=True)
        )
        lines.append(f"{row:<{WIDTH}}{cells}")
    return (
        [f"{'outages':<{WIDTH}}" + "".join(f"  {title}" for title in titles), *lines, ""]
        if lines
        else []
    )


def planned(only: Sequence[str], users: int, seed: int, quick: bool, outage: float) -> list[Case]:
    if quick:
        parts: Mapping[str, list[Case]] = {
            "transport": some_transport(users, seed),
            "content": content(zip(subjects(users), (False, True), strict=True), seed),
            "outage": one_outage(12, outage),
        }
    else:
        parts = {
            "transport": transport(users, seed),
            "content": content(product(subjects(users), (False, True)), seed),
            "outage": outages(60, outage),
        }
    return [case for part in only for case in parts[part]]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--users", type=int, metavar="N", help="of StreamProfileBench; five times as many residents"
    )
    parser.add_argument(
        "--quick", action="store_true", help="faults at one rate, one short outage, in about 40 s"
    )
    parser.add_argument(
        "--only", action="append", choices=PARTS, help="may be repeated (default: all)"
    )
    parser.add_argument(
        "--workers", type=int, default=16, metavar="N", help="runs side by side, which mostly wait"
    )
    parser.add_argument("--seed", type=int, default=1, help="of the faults (default: 1)")
    args = parser.parse_args()
    os.environ |= {
        "NO_PROXY": "127.0.0.1",
        "no_proxy": "127.0.0.1",
    }  # loopback, whatever else this machine does
    folder = Path(tempfile.mkdtemp(prefix="harness-faults-"))
    started = time.monotonic()
    users, seconds = args.users or (12 if args.quick else 10), 22.0 if args.quick else 60.0
    cases = planned(args.only or PARTS, users, args.seed, args.quick, seconds)
    print(f"seed {args.seed}, {len(cases)} runs, {folder}", flush=True)
    campaign = conduct(cases, folder, args.workers)
    print(told(campaign, time.monotonic() - started))
    if not campaign.findings:
        shutil.rmtree(folder)
    return 1 if campaign.findings else 0


if __name__ == "__main__":
    signal.signal(
        signal.SIGTERM, lambda number, frame: sys.exit(128 + number)
    )  # endpoints end, and files go
    sys.exit(main())
