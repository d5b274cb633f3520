"""Runs with heavy tails, server limits and faults, in virtual time: what `--estimate` says against what they take.

`python -m tests.support.workloads --seed 100` prints how often the intervals of 24 workloads hold.
"""

from __future__ import annotations

import argparse
import random
import tempfile
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any, ClassVar

import anyio
import numpy as np
import orjson

from harness import defaults
from harness.chat import Chat
from harness.config.address import Found
from harness.config.plan import Plan, Way
from harness.endpoint.address import Address
from harness.endpoint.caller import Caller, Limits
from harness.endpoint.control import FixedControl
from harness.endpoint.limiter import Limiter, Slots
from harness.endpoint.rates import Rates
from harness.endpoint.request_body import Sampling, digest
from harness.endpoint.transport import Received
from harness.engine.dispatch import Dispatch
from harness.engine.lane import Lane, LanePlan
from harness.engine.progress import Findings
from harness.engine.run import Run
from harness.errors import TransportFault
from harness.features.estimate.estimates import Estimate, choose, estimates, sample_of
from harness.features.estimate.prediction import Range
from harness.model import JSON, Completion, Message, Request
from harness.store.manifest import RUNNING, Manifest
from harness.store.run import RunFiles, RunStore
from harness.store.tasks import open_index
from tests.support import virtual
from tests.support.chains import Chains

PRICE = {"currency": "USD", "prompt": "0.5", "completion": "2"}
QUANTITIES = ("requests", "prompt_tokens", "completion_tokens", "amount", "seconds")
AGAIN = 0.03
"""Share of replies after which the same is asked once more."""


@dataclass(frozen=True)
class Workload:
    """Chains are of `lengths` (`normal` or `pareto`, of logarithms), replies of `replies`; the server limits `slots`,
    requests (`rpm`) or tokens (`tpm`) a minute, or the client does (`own_tpm`); so many tries fail."""

    seed: int
    lengths: str
    replies: str
    limit: str
    users: int
    concurrency: int
    faults: float

    @property
    def name(self) -> str:
        return f"{self.lengths} chains, {self.replies} replies, {self.limit}, {self.users} users"


def workloads(first_seed: int) -> list[Workload]:
    """Return 24 workloads with seeds of their own."""
    kinds = product(("normal", "pareto"), ("normal", "pareto"), ("none", "slots", "rpm", "tpm", "own_rpm", "own_tpm"))
    made = []
    for number, (lengths, replies, limit) in enumerate(kinds):
        rng = random.Random(first_seed + number)
        users, concurrency = rng.choice((60, 150, 300, 600)), rng.choice((8, 32, 128))
        made.append(Workload(first_seed + number, lengths, replies, limit, users, concurrency, rng.choice((0.0, 0.05))))
    return made


class Prompts(Chains):
    """Asks with a text of each step; the reply before is in the prompt. A few replies are asked for again."""

    baselines: ClassVar[Mapping[str, Any]] = {"floor": lambda messages, seed: "."}

    async def play(self, given: JSON, chat: Chat) -> list[str]:
        replies = [""]
        for size in given["sizes"]:
            words = (Message("user", given["user_id"]), Message("user", "x" * size), Message("assistant", replies[-1]))
            made = await chat.ask(Request(words))
            if made.text.startswith("?"):
                made = await chat.ask(Request((*words, Message("user", "again"))))
            replies.append(made.text)
        return replies[1:]


class Server:
    """Replies take time by their tokens, which vary by user and by chance; so many requests are served at once, the
    others wait; above a rate it refuses."""

    def __init__(self, of: Workload) -> None:
        rng = self._rng = random.Random(7_000_000 + of.seed)
        self._of = of
        self._users = Counter({f"u{number}": self._drawn(0.4) for number in range(of.users)})
        self._slots = anyio.Semaphore(rng.choice((3, 8, 20)) if of.limit == "slots" else 10_000)
        self._seconds = 0.2 + rng.random(), rng.choice((30, 60, 200))
        self._per_minute = {"rpm": rng.choice((60.0, 300.0)), "tpm": rng.choice((100e3, 400e3))}.get(of.limit, 0.0)
        self._bytes = rng.uniform(2.0, 4.5)
        self._level, self._at = self._per_minute / 10, 0.0

    def _drawn(self, spread: float) -> float:
        """Return a factor with a heavy tail."""
        if self._of.replies == "normal":
            return self._rng.lognormvariate(0.0, 2 * spread)
        return min(50.0, self._rng.paretovariate(1 / spread))

    async def send(self, body: bytes, _: str = "") -> Received:
        rng, of = self._rng, self._of
        prompt, key = round(len(body) / self._bytes), orjson.loads(body)["messages"][0]["content"]
        length = min(8_000, int(1 + 150 * self._users[key] * self._drawn(0.4)))
        if self._per_minute:
            self._admit(1.0 if of.limit == "rpm" else prompt + length)
        if rng.random() < of.faults:
            await anyio.sleep(rng.choice([0.05, 2.0, 20.0]))
            raise TransportFault(rng.choice(["http_503", "timeout"]), "busy")
        async with self._slots:
            await anyio.sleep(self._seconds[0] + length / self._seconds[1])
        text = ("?" if rng.random() < AGAIN else "") + digest(body)[:12] + "y" * min(300, length)
        return Received(Completion(text, "stop", prompt, length), "http://here/v1")

    def _admit(self, amount: float) -> None:
        now, rate = virtual.now(), self._per_minute / 60
        self._level, self._at = min(self._per_minute / 10, self._level + rate * (now - self._at)), now
        if self._level <= 0:
            raise TransportFault("http_429", "slow down", retry_after=-self._level / rate + 1)
        self._level -= amount


