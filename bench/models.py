"""Several models, providers and replicas in one command: limits, an outage, a replica that dies,
what a stream costs.

Everything is a process: endpoints in the manner of providers, each with a limit and a key of its
own, and `run` with a providers file. Only processes that were started here are ended, by their ids.
"""

from __future__ import annotations

import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

import orjson

from bench.bodies import PLATFORM, write_bodies
from bench.cost import CLIENT_CORES, ENDPOINT_CORES, Measured, run_harness
from bench.limits import chains
from bench.machine import starting_on
from bench.processes import ENDPOINT, HARNESS, ROOT, stats, synthesise
from harness.client.rates import BURST_SECONDS

KEYS = {"OA_KEY": "sk-test-of-openai", "DS_KEY": "sk-test-of-dashscope"}
SLOTS = {"oa": 12, "ds": 5}
"""Requests at once that the accounts take, as their servers see to it and as the providers file
says."""

JITTER = ("--jitter", "0.3")
LOOK_SECONDS = 0.1
LONGEST_SECONDS = 900.0
"""After which a run that does not end is killed, and that is an error."""

Row = dict[str, Any]


class Server:
    """An endpoint's process that can be killed, and started again at the same port. Totals go on
    over its lives."""

    def __init__(self, *options: str, command: Sequence[str] = ENDPOINT) -> None:
        self.url = ""
        self._command = [*command, *options]
        self._process: subprocess.Popen[str] | None = None
        self._earlier = {"requests": 0, "completed": 0, "foreign_keys": 0}
        self._answers = False

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.kill()

    def start(self) -> None:
        port = urlsplit(self.url).port or 0
        command = [*self._command, "--port", str(port)]
        self._process = process = subprocess.Popen(
            command, stdout=subprocess.PIPE, text=True, cwd=ROOT
        )
        assert process.stdout is not None
        line = process.stdout.readline()
        if "listening on " not in line:
            raise RuntimeError(f"the endpoint did not start: {line!r}")
        self.url, self._answers = line.split()[-1], True

    def freeze(self) -> None:
        """From now on it takes connections and answers nobody, until it is killed."""
        self._remember()
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def kill(self) -> None:
        self._remember()
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None

    def stats(self) -> dict[str, Any]:
        """Of its present life."""
        return stats(self.url)

    def total(self, name: str) -> int:
        """Return `requests`, `completed` or `foreign_keys`; of a life that was ended, those seen
        just before."""
        return self._earlier[name] + (self.stats()[name] if self._answers else 0)

    def _remember(self) -> None:
        if self._answers:
            self._earlier = {name: self.total(name) for name in self._earlier}
            self._answers = False


@dataclass(frozen=True, slots=True)
class Setup:
    """Where a command finds its tasks and providers, and the models that it names."""

    tasks: Path
    providers: Path
    models: tuple[str, ...]

    def command(self, results: Path, *options: str) -> list[str]:
        named = [word for model in self.models for word in ("--model", model)]
        where = [
            "--tasks-dir",
            str(self.tasks),
            "--results-dir",
            str(results),
            "--providers",
            str(self.providers),
        ]
        return [*HARNESS, "run", "--platform", PLATFORM, *named, *where, *options]


@dataclass(frozen=True, slots=True)
class Look:
    """Totals of each server, so many seconds after the command began."""

    seconds: float
    requests: tuple[int, ...]
    completed: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Event:
    """What is done, and when: told by a look and the seconds since the event before it."""

    due: Callable[[Look, float], bool]
    done: Callable[[], None]


@dataclass(frozen=True, slots=True)
class Followed:
    """How a command ended, what was seen, and when the events were over, in seconds since it
    began."""

    code: int
    seconds: float
    looks: list[Look]
    events: list[float]

    @property
    def busy(self) -> float:
        """Seconds from the first request to the command's end, its report included."""
        return self.seconds - next(look.seconds for look in self.looks if any(look.requests))

    def ended(self, server: int) -> float:
        """When its last answer had been seen."""
        last = self.looks[-1].completed[server]
        return next(look.seconds for look in self.looks if look.completed[server] == last)


