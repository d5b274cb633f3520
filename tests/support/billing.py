"""An endpoint on loopback that keeps its own account of what it bills, single requests, streams and
batches."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from decimal import Decimal
from fractions import Fraction
from hashlib import blake2b
from pathlib import Path
from typing import Any

import orjson
import pytest

from harness.cli import main
from tests.support import SHIPPED
from tests.support.processes import wait_for
from tests.support.scripted import PromptHandler, answer, listening

JSON = dict[str, Any]

Price = tuple[str, str, str]
"""For a million tokens of prompts, of cached ones, of completions."""


@dataclass(frozen=True)
class Act:
    """What happens to a try: the tokens that are billed, None for none; the usage that is reported;
    and the reply.

    `fault` is `status 500`, `status 429`, `cut` (a stream that breaks off), `hang` (until
    `Account.release`) or `wait` (until then, and it is answered).
    """

    tokens: tuple[int, int, int] | None = (100, 0, 40)
    usage: JSON | None = None
    fault: str = ""


Script = Callable[[JSON, int], Act]
"""From a body and the number of its try, from 1."""


def draw(body: JSON) -> int:
    return int.from_bytes(blake2b(orjson.dumps(body["messages"]), digest_size=4).digest())


def full(prompt: int, cached: int, completion: int, reasoning: int = 0) -> JSON:
    """A complete usage."""
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "prompt_tokens_details": {"cached_tokens": cached},
        "completion_tokens_details": {"reasoning_tokens": reasoning},
    }


def plain(body: JSON, number: int) -> Act:
    """Tokens that the prompt decides, all reported."""
    tokens = 100 + draw(body) % 97, draw(body) % 31, 40 + draw(body) % 13
    return Act(tokens, full(*tokens))


def thoughts_apart(body: JSON, number: int) -> Act:
    """Thoughts that `completion_tokens` leaves out, and the total includes."""
    visible, thoughts = 40 + draw(body) % 13, 260
    usage = {**full(150, 0, visible, thoughts), "total_tokens": 150 + visible + thoughts}
    return Act((150, 0, visible + thoughts), usage)


def half(body: JSON, number: int) -> Act:
    return plain(body, number) if draw(body) % 2 else Act((150, 0, 45), None)


def failing(body: JSON, number: int) -> Act:
    return (
        Act((150, 0, 400), None, "status 500")
        if number == 1 and draw(body) % 3
        else plain(body, number)
    )


@dataclass
class Account:
    """`billed` has of each try that is billed the model, its amount, and its tokens; `prices` are
    those of now.

    A batch costs half. `batch_requests` counts the lines of each batch.
    """

    script: Script
    prices: dict[str, Price]
    url: str = ""
    billed: list[tuple[str, Fraction, int]] = field(default_factory=list)
    batch_requests: list[int] = field(default_factory=list)
    tries: Counter[bytes] = field(default_factory=Counter)
    arrived: int = 0
    release: threading.Event = field(default_factory=threading.Event)
    files: dict[str, bytes] = field(default_factory=dict)
    batches: dict[str, JSON] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def act(self, body: JSON, batch: bool) -> tuple[Act, JSON]:
        """Bill a try; return what happens to it, and its reply."""
        with self.lock:
            self.arrived += 1
            key = orjson.dumps(body)
            self.tries[key] += 1
            act = self.script(body, self.tries[key])
            if act.tokens is not None:
                self._bill(body["model"], act.tokens, batch)
        return act, {"model": body["model"], "choices": [self.choice(body)], "usage": act.usage}

    def choice(self, body: JSON) -> JSON:
        """The choice of the reply to a body."""
        message = {"role": "assistant", "content": answer("baseline/recency", body["messages"], 0)}
        return {"index": 0, "message": message, "finish_reason": "stop"}

    def _bill(self, model: str, tokens: tuple[int, int, int], batch: bool) -> None:
        price = [Fraction(one) for one in self.prices[model]]
        prompt, cached, completion = tokens
        amount = (prompt - cached) * price[0] + cached * price[1] + completion * price[2]
        self.billed.append((model, amount / 1_000_000 / (2 if batch else 1), prompt + completion))

    def total(self, *models: str) -> Fraction:
        """All that is billed, or what is billed for some models."""
        return sum(
            (amount for model, amount, _ in self.billed if not models or model in models),
            Fraction(0),
        )

    def run_batch(self, wanted: JSON) -> JSON:
        lines = [orjson.loads(line) for line in self.files[wanted["input_file_id"]].splitlines()]
        self.batch_requests.append(len(lines))
        results = []
        for line in lines:
            act, reply = self.act(line["body"], True)
            status, body = (
                (200, reply)
                if not act.fault
                else (int(act.fault[-3:]), {"error": {"message": "failed"}})
            )
            results.append(
                {"custom_id": line["custom_id"], "response": {"status_code": status, "body": body}}
            )
        output, name = f"out-{len(self.files)}", f"batch-{len(self.batches)}"
        self.files[output] = b"".join(orjson.dumps(one) + b"\n" for one in results)
        counts = {"total": len(lines), "completed": len(lines), "failed": 0}
        self.batches[name] = {
            "id": name,
            "status": "completed",
            "input_file_id": wanted["input_file_id"],
            "output_file_id": output,
            "metadata": wanted["metadata"],
            "request_counts": counts,
        }
        return self.batches[name]


class Handler(PromptHandler):
    account: Account

    def do_GET(self) -> None:
        *_, kind, name = self.path.partition("?")[0].removesuffix("/content").split("/")
        if self.path.endswith("/content"):
            self._send(200, self.account.files[name])
        elif kind == "batches":
            self._send(200, orjson.dumps(self.account.batches[name]))
        else:
            self._send(200, b'{"data": []}')

    def do_POST(self) -> None:
        content = self.rfile.read(int(self.headers["Content-Length"]))
        if self.path.endswith("/files"):
            name = f"in-{len(self.account.files)}"
            self.account.files[name] = b"\n".join(
                line for line in content.splitlines() if line.startswith(b'{"custom_id"')
            )
            self._send(200, orjson.dumps({"id": name}))
        elif self.path.endswith("/batches"):
            self._send(200, orjson.dumps(self.account.run_batch(orjson.loads(content))))
        else:
            self._complete(orjson.loads(content))

    def _complete(self, body: JSON) -> None:
        act, reply = self.account.act(body, False)
        if act.fault == "hang":
            self.account.release.wait(20)
            self.close_connection = True
        elif act.fault == "wait":
            self.account.release.wait(60)
            self._send(200, orjson.dumps(reply))
        elif act.fault == "cut":
            piece = {
                "choices": [
                    {
                        "index": 0,
                        "delta": {"content": reply["choices"][0]["message"]["content"][:9]},
                    }
                ]
            }
            self._send(200, b"data: %b\n\n" % orjson.dumps(piece), "text/event-stream")
        elif act.fault:
            self._send(int(act.fault[-3:]), b'{"error": {"message": "failed"}}')
        else:
            self._send(200, orjson.dumps(reply))

    def _send(self, status: int, content: bytes, kind: str = "application/json") -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


@contextmanager
def account(
    script: Script, prices: dict[str, Price], kind: type[Account] = Account
) -> Iterator[Account]:
    """Serve, and keep the account."""
    made = kind(script, prices)
    handler = type("Handler", (Handler,), {"account": made})
    with listening(handler) as port:
        made.url = f"http://127.0.0.1:{port}/v1"
        try:
            yield made
        finally:
            made.release.set()


PRICES = {
    "a": ("0.5", "0.1", "2"),
    "b": ("1", "0.25", "4"),
    "yuan": ("3", "3", "7"),
    "a-2026-01-31": ("0.5", "0.1", "2"),
}


def providers(folder: Path, url: str, **changed: str) -> list[str]:
    """A providers file with the prices; `changed` are other prompt prices by model."""
    text = f'[providers.p]\nbase_url = "{url}"\nkey_required = false\n'
    for model in ("a", "b", "yuan"):
        prompt, cached, completion = PRICES[model]
        text += (
            f"[providers.p.prices.{model}]\ncurrency ="
            f' "{"CNY" if model == "yuan" else "USD"}"\nbatch = 0.5\n'
        )
        text += (
            f"prompt = {changed.get(model, prompt)}\ncached = {cached}\ncompletion = {completion}\n"
        )
    (folder / "providers.toml").write_text(text)
    return ["--providers", str(folder / "providers.toml")]


def provider(name: str, url: str, *, scale: int | None = 1) -> str:
    """A provider of a file, with the price of `a` times a scale; without a price for None."""
    text = f'[providers.{name}]\nbase_url = "{url}"\nkey_required = false\n'
    if scale is not None:
        prompt, cached, completion = (Decimal(price) * scale for price in PRICES["a"])
        text += f'[providers.{name}.prices.a]\ncurrency = "USD"\nbatch = 0.5\n'
        text += f"prompt = {prompt}\ncached = {cached}\ncompletion = {completion}\n"
    return text


class Bench:
    """Commands in one results folder, and what they say."""

    def __init__(self, folder: Path, of: Account, capsys: pytest.CaptureFixture[str]) -> None:
        self.folder, self.account, self._capsys = folder, of, capsys
        self.results = folder / "results"
        self.output = self.errors = ""
        self.verified: int | None = None
        self.providers = providers(folder, of.url)

    def run(self, *words: str, limit: int = 9) -> int:
        models = [] if "--model" in words else ["--model", "p:a"]
        where = [
            *SHIPPED,
            "--platform",
            "weibo",
            "--limit",
            str(limit),
            "--no-html",
            "--max-retries",
            "2",
        ]
        return self.command("run", *where, *models, *self.providers, *words)

    def resume(self, *words: str) -> int:
        return self.command("resume", "--no-html", *self.providers, *words)

    def command(self, *words: str) -> int:
        code = main([*words, "--results-dir", str(self.results)])
        self.output, self.errors = self._capsys.readouterr()
        return code

    def said(self, *words: str) -> Any:
        self._capsys.readouterr()
        main([*words, "--json", "--results-dir", str(self.results)])
        return orjson.loads(self._capsys.readouterr().out)

    def cost(self, name: str = "a") -> JSON:
        """What `status` says, which report, manifest and `stats` say too once a session has
        ended."""
        [row] = self.said("status", "--name", name)
        folder = self.results / name
        manifest = orjson.loads((folder / "run_weibo.json").read_bytes())
        cost: JSON = row["cost"]
        if manifest["state"] != "running":
            report = orjson.loads((folder / "eval_report_weibo.json").read_bytes())
            assert cost == manifest["cost"] == report["cost"]
            self.verified = self.command("verify", "--name", name)
            assert self.verified in (0, 1)
        return cost

    def exact(self, name: str = "a") -> Fraction:
        """The amount, where nothing else may have been billed."""
        cost = self.cost(name)
        assert "low" not in cost and "high" not in cost
        assert self.verified == 0
        return Fraction(cost["amount"])

    def bounds(self, name: str = "a") -> tuple[Fraction, Fraction]:
        cost = self.cost(name)
        assert Fraction(cost["low"]) <= Fraction(cost["amount"]) <= Fraction(cost["high"])
        return Fraction(cost["low"]), Fraction(cost["high"])

    def spent(self, *names: str) -> Fraction:
        return self.account.total(*names)


def hang_after(bench: Bench, script: Script, answered: int) -> None:
    """Bill all tries as the script does, and answer only so many from now on."""
    last = bench.account.arrived + answered

    def hanging(body: JSON, number: int) -> Act:
        act = script(body, number)
        return Act(act.tokens, None, "hang") if bench.account.arrived > last else act

    bench.account.script = hanging


@contextmanager
def playing(bench: Bench, *words: str, limit: int = 9) -> Iterator[subprocess.Popen[str]]:
    """A `run` of the bench in a process of its own, which is killed at the end."""
    models = [] if "--model" in words else ["--model", "p:a"]
    where = [
        *SHIPPED,
        "--platform",
        "weibo",
        "--limit",
        str(limit),
        "--no-html",
        "--results-dir",
        str(bench.results),
    ]
    command = [sys.executable, "-m", "harness", "run", *where, *models, *bench.providers, *words]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def killed_once(
    bench: Bench, script: Script, *words: str, answered: int = 12, in_flight: int = 6
) -> list[str]:
    """Kill a run with requests in flight, all of which are billed; return its words, and answer
    from now on."""
    hang_after(bench, script, answered)
    with playing(bench, *words, "--concurrency", str(in_flight)):
        wait_for(lambda: bench.account.arrived >= answered + in_flight)
    bench.account.release.set()
    bench.account.script = script
    where = [*SHIPPED, "--platform", "weibo", "--limit", "9", "--no-html", "--model", "p:a"]
    return [*where, *bench.providers, *words]


def killed_three_times(bench: Bench, *more: str) -> list[str]:
    """Kill a run three times at 100 requests in flight, all of which are billed; return its words,
    and let the account answer from now on."""
    hold = {"from": 0}

    def script(body: JSON, number: int) -> Act:
        act = plain(body, number)
        return Act(act.tokens, None, "hang") if bench.account.arrived > hold["from"] else act

    bench.account.script = script
    words = [*SHIPPED, "--platform", "weibo", "--no-html", "--model", "p:a", "--max-tokens", "60"]
    words += ["--repeats", "4", "--limit", "40", "--concurrency", "100", *bench.providers]
    where = ["--results-dir", str(bench.results)]
    for _ in range(3):
        hold["from"] = bench.account.arrived + 30
        command = [sys.executable, "-m", "harness", "run", *words, *where, *more]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        while bench.account.arrived < hold["from"] + 90 and process.poll() is None:
            process.poll()
            signal.sigtimedwait([], 0.02)
        assert process.poll() is None
        process.kill()
        process.wait()
        low, high = bench.bounds()
        assert low < bench.spent() <= high
    bench.account.release.set()
    bench.account.script = plain
    return words
