"""The cost of runs, everywhere that it is shown, against a computation from their responses by
other arithmetic."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator
from dataclasses import replace
from decimal import Decimal
from fractions import Fraction
from hashlib import blake2b
from pathlib import Path
from shutil import copytree
from typing import Any

import msgspec
import orjson
import pytest

from harness.benchmarks.streamprofile.baselines import read
from harness.cli import main
from harness.commands.stats import costs
from harness.commands.stats.run_reports import read as read_report
from harness.cost import rounded
from harness.defaults import SAMPLE_FOLDER
from harness.reporting import report_files
from harness.reporting.report import page
from tests.support import SHIPPED
from tests.support.before import sheets
from tests.support.commands import execute
from tests.support.scripted import answer, completion, serving

JSON = dict[str, Any]

PRICES = {
    "usd": ("USD", "0.27", "0.07", "1.1"),
    "cny": ("CNY", "0.8", "0.16", "2.003"),
    "silent": ("USD", "0.1", "0.1", "0.3"),
    "half": ("CNY", "3", "1.5", "7"),
}
"""By model: currency, and for a million prompt tokens, cached ones, completion tokens."""
FREE = "free"
"""A model without a price."""


def usage(model: str, draw: int) -> JSON | None:
    """The usage of a reply, in the words of one provider or another; `draw` is of its prompt."""
    counts = {"prompt_tokens": 100 + draw % 97, "completion_tokens": 40 + draw % 13}
    if model == "silent" or (model == "half" and draw % 2):
        return None
    if model == "cny":
        return {
            **counts,
            "prompt_cache_hit_tokens": draw % 31,
            "completion_tokens_details": {"reasoning_tokens": 7},
        }
    return {**counts, "prompt_tokens_details": {"cached_tokens": draw % 53}}


def script(body: JSON) -> tuple[int, bytes]:
    """Answers as a baseline does, with a usage that the prompt decides."""
    draw = int.from_bytes(blake2b(orjson.dumps(body["messages"]), digest_size=4).digest())
    message = {"role": "assistant", "content": answer("baseline/recency", body["messages"], 0)}
    choice = {"index": 0, "message": message, "finish_reason": "stop"}
    return 200, orjson.dumps({"choices": [choice], "usage": usage(body["model"], draw)})


def providers(folder: Path, url: str, **changed: str) -> Path:
    """A providers file with the prices; `changed` are other prompt prices by model."""
    prices = "".join(
        f'[providers.p.prices."{model}"]\ncurrency = "{currency}"\nprompt ='
        f" {changed.get(model, prompt)}\ncached = {cached}\ncompletion = {completion}\ndate ="
        " 2026-11-01\n"
        for model, (currency, prompt, cached, completion) in PRICES.items()
    )
    file = folder / "providers.toml"
    file.write_text(
        f'[providers.p]\nbase_url = "{url}"\nkey_required = false\n{prices}', encoding="utf-8"
    )
    return file


def run(results: Path, *words: str) -> int:
    return main(
        ["run", *SHIPPED, "--platform", "weibo", "--no-html", "--results-dir", str(results), *words]
    )


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A run of each model, of two sessions, and one of a baseline."""
    folder = tmp_path_factory.mktemp("costs")
    with serving(script) as server:
        file = providers(folder, server.url)
        models = [word for model in (*PRICES, FREE) for word in ("--model", f"p:{model}")]
        for users in ("4", "9"):
            assert run(folder / "results", *models, "--providers", str(file), "--limit", users) == 0
    assert run(folder / "results", "--model", "baseline/recency", "--limit", "9") == 0
    yield folder / "results"


def report(results: Path, model: str) -> JSON:
    found: JSON = orjson.loads((results / model / "eval_report_weibo.json").read_bytes())
    return found


def manifest(results: Path, model: str) -> JSON:
    found: JSON = orjson.loads((results / model / "run_weibo.json").read_bytes())
    return found


def responses(results: Path, model: str) -> list[JSON]:
    return [
        orjson.loads(line)
        for line in (results / model / "responses_weibo.jsonl").read_bytes().splitlines()
    ]