def followed(
    command: Sequence[str], servers: Sequence[Server], events: Sequence[Event] = ()
) -> Followed:
    """Run a command and look at the servers until it ends, doing what is due on the way."""
    looks: list[Look] = []
    times: list[float] = []
    began = time.monotonic()
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, env=os.environ | KEYS) as process:
        try:
            while process.poll() is None:
                looks.append(_look(servers, began))
                now = looks[-1].seconds
                if now > LONGEST_SECONDS:
                    raise RuntimeError(f"not at its end after {now:.0f} s: {command}")
                if len(times) < len(events) and events[len(times)].due(
                    looks[-1], now - (times[-1] if times else 0.0)
                ):
                    events[len(times)].done()
                    times.append(time.monotonic() - began)
                time.sleep(LOOK_SECONDS)
        finally:
            process.kill()
    seconds = time.monotonic() - began
    return Followed(process.returncode, seconds, [*looks, _look(servers, began)], times)


def _look(servers: Sequence[Server], began: float) -> Look:
    requests, completed = (
        [server.total(name) for server in servers] for name in ("requests", "completed")
    )
    return Look(time.monotonic() - began, tuple(requests), tuple(completed))


def rate(looks: Sequence[Look], server: int, start: float, end: float) -> float | None:
    """Answers a second of one server between two moments; None where it was not seen at least twice
    in between."""
    seen = [look for look in looks if start <= look.seconds <= end]
    if len(seen) < 2:
        return None
    first, last = seen[0], seen[-1]
    return (last.completed[server] - first.completed[server]) / (last.seconds - first.seconds)


def most_within(looks: Sequence[Look], server: int, seconds: float) -> int:
    """Return the most requests that a server saw between two looks at most so far apart."""
    most, first = 0, 0
    for look in looks:
        while look.seconds - looks[first].seconds > seconds:
            first += 1
        most = max(most, look.requests[server] - looks[first].requests[server])
    return most


# ---- Limits and keys


def providers_file(path: Path, providers: Mapping[str, Mapping[str, Any]]) -> Path:
    """Write a providers file: texts, lists of texts and numbers are the same in TOML as in JSON."""
    tables = [
        f"[providers.{name}]\n"
        + "".join(f"{key} = {orjson.dumps(value).decode()}\n" for key, value in fields.items())
        for name, fields in providers.items()
    ]
    path.write_text("\n".join(tables), encoding="utf-8")
    return path


class Accounts:
    """An imitated OpenAI and DashScope, each with its key, limit and latency, and the providers
    file for both."""

    def __init__(
        self,
        folder: Path,
        latencies: Mapping[str, float],
        held: ExitStack,
        **more: Mapping[str, Any],
    ) -> None:
        self.servers = {
            name: held.enter_context(self._server(folder, name, imitated, latencies[name]))
            for name, imitated in (("oa", "openai"), ("ds", "dashscope"))
        }
        fields = {
            name: {
                "base_url": server.url,
                "key_env": _variable(name),
                "concurrency": SLOTS[name],
                **more.get(name, {}),
            }
            for name, server in self.servers.items()
        }
        self.file = providers_file(folder / "accounts.toml", fields)

    @property
    def both(self) -> tuple[Server, Server]:
        return self.servers["oa"], self.servers["ds"]

    def _server(self, folder: Path, name: str, imitated: str, latency: float) -> Server:
        key = folder / f"{name}.key"
        key.write_text(KEYS[_variable(name)], encoding="utf-8")
        who = (
            "--imitate",
            imitated,
            "--api-key-file",
            str(key),
            "--max-concurrency",
            str(SLOTS[name]),
        )
        return Server(*who, "--latency", str(latency), *JITTER)


def _variable(name: str) -> str:
    return f"{name.upper()}_KEY"


THREE = ("oa:gpt-4o", "ds:qwen-plus", "ds:qwen-max")
LATENCIES = {"oa": 0.3, "ds": 0.06}
RATES = {"oa": 180, "ds": 300}
"""Requests a minute."""


