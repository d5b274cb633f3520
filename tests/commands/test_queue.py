"""Several models in one command: limits, keys and ends of each its own, against endpoints that look
at all of it."""

from __future__ import annotations

import os
import shlex
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import orjson
import pytest

from harness import cli
from tests.support import SHIPPED
from tests.support.embedded import Served, served
from tests.support.scripted import UNTIL_STOPPED, baseline, busy, serving

KEYS = {"OA_KEY": "sk-test-of-openai", "DS_KEY": "sk-test-of-dashscope"}


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name, key in KEYS.items():
        monkeypatch.setenv(name, key)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)


def providers(folder: Path, oa: str | list[str], ds: str) -> Path:
    """Two providers of different size, and a queue of three models over them."""
    file = folder / "two.toml"
    file.write_text(
        f"""
[providers.oa]
base_url = {orjson.dumps(oa).decode()}
key_env = "OA_KEY"
concurrency = 4
extra_headers = {{ X-Team = "blue" }}
[providers.ds]
base_url = {orjson.dumps(ds).decode()}
key_env = "DS_KEY"
concurrency = 2
[queues]
three = ["oa:gpt-5-mini", "ds:qwq-plus", {{ model = "ds:qwen-plus", name = "plus", extra_body = {{ top_k = 1 }} }}]
""",
        encoding="utf-8",
    )
    return file


def harness(*arguments: str | Path) -> int:
    return cli.main([str(argument) for argument in arguments])


def run(results: Path, *arguments: str | Path, users: float = 0.2) -> int:
    where = ("--platform", "weibo", "--ratio", str(users), "--results-dir", results)
    return harness("run", *SHIPPED, "--no-html", *where, *arguments)


def manifest(results: Path, name: str) -> dict[str, Any]:
    found: dict[str, Any] = orjson.loads((results / name / "run_weibo.json").read_bytes())
    return found


def records(results: Path, name: str) -> bytes:
    return (results / name / "inference_results_weibo.jsonl").read_bytes()


def steps(results: Path, name: str) -> list[Any]:
    """What was answered, without the tokens, which thoughts add to."""
    return [orjson.loads(line)["steps"] for line in records(results, name).splitlines()]


def endpoints(results: Path, name: str) -> Counter[str]:
    lines = (results / name / "responses_weibo.jsonl").read_bytes().splitlines()
    return Counter(orjson.loads(line)["endpoint"] for line in lines)


class Two:
    """An imitated OpenAI and DashScope that hold no more than their limits, and take no key but
    their own."""

    def __init__(self, held: ExitStack) -> None:
        from tests.support.endpoint_double.app import Options

        self.oa = held.enter_context(
            served(Options(imitate="openai", key=KEYS["OA_KEY"], max_concurrency=4, latency=0.002))
        )
        self.ds = held.enter_context(
            served(
                Options(imitate="dashscope", key=KEYS["DS_KEY"], max_concurrency=2, latency=0.002)
            )
        )

    @property
    def both(self) -> tuple[Served, Served]:
        return self.oa, self.ds


def test_three_models_on_two_providers_keep_each_account_s_limit_and_key(tmp_path, capsys):
    """All three complete with the same answers; no server sees more at once than it takes, or
    another's key."""
    results = tmp_path / "results"
    with ExitStack() as held:
        two = Two(held)
        file = providers(tmp_path, two.oa.url, two.ds.url)
        assert run(results, "--providers", file, "--queue", "three", "--max-tokens", "900") == 0
        oa, ds = (server.stats() for server in two.both)
    assert (oa["foreign_keys"], ds["foreign_keys"]) == (0, 0)
    assert (oa["faults"], ds["faults"]) == ({}, {})
    assert oa["most_in_flight"] <= 4 and ds["most_in_flight"] <= 2
    assert ds["completed"] == 2 * oa["completed"]
    assert [manifest(results, name)["state"] for name in ("gpt-5-mini", "qwq-plus", "plus")] == [
        "complete"
    ] * 3
    assert (
        steps(results, "gpt-5-mini") == steps(results, "qwq-plus") == steps(results, "plus") != []
    )
    assert manifest(results, "plus")["identity"]["sampling"]["extra_body"] == {"top_k": 1}
    shown = capsys.readouterr().out
    assert "plus, weibo: 8 of 8 users" in shown
    assert not any(key in shown for key in KEYS.values())
    for path in results.rglob("*"):
        assert path.is_dir() or not any(
            key.encode() in path.read_bytes() for key in KEYS.values()
        ), path