def by_hand(results: Path, model: str, prompt_price: str | None = None) -> Fraction:
    """The cost from a run's responses: fractions of whole tokens, unreported ones by the ratios of
    the others."""
    _, *prices = PRICES[model]
    each, cached_each, answer_each = map(Fraction, [prompt_price or prices[0], *prices[1:]])
    lines = responses(results, model)
    reported = [
        line["completion"] for line in lines if line["completion"]["prompt_tokens"] is not None
    ]
    rest = [line for line in lines if line["completion"]["prompt_tokens"] is None]
    total = Fraction(0)
    for one in reported:
        cached = one.get("cached_tokens", 0)
        total += (
            (one["prompt_tokens"] - cached) * each
            + cached * cached_each
            + one["completion_tokens"] * answer_each
        )
    measured = [
        line for line in lines if "sent" in line and line["completion"]["prompt_tokens"] is not None
    ]
    prompts = (
        sum(line["completion"]["prompt_tokens"] for line in measured),
        sum(line["sent"] for line in measured),
    )
    texts = (
        sum(one["completion_tokens"] for one in reported),
        sum(len(one["text"].encode()) for one in reported),
    )
    for price, unknown, (tokens, size) in (
        (each, sum(line["sent"] for line in rest), prompts),
        (answer_each, sum(len(line["completion"]["text"].encode()) for line in rest), texts),
    ):
        total += -(-unknown * (tokens or 1) // (size or 3)) * price
    return total / 1_000_000


def stats(results: Path, capsys: pytest.CaptureFixture[str], *words: str) -> str:
    execute(results, "stats", *words)
    return capsys.readouterr().out


@pytest.mark.parametrize("model", PRICES)
def test_cost_in_stats_is_that_of_the_responses_to_the_last_digit(results, model, capsys):
    """Cached and reasoning tokens, two currencies, replies without usage: JSON and CSV have the
    exact amount."""
    expected, currency = by_hand(results, model), PRICES[model][0]
    found = orjson.loads(stats(results, capsys, "--json"))["costs"][model]["weibo"]
    assert expected > 0 and Fraction(found["amount"]) == expected
    assert found["price"]["currency"] == currency
    assert abs(Fraction(found["amount_per_user"]) - expected / 9) < Fraction(1, 10**12)
    lines = csv.DictReader(io.StringIO(stats(results, capsys, "--format", "csv")))
    (line,) = [line for line in lines if line["metric"] == "cost" and line["run"] == model]
    assert (Fraction(line["value"]), line["unit"], line["users"]) == (expected, currency, "9")


@pytest.mark.parametrize("model", PRICES)
def test_report_manifest_and_status_have_the_same_cost(results, model, capsys):
    """Over both sessions, of which the first one's replies are not in the second one's traffic."""
    execute(results, "status", "--json", "--name", model)
    (row,) = orjson.loads(capsys.readouterr().out)
    assert row["cost"] == report(results, model)["cost"] == manifest(results, model)["cost"]
    assert Fraction(row["cost"]["amount"]) == by_hand(results, model)


def test_cached_and_reasoning_tokens_are_counted_apart(results):
    """By the names that OpenAI and DeepSeek give them."""
    for model in ("usd", "cny"):
        lines, cost = responses(results, model), report(results, model)["cost"]
        for name in ("cached_tokens", "reasoning_tokens"):
            assert cost[name] == sum(line["completion"].get(name, 0) for line in lines), (
                model,
                name,
            )
        assert cost["cached_tokens"] > 0
    assert report(results, "cny")["cost"]["reasoning_tokens"] == 7 * len(responses(results, "cny"))


def test_replies_without_usage_are_estimated_and_marked(results):
    """By the run's ratios, or without any a token for three bytes; all responses have the bytes of
    their requests."""
    silent, half = (report(results, model)["cost"] for model in ("silent", "half"))
    assert (
        silent["requests_without_usage"] == silent["requests"] == len(responses(results, "silent"))
    )
    assert silent["estimated_prompt_tokens"] == -(
        -sum(line["sent"] for line in responses(results, "silent")) // 3
    )
    assert 0 < half["requests_without_usage"] < half["requests"]
    assert all(line["sent"] > 0 for model in ("half", "usd") for line in responses(results, model))
    for cost in (silent, half):
        assert Fraction(cost["low"]) < Fraction(cost["amount"]) < Fraction(cost["high"])
    assert "about" in (results / "half" / "eval_report_weibo.txt").read_text(encoding="utf-8")


def test_model_without_a_price_has_tokens_only(results, capsys):
    """No amount and no currency, anywhere."""
    cost = report(results, FREE)["cost"]
    assert (cost["amount"], cost["price"], manifest(results, FREE)["provenance"]["price"]) == (
        None,
        None,
        None,
    )
    assert cost["prompt_tokens"] == sum(
        line["completion"]["prompt_tokens"] for line in responses(results, FREE)
    )
    assert orjson.loads(stats(results, capsys, "--json"))["costs"][FREE]["weibo"]["amount"] is None


def test_baseline_has_no_cost_and_its_reports_no_word_of_it(results, capsys):
    """Reports and tables of baselines alone are as they were before there were costs."""
    assert "cost" not in report(results, "recency") and manifest(results, "recency")["cost"] is None
    assert "costs" not in orjson.loads(stats(results, capsys, "recency", "--json"))
    assert "cost" not in stats(results, capsys, "recency", "--format", "csv")


@pytest.mark.parametrize("form", ["table", "markdown", "latex"])
def test_tables_of_costs_follow_those_of_scores(results, form, capsys, monkeypatch):
    """A row for each run with its score: amounts never in another currency, blank for a
    baseline."""
    monkeypatch.setenv("COLUMNS", "250")
    shown = stats(results, capsys, "--format", form).partition("Cost (")[2]
    rows = {
        line.strip(" |").split()[0]: line
        for line in shown.splitlines()
        if "weibo" not in line and line.strip()
    }
    for model, (currency, *_) in PRICES.items():
        assert rows[model].count(currency) == 2, model
        assert ("about" in rows[model]) == (model in ("silent", "half"))
    assert "USD" not in rows["recency"] and "CNY" not in rows["recency"]


@pytest.mark.parametrize("form", ["table", "markdown", "latex"])
def test_a_named_metric_brings_no_table_of_costs(results, form, capsys):
    """Nobody asked for it, and a paper includes the file as it is."""
    assert "Cost" not in stats(results, capsys, "--format", form, "--metric", "Recall")


def test_cost_is_on_the_display_at_the_end_and_on_the_page(results, tmp_path, capsys):
    """The same amount, for people, on each."""
    with serving(script) as server:
        words = (
            "--model",
            "p:usd",
            "--limit",
            "9",
            "--providers",
            str(providers(tmp_path, server.url)),
        )
        assert run(tmp_path, *words) == 0
    amount = by_hand(tmp_path, "usd")
    people = f"{rounded(Decimal(amount.numerator) / amount.denominator)} USD"
    *lines, end = capsys.readouterr().out.splitlines()
    assert any(people in line for line in lines) and f"cost {people}" in end
    tiles = page(
        report_files.read((tmp_path / "usd" / "eval_report_weibo.json").read_bytes())
    ).tiles
    assert [tile.value for tile in tiles if tile.name == "cost"] == [people]


def test_missing_price_is_noted_once(tmp_path, capsys):
    """For a model on several platforms; not for one with a price, and not where nothing is paid
    without a key."""
    with serving(script) as server:
        file, both = str(providers(tmp_path, server.url)), ("--platform", "zhihu", "--limit", "1")
        key = ("--api-url", server.url, "--api-key", "sk-test-0123456789")
        for name, words, times in (
            ("a", ("--model", "other", *key), 1),
            ("b", ("--model", "usd", "--provider", "p", "--providers", file), 0),
            ("c", ("--model", FREE, "--provider", "p", "--providers", file), 0),
            ("d", ("--model", "baseline/recency"), 0),
        ):
            assert run(tmp_path, "--name", name, *words, *both) == 0
            assert capsys.readouterr().out.count("no price") == times, name


def test_users_whose_cost_is_unknown_do_not_share_it(results):
    """A run with a report of before, or of a time without a price, on one of its platforms."""
    known = read_report(results / "usd" / "eval_report_weibo.json")
    assert known.report.cost
    unpriced, before = (
        replace(known, report=msgspec.structs.replace(known.report, subset="zhihu", cost=cost))
        for cost in (known.report.cost.at(None), msgspec.UNSET)
    )
    for reports_of_run, users in (((known, before), 9), ((known, unpriced), 18)):
        of = costs.run_cost(reports_of_run)
        assert (of.money_per_user, of.users) == (costs.run_cost([known]).money_per_user, users)


def test_workbook_has_cost_and_tokens_of_each_run(results, tmp_path):
    """As numbers, with the currency next to them."""
    execute(results, "stats", "--excel", "--out", str(tmp_path))
    cells = sheets(tmp_path / "summary.xlsx")["Runs"]
    for model, (currency, *_) in PRICES.items():
        row = cells[cells.index(model) :]
        cost = next(
            cell
            for cell in row
            if isinstance(cell, float) and cell == float(by_hand(results, model))
        )
        assert currency in row[row.index(cost) : row.index(cost) + 3], model


def test_csv_and_workbook_have_the_bounds_of_a_cost(results, tmp_path, capsys):
    """Those of the report, next to the amount; a cost that is exact has none."""
    execute(results, "stats", "--excel", "--out", str(tmp_path))
    capsys.readouterr()
    lines = csv.DictReader(io.StringIO(stats(results, capsys, "--format", "csv")))
    bounds = {line["run"]: (line["from"], line["to"]) for line in lines if line["metric"] == "cost"}
    cells = sheets(tmp_path / "summary.xlsx")["Runs"]
    seen = set()
    for model in PRICES:
        cost = report(results, model)["cost"]
        ends = [cost.get(name) or cost["amount"] for name in ("low", "high")]
        if cost.get("low") is cost.get("high") is None:
            assert bounds[model] == ("", "")
        else:
            seen.add(model)
            assert list(map(Fraction, bounds[model])) == list(map(Fraction, ends)), model
            assert float(Fraction(cost["high"])) in cells
    assert seen


def test_the_cost_table_has_the_score_that_ranks(tmp_path, capsys):
    """Of a model that answers with the whole pool: as in the table of scores, the published one in
    brackets."""

    def whole_pool(body: JSON) -> tuple[int, bytes]:
        tags = read(body["messages"][-1]["content"]).pool
        return 200, completion(
            orjson.dumps({"persona_summary": "x", "predicted_tags": tags, "reasoning": ""}).decode()
        )

    with serving(whole_pool) as server:
        assert (
            run(
                tmp_path,
                "--model",
                "p:usd",
                "--limit",
                "9",
                "--providers",
                str(providers(tmp_path, server.url)),
            )
            == 0
        )
    shown = stats(tmp_path, capsys)
    scores, table = shown.split("Cost (", 1)
    (score,) = re.findall(r"^usd +(\S+ \(100\.00\))", scores, re.M)[:1]
    assert score in table


def test_merged_parts_cost_what_one_run_costs(tmp_path):
    """Also where tokens are estimated: by the lines of all parts."""
    with serving(script) as server:
        words = (
            "--model",
            "p:half",
            "--limit",
            "9",
            "--providers",
            str(providers(tmp_path, server.url)),
        )
        for part in ("1/2", "2/2"):
            assert run(tmp_path / "parts", *words, "--part", part) == 0
        assert run(tmp_path / "whole", *words) == 0
    tasks = ("--tasks-dir", str(SAMPLE_FOLDER), "--results-dir", str(tmp_path / "parts"))
    assert main(["merge", "half", "--no-html", *tasks]) == 0
    merged, whole = (report(tmp_path / name, "half")["cost"] for name in ("parts", "whole"))
    assert merged == manifest(tmp_path / "parts", "half")["cost"]
    for name in ("requests", "prompt_tokens", "completion_tokens", "requests_without_usage", "low"):
        assert merged[name] == whole[name]
    for results, cost in (("parts", merged), ("whole", whole)):
        assert Fraction(cost["amount"]) == by_hand(tmp_path / results, "half")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("provenance.price.prompt", "NaN"),
        ("provenance.price", {"prompt": "1"}),
        ("cost.amount", "1E+999999"),
        ("cost.requests", -1),
    ],
)
def test_cost_in_a_manifest_that_cannot_be_is_refused(results, tmp_path, field, value, capsys):
    """A folder may be anybody's: file and field are named."""
    copytree(results / "usd", tmp_path / "usd")
    data = at = manifest(results, "usd")
    *path, last = field.split(".")
    for name in path:
        at = at[name]
    at[last] = value
    (tmp_path / "usd" / "run_weibo.json").write_bytes(orjson.dumps(data))
    execute(tmp_path, "status", code=2)
    assert f"field {path[0]}" in capsys.readouterr().err