def limits_kept(folder: Path, users: int, rates: Mapping[str, int] | None) -> list[Row]:
    """Three models on two accounts; a row for each account. With rates, they are what holds the
    runs back."""
    tasks = _tasks(folder, users)
    with ExitStack() as held:
        more = {name: {"rpm": rpm} for name, rpm in (rates or {}).items()}
        accounts = Accounts(folder, LATENCIES, held, **more)
        run = followed(
            Setup(tasks, accounts.file, THREE).command(folder / "results"), accounts.both
        )
        seen = {name: server.stats() for name, server in accounts.servers.items()}
    sound = subprocess.run(
        [*HARNESS, "verify", "--results-dir", str(folder / "results"), "--tasks-dir", str(tasks)],
        stdout=subprocess.DEVNULL,
        check=False,
    )
    bounds = {name: _bound(name, seen[name]["requests"], rates) for name in SLOTS}
    return [
        {
            "table": "limits: three models on two accounts",
            "account": name,
            "slots": SLOTS[name],
            "rpm": rates[name] if rates else None,
            "requests": seen[name]["requests"],
            "most_at_once": seen[name]["most_in_flight"],
            "most_in_60_s": (
                most_within(run.looks, number, 60.0) if rates and run.seconds > 60 else None
            ),
            "refused_429": seen[name]["faults"].get("max-concurrency", 0),
            "foreign_keys": seen[name]["foreign_keys"],
            "bound_s": bounds[name],
            "wall_of_larger_bound": run.busy / max(bounds.values()),
            "exit_code": run.code,
            "verify": sound.returncode,
        }
        for number, name in enumerate(SLOTS)
    ]


def _bound(name: str, requests: int, rates: Mapping[str, int] | None) -> float:
    """Seconds that an account takes for so many requests at least."""
    return (
        requests * 60 / rates[name] - BURST_SECONDS
        if rates
        else requests * LATENCIES[name] / SLOTS[name]
    )


# ---- An outage


TWO_AND_ONE = ("oa:gpt-4o", "oa:gpt-4o-mini", "ds:qwen-plus")
TAIL = 0.85
"""Share of a server's answers after which its rate is that of a run's end."""


@dataclass(frozen=True, slots=True)
class Break:
    """`after` so many answers of the first account its server is gone for `down` seconds.

    `frozen`: it takes connections and answers none until the end of that time; else it refuses
    them.
    """

    after: int
    down: float
    frozen: bool = False


def outage(folder: Path, users: int, latencies: Mapping[str, float], how: Break) -> Row:
    """Let the first account's server go in the middle and come back; the other's runs are to go on
    as if alone."""
    tasks = _tasks(folder, users)
    with ExitStack() as held:
        accounts = Accounts(folder, dict.fromkeys(SLOTS, 0.0), held)
        undisturbed = followed(
            Setup(tasks, accounts.file, TWO_AND_ONE).command(folder / "undisturbed"), accounts.both
        )
    with ExitStack() as held:
        accounts = Accounts(folder, latencies, held)
        first, other = accounts.both

        def come_back() -> None:
            first.kill()
            first.start()

        run = followed(
            Setup(tasks, accounts.file, TWO_AND_ONE).command(
                folder / "results", "--max-retries", "2"
            ),
            accounts.both,
            [
                Event(
                    lambda look, since: look.completed[0] >= how.after,
                    first.freeze if how.frozen else first.kill,
                ),
                Event(lambda look, since: since >= how.down, come_back),
            ],
        )
        foreign = first.total("foreign_keys") + other.total("foreign_keys")
    gone, back = run.events
    return {
        "table": f"outage: one of two accounts is gone for {how.down:g} s",
        "case": "frozen, then killed" if how.frozen else "killed",
        **_rates(run, gone, back),
        "back_s": back,
        "answers_again_s": _first_answer(run.looks, back),
        "other_ended_s": run.ended(1),
        "ended_s": run.seconds,
        "exit_code": max(run.code, undisturbed.code),
        "failures": _failures(folder / "results"),
        "most_tries": _most_tries(folder / "results"),
        "foreign_keys": foreign,
        "identical": _same_results(folder / "results", folder / "undisturbed", len(TWO_AND_ONE)),
    }


