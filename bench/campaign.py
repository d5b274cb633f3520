"""`make campaign`: strikes runs at random moments, goes on each time, and counts what that cost.

Processes of `run` and `resume` against an endpoint's process, several runs side by side. After
every blow a new process goes on, and may be struck too, until the run is complete. Then its results
files are compared byte for byte with those of an undisturbed run (whole replies, durability
`process`), and `verify` proves its folder. Each run has two features switched on, drawn from
`FEATURES`; its cost is counted again, of its saved replies.

- *Lost*, *doubled*: users whose record stood in a results file after one process and no longer
  after a later one, and users with two records. The same is looked for among saved replies.
- *Paid twice*: requests that the endpoint saw beyond one for each saved reply. A blow may cost
  those in flight, at most `--concurrency`, where the process cannot wait for them; a blow that asks
  it to end may cost none, nor may any with `--batch`.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

from bench.blows import (
    INTERRUPT,
    KILL,
    KILL_AT_WRITE,
    NONE,
    ORPHANED,
    ROOT,
    STOPPED,
    TERM,
    TWICE,
    USR1,
    Blow,
    Life,
    Manner,
    live,
    moment,
)
from bench.processes import HARNESS, endpoint, run_command, stats, synthesise
from bench.tally import PRICE, Seen, Tally, look, losses, reported, told, traced, wrong_end
from harness.store.run import runs

SHARES = {TERM: 0.06, USR1: 0.06, INTERRUPT: 0.06, TWICE: 0.08, STOPPED: 0.02, ORPHANED: 0.05}
"""Other blows for each SIGKILL."""

KILLS, QUICK_KILLS, MANY = 200, 4, 100_000

START_UP = 0.8
"""Seconds, about, until a process sends its first request."""

SHARED_NEW = re.compile(r"\.[0-9a-f]{16}\.new\Z")
SAID = 2000
"""Characters of a process's last words that a finding quotes."""

AGENT = ROOT / "tests/data/mobility_agents/asks_each_step.py"

FEATURES: dict[str, tuple[str, ...]] = {
    "batches": ("--batch",),
    "budget": ("--budget", "1000000cny"),
    "estimate": ("--estimate", "--yes"),
    "hedging": ("--hedge", "3"),
    "no page": ("--no-html",),
    "rates": ("--rpm", "60000", "--tpm", "90000000"),
    "replicas": ("--api-url", "{other_name}"),
    "reuse": ("--reuse", "{undisturbed}"),
}
"""Options that change no record. Runs of one model at temperature 0 reuse replies of the
undisturbed run."""
REFUSED = ({"batches", "estimate"}, {"batches", "replicas"}, {"estimate", "reuse"})
"""Pairs that `run` refuses."""
PROVIDER = "priced"


@dataclass(frozen=True, slots=True)
class Subject:
    """What is run: a command's words, and the users of its tasks. `latency` is the endpoint's, in
    seconds.

    `options` are further words, which decide what the results hold; `suffix` is what they add to a
    run's name.
    """

    name: str
    benchmark: str
    models: tuple[str, ...]
    users: int
    concurrency: int
    latency: float
    subsets: tuple[str, ...] = ("beijing",)
    agent: Path | None = None
    options: tuple[str, ...] = ()
    suffix: str = ""

    @property
    def words(self) -> tuple[str, ...]:
        models = [word for model in self.models[1:] for word in ("--model", model)]
        subsets = [word for subset in self.subsets for word in ("--platform", subset)]
        agent = ("--agent", str(self.agent)) if self.agent else ()
        return (
            self.benchmark,
            *models,
            *subsets,
            *agent,
            *self.options,
            "--concurrency",
            str(self.concurrency),
        )

    @property
    def expected(self) -> set[tuple[str, str]]:
        """Name and subset of every run."""
        return {(self.run_of(model), subset) for model in self.models for subset in self.subsets}

    def run_of(self, model: str) -> str:
        prefix = "" if self.benchmark == STREAMPROFILE else f"{self.benchmark}-"
        return f"{prefix}{model.rpartition('/')[2]}{self.suffix}"


