"""`--budget`: runs stop below it, lose nothing that was paid for, and go on with more."""

from __future__ import annotations

import shlex
from decimal import Decimal
from pathlib import Path
from typing import Any

import orjson
import pytest

from harness.cli import main
from harness.cost import rounded
from tests.support import SHIPPED
from tests.support.allowed import allow
from tests.support.scripted import Server, baseline, serving

JSON = dict[str, Any]
PRICES = {"a": ("USD", "0.5", "2"), "b": ("USD", "1", "4"), "yuan": ("CNY", "1", "4")}
"""By model: currency, and for a prompt token and a completion token, in millionths."""


def script(body: JSON) -> tuple[int, bytes]:
    """Answer as a baseline does; a prompt takes a token for three characters."""
    status, content = baseline(body)
    reply = orjson.loads(content)
    prompt = sum(len(message["content"]) for message in body["messages"]) // 3
    return status, orjson.dumps(
        {**reply, "usage": {"prompt_tokens": prompt, "completion_tokens": 50}}
    )


def providers(folder: Path, server: Server, queue: str = "[]") -> list[str]:
    prices = "".join(
        f'[providers.p.prices.{model}]\ncurrency = "{currency}"\nprompt = {prompt}\ncompletion ='
        f" {completion}\n"
        for model, (currency, prompt, completion) in PRICES.items()
    )
    file = folder / "providers.toml"
    queues = f"[queues]\nq = {queue}\n" if queue != "[]" else ""
    file.write_text(
        f'{queues}[providers.p]\nbase_url = "{server.url}"\nkey_required = false\n{prices}'
    )
    return ["--providers", str(file)]


def run(tmp_path: Path, *words: str) -> int:
    where = [*SHIPPED, "--platform", "weibo", "--limit", "12", "--no-html", "--max-tokens", "200"]
    return main(["run", *where, "--results-dir", str(tmp_path / "r"), *words])


def responses(tmp_path: Path, name: str) -> list[JSON]:
    return [
        orjson.loads(line)
        for line in (tmp_path / "r" / name / "responses_weibo.jsonl").read_bytes().splitlines()
    ]


def spent(tmp_path: Path, name: str, model: str | None = None) -> Decimal:
    """Return what the saved replies cost, in money, or in tokens for a model without a price."""
    price = PRICES.get(model or name)
    replies = [line["completion"] for line in responses(tmp_path, name)]
    prompts, completions = (
        sum(reply[f"{kind}_tokens"] for reply in replies) for kind in ("prompt", "completion")
    )
    if price is None:
        return Decimal(prompts + completions)
    return Decimal(prompts * Decimal(price[1]) + completions * Decimal(price[2])) / 10**6


def manifest(tmp_path: Path, name: str) -> JSON:
    found: JSON = orjson.loads((tmp_path / "r" / name / "run_weibo.json").read_bytes())
    return found


def test_run_stops_below_its_budget_and_resumes_with_more(tmp_path):
    """Every reply that the server gave is in the file, none is asked for again, and the sum is that
    of all sessions."""
    with serving(script) as server:
        found = providers(tmp_path, server)
        assert run(tmp_path, "--model", "p:a", "--budget", "0.004usd", *found) == 5
        first = len(server.bodies)
        assert len(responses(tmp_path, "a")) == first
        assert 0 < spent(tmp_path, "a") <= Decimal("0.004")
        again = ["resume", "--results-dir", str(tmp_path / "r"), "--no-html", *found]
        assert main(again) == 5 and len(server.bodies) == first  # it is kept, and used up
        assert manifest(tmp_path, "a")["tuning"]["budget"] == "0.004 USD"
        assert main([*again, "--budget", "0.005usd"]) == 5
        assert first < len(server.bodies) and spent(tmp_path, "a") <= Decimal("0.005")
        assert main([*again, "--budget", "1 usd"]) == 0
        assert manifest(tmp_path, "a")["state"] == "complete"
        assert len(responses(tmp_path, "a")) == len(server.bodies) == len(set(server.bodies))


def test_budget_in_tokens_needs_no_price(tmp_path):
    with serving(script) as server:
        words = ["--model", "p:unpriced", "--budget", "8ktok", *providers(tmp_path, server)]
        assert run(tmp_path, *words) == 5
        assert 0 < spent(tmp_path, "unpriced") <= 8000


@pytest.mark.parametrize(
    ("model", "budget"),
    [("p:unpriced", "5usd"), ("p:yuan", "5usd"), ("p:a", "5cny"), ("p:a", "5xyz")],
)
def test_budget_that_fits_no_price_is_refused(model, budget, tmp_path, capsys):
    """Before anything is sent or written, in one sentence; currencies are never converted."""
    with serving(script) as server:
        assert (
            run(tmp_path, "--model", model, "--budget", budget, *providers(tmp_path, server)) == 2
        )
        assert not server.bodies
    assert len(capsys.readouterr().err.splitlines()) == 1
    assert not list(tmp_path.glob("r/*/run_weibo.json"))


def test_preview_refuses_a_budget_that_the_run_would_refuse(tmp_path):
    """Its `--dry-run` is asked for exactly to find that."""
    with serving(script) as server:
        words = ("--model", "p:unpriced", *providers(tmp_path, server), "--dry-run")
        assert run(tmp_path, *words) == 0
        assert run(tmp_path, *words, "--budget", "5usd") == 2
        assert not server.bodies