def _rates(run: Followed, gone: float, back: float) -> Row:
    """Answers a second of the other account before, while and after the first is gone, and the
    first's meanwhile."""
    looks, total = run.looks, run.looks[-1].completed[1]
    began = next(look.seconds for look in looks if look.completed[1])
    tail = next(look.seconds for look in looks if look.completed[1] >= TAIL * total)
    stretches = {
        "before": (began + 1.0, gone),
        "during": (gone, min(back, tail)),
        "after": (back, max(back, tail)),
    }
    found: Row = {f"other_{name}": rate(looks, 1, *stretch) for name, stretch in stretches.items()}
    return found | {"own_during": rate(looks, 0, gone + LOOK_SECONDS, back)}


def _first_answer(looks: Sequence[Look], back: float) -> float:
    before = max(look.completed[0] for look in looks if look.seconds <= back)
    return next(look.seconds for look in looks if look.completed[0] > before)


# ---- Replicas


@dataclass(frozen=True, slots=True)
class Speeds:
    """Mean latencies of the replicas in seconds, and the requests at once."""

    latencies: tuple[float, ...]
    in_flight: int

    def shares(self) -> list[float]:
        """Of the requests, by speed."""
        return [
            1 / latency / sum(1 / other for other in self.latencies) for latency in self.latencies
        ]


SPEEDS = [
    Speeds(latencies, in_flight)
    for latencies in ((0.1, 0.25), (0.1, 0.15), (0.1, 0.15, 0.25))
    for in_flight in (16, 64)
]
REPLICATED = ("cluster:Qwen/Qwen2.5-7B-Instruct",)


class Cluster:
    """Replicas of an imitated vLLM, and the providers file for them."""

    def __init__(self, folder: Path, speeds: Speeds, held: ExitStack) -> None:
        self.servers = [
            held.enter_context(
                Server(
                    "--imitate", "vllm", "--latency", str(latency), *JITTER, "--seed", str(number)
                )
            )
            for number, latency in enumerate(speeds.latencies)
        ]
        fields = {
            "base_url": [server.url for server in self.servers],
            "concurrency": speeds.in_flight,
        }
        self.file = providers_file(
            folder / "cluster.toml", {"cluster": fields | {"key_required": False}}
        )


def shared(folder: Path, users: int, speeds: Speeds, repeats: int) -> Row:
    """How the requests of a run are shared, against the speeds: medians over the repeats, and the
    farthest off."""
    tasks = _tasks(folder, users)
    found, stayed = [], []
    for repeat in range(repeats):
        results = folder / f"{'-'.join(map(str, speeds.latencies))}-{speeds.in_flight}-{repeat}"
        with ExitStack() as held:
            cluster = Cluster(folder, speeds, held)
            run = followed(Setup(tasks, cluster.file, REPLICATED).command(results), cluster.servers)
        if run.code:
            raise RuntimeError(f"a run with replicas ended with exit code {run.code}")
        found.append(of_speeds(run.looks[-1].completed, speeds.shares()))
        stayed.append(_stayed(results))
    middle = [statistics.median(ratios) for ratios in zip(*found, strict=True)]
    return {
        "table": "replicas: share of the requests over share of the speeds",
        "latencies": _listed(speeds.latencies),
        "in_flight": speeds.in_flight,
        "requests": sum(run.looks[-1].completed),
        "farthest_off": max(abs(ratio - 1) for ratios in found for ratio in ratios),
        "stayed": statistics.median(stayed),
        **{f"replica_{number}": ratio for number, ratio in enumerate(middle, 1)},
        "repeats": found,
    }


def of_speeds(counts: Sequence[int], speeds: Sequence[float]) -> list[float]:
    """Return the share that each has of all, over the share that it should have."""
    return [count / sum(counts) / speed for count, speed in zip(counts, speeds, strict=True)]


