"""Prompts that always time out, and the rest of a run: from the command line, over several
sessions."""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import orjson
import pytest

from tests.support import SHIPPED
from tests.support.plugins import Commands
from tests.support.scripted import baseline, serving

POISONED, RETRIES = 3, 3
UNKNOWN_MODEL = orjson.dumps(
    {"error": {"code": "model_not_found", "message": "The model m does not exist"}}
)


@dataclass
class Poisoned:
    """Never answers the first three prompts that it sees; `gone` once each was tried so often,
    until that is 0."""

    gone: int
    tries: Counter[bytes] = field(default_factory=Counter)
    closed: threading.Event = field(default_factory=threading.Event)

    def __call__(self, body: dict[str, Any]) -> tuple[int, bytes]:
        if body.get("max_tokens") == 1:  # no user's
            return (404, UNKNOWN_MODEL) if self.over else baseline(body)
        prompt = orjson.dumps(body["messages"])
        if prompt not in self.tries and len(self.tries) == POISONED:
            return baseline(body)
        if self.over:
            return 404, UNKNOWN_MODEL
        self.tries[prompt] += 1
        self.closed.wait(60.0)
        return 503, b"{}"

    @property
    def over(self) -> bool:
        return (
            self.gone > 0 and len(self.tries) == POISONED and min(self.tries.values()) >= self.gone
        )


@pytest.mark.slow
def test_prompts_that_always_time_out_become_failed_users_with_their_tries_over_all_sessions(
    tmp_path, capsys
):
    """The first session ends after two tries of each; the next one has the other two, and the run
    ends."""
    harness, endpoint = Commands(tmp_path, capsys), Poisoned(gone=2)
    words = ("--timeout", "0.4", "--max-retries", RETRIES, "--max-outage", 5, "--concurrency", 16)
    with serving(endpoint) as server:
        about = (
            "--platform",
            "weibo",
            "--limit",
            40,
            "--name",
            "r",
            "--no-html",
            "--structured",
            "none",
        )
        harness("run", *SHIPPED, "--model", "m", "--api-url", server.url, *about, *words, code=3)
        assert set(endpoint.tries.values()) == {2}
        endpoint.gone = 0
        harness("resume", "--name", "r", *words, code=1)
        endpoint.closed.set()
    assert set(endpoint.tries.values()) == {RETRIES + 1}
    failures = [
        orjson.loads(line) for line in harness.text("r", "failures_weibo.jsonl").splitlines()
    ]
    assert [(one["kind"], one["tries"]) for one in failures] == [
        ("persistent_error", RETRIES + 1)
    ] * POISONED
    assert harness.report("r", "weibo")["coverage"]["failed_users"] == POISONED