STREAMPROFILE, DAILYMOBILITY = "streamprofile", "dailymobility"
PLATFORMS = ("weibo", "zhihu")
SUBJECTS = (
    Subject("two platforms", STREAMPROFILE, ("baseline/recency",), 50, 8, 0.12, PLATFORMS),
    Subject(
        "two models",
        STREAMPROFILE,
        ("baseline/recency", "baseline/frequency"),
        25,
        8,
        0.12,
        PLATFORMS,
    ),
    Subject("plans", DAILYMOBILITY, ("baseline/commuter",), 200, 4, 0.12),
    Subject(
        "plans, two models",
        DAILYMOBILITY,
        ("baseline/commuter", "baseline/random-day"),
        100,
        4,
        0.12,
    ),
    Subject("an agent", DAILYMOBILITY, ("baseline/commuter",), 12, 6, 0.03, agent=AGENT),
    Subject(
        "repeats",
        STREAMPROFILE,
        ("baseline/recency",),
        12,
        8,
        0.12,
        ("weibo",),
        None,
        ("--repeats", "3"),
    ),
    Subject(
        "a part",
        STREAMPROFILE,
        ("baseline/recency",),
        60,
        8,
        0.12,
        ("weibo",),
        None,
        ("--part", "2/3"),
        ".part2of3",
    ),
)
SMALL = (
    Subject(
        "two models",
        STREAMPROFILE,
        ("baseline/recency", "baseline/frequency"),
        12,
        8,
        0.12,
        ("weibo",),
    ),
    Subject("an agent", DAILYMOBILITY, ("baseline/commuter",), 3, 3, 0.03, agent=AGENT),
)


@dataclass(frozen=True, slots=True)
class Campaign:
    """`folder` holds everything; `due` are the blows still to be struck; no blow begins when `over`
    says so."""

    folder: Path
    subjects: Sequence[Subject]
    due: deque[Blow]
    over: Callable[[], bool]
    pause: float
    life: float
    seed: int
    tally: Tally = field(default_factory=Tally)
    numbers: count[int] = field(default_factory=lambda: count(1))

    @property
    def timeout(self) -> str:
        """Seconds for a reply: less than a process is held by SIGSTOP."""
        return "5" if self.pause > 5 else "1"

    def next_blow(self) -> Blow:
        if self.over():
            return NONE
        try:
            return self.due.popleft()
        except IndexError:
            return NONE


def tasks_of(subject: Subject, folder: Path) -> Path:
    return folder / "tasks" / subject.name.replace(" ", "-")


def results_of(subject: Subject, folder: Path) -> Path:
    return folder / "undisturbed" / subject.name.replace(" ", "-")


def undisturbed(subject: Subject, folder: Path) -> Seen:
    """Make the tasks, and run them without a blow: whole replies, durability `process`."""
    platforms = [word for subset in subject.subsets for word in ("--platform", subset)]
    what = platforms if subject.benchmark == STREAMPROFILE else []
    synthesise(tasks_of(subject, folder), subject.benchmark, "--users", str(subject.users), *what)
    results = results_of(subject, folder)
    with endpoint() as url:
        command = run_command(
            url, tasks_of(subject, folder), results, *subject.words, model=subject.models[0]
        )
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, cwd=ROOT)
        seen, asked = look(results), requests(url)
    if seen.complete != subject.expected or seen.replies.total() != asked:
        raise RuntimeError(f"{subject.name}: the undisturbed run is not as it should be")
    return seen


def requests(url: str) -> int:
    """Return the requests that the endpoint has seen, in batches too, once those still on their way
    have come."""
    seen = -1
    while seen != (seen := sum(int(stats(url)[kind]) for kind in ("requests", "batched"))):
        time.sleep(0.03)
    return seen


def drawn(subject: Subject, rng: random.Random) -> list[str]:
    """Two features that may meet in runs of a subject."""
    may_reuse = len(subject.models) == 1 and subject.agent is None
    while (found := set(rng.sample(sorted(FEATURES), 2))) in REFUSED or (
        "reuse" in found and not may_reuse
    ):
        pass
    return sorted(found)


def providers(subject: Subject, urls: Sequence[str], path: Path) -> Path:
    """Write a providers file with prices of the subject's models at these addresses."""
    lines = [f"[providers.{PROVIDER}]", f"base_url = {json.dumps(urls)}"]
    for model in subject.models:
        lines += [
            f'[providers.{PROVIDER}.prices."{model}"]',
            'currency = "CNY"',
            *(f"{name} = {value}" for name, value in PRICE.items()),
        ]
    path.write_text("\n".join(lines), "utf-8")
    return path