def killed(folder: Path, users: int, speeds: Speeds, which: int, down: float | None) -> Row:
    """Play with a replica that is killed a third of the way; `down` seconds later it is back, or
    never."""
    tasks = _tasks(folder, users)
    with ExitStack() as held:
        cluster = Cluster(
            folder, Speeds(tuple(0.0 for _ in speeds.latencies), speeds.in_flight), held
        )
        undisturbed = followed(
            Setup(tasks, cluster.file, REPLICATED).command(folder / "undisturbed"), cluster.servers
        )
    total = sum(undisturbed.looks[-1].completed)
    with ExitStack() as held:
        cluster = Cluster(folder, speeds, held)
        events = [
            Event(lambda look, since: sum(look.completed) >= total / 3, cluster.servers[which].kill)
        ]
        if down is not None:
            events.append(Event(lambda look, since: since >= down, cluster.servers[which].start))
        results = folder / f"killed-{which}-{down}"
        run = followed(
            Setup(tasks, cluster.file, REPLICATED).command(results), cluster.servers, events
        )
    row = {
        "table": "replicas: one is killed a third of the way",
        "latencies": _listed(speeds.latencies),
        "in_flight": speeds.in_flight,
        "killed": f"{speeds.latencies[which]:g}",
        "down_s": down,
        "exit_code": run.code,
        "failures": _failures(results),
        "most_tries": _most_tries(results),
        "identical": _same_results(results, folder / "undisturbed", 1),
    }
    return row if down is None else row | _after_return(run, which, speeds)


def _after_return(run: Followed, which: int, speeds: Speeds) -> Row:
    """Return the share of the one that came back, from its first answer on, but for the last tenth
    of the requests."""
    back, last = run.events[-1], run.looks[-1]
    before = max(look.completed[which] for look in run.looks if look.seconds <= back)
    serving = [
        look
        for look in run.looks
        if look.completed[which] > before and sum(look.completed) <= 0.9 * sum(last.completed)
    ]
    if len(serving) < 2:
        return {"back_after_s": None, "of_its_speed_after": None}
    counts = [
        end - start for start, end in zip(serving[0].completed, serving[-1].completed, strict=True)
    ]
    share = of_speeds(counts, speeds.shares())[which]
    return {
        "back_after_s": serving[0].seconds - back,
        "of_its_speed_after": share,
        "requests_after": sum(counts),
    }


def _listed(latencies: Sequence[float]) -> str:
    return " / ".join(f"{latency:g}" for latency in latencies)


# ---- Streams


FINER = """import sys
from tests.support.endpoint_double import __main__, stream
stream._PIECES, stream.WRITES = int(sys.argv[1]), int(sys.argv[2])
__main__.main(sys.argv[3:])"""
"""An endpoint that cuts a reply into about so many chunks, and sends them in so many parts."""

CUT = {"as the endpoint cuts it": None, "finer": (170, 5), "finer, each sent alone": (170, 170)}
STREAM_LATENCY, STREAMED_IN_FLIGHT = 0.2, 64


def streamed(folder: Path, users: int, pairs: int) -> list[Row]:
    """CPU of the client for a streamed reply and for the same one whole, in turn; chains of
    four."""
    tasks, bodies = chains(folder, users), folder / "bodies.jsonl"
    write_bodies(tasks / f"{PLATFORM}_inference_tasks.jsonl", bodies)
    sample = bodies.read_bytes().splitlines()[:20]
    return [_streamed(tasks, sample, name, cut, pairs) for name, cut in CUT.items()]


def _streamed(
    tasks: Path, sample: Sequence[bytes], name: str, cut: tuple[int, int] | None, pairs: int
) -> Row:
    command = [sys.executable, "-c", FINER, *map(str, cut)] if cut else ENDPOINT
    found = []
    with ExitStack() as held:
        with starting_on(ENDPOINT_CORES):
            options = ("--imitate", "vllm", "--latency", str(STREAM_LATENCY), *JITTER)
            server = held.enter_context(Server(*options, command=command))
        for _ in range(pairs):
            found.append((_cpu(server, tasks, "on"), _cpu(server, tasks, "off")))
            print(
                f"  {name}: stream {found[-1][0].cpu_us:.0f} us, whole"
                f" {found[-1][1].cpu_us:.0f} us",
                flush=True,
            )
        chunks = statistics.median(_chunks(server.url, body) for body in sample)
    ratios = [stream.cpu_us / whole.cpu_us for stream, whole in found]
    return {
        "table": "streams: CPU of the client for a reply",
        "stream": name,
        "chunks": chunks,
        "requests": found[0][0].requests,
        "stream_us": statistics.median(stream.cpu_us for stream, _ in found),
        "whole_us": statistics.median(whole.cpu_us for _, whole in found),
        "of_whole": statistics.median(ratios),
        "ratios": ratios,
    }