@pytest.mark.slow
def test_rate_of_an_account_is_kept_by_all_its_models_together(tmp_path):
    """What has arrived at any time is no more than the rate allows since the beginning, and a
    second's worth at once. A busy machine lets requests arrive later than they were sent, and so
    closer together, but no sooner."""
    results, times, began = tmp_path / "results", list[float](), time.monotonic()

    def noting(body: dict[str, Any]) -> tuple[int, bytes]:
        times.append(time.monotonic())
        return baseline(body)

    with serving(noting) as server:
        file = providers(tmp_path, server.url, server.url)
        text = file.read_text(encoding="utf-8").replace(
            "concurrency = 4", "concurrency = 8\nrpm = 1200"
        )
        file.write_text(text, encoding="utf-8")
        models = ("--model", "oa:one", "--model", "oa:other")
        assert run(results, "--providers", file, *models, users=0.3) == 0
    assert len(times) > 40
    for number, arrived in enumerate(times, 1):
        assert number <= 20 + 20 * (arrived - began) + 1


def test_what_is_learned_is_in_the_manifest_and_is_not_learned_again(tmp_path):
    """The first refusal teaches; a later process of the run begins with it, and the report says
    so."""
    results = tmp_path / "results"
    with ExitStack() as held:
        two = Two(held)
        file = providers(tmp_path, two.oa.url, two.ds.url)
        arguments = ("--providers", file, "--model", "oa:gpt-5-mini", "--max-tokens", "900")
        assert run(results, *arguments, users=0.05) == 0
        assert manifest(results, "gpt-5-mini")["provenance"]["quirks"] == [
            "max_completion_tokens",
            "no_temperature",
        ]
        first = two.oa.stats()
        assert first["requests"] > first["completed"]
        assert run(results, *arguments, users=0.2) == 0
        second = two.oa.stats()
    assert second["requests"] - first["requests"] == second["completed"] - first["completed"]
    assert (
        "The endpoint takes no temperature"
        in (results / "gpt-5-mini" / "eval_report_weibo.txt").read_text()
    )


def test_one_command_resumes_all_runs_that_can_go_on(tmp_path, capsys):
    """It names none, and plays both to their ends once their provider is at servers that answer."""
    results = tmp_path / "results"
    both = ("--model", "oa:gpt-4o", "--model", "ds:qwen-plus")
    with ExitStack() as held, serving(busy) as server:
        file = providers(tmp_path, server.url, server.url)
        assert run(results, "--providers", file, *both, *UNTIL_STOPPED) == 3
        (line,) = [
            line
            for line in capsys.readouterr().out.splitlines()
            if line.startswith("resume with: ")
        ]
        two = Two(held)
        providers(tmp_path, two.oa.url, two.ds.url)
        assert cli.main(shlex.split(line.removeprefix("resume with: "))[1:]) == 0
    assert {manifest(results, name)["state"] for name in ("gpt-4o", "qwen-plus")} == {"complete"}


def test_run_that_cannot_go_on_keeps_no_other_from_its_end(tmp_path, capsys, monkeypatch):
    """A busy server ends one provider's run with exit code 3 and the command that resumes it;
    `resume` then plays it."""
    results = tmp_path / "results"
    with ExitStack() as held, serving(busy) as server:
        two = Two(held)
        file = providers(tmp_path, two.oa.url, server.url)
        both = ("--model", "oa:gpt-4o", "--model", "ds:qwen-plus")
        assert run(results, "--providers", file, *both, *UNTIL_STOPPED) == 3
        shown = capsys.readouterr().out
        assert "qwen-plus: stopped: " in shown and "resume --name qwen-plus" in shown
        assert f"--providers {file}" in shown and shown.count("resume with: ") == 1
        ends = {
            line.split()[0]: line.split()[2:]
            for line in shown.splitlines()
            if line.split()[1:2] == ["weibo"]
        }
        users = manifest(results, "gpt-4o")["counts"]["users"]
        assert ends["gpt-4o"][:2] == ["complete", f"{users}/{users}"]
        assert ends["qwen-plus"] == ["stopped", f"0/{users}"]
        assert manifest(results, "gpt-4o")["state"] == "complete"
        providers(tmp_path, two.oa.url, two.ds.url)
        monkeypatch.delenv("DS_KEY")
        again = ("resume", "--results-dir", results, "--providers", file)
        assert harness(*again) == 2
        assert "set DS_KEY" in capsys.readouterr().err
        monkeypatch.setenv("DS_KEY", KEYS["DS_KEY"])
        assert (
            harness("resume", "--results-dir", results) == 2
        )  # a run's folder alone does not say where keys go
        assert f"name its file with --providers (it was {file})" in capsys.readouterr().err
        assert harness(*again) == 0
        assert two.oa.stats()["foreign_keys"] == 0
    assert records(results, "qwen-plus") == records(results, "gpt-4o")


