"""`python -m bench.fuzz [TARGET ...]`: fuzzes targets, each until its coverage has stood still, and
reports.

Needs requirements/fuzz.txt in an environment of its own. The exit code is 1 where there are finds.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from time import perf_counter
from typing import Any

import orjson

from bench.fuzz.kept import NOTHING, Before, Kept

NOT_TARGETS = ("__init__", "__main__", "child", "kept", "mutate", "scratch")
TARGETS = tuple(
    sorted(path.stem for path in Path(__file__).parent.glob("*.py") if path.stem not in NOT_TARGETS)
)

STALE = 1_000_000
"""Executions without growth of coverage after which a target has had enough."""

SECONDS = 360.0
HANG_SECONDS, MEMORY_MB = 20, 2048
"""What one input may take before the fuzzer itself calls it a hang or a leak."""

PROGRESS = re.compile(r"#(\d+)\s+(\w+)\s+cov: (\d+)")
RAN = re.compile(r"ran (\d+)")
MEMORY_FOLDER = Path("/dev/shm")


@dataclass(slots=True)
class Outcome:
    """What came of a target: `coverage` in branches, as the fuzzer counts them; `grown_at` in
    executions of this run.

    `before` is of the earlier runs that the corpus is from.
    """

    target: str
    before: Before = NOTHING
    executions: int = 0
    code: str = ""
    coverage: int = 0
    grown_at: int = 0
    seconds: float = 0.0
    finds: list[str] = field(default_factory=list)

    @property
    def stale(self) -> int:
        """Executions since coverage last grew."""
        return self.executions - self.grown_at

    def hear(self, line: str) -> None:
        """Take up a line that the fuzzer wrote."""
        if found := PROGRESS.match(line):
            self.executions = max(self.executions, int(found[1]))
            if int(found[3]) > self.coverage:
                self.coverage, self.grown_at = int(found[3]), int(found[1])
        elif found := RAN.match(line):
            self.executions = max(self.executions, int(found[1]))
        elif line.startswith("code "):
            self._begin(line[5:].strip())
        elif line.startswith("find "):
            self.finds.append(line[5:].strip())
        elif line.startswith(("SUMMARY:", "ALARM:", "Traceback")) or " ERROR: " in line:
            self.finds.append(f"the fuzzer stopped: {line.strip()}")

    def _begin(self, code: str) -> None:
        """Goes on where the last run of the same code ended."""
        self.code = code
        if code == self.before.code:
            self.coverage, self.grown_at = self.before.coverage, -self.before.stale

    def after(self) -> Before:
        """Nothing is forgotten where the fuzzer died before it began."""
        if not self.code:
            return self.before
        return Before(
            self.before.executions + self.executions, self.coverage, self.stale, self.code
        )

    def told(self) -> dict[str, Any]:
        return {**asdict(self), "stale": self.stale, "seconds": round(self.seconds, 1)}


@dataclass(frozen=True, slots=True)
class Bounds:
    """Of each target: executions (None: no bound but `STALE`), and seconds."""

    executions: int | None
    seconds: float


def fuzz(target: str, out: Path, corpus: Path | None, bounds: Bounds) -> Outcome:
    """Run one target to its end; inputs of finds are under `out`. With a `corpus` folder, from what
    is kept there."""
    with tempfile.TemporaryDirectory(
        dir=MEMORY_FOLDER if MEMORY_FOLDER.is_dir() else None
    ) as scratch:
        kept = Kept(corpus or Path(scratch) / "corpus", target)
        outcome = Outcome(target, kept.before)
        environment = {**os.environ, "TMPDIR": scratch}
        fuzzer = [
            *(sys.executable, "-m", "bench.fuzz.child", target, str(out)),
            *(
                f"-timeout={HANG_SECONDS}",
                f"-rss_limit_mb={MEMORY_MB}",
                f"-artifact_prefix={out}/{target}-",
            ),
        ]
        if len(kept):
            kept.minimise(fuzzer, environment)
        start = perf_counter()
        process = subprocess.Popen(
            [
                *(*fuzzer, f"-max_total_time={bounds.seconds:.0f}", "-verbosity=1"),
                *([f"-runs={bounds.executions}"] if bounds.executions else []),
                str(kept.inputs),
            ],
            stderr=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            env=environment,
        )
        assert process.stderr is not None
        try:
            for line in process.stderr:
                outcome.hear(line.decode("utf-8", "replace"))
                if outcome.stale >= STALE:
                    break
        finally:
            process.terminate()
            process.stderr.close()
            process.wait()
            outcome.seconds = perf_counter() - start
            kept.note(outcome.after())
    return outcome


def table(outcomes: Iterable[Outcome]) -> str:
    rows = [
        "| target | executions | in earlier runs | coverage | executions since it grew | finds |",
        "|---|---|---|---|---|---|",
    ]
    for one in outcomes:
        counts = one.executions, one.before.executions, one.coverage, one.stale, len(one.finds)
        rows.append(f"| {one.target} | {' | '.join(f'{count:,}' for count in counts)} |")
    return "\n".join(rows)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.fuzz", description=__doc__)
    parser.add_argument(
        "targets", nargs="*", metavar="TARGET", help=f"default: all of {', '.join(TARGETS)}"
    )
    parser.add_argument("--executions", type=int, metavar="N", help="of each target at most")
    parser.add_argument(
        "--seconds",
        type=float,
        default=SECONDS,
        help=f"of each target at most (default: {SECONDS:g})",
    )
    parser.add_argument(
        "--at-once", type=int, default=1, metavar="N", help="targets at once (default: 1)"
    )
    parser.add_argument(
        "--out", type=Path, default=Path("fuzz-finds"), metavar="DIR", help="where finds are kept"
    )
    parser.add_argument(
        "--corpus", type=Path, metavar="DIR", help="inputs to begin with, kept and extended"
    )
    parser.add_argument(
        "--results", type=Path, metavar="FILE", help="to which a line of JSON a target is added"
    )
    args = parser.parse_args()
    if unknown := set(args.targets) - set(TARGETS):
        parser.error(f"unknown target {', '.join(sorted(unknown))}: known are {', '.join(TARGETS)}")
    args.out.mkdir(parents=True, exist_ok=True)

    def one(target: str) -> Outcome:
        outcome = fuzz(target, args.out, args.corpus, Bounds(args.executions, args.seconds))
        print(table([outcome]).splitlines()[-1], *outcome.finds, sep="\n  ", flush=True)
        if args.results:
            with args.results.open("ab") as results:
                results.write(orjson.dumps(outcome.told(), option=orjson.OPT_APPEND_NEWLINE))
        return outcome

    with ThreadPoolExecutor(args.at_once) as pool:
        outcomes = list(pool.map(one, args.targets or TARGETS))
    print(table(outcomes))
    return 1 if any(outcome.finds for outcome in outcomes) else 0


if __name__ == "__main__":
    sys.exit(main())
