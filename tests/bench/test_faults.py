"""The campaign of endpoint faults in small, what it would notice, and how the endpoint bears
clients that go."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import re
import socket
from collections import Counter
from pathlib import Path

import orjson
import pytest

from bench.faults import (
    CALM,
    CONTENT_RATE,
    PARTS,
    RATES,
    Case,
    Outcome,
    conduct,
    planned,
    subjects,
    told,
    wrong,
)
from bench.outage import KILLED, Outage
from tests.support.endpoint_double.app import Options, start
from tests.support.endpoint_double.faults import CONTENT, STREAM, TRANSPORT


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where processes write; what they ask goes to loopback."""
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.setenv(name, "127.0.0.1")
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    return tmp_path


@pytest.mark.slow
def test_runs_under_faults_and_through_an_outage_end_as_calm_ones(folder):
    """Both benchmarks, whole replies and streams, mixed transport faults, content faults, and a
    server that is killed for 22 s: files are byte-identical, no user fails, and each fault is
    counted under its kind."""
    campaign = conduct(planned(PARTS, 8, 1, True, 22.0), folder, workers=6)
    assert not campaign.findings, told(campaign, 0.0)
    assert {case.row for case, _ in campaign.played} >= {CALM, "all mixed, 30%", "content", KILLED}
    assert all(seen.faults for case, seen in campaign.played if case.faults)


# What the campaign notices


SUBJECT = subjects(4)[0]
FAULTY = Case("429", SUBJECT, False, SUBJECT.name, ("429",), 0.3)
CONTENTS = Case("content", SUBJECT, False, "content", CONTENT, CONTENT_RATE, parse_retries=0)
STRUCK = Case(KILLED, SUBJECT, False, SUBJECT.name, outage=Outage(KILLED, 5, 60.0))
SOUND = Outcome(
    code=0,
    said="complete",
    results=b"results",
    failed=0,
    requests=12,
    faults=Counter({"429": 2}),
    replies=10,
    retries=Counter(http_429=2),
    most_tries=2,
    struck=False,
    diagnostics={"invalid": {}, "repaired": {}},
)
KINDS = dataclasses.replace(
    SOUND,
    faults=Counter({"no-json": 1, "fenced": 1}),
    diagnostics={"invalid": {"no_json": 1}, "repaired": {"fence": 1}},
)


@pytest.mark.parametrize(
    ("case", "seen", "found"),
    [
        (FAULTY, dataclasses.replace(SOUND, code=1), "exit code 1"),
        (
            FAULTY,
            dataclasses.replace(SOUND, said="Traceback (most recent call last)"),
            "it said Traceback",
        ),
        (FAULTY, dataclasses.replace(SOUND, results=b"other"), "the results file differs"),
        (FAULTY, dataclasses.replace(SOUND, failed=1), "1 failures"),
        (
            FAULTY,
            dataclasses.replace(SOUND, requests=13),
            "13 requests for 10 replies and 2 retries",
        ),
        (FAULTY, dataclasses.replace(SOUND, faults=Counter()), "no fault was served"),
        (
            CONTENTS,
            dataclasses.replace(KINDS, diagnostics={"invalid": {"empty": 2}}),
            "served .*, counted .*",
        ),
        (STRUCK, SOUND, "the run was over before the outage"),
        (
            STRUCK,
            dataclasses.replace(SOUND, struck=True),
            "no request was tried oftener than its retries allow",
        ),
    ],
)
def test_each_breach_is_a_finding(case, seen, found):
    """What is counted wrongly, differs, or shows that nothing was tried."""
    (words,) = wrong(case, seen, b"results")
    assert re.fullmatch(found, words)


def test_plan_has_every_kind_at_every_rate_in_both_forms_of_both_benchmarks():
    """And outages of both manners; nothing that the endpoint knows is left out."""
    cases = planned(PARTS, 20, 1, False, 60.0)
    single = Counter((case.faults[0], case.rate) for case in cases if len(case.faults) == 1)
    assert single == {
        (kind, rate): 2 if kind in STREAM else 4 for kind in (*TRANSPORT, *STREAM) for rate in RATES
    }
    assert Counter(case.row for case in cases if case.row.startswith("all mixed")).total() == 12
    assert Counter(case.row for case in cases if case.outage).total() == 8
    assert {kind for case in cases for kind in case.faults} == {*TRANSPORT, *STREAM, *CONTENT}


# The embedded endpoint


@pytest.mark.anyio
async def test_client_that_goes_before_its_stream_begins_is_no_error(
    caplog,
):
    """Time-outs of clients fill no console with tracebacks: an endpoint that stood still meets many
    of them."""
    message = [{"role": "user", "content": '从 ["狗", "猫"] 里选'}]
    body = orjson.dumps({"model": "baseline/recency", "messages": message, "stream": True})
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: h\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    endpoint = await start(Options())
    host, port = endpoint.runner.addresses[0][:2]
    try:
        with caplog.at_level(logging.ERROR):
            for _ in range(20):
                with socket.create_connection(
                    (host, port)
                ) as client:  # gone before the endpoint's loop goes on
                    client.sendall(head + body)
                for _ in range(10):
                    await asyncio.sleep(0)
    finally:
        await endpoint.close()
    assert caplog.messages == []