def test_unknown_model_is_the_end_of_its_own_run_only(tmp_path, capsys):
    """On the same account, too."""
    results = tmp_path / "results"
    with ExitStack() as held:
        two = Two(held)
        file = providers(tmp_path, two.oa.url, two.ds.url)
        assert (
            run(results, "--providers", file, "--model", "oa:no-such-model", "--model", "oa:gpt-4o")
            == 3
        )
    assert "no-such-model: stopped: " in capsys.readouterr().out
    assert manifest(results, "gpt-4o")["state"] == "complete"


def test_bare_resume_plays_every_unfinished_run_at_once_each_at_its_own_endpoint(tmp_path, capsys):
    """Both providers were busy; at other addresses by now, one command finishes all, and says where
    each goes on."""
    results = tmp_path / "results"
    with serving(busy) as server:
        file = providers(tmp_path, server.url, server.url)
        assert (
            run(results, "--providers", file, "--queue", "three", *UNTIL_STOPPED, users=0.05) == 3
        )
    capsys.readouterr()
    with ExitStack() as held:
        two = Two(held)
        file = providers(tmp_path, two.oa.url, two.ds.url)
        assert harness("resume", "--results-dir", results, "--providers", file) == 0
        assert [server.stats()["foreign_keys"] for server in two.both] == [0, 0]
        shown = capsys.readouterr().out
        assert shown.count(f"endpoint was {server.url}, is now {two.ds.url}") == 2
    assert (
        steps(results, "gpt-5-mini") == steps(results, "qwq-plus") == steps(results, "plus") != []
    )


def test_replicas_share_a_run(tmp_path):
    """Several addresses of one provider serve one run; each response says which of them
    answered."""
    from tests.support.endpoint_double.app import Options

    results = tmp_path / "results"
    with ExitStack() as held:
        one, other = (
            held.enter_context(served(Options(imitate="vllm", key=KEYS["OA_KEY"], latency=0.003)))
            for _ in range(2)
        )
        file = providers(tmp_path, [one.url, other.url], one.url)
        assert run(results, "--providers", file, "--model", "oa:Qwen/Qwen2.5-7B-Instruct") == 0
        counts = [server.stats()["completed"] for server in (one, other)]
    found = endpoints(results, "Qwen2.5-7B-Instruct")
    assert dict(found) == {one.url: counts[0], other.url: counts[1]}
    assert min(counts) > 0.3 * sum(counts)
    assert (
        manifest(results, "Qwen2.5-7B-Instruct")["provenance"]["endpoint"]
        == f"{one.url} {other.url}"
    )