class Disturbed:
    """One run, from nothing to its end, process after process."""

    def __init__(
        self, campaign: Campaign, subject: Subject, wanted: Seen, url: str, rng: random.Random
    ) -> None:
        self._number = next(campaign.numbers)
        self._results = campaign.folder / f"run-{self._number}"
        self._campaign, self._tally, self._subject = campaign, campaign.tally, subject
        self._wanted, self._url, self._rng = wanted, url, rng
        self._seen, self._unsaved, self._lives = Seen(), 0, 0
        stream, durability = rng.choice(("on", "off")), rng.choice(("process", "power"))
        self._features = drawn(subject, rng)
        other_name = url.replace("127.0.0.1", "localhost")
        urls = [url, other_name] if "replicas" in self._features else [url]
        places = {
            "other_name": other_name,
            "undisturbed": results_of(subject, campaign.folder) / subject.run_of(subject.models[0]),
        }
        self._providers = (
            "--providers",
            str(providers(subject, urls, campaign.folder / f"{self._number}.toml")),
        )
        self._options = (
            *(
                *subject.words,
                "--stream",
                stream,
                "--durability",
                durability,
                "--timeout",
                campaign.timeout,
            ),
            *("--provider", PROVIDER, *self._providers),
            *(word.format(**places) for name in self._features for word in FEATURES[name]),
        )
        about = f"{subject.name}, stream {stream}, {durability}, {' and '.join(self._features)}"
        self._label = f"run {self._number} ({about})"
        self._sound = True

    def play(self) -> None:
        """Until a process comes to its end and all is complete, or until something is found.

        One that is struck after the last user, at its report, leaves the rest of it to the next
        one.
        """
        struck = True
        while self._sound and (struck or not self._complete):
            blow = self._campaign.next_blow()
            struck = self._live(blow)
            if blow is NONE and not self._complete:
                self._found("a process that nothing disturbed did not bring the run to its end")
        if self._sound:
            self._compare()
        if self._sound:
            shutil.rmtree(self._results)

    @property
    def _complete(self) -> bool:
        return self._seen.complete == self._subject.expected

    def _found(self, words: str) -> None:
        self._sound = False
        self._tally.finding(
            f"{self._label}, process {self._lives}: {words}; files in {self._results}"
        )

    def _live(self, blow: Blow) -> bool:
        """One process, and what became of it; return whether it was struck."""
        self._lives += 1
        when = moment(blow, self._rng, START_UP, self._campaign.life)
        said = self._campaign.folder / f"said-{self._number}-{self._lives}.txt"
        manner = Manner(self._campaign.pause, self._rng.uniform(0.0, 0.2), self._rng.random() < 0.5)
        command = self._command()
        life = live(command, blow, when, manner, self._results, said)
        if blow is not NONE and not life.struck:
            self._campaign.due.append(blow)
        self._judge(blow if life.struck else NONE, life)
        if self._sound:
            said.unlink()
        else:
            note = (
                f"{blow.name}, struck {life.struck}, {when}, exit code {life.code}:"
                f" {shlex.join(command)}"
            )
            said.write_text(f"{life.said}\n{note}\n", "utf-8")
        return life.struck

    def _command(self) -> list[str]:
        """`run`; or `resume`, now and then, where that knows of every run."""
        begun = {(files.folder.name, files.subset) for files in runs(self._results)}
        if begun == self._subject.expected and self._rng.random() < 0.5:
            return [*HARNESS, "resume", "--results-dir", str(self._results), *self._providers]
        tasks = tasks_of(self._subject, self._campaign.folder)
        return run_command(
            self._url, tasks, self._results, *self._options, model=self._subject.models[0]
        )

    def _judge(self, blow: Blow, life: Life) -> None:
        """Exit code and words of a process, and what it left of users, replies and requests."""
        before, self._seen = self._seen, look(self._results)
        lost = losses(before, self._seen)
        is_batched = "batches" in self._features
        unsaved = requests(self._url) - (len(self._seen.replies) - self._seen.reused)
        if is_batched and not self._complete:  # replies may wait at the provider
            unsaved = self._unsaved
        twice, self._unsaved = unsaved - self._unsaved, unsaved
        bound = self._subject.concurrency if blow.on_the_wire and not is_batched else 0
        if "hedging" in self._features:
            bound = max(bound, twice)
        ends = {
            "wrong_exit": wrong_end(blow, life),
            "traced": traced(life),
            "beyond": max(0, twice - bound),
        }
        self._tally.blow(
            blow.name, struck=1, twice=twice, bound=bound, complete=self._complete, **lost, **ends
        )
        if bad := {what: number for what, number in (lost | ends).items() if number}:
            told = f"exit code {life.code}, {twice} requests paid twice, said {life.said[-SAID:]!r}"
            self._found(f"{blow.name}: {bad}; {told}")

    def _compare(self) -> None:
        """Check the end: bytes, replies, what is left over, and what `verify` says."""
        verify = [*HARNESS, "verify", "--results-dir", str(self._results)]
        proof = subprocess.run(verify, capture_output=True, text=True, check=False, cwd=ROOT)
        # What a killed writer of a shared file leaves is removed after a day.
        left = [
            path.name for path in self._results.rglob("*.new") if not SHARED_NEW.search(path.name)
        ]
        wanted = "no page" not in self._features
        pages = [
            str(files.folder)
            for files in runs(self._results)
            if files.report("html").exists() != wanted
        ]
        bad = {
            "not_identical": self._seen.results != self._wanted.results,
            "other_replies": self._seen.replies != self._wanted.replies,
            "unproven": proof.returncode != 0,
            "other_cost": self._seen.costs != reported(self._results),
            "left_over": len(left),
            "pages": len(pages),
        }
        self._tally.run(runs=1, twice=self._unsaved, torn=self._seen.torn, **bad)
        self._tally.run(**{f"runs of {self._subject.benchmark}": 1})
        if any(bad.values()):
            self._found(f"{bad}; {', '.join([*left, *pages])} {proof.stdout} {proof.stderr}")


