"""What endpoints refuse, and what they fail at: from the command line, against endpoints that keep
their own log."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from email.utils import formatdate
from pathlib import Path
from typing import Any

import orjson
import pytest

from harness.cli import main
from tests.support import first_quick
from tests.support.plugins import Commands
from tests.support.scripted import PromptHandler, baseline, listening

Body = dict[str, Any]
Reply = tuple[int, bytes, Mapping[str, str]]
Act = Callable[["Endpoint", Body, str], Reply | None]
"""From a request and its prompt to a reply of its own; None for the true answer."""

RUN = (
    "run",
    "--demo",
    "--model",
    "m",
    "--platform",
    "weibo",
    "--name",
    "r",
    "--no-html",
    "--structured",
    "none",
)


@dataclass
class Endpoint:
    """Answers as the baseline does, unless `act` says otherwise. `tries` are those of each prompt,
    `probes` the times of requests for one token."""

    act: Act
    tries: Counter[str] = field(default_factory=Counter)
    probes: list[float] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    url: str = ""

    def reply(self, body: Body) -> Reply:
        self.times.append(time.monotonic())
        prompt = str(body["messages"])
        if body.get("max_tokens") == 1:
            self.probes.append(self.times[-1])
        else:
            self.tries[prompt] += 1
        if own := self.act(self, body, prompt):
            return own
        if body.get("max_tokens") == 1:
            return 200, baseline_of_one_token(), {}
        return *baseline(body), {}


def baseline_of_one_token() -> bytes:
    choice = {
        "index": 0,
        "message": {"role": "assistant", "content": "1"},
        "finish_reason": "length",
    }
    return orjson.dumps(
        {"choices": [choice], "usage": {"prompt_tokens": 1, "completion_tokens": 1}}
    )


def error(status: int, words: str, **headers: str) -> Reply:
    return status, orjson.dumps({"error": {"message": words}}), headers


@contextmanager
def serving(act: Act) -> Iterator[Endpoint]:
    endpoint = Endpoint(act)

    class Handler(PromptHandler):
        def do_POST(self) -> None:
            body = orjson.loads(self.rfile.read(int(self.headers["Content-Length"])))
            status, content, headers = endpoint.reply(body)
            self.send_response_only(status)
            for name, value in headers.items():
                self.send_header(name.replace("_", "-"), value)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

    with listening(Handler) as port:
        endpoint.url = f"http://127.0.0.1:{port}/v1"
        yield endpoint


@pytest.fixture
def harness(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Commands:
    return Commands(tmp_path, capsys)


def played(harness: Commands, endpoint: Endpoint, *words: object, code: int) -> str:
    """Run, with the address of an endpoint; return all that it printed."""
    harness(*RUN, "--api-url", endpoint.url, *words, code=code)
    return harness.out + harness.err


def coverage(harness: Commands) -> Any:
    return harness.report("r", "weibo")["coverage"]


def failures(harness: Commands) -> list[tuple[str, int]]:
    """The kind and the tries of each failed user."""
    lines = map(orjson.loads, harness.text("r", "failures_weibo.jsonl").splitlines())
    return [(line["kind"], line["tries"]) for line in lines]


# A firewall, a model that some of several servers lack


@pytest.mark.parametrize(("status", "concurrency"), [(401, 1), (402, 8), (403, 8), (403, 1)])
def test_user_whose_prompt_a_firewall_blocks_fails_alone_also_as_the_first(
    harness, status, concurrency
):
    """The others are done, and `resume` ends like the run."""
    blocked: list[str] = []

    def act(endpoint: Endpoint, body: Body, prompt: str) -> Reply | None:
        if body.get("max_tokens") == 1:
            return None
        blocked[:] = blocked or [prompt]
        return error(status, "Forbidden") if prompt == blocked[0] else None

    with serving(act) as endpoint:
        played(harness, endpoint, "--limit", 6, "--concurrency", concurrency, code=1)
        assert coverage(harness)["scored_users"] == 5
        harness("resume", "--name", "r", code=1)
    assert [kind for kind, _ in failures(harness)] == ["denied", "denied"]
    assert harness.text("r", "failures_weibo.jsonl").count("this prompt that is blocked") == 2
    assert endpoint.tries[blocked[0]] <= 2 * 4
    assert len(endpoint.probes) == 2


def test_wrong_key_stops_the_run_after_two_more_tries_with_its_own_words(harness):
    """A request for one token is refused, too."""
    with serving(
        lambda endpoint, body, prompt: error(401, "Incorrect API key provided")
    ) as endpoint:
        said = played(harness, endpoint, "--limit", 3, "--concurrency", 1, code=3)
    assert "Incorrect API key provided" in said and "check the key" in said
    assert (max(endpoint.tries.values()), len(endpoint.probes)) == (3, 1)


def test_key_that_is_revoked_in_the_middle_stops_the_run_resumably(harness):
    """The same after many answers."""
    revoked = [True]

    def act(endpoint: Endpoint, body: Body, prompt: str) -> Reply | None:
        return error(401, "revoked") if revoked and len(endpoint.times) > 4 else None

    with serving(act) as endpoint:
        assert "revoked" in played(harness, endpoint, "--limit", 6, "--concurrency", 2, code=3)
        revoked.clear()
        harness("resume", "--name", "r")
    assert coverage(harness)["complete"]


def test_empty_account_stops_the_run_at_once(harness):
    """Also after answers; nothing else decides."""
    with serving(
        lambda endpoint, body, prompt: (
            error(402, "Insufficient Balance") if len(endpoint.times) > 3 else None
        )
    ) as endpoint:
        assert "Insufficient Balance" in played(
            harness, endpoint, "--limit", 5, "--concurrency", 1, code=3
        )
    assert (len(endpoint.times), len(endpoint.probes)) == (4, 0)


def test_model_that_one_of_several_servers_lacks_costs_no_user(harness):
    """Every third request gets 404 with its name."""

    def act(endpoint: Endpoint, body: Body, prompt: str) -> Reply | None:
        return error(404, "The model `m` does not exist.") if len(endpoint.times) % 3 == 0 else None

    with serving(act) as endpoint:
        played(harness, endpoint, "--limit", 5, "--concurrency", 1, code=0)
    assert coverage(harness)["complete"]


@pytest.mark.parametrize("status", first_quick([400, 403, 422]))
def test_three_users_in_a_row_that_are_refused_stop_the_run(harness, status):
    """Also after answers, where none comes in between."""

    def act(endpoint: Endpoint, body: Body, prompt: str) -> Reply | None:
        is_probe = body.get("max_tokens") == 1
        return error(status, "no") if len(endpoint.times) > 3 and not is_probe else None

    with serving(act) as endpoint:
        said = played(harness, endpoint, "--limit", 9, "--concurrency", 1, code=3)
    assert "has refused three users in a row" in said
    assert len(failures(harness)) == 3
    assert endpoint.tries


def test_two_refused_users_and_an_answer_in_turn_stop_nothing(harness):
    """Six users of nine fail."""
    seen: dict[str, int] = {}

    def act(endpoint: Endpoint, body: Body, prompt: str) -> Reply | None:
        number = seen.setdefault(prompt[:2000], len(seen))
        return error(400, "no") if number % 3 else None

    with serving(act) as endpoint:
        played(harness, endpoint, "--limit", 9, "--concurrency", 1, code=1)
    assert coverage(harness)["failed_users"] >= 3


# Transient failures


@pytest.mark.parametrize(
    ("status", "words"),
    [
        *((status, "failed") for status in (408, 409, 421, 424, 425, 498, 499, 500, 529)),
        (400, "The server is overloaded, please retry later"),
    ],
)
def test_transient_failures_cost_no_user(harness, status, words):
    """Every third request fails."""
    with serving(
        lambda endpoint, body, prompt: (
            error(status, words) if len(endpoint.times) % 3 == 0 else None
        )
    ) as endpoint:
        played(harness, endpoint, "--limit", 3, "--concurrency", 1, code=0)
    assert coverage(harness)["complete"]


def test_one_prompt_that_always_fails_ends_as_one_failed_user_at_one_slot(
    harness,
):
    """A request for one token shows that the endpoint serves; it goes out at most once in ten
    seconds."""
    poisoned: list[str] = []

    def act(endpoint: Endpoint, body: Body, prompt: str) -> Reply | None:
        if body.get("max_tokens") == 1:
            return error(422, "max_tokens: must be at least 16")
        poisoned[:] = poisoned or [prompt]
        return error(500, "crashed") if prompt == poisoned[0] else None

    with serving(act) as endpoint:
        words = ("--limit", 3, "--concurrency", 1, "--max-retries", 3)
        played(harness, endpoint, *words, code=1)
    assert failures(harness) == [("persistent_error", 4)]
    assert endpoint.tries[poisoned[0]] == 4
    assert 1 <= len(endpoint.probes) <= 2
    assert all(
        later - earlier > 9.9
        for earlier, later in zip(endpoint.probes, endpoint.probes[1:], strict=False)
    )


@pytest.mark.slow
def test_request_has_at_most_thirty_tries_that_may_be_billed_over_all_sessions(
    harness,
):
    """Whatever the number of its retries, and where the endpoint answers nothing at all."""
    patience = ("--max-outage", "2", "--max-retries", "100")
    with serving(lambda endpoint, body, prompt: error(500, "crashed")) as endpoint:
        played(harness, endpoint, "--limit", 1, "--concurrency", 1, *patience, code=3)
        code, sessions = 3, 1
        while code == 3 and sessions < 40:
            code, sessions = (
                main(["resume", "--name", "r", "--results-dir", str(harness.results), *patience]),
                sessions + 1,
            )
    assert (code, max(endpoint.tries.values())) == (1, 30)


# Waits


@pytest.mark.slow
def test_wait_that_is_named_is_the_wait_however_often(harness):
    """Eight times a second, by seconds or by a date on a clock that is an hour off; not one counts
    as a try."""

    def act(endpoint: Endpoint, body: Body, prompt: str) -> Reply | None:
        number = len(endpoint.times)
        if number > 8:
            return None
        if number % 2:
            return error(429, "slow down", Retry_After="1")
        hour_ago = time.time() - 3600.0
        headers = {
            "Date": formatdate(hour_ago, usegmt=True),
            "Retry-After": formatdate(hour_ago + 1.0, usegmt=True),
        }
        return 503, b"{}", headers

    with serving(act) as endpoint:
        played(harness, endpoint, "--limit", 1, "--concurrency", 1, "--max-retries", 0, code=0)
    pauses = [
        later - earlier for earlier, later in zip(endpoint.times, endpoint.times[1:9], strict=False)
    ]
    assert 8.0 <= sum(pauses) < 15.0
    assert endpoint.probes == []


def test_nothing_but_waits_stops_the_run_resumably(harness):
    """After `--max-outage`; nobody fails by them. What was received before is kept."""

    def act(endpoint: Endpoint, body: dict[str, Any], prompt: str) -> Reply | None:
        return error(429, "slow down", Retry_After="1") if len(endpoint.times) > 2 else None

    with serving(act) as endpoint:
        said = played(
            harness, endpoint, "--limit", 2, "--max-outage", 3, "--max-retries", 0, code=3
        )
        assert "go on when it is back" in said and "resume with" in said
        endpoint.act = lambda endpoint, body, prompt: None
        harness("resume", "--name", "r")
    assert coverage(harness)["complete"]


# Before any answer


@pytest.mark.parametrize(
    "reply",
    [
        error(404, "Not Found"),
        pytest.param((405, b"", {}), marks=pytest.mark.slow),
        pytest.param((200, b"<html></html>", {}), marks=pytest.mark.slow),
    ],
    ids=["404", "405", "HTML"],
)
def test_wrong_address_stops_at_once_and_wait_puts_that_off(harness, reply):
    """A gateway may answer so while the endpoint behind it is loading."""
    with serving(lambda endpoint, body, prompt: reply) as endpoint:
        played(harness, endpoint, "--limit", 2, "--concurrency", 1, code=3)
        assert len(endpoint.times) == 1

    with serving(
        lambda endpoint, body, prompt: reply if len(endpoint.times) < 3 else None
    ) as endpoint:
        played(
            harness,
            endpoint,
            "--limit",
            2,
            "--concurrency",
            1,
            "--wait",
            60,
            "--max-retries",
            0,
            code=0,
        )
    assert coverage(harness)["complete"]