@pytest.mark.parametrize("stream", ["on", "off"])
def test_streamed_replies_make_the_same_results(tmp_path, stream):
    """Byte for byte those of whole replies; only a stream has a time to its first token."""
    from tests.support.endpoint_double.app import Options

    with served(Options(imitate="deepseek")) as server:
        arguments = ("--api-url", server.url, "--model", "deepseek-reasoner")
        assert run(tmp_path / stream, *arguments, "--stream", stream) == 0
        assert run(tmp_path / "auto", *arguments) == 0
        stats = server.stats()
    assert stats["streamed"] == (stats["completed"] / 2 if stream == "on" else 0)
    assert records(tmp_path / stream, "deepseek-reasoner") == records(
        tmp_path / "auto", "deepseek-reasoner"
    )
    lines = (
        (tmp_path / stream / "deepseek-reasoner" / "responses_weibo.jsonl")
        .read_bytes()
        .splitlines()
    )
    assert all(("first_token" in orjson.loads(line)) == (stream == "on") for line in lines)
    assert all(orjson.loads(line)["completion"]["reasoning"] for line in lines)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--queue", "four"), "no queue four"),
        (("--model", "oa:m", "--provider", "nobody"), "no provider nobody"),
        (("--model", "oa:m", "--model", "ds:m"), "2 of the models would share the folder m"),
        (("--model", "oa:m", "--model", "ds:n", "--name", "x"), "--name is for one model"),
        (
            ("--model", "oa:m", "--model", "ds:n", "--api-key", "sk-test-x"),
            "--api-key is for one endpoint",
        ),
        (("--queue", "three", "--extra-header", "X-A: b"), "--extra-header is for one endpoint"),
        (("--model", "oa:m", "--extra-header", "Authorization: x"), "Authorization"),
        (("--model", "oa:m", "--extra-header", "no colon"), "header"),
        (("--model", "oa:m", "--ca-file", "/nowhere/ca.pem"), "no such file: '/nowhere/ca.pem'"),
    ],
)
def test_what_a_queue_cannot_be_is_one_sentence(tmp_path, capsys, arguments, said):
    """Before anything is sent or written."""
    file = providers(tmp_path, "http://127.0.0.1:9/v1", "http://127.0.0.1:10/v1")
    try:
        code = run(tmp_path / "results", "--providers", file, *arguments)
    except SystemExit as left:  # argparse's own way out
        code = int(str(left.code))
    assert code == 2
    assert said in capsys.readouterr().err
    assert not (tmp_path / "results").exists()


def test_model_that_looks_like_a_provider_and_its_model_is_told_once_and_run(
    tmp_path, monkeypatch, capsys
):
    """A name with a colon may be the endpoint's own, so the run goes on; one like no slip is not
    reported."""
    with serving(baseline) as server:
        monkeypatch.setenv("LLM_API_BASE", server.url)
        assert (
            run(
                tmp_path / "results",
                "--model",
                "goood:baseline/recency",
                "--model",
                "qwen3:8b",
                users=0.05,
            )
            == 0
        )
        assert {orjson.loads(body)["model"] for body in server.bodies} == {
            "goood:baseline/recency",
            "qwen3:8b",
        }
    (note,) = capsys.readouterr().err.splitlines()
    assert note.startswith(
        "harness: goood:baseline/recency as a whole is used as the name of a model of"
        f" {server.url}: goood is"
    )


@pytest.mark.parametrize("base", [True, False])
def test_misspelt_provider_is_never_sent_as_a_model(base, tmp_path, monkeypatch, capsys):
    """It is refused with the nearest known one, whatever endpoint there is; with --provider it is a
    model's name."""
    name = "deepseak:deepseek-chat"
    with serving(baseline) as server:
        file = providers(tmp_path, server.url, server.url)
        if base:
            monkeypatch.setenv("LLM_API_BASE", server.url)
        assert run(tmp_path / "results", "--model", name) == 2
        assert "deepseek:deepseek-chat" in capsys.readouterr().err
        assert not server.bodies and not (tmp_path / "results").exists()
        words = ("--providers", file, "--provider", "oa", "--model", name)
        assert run(tmp_path / "results", *words, users=0.05) == 0
        assert {orjson.loads(body)["model"] for body in server.bodies} == {name}


def test_run_is_found_by_its_model_with_or_without_the_provider(tmp_path, capsys):
    """`status --model` takes what `run --model` took."""
    from tests.support.endpoint_double.app import Options

    results = tmp_path / "results"
    with served(Options(imitate="openai", key=KEYS["OA_KEY"])) as server:
        file = providers(tmp_path, server.url, server.url)
        assert run(results, "--providers", file, "--model", "oa:gpt-4o", users=0.05) == 0
    for name, rows in (("gpt-4o", 1), ("oa:gpt-4o", 1), ("ds:gpt-4o", 0)):
        capsys.readouterr()
        assert harness("status", "--results-dir", results, "--model", name, "--json") == 0
        assert len(orjson.loads(capsys.readouterr().out)) == rows


