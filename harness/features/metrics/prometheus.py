"""`--metrics-port`: the last snapshots in the text format of Prometheus (0.0.4), served on loopback.

Names follow Prometheus' conventions: base units, `_total` for counts of this process that only grow. Every sample has
the run's name and its model as labels. A value that is not known has no sample.
"""

from __future__ import annotations

import errno
import logging
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, NamedTuple

from aiohttp import web

from harness.engine.extension import Extension, Observe
from harness.errors import MachineError
from harness.model import Snapshot, Snapshots

HOST, PATH = "127.0.0.1", "/metrics"
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
COUNTER, GAUGE = "counter", "gauge"
Samples = Iterable[tuple[Mapping[str, str], float | None]]
"""Labels and values."""


class Family(NamedTuple):
    """One metric: its name without the prefix, kind and help, and how its samples are read from a snapshot."""

    name: str
    kind: str
    words: str
    samples: Callable[[Snapshot], Samples]


def _one(name: str, kind: str, words: str, value: Callable[[Snapshot], float | None]) -> Family:
    return Family(name, kind, words, lambda s: [({}, value(s))])


def _each(name: str, words: str, field: str) -> Family:
    """Return the gauge of a number of each subset."""
    return Family(name, GAUGE, words, lambda s: [({"subset": one.subset}, getattr(one, field)) for one in s.subsets])


FAMILIES = (
    _each("users", "Users of the run.", "users"),
    _each("users_done", "Users with a record, of earlier processes too.", "done"),
    _each("users_failed", "Users that could not be played.", "failed"),
    _each("steps", "Steps of the run's users.", "steps"),
    _each("steps_done", "Steps that are answered, in earlier processes too.", "steps_done"),
    Family(
        "score",
        GAUGE,
        "Running figures over the users that have ended: a share from 0 to 1, or in the metric's unit.",
        lambda s: [
            ({"subset": a.subset, "metric": name}, value) for a in s.subsets for name, value in a.scores.items()
        ],
    ),
    _one("requests_total", COUNTER, "Requests that were sent.", lambda s: s.requests),
    _one("retries_total", COUNTER, "Tries after the first one of a request.", lambda s: s.retries),
    _one(
        "hedged_requests_total",
        COUNTER,
        "Requests that were sent a second time.",
        lambda s: dict(s.notices).get("hedged", 0),
    ),
    _one("saved_replies_total", COUNTER, "Saved replies that were used instead of a request.", lambda s: s.replayed),
    Family(
        "tokens_total",
        COUNTER,
        "Tokens that the endpoint reported.",
        lambda s: [({"kind": "prompt"}, s.prompt_tokens), ({"kind": "completion"}, s.completion_tokens)],
    ),
    Family(
        "failed_tries_total", COUNTER, "Failed tries.", lambda s: [({"kind": kind}, count) for kind, count in s.faults]
    ),
    _one("requests_in_flight", GAUGE, "Requests in flight.", lambda s: s.in_flight),
    _one("requests_limit", GAUGE, "Most requests in flight now.", lambda s: s.limit),
    _one("requests_waiting", GAUGE, "Requests that wait for a slot.", lambda s: s.waiting),
    _one("requests_backing_off", GAUGE, "Requests that wait for their next try.", lambda s: s.backing_off),
    Family(
        "reply_seconds",
        GAUGE,
        "Quantiles of the time of a reply.",
        lambda s: [({"quantile": q}, value) for q, value in zip(("0.5", "0.95"), s.latency or (), strict=False)],
    ),
    _one("outage_seconds", GAUGE, "Age of the outage, 0 for none.", lambda s: s.outage),
    _one("silence_seconds", GAUGE, "Time since the last answer, or the start.", lambda s: s.silence),
    _one("event_loop_lag_seconds", GAUGE, "Largest recent delay of the event loop.", lambda s: s.lag),
    _one("slowest_write_seconds", GAUGE, "Slowest recent write to the disk.", lambda s: s.slowest_write),
    _one("remaining_seconds", GAUGE, "Estimated time to the end.", lambda s: s.eta),
    _one("over", GAUGE, "Whether the run has ended, in any way.", lambda s: float(s.over)),
    Family(
        "cost",
        GAUGE,
        "Cost of all saved replies, of earlier processes too.",
        lambda s: [({"currency": one.currency}, float(one.amount)) for one in s.cost],
    ),
)


class Metrics(Extension):
    def __init__(self, args: Any) -> None:
        self._port: int = args.metrics_port

    def observing(self, observe: Observe) -> AbstractAsyncContextManager[Observe]:
        return served(self._port, observe)


def text(snapshots: Snapshots) -> str:
    """Return all metrics of all runs."""
    return "".join(line for family in FAMILIES for line in _lines(family, snapshots))


def _lines(family: Family, snapshots: Snapshots) -> Iterable[str]:
    name = f"harness_{family.name}"
    yield f"# HELP {name} {family.words}\n# TYPE {name} {family.kind}\n"
    for snapshot in snapshots:
        for labels, value in family.samples(snapshot):
            if value is not None:
                every = {"run": snapshot.name, "model": snapshot.model, **labels}
                shown = ",".join(f'{label}="{_escaped(word)}"' for label, word in every.items())
                yield f"{name}{{{shown}}} {value}\n"


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


@asynccontextmanager
async def served(port: int, observe: Observe) -> AsyncIterator[Observe]:
    """Serve the snapshots that the yielded function gets and hands on to `observe`. Raise `MachineError` if the port
    cannot be had."""
    last = _Last(observe)
    app = web.Application()
    app.router.add_get(PATH, last.answer)
    silent = logging.Logger("harness.metrics", logging.CRITICAL)  # errors: malformed requests, which aiohttp answers
    runner = web.AppRunner(app, access_log=None, logger=silent)
    await runner.setup()
    try:
        await _listen(web.TCPSite(runner, HOST, port), port)
        yield last.keep
    finally:
        await runner.cleanup()


async def _listen(site: web.TCPSite, port: int) -> None:
    try:
        await site.start()
    except OSError as error:
        why = "another program has it" if error.errno == errno.EADDRINUSE else error.strerror
        raise MachineError(f"cannot serve metrics on {HOST} port {port}: {why}: give another --metrics-port") from None


class _Last:
    """The last snapshots, which are handed on to `observe`, and the answer to a request for them."""

    def __init__(self, observe: Observe) -> None:
        self._observe = observe
        self._snapshots: Snapshots = ()

    def keep(self, snapshots: Snapshots) -> None:
        self._snapshots = snapshots
        self._observe(snapshots)

    async def answer(self, _: web.Request) -> web.Response:
        return web.Response(body=text(self._snapshots).encode(), headers={"Content-Type": CONTENT_TYPE})