def strike(campaign: Campaign, worker: int, wanted: Mapping[str, Seen]) -> None:
    """One thread's runs, one after the other, of all subjects in turn, until no blow is due."""
    rng = random.Random(f"{campaign.seed} {worker}")
    for number in count(worker):
        if not campaign.due or campaign.over():
            return
        subject = campaign.subjects[number % len(campaign.subjects)]
        with endpoint("--latency", str(subject.latency), "--jitter", "0.5") as url:
            Disturbed(campaign, subject, wanted[subject.name], url, rng).play()
        tally = campaign.tally
        print(
            f"{tally.struck} blows, {tally.runs['runs']} runs, {len(tally.findings)} findings",
            flush=True,
        )


def planned(kills: int, rng: random.Random) -> deque[Blow]:
    """As many SIGKILLs, half of them at writes, and the others in proportion, mixed; at least one
    of each kind."""
    others = [blow for blow, share in SHARES.items() for _ in range(max(1, round(kills * share)))]
    blows = [KILL] * (kills - kills // 2) + [KILL_AT_WRITE] * (kills // 2) + others
    rng.shuffle(blows)
    return deque(blows)


def conduct(
    folder: Path,
    subjects: Sequence[Subject],
    blows: deque[Blow],
    *,
    workers: int,
    pause: float,
    life: float,
    seed: int,
    over: Callable[[], bool] = lambda: False,
) -> Tally:
    """Strikes all blows, or as many as come before `over`; runs that have begun are brought to
    their end.

    `pause` is the length of a SIGSTOP, `life` about that of a process from its first reply on, both
    in seconds.
    """
    broken = threading.Event()
    campaign = Campaign(
        folder, subjects, blows, lambda: broken.is_set() or over(), pause, life, seed
    )
    with ThreadPoolExecutor(workers) as pool:
        seen = pool.map(lambda subject: undisturbed(subject, folder), subjects)
        wanted = {subject.name: one for subject, one in zip(subjects, seen, strict=True)}
        striking = [pool.submit(strike, campaign, worker, wanted) for worker in range(workers)]
        try:
            wait(striking, return_when=FIRST_EXCEPTION)
        finally:
            broken.set()  # where one failed, or a signal came, the others begin nothing new
        for one in striking:
            one.result()
    return campaign.tally


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--kills",
        type=int,
        metavar="N",
        help=f"SIGKILLs; other blows in proportion (default: {KILLS})",
    )
    parser.add_argument(
        "--minutes",
        type=float,
        metavar="M",
        help="begin no blow after so long; without --kills as many as fit",
    )
    parser.add_argument(
        "--quick", action="store_true", help="some blows of each kind, in about 20 s"
    )
    parser.add_argument(
        "--workers", type=int, default=4, metavar="N", help="runs side by side (default: 4)"
    )
    parser.add_argument("--seed", type=int, default=int(time.time()))
    args = parser.parse_args()
    os.environ |= {
        "NO_PROXY": "127.0.0.1",
        "no_proxy": "127.0.0.1",
    }  # loopback, whatever else this machine does
    folder = Path(tempfile.mkdtemp(prefix="harness-campaign-"))
    os.environ["TMPDIR"] = str(folder)  # where the harness puts the details of its defects
    started = time.monotonic()
    until = started + 60 * args.minutes if args.minutes else float("inf")
    kills = args.kills or (QUICK_KILLS if args.quick else MANY if args.minutes else KILLS)
    blows = planned(kills, random.Random(args.seed))
    print(f"seed {args.seed}, {folder}", flush=True)
    found = conduct(
        folder,
        SMALL if args.quick else SUBJECTS,
        blows,
        workers=args.workers,
        pause=2.0 if args.quick else 30.0,
        life=1.0 if args.quick else 1.5,
        seed=args.seed,
        over=lambda: time.monotonic() > until,
    )
    print(told(found, time.monotonic() - started))
    if not found.findings:
        shutil.rmtree(folder)
    return 1 if found.findings else 0


if __name__ == "__main__":
    signal.signal(
        signal.SIGTERM, lambda number, frame: sys.exit(128 + number)
    )  # endpoints end, and files go
    sys.exit(main())