def test_resumed_run_keeps_within_what_the_providers_file_says_now(tmp_path):
    """A limit of the account that was lowered since holds; one that is higher raises nothing."""
    from tests.support.endpoint_double.app import Options

    results = tmp_path / "results"
    with served(Options(imitate="openai", key=KEYS["OA_KEY"])) as server, serving(busy) as first:
        file = providers(tmp_path, first.url, server.url)
        words = ("--model", "oa:gpt-4o", "--rpm", "7000", *UNTIL_STOPPED)
        assert run(results, "--providers", file, *words, users=0.05) == 3
        file = providers(tmp_path, server.url, server.url)
        text = file.read_text(encoding="utf-8").replace(
            "concurrency = 4", "concurrency = 3\nrpm = 9000\ntpm = 8e6"
        )
        file.write_text(text, encoding="utf-8")
        assert harness("resume", "--results-dir", results, "--providers", file) == 0
    tuning = manifest(results, "gpt-4o")["tuning"]
    assert (tuning["concurrency"], tuning["rpm"], tuning["tpm"]) == (3, 7000, 8e6)


def test_unknown_habit_is_told_with_file_and_field(tmp_path, capsys):
    """`adapt` takes the names that manifests have."""
    file = providers(tmp_path, "http://127.0.0.1:9/v1", "http://127.0.0.1:9/v1")
    file.write_text(
        file.read_text(encoding="utf-8").replace("[queues]", 'adapt = ["no_manners"]\n[queues]'),
        "utf-8",
    )
    assert run(tmp_path / "results", "--providers", file, "--model", "ds:m") == 2
    assert f"{file}: providers.ds.adapt: 'no_manners' is no known habit" in capsys.readouterr().err


@pytest.mark.slow
def test_server_that_two_providers_have_in_common_gets_one_limit(tmp_path):
    """Replicas [n1, n2] of one and n1 of the other are one account, so that n1 does not get both
    limits."""
    from tests.support.endpoint_double.app import Options

    results = tmp_path / "results"
    with ExitStack() as held:
        one, other = (
            held.enter_context(served(Options(imitate="vllm", latency=0.005))) for _ in range(2)
        )
        file = tmp_path / "overlap.toml"
        file.write_text(
            f"""
[providers.two]
base_url = ["{one.url}", "{other.url}"]
concurrency = 3
[providers.one]
base_url = "{one.url}"
concurrency = 3
""",
            encoding="utf-8",
        )
        assert (
            run(results, "--providers", file, "--model", "two:a", "--model", "one:b", users=0.5)
            == 0
        )
        assert one.stats()["most_in_flight"] <= 3
    assert [manifest(results, name)["state"] for name in "ab"] == ["complete"] * 2


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (
            "[providers.x]\nbase_url = 'http://h/v1'\nrpm = 1" + "0" * 400,
            "providers.x.rpm: expected a number above 0",
        ),
        (
            "[providers.x]\nbase_url = 'http://h/v1'\nextra_body = {messages = [1]}",
            "the member messages of a request",
        ),
    ],
)
def test_providers_file_that_no_request_can_be_made_of(tmp_path, capsys, content, said):
    """One sentence, and no defect of the harness."""
    file = tmp_path / "odd.toml"
    file.write_text(content, encoding="utf-8")
    arguments = ("--providers", file, "--provider", "x", "--api-key", "sk-test-x", "--model", "m")
    assert run(tmp_path / "results", *arguments) == 2
    assert said in capsys.readouterr().err


def test_pipe_for_a_providers_file_is_refused_and_not_waited_for(tmp_path, capsys):
    """Nobody may ever write into it."""
    os.mkfifo(tmp_path / "pipe")
    assert run(tmp_path / "results", "--providers", tmp_path / "pipe", "--model", "m") == 2
    assert "it is not a regular file" in capsys.readouterr().err


def test_header_without_its_name_is_not_shown(tmp_path, capsys):
    """It may be the secret that should have stood behind a colon."""
    assert (
        run(tmp_path / "results", "--model", "m", "--extra-header", "X-Api-Key sk-test-secret") == 2
    )
    shown = capsys.readouterr().err
    assert "expected NAME:VALUE" in shown and "secret" not in shown