# The price of the run's time


def test_price_is_recorded_with_its_date_and_source(results):
    """What a report made later counts with."""
    price = manifest(results, "usd")["provenance"]["price"]
    assert price == {
        "currency": "USD",
        "prompt": "0.27",
        "cached": "0.07",
        "completion": "1.1",
        "date": "2026-11-01",
    }


@pytest.mark.parametrize(("words", "price"), [((), None), (("--new-prices",), "0.5")])
def test_reeval_keeps_the_price_of_the_runs_time_unless_new_ones_are_requested(
    results,
    tmp_path,
    monkeypatch,
    words,
    price,
):
    """Of the same replies, also where the providers file has another price by now."""
    copytree(results / "usd", tmp_path / "results" / "usd")
    url = manifest(results, "usd")["provenance"]["endpoint"]
    configured = tmp_path / "behavior-harness"
    configured.mkdir()
    providers(configured, url, usd="0.5")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    execute(tmp_path / "results", "reeval", "--no-html", *words)
    cost = report(tmp_path / "results", "usd")["cost"]
    assert Fraction(cost["amount"]) == by_hand(results, "usd", price)
    assert cost == manifest(tmp_path / "results", "usd")["cost"]


def test_each_reply_costs_what_was_in_force(tmp_path, capsys):
    """A changed price is for new replies, and is said, by `run` and by `resume`."""
    with serving(script) as server:
        words = ("--model", "p:usd", "--concurrency", "1")
        assert (
            run(
                tmp_path,
                *words,
                "--limit",
                "1",
                "--providers",
                str(providers(tmp_path, server.url)),
            )
            == 0
        )
        before = by_hand(tmp_path, "usd")
        first = len(responses(tmp_path, "usd"))
        later = providers(tmp_path, server.url, usd="0.5")
        assert run(tmp_path, *words, "--limit", "2", "--providers", str(later)) == 0
    assert "0.5 USD" in capsys.readouterr().out
    lines = responses(tmp_path, "usd")
    assert ["price" in line for line in lines] == [place >= first for place in range(len(lines))]
    (tmp_path / "usd" / "responses_weibo.jsonl").write_bytes(
        b"\n".join(map(orjson.dumps, lines[first:]))
    )
    assert Fraction(report(tmp_path, "usd")["cost"]["amount"]) == before + by_hand(
        tmp_path, "usd", "0.5"
    )


def test_folder_without_its_responses_keeps_the_cost_that_was_counted(results, tmp_path):
    """Replies may be left out where a folder is shared."""
    copytree(results / "cny", tmp_path / "cny")
    (tmp_path / "cny" / "responses_weibo.jsonl").unlink()
    execute(tmp_path, "reeval", "--no-html")
    assert report(tmp_path, "cny")["cost"] == report(results, "cny")["cost"]
