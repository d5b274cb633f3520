"""`run --estimate`: what a few users tell of the whole, against what the whole then takes."""

from __future__ import annotations

import random
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

import anyio
import numpy as np
import orjson
import pytest

from harness import defaults
from harness.chat import Chat
from harness.config.plan import Plan
from harness.endpoint.caller import Caller, Limits
from harness.endpoint.control import FixedControl
from harness.endpoint.limiter import Limiter, Slots
from harness.endpoint.rates import Rates
from harness.endpoint.request_body import Sampling, digest
from harness.endpoint.transport import Received
from harness.engine.dispatch import Dispatch
from harness.engine.estimate import Estimate, choose, estimates, sample_of
from harness.engine.lane import Lane
from harness.engine.progress import Findings
from harness.engine.run import Run
from harness.errors import TransportFault
from harness.model import Completion
from harness.scoring.prediction import Range
from harness.store.manifest import RUNNING, Manifest
from harness.store.run import RunFiles, RunStore
from harness.store.tasks import open_index
from tests.support import virtual
from tests.support.chains import Chains, task_lines

USERS, SLOTS, FAULTS, AGAIN = 300, 16, 0.05, 0.03
PRICE = {"currency": "USD", "prompt": "0.5", "completion": "2"}
QUANTITIES = ("requests", "prompt_tokens", "completion_tokens", "amount", "seconds")


class Wavering(Chains):
    """Asks once more after a reply that begins with a question mark."""

    async def asked(self, chat: Chat, key: str, before: str) -> Completion:
        made = await super().asked(chat, key, before)
        return await super().asked(chat, key, before + "again") if made.text.startswith("?") else made


class Endpoint:
    """Replies after seconds and with tokens that vary with the user, the step and by chance; some tries fail."""

    def __init__(self, seed: int) -> None:
        self._rng = random.Random(1000 + seed)  # not that of the lengths
        self._users = {f"u{number}": self._rng.lognormvariate(0.0, 0.3) for number in range(USERS)}
        self._steps: Counter[str] = Counter()

    async def send(self, body: bytes, _: str = "") -> Received:
        rng, key = self._rng, orjson.loads(body)["messages"][0]["content"]
        if rng.random() < FAULTS:
            await anyio.sleep(rng.choice([0.05, 2.0, 30.0]))
            raise TransportFault(rng.choice(["http_503", "http_429", "timeout"]), "busy")
        length = int(400 * self._users[key] * rng.lognormvariate(0.0, 0.5))
        await anyio.sleep(0.4 + length / 60)
        self._steps[key] += 1
        text = ("?" if rng.random() < AGAIN else "") + digest(body)[:12]
        return Received(Completion(text, "stop", 900 + 150 * self._steps[key], length), "http://here/v1")


class Played:
    """A run over chains of seeded lengths, in virtual time: first some users, then the rest."""

    def __init__(self, folder: Path, seed: int, held: ExitStack, tpm: float | None = None) -> None:
        rng = random.Random(seed)
        lengths = {f"u{number}": min(40, 1 + int(rng.lognormvariate(1.5, 0.6))) for number in range(USERS)}
        path = folder / "tasks.jsonl"
        path.write_text(task_lines(lengths))
        index = open_index(path, "chains", lambda line, where: _outline(line), folder / ".index")
        held.callback(index.close)
        self.store = RunStore(RunFiles(folder / "run", "weibo"), lambda: 1.0, "s")
        held.callback(self.store.close)
        self.seed, self.tpm = seed, tpm
        self.benchmark, self.endpoint = Wavering(), Endpoint(seed)
        tuning = defaults.Tuning(concurrency=SLOTS, tpm=tpm)
        selection = {"ratio": 1.0, "sample_seed": seed}
        self.plan = Plan("run", self.benchmark, Sampling("m"), {"weibo": path}, folder, None, tuning, selection)  # type: ignore[arg-type]
        made = Manifest(
            subset="weibo",
            identity={"benchmark": "chains", "model": "m", "settings": {}, "sampling": {}, "files": {}},
            provenance={"endpoint": "http://x", "key_from": None, "harness": "0", "price": PRICE},
            tuning={},
            tasks={"path": "tasks.jsonl", "sha256": "", "users": USERS},
            selection=selection,  # type: ignore[arg-type]
            state=RUNNING,
            counts={},
            times={"created": "2025-01-01T00:00:00+00:00"},
        )
        self.store.open_logs(index)
        self.run = Run(self.benchmark, "weibo", index, self.store, made, np.ones(len(index), np.bool_))

    def play(self) -> tuple[Lane, float]:
        """Return the lane that has played, and the seconds that it took."""

        async def scene() -> tuple[Lane, float]:
            began = virtual.now()
            rates = Rates(None, self.tpm, began) if self.tpm else None
            limiter = Limiter(Slots(FixedControl(SLOTS), virtual.now, rates))
            limits, rng = Limits(8, 10**6), random.Random(self.seed)
            caller = Caller(self.endpoint, limiter, limits, clock=virtual.now, sleep=anyio.sleep, rng=rng)
            found = Findings([self.run], virtual.now)
            lane = Lane("run", found, caller, seed=self.seed, requested=SLOTS, power=False, clock=virtual.now)
            async with anyio.create_task_group() as playing:
                playing.start_soon(lane.run)
                playing.start_soon(Dispatch(limiter.slots, [lane], self.seed).serve)
            return lane, virtual.now() - began

        return virtual.run(scene)


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
    run.first = None
    _, rest = played.play()
    usage, cost = played.store.usage, run.cost
    assert len(run.remaining) == 0 and cost is not None and cost.amount is not None
    taken = usage.requests, usage.prompt_tokens, usage.completion_tokens, float(cost.amount), first + rest
    return made[0], dict(zip(QUANTITIES, taken, strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("tpm", [None, 60_000.0], ids=["slots", "rates"])
def test_estimates_hold_in_nine_of_ten_runs(tmp_path: Path, tpm: float | None) -> None:
    """Each quantity, time included, of 50 runs with chains, latencies, tokens and faults of their own."""
    held: Counter[str] = Counter()
    for seed in range(50):
        with ExitStack() as opened:
            folder = tmp_path / str(seed)
            folder.mkdir()
            made, taken = estimated(Played(folder, seed, opened, tpm))
        for name in QUANTITIES:
            of: Range = getattr(made, name)
            held[name] += of.low <= taken[name] <= of.high
    assert all(held[name] >= 45 for name in QUANTITIES), held


def test_first_users_are_of_all_lengths(tmp_path: Path) -> None:
    """One of each tenth of the chains, by length; so their mean is about that of all, and the seed decides who."""
    with ExitStack() as held:
        run = Played(tmp_path, 1, held).run
        steps = np.sort(run.index.steps)
        chosen = np.sort(run.index.steps[choose(run)])
        assert len(chosen) == 30 and (choose(run) == choose(run)).all()
        assert ((steps[::10] <= chosen) & (chosen <= steps[9::10])).all()


def test_subset_without_anybody_left_needs_no_prediction(tmp_path: Path) -> None:
    """What it took is known, however few its users are; too few users of others leave no estimate."""
    with ExitStack() as held:
        played = Played(tmp_path, 1, held)
        played.run.expected[1:] = False
        played.run.first = choose(played.run)
        lane, _ = played.play()
        sample = sample_of(played.run)
        assert len(sample.steps) == 1 and sample.total(lambda usage: usage.requests) == Range(0.0, 0.0, 0.0)
        played.run.expected[1] = True
        assert estimates([(played.plan, lane, [sample_of(played.run)])], 1.0) is None
