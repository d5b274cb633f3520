"""Manifests that somebody else wrote, each field odd or pointing elsewhere: no key reaches an
address that the user's own words did not give it to, and every command ends in a sentence."""

from __future__ import annotations

import faulthandler
import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from harness.benchmarks.streamprofile.synth import generate
from harness.cli import main
from tests.support import examples
from tests.support.scripted import UNTIL_STOPPED, Server, busy, serving

SUPPRESSED = (HealthCheck.function_scoped_fixture, HealthCheck.too_slow)
HANGS = 60.0
"""Seconds; reached only by a command that would wait for ever."""

OF_FILE, OF_VARIABLE, OF_PROVIDER, OF_CONFIG = (
    f"sk-marked-{name}-0123456789" for name in ("file", "env", "own", "conf")
)
OF_HEADER, OF_OTHER = "marked-header-0123456789", "sk-marked-other-0123456789"
MARKS = (OF_FILE, OF_VARIABLE, OF_PROVIDER, OF_CONFIG, OF_HEADER, OF_OTHER)
PROVIDERS = """
[providers.mine]
base_url = "{mine}"
key_env = "MINE_KEY"
extra_headers = {{ X-Team = "${{TEAM_KEY}}" }}
[providers.open]
base_url = "{attacker}"
key_env = "OPEN_KEY"
key_required = false
"""
"""`open` is a server of one's own that needs no key, and on whose port somebody else listens."""
CONFIG = """
llm:
  - {{provider: openai, base_url: "{mine}", api_key: "{key}", model: m}}
"""


def denied(_: dict[str, Any]) -> tuple[int, bytes]:
    return 401, b"{}"


@dataclass(frozen=True)
class World:
    """A user's machine. `base` is the manifest of their own run, at `mine` with the key of a
    file."""

    folder: Path
    attacker: Server
    variables: Server
    mine: Server
    base: dict[str, Any]

    @property
    def servers(self) -> tuple[Server, ...]:
        return self.attacker, self.variables, self.mine


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("world")
    with ExitStack() as held:
        patch = held.enter_context(pytest.MonkeyPatch.context())
        attacker, variables, mine = (held.enter_context(serving(denied)) for _ in range(3))
        for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL", "OPEN_KEY", "BENCH_MAX_WORKERS"):
            patch.delenv(name, raising=False)
        for name, value in (
            ("LLM_API_BASE", variables.url),
            ("LLM_API_KEY", OF_VARIABLE),
            ("MINE_KEY", OF_PROVIDER),
            ("TEAM_KEY", OF_HEADER),
            ("AWS_SECRET_ACCESS_KEY", OF_OTHER),
            ("XDG_CONFIG_HOME", str(folder)),
        ):
            patch.setenv(name, value)
        patch.chdir(folder)
        (folder / "tasks").mkdir()
        (folder / "tasks/weibo_inference_tasks.jsonl").write_bytes(
            b"".join(generate("weibo", 1, 5, 1.0))
        )
        (folder / "providers.toml").write_text(
            PROVIDERS.format(mine=mine.url, attacker=attacker.url)
        )
        (folder / "config.yml").write_text(CONFIG.format(mine=mine.url, key=OF_CONFIG))
        (folder / "key").write_text(OF_FILE)
        (folder / "code.py").write_text("open('ran', 'w').close()\n")
        words = [
            "--model",
            "m",
            "--platform",
            "weibo",
            "--api-url",
            mine.url,
            "--api-key-file",
            "key",
        ]
        mine.script = busy
        assert main(["run", *words, *UNTIL_STOPPED, "--results-dir", "whole"]) == 3
        mine.script = denied
        assert OF_FILE in mine.heads[-1]
        base = orjson.loads((folder / "whole/m/run_weibo.json").read_bytes())
        yield World(folder, attacker, variables, mine, base)


WORDS = st.sampled_from(
    ["", " ", "x", "\0", "/", "..", "/dev/zero", "\x1b[2J", "猫" * 300, "[", "http://[", "--", "鍵"]
)
ODD: st.SearchStrategy[Any] = st.one_of(
    st.none(), WORDS, st.sampled_from([True, 0, 2**62, 0.5, [], {}, [None], {"a": 1}])
)


def fields(world: World) -> dict[str, st.SearchStrategy[Any]]:
    """What an attacker would write into each field of a manifest."""
    attacker, variables, mine = (server.url for server in world.servers)
    urls = [
        attacker,
        variables,
        mine,
        f"{attacker} {mine}",
        f"{variables}\u3000{attacker}",
        f"{variables}/",
        "embedded",
    ]
    urls += [
        variables.replace("//", "//u:p@"),
        f"{variables}?a=1",
        "https://api.openai.com/v1",
        "http://127.0.0.1:30000/v1",
    ]
    files = [world.folder / name for name in ("key", "config.yml", "code.py", "tasks", "gone")]
    sources = [
        f"{option} {file}"
        for option in ("--api-key-file", "--config")
        for file in (*files, "/dev/zero", "")
    ]
    variables_named = [
        "LLM_API_KEY",
        "OPENAI_API_KEY",
        "MINE_KEY",
        "AWS_SECRET_ACCESS_KEY",
        "--api-key",
        "PATH",
    ]
    paths = [str(file) for file in files]
    code = sha256((world.folder / "code.py").read_bytes()).hexdigest()
    names = [
        "prompt_own.txt",
        "_.py",
        "code.py",
        "prompt_code.py",
        "../code.py",
        "../../code.py",
        "",
        ".",
        "x" * 300,
        "a\0",
    ]
    return {
        "provenance.endpoint": st.sampled_from(urls),
        "provenance.key_from": st.sampled_from([None, *variables_named, *sources]),
        "provenance.provider": st.sampled_from(["mine", "open", "openai", "sglang", "nobody"]),
        "provenance.providers_file": st.sampled_from(paths),
        "provenance.address_from": st.sampled_from(
            [None, "--api-url", "provider", "LLM_API_BASE", *sources]
        ),
        "provenance.ca_file": st.sampled_from(paths),
        "provenance.headers": st.lists(st.sampled_from(["X-Team", "Authorization"]), max_size=1),
        "provenance.source": st.sampled_from([*paths, "/x/.py"]),
        "provenance.sources": st.dictionaries(
            st.sampled_from(["prompt", "agent"]), st.sampled_from(paths), max_size=1
        ),
        "provenance.quirks": st.just(["x"]),
        "identity.files": st.dictionaries(st.sampled_from(names), st.just(code), max_size=2),
        "identity.model": st.sampled_from(["mine:m", "baseline/recency"]),
        "identity.settings.prompt": st.just("authors"),
        "identity.settings.mode": st.just("agent"),
        "tasks.path": st.sampled_from(paths),
        "tuning.durability": st.just("power"),
        "selection": st.just({"ratio": 0.5, "sample_seed": 1}),
    }