class Played:
    """A run of a workload: first some users, then the rest."""

    def __init__(self, folder: Path, of: Workload, held: ExitStack) -> None:
        rng = random.Random(of.seed)
        self.of, self.server = of, Server(of)
        path = folder / "tasks.jsonl"
        path.write_bytes(b"\n".join(orjson.dumps(line) for line in _tasks(of, rng)))
        index = open_index(path, "chains", lambda line, where: _outline(line), folder / ".index")
        held.callback(index.close)
        self.store = RunStore(RunFiles(folder / "run", "weibo"), lambda: 1.0, "s")
        held.callback(self.store.close)
        own = {"own_rpm": rng.choice((60.0, 240.0)), "own_tpm": rng.choice((60e3, 240e3))}
        self.rpm = own["own_rpm"] if of.limit == "own_rpm" else None
        self.tpm = own["own_tpm"] if of.limit == "own_tpm" else None
        tuning = defaults.Tuning(concurrency=of.concurrency, rpm=self.rpm, tpm=self.tpm)
        selection = {"ratio": 1.0, "sample_seed": of.seed}
        sampling, benchmark = Sampling("m"), Prompts()
        way = Way(Found((Address("http://x"),), None))
        self.plan = Plan("run", benchmark, sampling, {"weibo": path}, folder, way, tuning, selection)  # type: ignore[arg-type]
        made = Manifest(
            subset="weibo",
            identity={"benchmark": "chains", "model": "m", "settings": {}, "sampling": {}, "files": {}},
            provenance={"endpoint": "http://x", "key_from": None, "harness": "0", "price": PRICE},
            tuning={},
            tasks={"path": "tasks.jsonl", "sha256": "", "users": of.users},
            selection=selection,  # type: ignore[arg-type]
            state=RUNNING,
            counts={},
            times={"created": "2025-01-01T00:00:00+00:00"},
        )
        self.store.open_logs(index)
        self.run = Run(benchmark, "weibo", index, self.store, made, np.ones(len(index), np.bool_))

    def play(self) -> tuple[Lane, float]:
        """Return the lane that has played, and the seconds that it took."""

        async def scene() -> tuple[Lane, float]:
            began = virtual.now()
            rates = Rates(self.rpm, self.tpm, began) if self.rpm or self.tpm else None
            limiter = Limiter(Slots(FixedControl(self.of.concurrency), virtual.now, rates))
            limits, rng = Limits(10_000, 10**6), random.Random(self.of.seed)
            caller = Caller(self.server, limiter, limits, clock=virtual.now, sleep=anyio.sleep, rng=rng)
            found, number = Findings([self.run], virtual.now), self.of.concurrency
            lane = Lane(LanePlan("run", self.of.seed, number, False), found, caller, clock=virtual.now)
            async with anyio.create_task_group() as playing:
                playing.start_soon(lane.run)
                playing.start_soon(Dispatch(limiter.slots, [lane], self.of.seed).serve)
            lane.progress.schedule()
            return lane, virtual.now() - began

        return virtual.run(scene)


def _tasks(of: Workload, rng: random.Random) -> Iterator[JSON]:
    for number in range(of.users):
        length = rng.lognormvariate(1.0, 0.9) if of.lengths == "normal" else rng.paretovariate(1.2)
        steps, text = min(100, 1 + int(length)), rng.lognormvariate(7.0, 0.7)
        sizes = [int(text * rng.lognormvariate(0.0, 0.4)) for _ in range(steps)]
        yield {"user_id": f"u{number}", "steps": steps, "sizes": sizes}


def _outline(line: bytes) -> tuple[str, int]:
    task = orjson.loads(line)
    return task["user_id"], task["steps"]


def estimated(played: Played) -> tuple[Estimate, dict[str, float]]:
    """Return the estimate after the first users, and what the whole took."""
    run = played.run
    run.first = choose(run)
    lane, first = played.play()
    made = estimates([(played.plan, lane, [sample_of(run)])], first)
    assert made is not None
    run.first, played.server._at = None, -1e9 if played.server._per_minute else 0.0
    _, rest = played.play()
    usage, cost = played.store.usage, run.cost
    assert len(run.remaining) == 0 and cost is not None and cost.amount is not None
    taken = usage.requests, usage.prompt_tokens, usage.completion_tokens, float(cost.amount), first + rest
    return made[0], dict(zip(QUANTITIES, taken, strict=True))


def held_by(chosen: Sequence[Workload]) -> Iterator[tuple[Workload, dict[str, tuple[Range, float]]]]:
    """Yield each workload with the range and the truth of each quantity."""
    for of in chosen:
        with ExitStack() as opened, tempfile.TemporaryDirectory() as folder:
            made, taken = estimated(Played(Path(folder), of, opened))
        yield of, {name: (getattr(made, name), taken[name]) for name in QUANTITIES}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=100)
    held, widths = Counter[str](), dict[str, deque[float]]()
    for of, found in held_by(workloads(parser.parse_args().seed)):
        missed = []
        for name, (range_, truth) in found.items():
            inside = range_.low <= truth <= range_.high
            held[name] += inside
            widths.setdefault(name, deque()).append(range_.high / range_.low)
            missed += [] if inside else [f"{name} {truth:.4g} not in {range_.low:.4g} to {range_.high:.4g}"]
        print(of.name, of.concurrency, "; ".join(missed), flush=True)
    for name in QUANTITIES:
        print(f"{name}: {held[name]} of 24, high / low {np.median(widths[name]):.2f}")


if __name__ == "__main__":
    main()