def test_models_of_a_command_share_its_budget(tmp_path):
    """Both together stay below it."""
    with serving(script) as server:
        words = [
            "--model",
            "p:a",
            "--model",
            "p:b",
            "--budget",
            "0.01usd",
            *providers(tmp_path, server),
        ]
        assert run(tmp_path, *words) == 5
    sums = [spent(tmp_path, name) for name in "ab"]
    assert all(sums) and sum(sums) <= Decimal("0.01")


def test_entry_of_a_queue_has_a_budget_of_its_own(tmp_path):
    """The other model goes on to its end; a second budget for all is refused."""
    queue = '[{ model = "p:a", budget = "0.004usd" }, "p:b"]'
    with serving(script) as server:
        found = providers(tmp_path, server, queue)
        assert run(tmp_path, "--queue", "q", "--budget", "5usd", *found) == 2
        assert run(tmp_path, "--queue", "q", *found) == 5
    assert 0 < spent(tmp_path, "a") <= Decimal("0.004")
    assert [manifest(tmp_path, name)["state"] for name in "ab"] == ["stopped", "complete"]


def test_baseline_costs_nothing(tmp_path):
    assert run(tmp_path, "--model", "baseline/recency", "--budget", "0.000001usd") == 0


def test_part_has_its_share(tmp_path):
    """As of the other limits, so that all parts together keep the whole."""
    with serving(script) as server:
        words = [
            "--model",
            "p:a",
            "--part",
            "1/2",
            "--budget",
            "0.005usd",
            *providers(tmp_path, server),
        ]
        assert run(tmp_path, *words) == 5
    [folder] = (tmp_path / "r").glob("a.part*")
    assert 0 < spent(tmp_path, folder.name, "a") <= Decimal("0.0025")


def test_settings_file_and_queue_with_a_budget_contradict_each_other(tmp_path, monkeypatch, capsys):
    """The message has both files with their keys."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "xdg"))
    for name, text in {
        "harness.toml": '[run]\nqueue = "week"\nbudget = "5usd"\n',
        "providers.toml": '[queues]\nweek = [{model = "openai:a", budget = "1usd"}, "openai:b"]\n',
    }.items():
        Path(name).write_text(text)
        allow(Path(name), text.encode())
    assert main(["config", "--json"]) == 2
    said = capsys.readouterr()
    assert "harness.toml: run.budget" in said.err and "providers.toml: queues.week" in said.err
    value = orjson.loads(said.out)["budget"]
    assert (value["source"], value["where"]) == ("file", "harness.toml")


@pytest.mark.parametrize("kept", ["5", 5, ["5usd"], ""])
def test_resume_refuses_a_budget_that_another_program_wrote(kept, tmp_path):
    """Before anything is sent: without it, the run would cost more than was allowed."""
    with serving(script) as server:
        found = providers(tmp_path, server)
        assert run(tmp_path, "--model", "p:a", "--budget", "0.004usd", *found) == 5
        path, sent = tmp_path / "r" / "a" / "run_weibo.json", len(server.bodies)
        made = manifest(tmp_path, "a")
        path.write_bytes(orjson.dumps({**made, "tuning": {**made["tuning"], "budget": kept}}))
        assert main(["resume", "--results-dir", str(tmp_path / "r"), "--no-html", *found]) == 2
        assert len(server.bodies) == sent


def test_run_of_an_earlier_version_without_a_budget_is_resumed_without_one(tmp_path):
    """Its manifest has the member, and no value."""
    with serving(script) as server:
        found = providers(tmp_path, server)
        assert run(tmp_path, "--model", "p:a", "--budget", "0.004usd", *found) == 5
        path, made = tmp_path / "r" / "a" / "run_weibo.json", manifest(tmp_path, "a")
        path.write_bytes(orjson.dumps({**made, "tuning": {**made["tuning"], "budget": None}}))
        assert main(["resume", "--results-dir", str(tmp_path / "r"), "--no-html", *found]) == 0


def test_used_up_budget_names_what_other_runs_took_and_the_command_with_a_larger_one(
    tmp_path, capsys
):
    """A reader of one run's sums would look for the difference in vain; the same budget would end
    the resumed run at once."""
    with serving(script) as server:
        found = providers(tmp_path, server)
        assert run(tmp_path, "--model", "p:a", "--budget", "0.004usd", *found) == 5
        alone = capsys.readouterr().out
        assert "other runs" not in alone and "--budget '0.008 USD'" in alone
        assert run(tmp_path, "--model", "p:b", "--budget", "0.008usd", *found) == 5
        output = capsys.readouterr().out
        assert f"{rounded(spent(tmp_path, 'a'))} USD of it by other runs" in output
        [command] = [line for line in output.splitlines() if line.startswith("resume with: ")]
        words = shlex.split(command.partition(" resume ")[2])
        sent = len(server.bodies)
        main(["resume", *words, "--no-html"])
        assert len(server.bodies) > sent


def test_used_up_budgets_of_a_queue_are_raised_one_by_one(tmp_path, capsys):
    """Each run has its own, so no command names several."""
    with serving(script) as server:
        queue = '[{model = "p:a", budget = "0.004usd"}, {model = "p:b", budget = "0.006usd"}]'
        assert run(tmp_path, "--queue", "q", *providers(tmp_path, server, queue)) == 5
    lines = capsys.readouterr().out.splitlines()
    of_a, of_b = (line for line in lines if line.startswith("resume with: "))
    assert "--name a " in of_a and "--budget '0.008 USD each'" in of_a
    assert "--name b " in of_b and "--budget '0.012 USD each'" in of_b