ONE_IN = 6
"""Fields hold something that is odd there, and mostly refused at once."""


def commands(world: World) -> list[tuple[list[str], tuple[str, Server] | None]]:
    """Commands, and the key that their own words give to a server."""
    attacker, variables, mine = (server.url for server in world.servers)
    named = ["resume", "--name", "m"]
    return [
        (["resume"], None),
        (named, None),
        ([*named, "--trust"], None),
        ([*named, "--api-url", attacker], None),
        ([*named, "--api-url", variables], None),
        ([*named, "--api-url", mine], None),
        ([*named, "--api-key-file", "key"], None),
        ([*named, "--api-key-file", "key", "--api-url", variables], (OF_FILE, world.variables)),
        ([*named, "--provider", "mine"], None),
        ([*named, "--provider", "open"], None),
        (["verify"], None),
        (["reeval", "--reparse"], None),
        (["export"], None),
    ]


@st.composite
def cases(draw: st.DrawFn, world: World) -> tuple[dict[str, Any], int]:
    """A manifest with one field or more rewritten, and the number of a command."""
    known = fields(world)
    data: dict[str, Any] = orjson.loads(orjson.dumps(world.base))
    for name in draw(st.lists(st.sampled_from(sorted(known)), min_size=1, max_size=5, unique=True)):
        *above, last = name.split(".")
        place = data
        for part in above:
            place = place[part]
        place[last] = draw(ODD if draw(st.integers(0, ONE_IN)) == 0 else known[name])
    return data, draw(st.integers(0, len(commands(world)) - 1))


def check(
    world: World, manifest: dict[str, Any], number: int, capsys: pytest.CaptureFixture[str]
) -> None:
    words, given_to = commands(world)[number]
    shutil.rmtree("results", ignore_errors=True)
    shutil.copytree("whole", "results")
    Path("results/m/run_weibo.json").write_bytes(orjson.dumps(manifest))
    for name in ("_.py", "code.py", "prompt_code.py"):
        shutil.copy("code.py", Path("results/m", name))
    for server in world.servers:
        server.heads.clear()
        server.bodies.clear()
    faulthandler.dump_traceback_later(HANGS, exit=True, file=2)
    try:
        code = main(words)
    finally:
        faulthandler.cancel_dump_traceback_later()
    shown = capsys.readouterr()
    assert 0 <= code <= 4, shown.err
    assert code in (0, 1) or shown.err or "stopped" in shown.out
    assert "Traceback" not in shown.err
    assert not any(mark in shown.out + shown.err for mark in MARKS)
    allowed = {(OF_VARIABLE, world.variables.url)}
    allowed |= {(mark, world.mine.url) for mark in (OF_PROVIDER, OF_HEADER)}
    if given_to is not None:
        allowed.add((given_to[0], given_to[1].url))
    for server in world.servers:
        seen = "\n".join(server.heads) + "".join(map(str, server.bodies))
        assert {(mark, server.url) for mark in MARKS if mark in seen} <= allowed, words
    if not {"--trust"} & set(words):
        assert not Path("ran").exists()
    Path("ran").unlink(missing_ok=True)


@pytest.mark.slow
@settings(max_examples=examples(300), deadline=None, suppress_health_check=SUPPRESSED)
@given(data=st.data())
def test_no_manifest_sends_a_key_elsewhere(data, world, capsys):
    """Keys of a variable, a provider, a file and a configuration, each marked."""
    check(world, *data.draw(cases(world)), capsys)


@pytest.mark.parametrize("number", range(12))
@pytest.mark.parametrize(
    ("provider", "url", "key_from"),
    [
        ("open", "attacker", "--api-key-file {0}/key"),
        ("open", "attacker", "--config {0}/config.yml"),
        (None, "attacker", "--config {0}/config.yml"),
        (None, "attacker", "--api-key-file {0}/key"),
        (None, "attacker", "LLM_API_KEY"),
    ],
)
def test_no_command_sends_a_key_where_a_manifest_pairs_them(
    provider,
    url,
    key_from,
    number,
    world,
    capsys,
):
    """Nor does what an earlier version recorded of the key count."""
    manifest = orjson.loads(orjson.dumps(world.base))
    manifest["provenance"] |= {
        "provider": provider,
        "address_from": None if provider else "--api-url",
        "endpoint": getattr(world, url).url,
        "key_from": key_from.format(world.folder),
    }
    check(world, manifest, number, capsys)