def _cpu(server: Server, tasks: Path, stream: str) -> Measured:
    return run_harness(
        server.url, tasks, str(STREAMED_IN_FLIGHT), "--stream", stream, cores=CLIENT_CORES
    )


def _chunks(url: str, body: bytes) -> int:
    """Events of a stream, the one that ends it left out."""
    asked = orjson.dumps(
        orjson.loads(body) | {"stream": True, "stream_options": {"include_usage": True}}
    )
    headers = {"Content-Type": "application/json"}
    with urlopen(Request(f"{url}/chat/completions", asked, headers), timeout=30) as reply:
        events: bytes = reply.read()
    return events.count(b"data: ") - 1


# ---- What a run left, and all of it together


def _tasks(folder: Path, users: int) -> Path:
    tasks = folder / f"tasks-{users}"
    if not tasks.exists():
        synthesise(tasks, "--users", str(users), "--platform", PLATFORM)
    return tasks


def _lines(results: Path, kind: str) -> list[Row]:
    found = results.glob(f"*/{kind}_{PLATFORM}.jsonl")
    return [orjson.loads(line) for path in found for line in path.read_bytes().splitlines()]


def _failures(results: Path) -> int:
    return len(_lines(results, "failures"))


def _most_tries(results: Path) -> int:
    """Of a request; above what `--max-retries` allows where tries were given back."""
    return max(int(line["tries"]) for line in _lines(results, "responses"))


def _stayed(results: Path) -> float:
    """Share of steps, each user's first left out, that the replica answered which had answered the
    one before."""
    users: dict[str, list[str]] = {}
    for line in _lines(results, "responses"):
        users.setdefault(line["user_id"], []).append(line["endpoint"])
    same = [a == b for endpoints in users.values() for a, b in pairwise(endpoints)]
    return sum(same) / len(same)


def _same_results(results: Path, others: Path, runs: int) -> bool:
    """Whether each of so many runs has the same results file, byte for byte, in both folders."""
    pattern = f"*/inference_results_{PLATFORM}.jsonl"
    one, other = (
        {path.relative_to(folder): path.read_bytes() for path in folder.glob(pattern)}
        for folder in (results, others)
    )
    return one == other and len(one) == runs


def models(folder: Path, quick: bool) -> list[Row]:
    """All of it, each in a folder of its own."""
    latencies = {"oa": 0.15, "ds": 0.4}
    gone = [Break(200, 40.0), Break(200, 40.0, frozen=True)]
    two, three = Speeds((0.1, 0.15), 16), Speeds((0.1, 0.15, 0.25), 64)
    steps: list[Callable[[Path], list[Row]]] = [
        partial(limits_kept, users=150 if quick else 300, rates=None),
        partial(limits_kept, users=36, rates=RATES),
        *[
            lambda place, how=how: [outage(place, 150, latencies, how)]
            for how in gone[: 1 if quick else 2]
        ],
        *[
            lambda place, speeds=speeds: [shared(place, 300, speeds, 1 if quick else 3)]
            for speeds in SPEEDS
        ],
        *[
            lambda place, deed=deed: [killed(place, *deed)]
            for deed in (
                (300, two, 0, None),
                (300, two, 1, None),
                (300, two, 0, 3.0),
                (1500, three, 0, 3.0),
            )
        ],
        partial(streamed, users=400, pairs=2 if quick else 7),
    ]
    rows = []
    for number, step in enumerate(steps):
        place = folder / str(number)
        place.mkdir()
        for row in step(place):
            print(
                "  "
                + ", ".join(f"{name} {value}" for name, value in row.items() if name != "table"),
                flush=True,
            )
            rows.append(row)
    return rows
