"""Which key goes to which address, from options and environment alone; a key never goes to
another's address."""

from __future__ import annotations

import os
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest

from harness.defaults import OPENAI_URL
from harness.errors import BadInput
from harness.options import address
from harness.options.address import EarlierRun, ResolvedEndpoint
from harness.options.options import PlayOptions
from harness.options.providers import Provider

RELAY, OTHER = "https://relay.example/v1", "https://other.example/v1"
LOCAL = "http://127.0.0.1:8000/v1"
LLM = {"LLM_API_BASE": RELAY, "LLM_API_KEY": "llm-key"}
OPENAI = {"OPENAI_API_KEY": "openai-key"}


def options(
    url: str | None = None, key: str | None = None, file: Path | None = None
) -> PlayOptions:
    return PlayOptions(api_url=[url] if url else None, api_key=key, api_key_file=file)


def find(
    args: PlayOptions, environment: dict[str, str]
) -> tuple[str, str | None, str | None] | None:
    """Address, key and where the key came from."""
    return flat(address.find(args, environment))


def flat(found: ResolvedEndpoint | None) -> tuple[str, str | None, str | None] | None:
    return (found.addresses[0].url, found.addresses[0].key, found.key_from) if found else None


def again(
    args: PlayOptions,
    environment: dict[str, str],
    provider: Provider | None = None,
    url: str = RELAY,
    key_from: str | None = "LLM_API_KEY",
    **provenance: object,
) -> ResolvedEndpoint:
    """The endpoint on which the run `r` goes on."""
    recorded = {"endpoint": url, "key_from": key_from, **provenance}
    return address.for_resume(
        args, EarlierRun("r", recorded, provider, "harness resume --name r"), environment
    )


@pytest.fixture
def key_file(tmp_path: Path) -> Path:
    file = tmp_path / "key"
    file.write_text("  file-key\n", encoding="utf-8")
    return file


# A new run


@pytest.mark.parametrize(
    ("args", "environment", "found"),
    [
        (options(), {}, None),
        (options(), {"LLM_API_KEY": "llm-key"}, None),
        (options(key="given"), OPENAI, None),
        (options(), LLM, (RELAY, "llm-key", "LLM_API_KEY")),
        (options(), {"LLM_API_BASE": RELAY}, (RELAY, None, None)),
        (options(), {"LLM_API_BASE": RELAY, "LLM_API_KEY": ""}, (RELAY, None, None)),
        (options(), OPENAI, (OPENAI_URL, "openai-key", "OPENAI_API_KEY")),
        (options(), {**OPENAI, "OPENAI_BASE_URL": OTHER}, (OTHER, "openai-key", "OPENAI_API_KEY")),
        (options(), {**LLM, **OPENAI}, (RELAY, "llm-key", "LLM_API_KEY")),
        (options(), {**LLM, **OPENAI, "OPENAI_BASE_URL": OTHER}, (RELAY, "llm-key", "LLM_API_KEY")),
        (
            options(),
            {**OPENAI, "LLM_API_BASE": OPENAI_URL + "/"},
            (OPENAI_URL + "/", "openai-key", "OPENAI_API_KEY"),
        ),
        (options(url=OTHER), {"LLM_API_KEY": "llm-key"}, (OTHER, "llm-key", "LLM_API_KEY")),
        (options(url=RELAY + "/"), LLM, (RELAY + "/", "llm-key", "LLM_API_KEY")),
        (options(url=OPENAI_URL), OPENAI, (OPENAI_URL, "openai-key", "OPENAI_API_KEY")),
        (options(url=OTHER, key="given"), {**LLM, **OPENAI}, (OTHER, "given", "--api-key")),
        (options(key="given"), LLM, (RELAY, "given", "--api-key")),
    ],
)
def test_address_and_key_of_a_new_run(args, environment, found):
    """Options before `LLM_*` before `OPENAI_*`; without a known address there is no endpoint."""
    assert find(args, environment) == found


@pytest.mark.parametrize(
    ("args", "environment"),
    [
        (options(url=OTHER), LLM),
        (options(url=OTHER), OPENAI),
        (options(url=OTHER), {**LLM, **OPENAI}),
        (options(url=RELAY.replace("https", "http")), LLM),
        (options(url="https://relay.example:8443/v1"), LLM),
        (options(url="https://relay.example.evil.example/v1"), LLM),
        (options(), {"LLM_API_BASE": RELAY, **OPENAI}),
        (options(), {"LLM_API_BASE": RELAY, "OPENAI_BASE_URL": OTHER, **OPENAI}),
        (options(), {"LLM_API_KEY": "llm-key", "OPENAI_BASE_URL": OTHER}),
    ],
)
def test_key_does_not_go_to_another_address(args, environment):
    """Another host, port or scheme than the key's own gets the request without a key."""
    found = find(args, environment)
    assert found is not None
    assert found[1:] == (None, None)


def test_no_mixture_of_variables_sends_a_key_to_an_address_that_is_not_its_own():
    """Over every combination of the variables and `--api-url`: a pair's key meets only the pair's
    address."""
    values = {
        "LLM_API_BASE": (None, "https://a.example/v1", OPENAI_URL),
        "LLM_API_KEY": (None, "llm-key"),
        "OPENAI_BASE_URL": (None, "https://b.example/v1"),
        "OPENAI_API_KEY": (None, "openai-key"),
    }
    for combination in product(
        (None, "https://a.example/v1", "https://c.example/v1"), *values.values()
    ):
        url = combination[0]
        environment = {
            name: value for name, value in zip(values, combination[1:], strict=True) if value
        }
        found = find(options(url=url), environment)
        if found is None or found[1] is None:
            continue
        if found[1] == "openai-key":
            assert found[0] == environment.get("OPENAI_BASE_URL", OPENAI_URL)
        else:
            assert found[0] == environment.get("LLM_API_BASE", url)


def test_key_file_comes_before_other_keys_and_is_named_by_its_whole_path(key_file, monkeypatch):
    """Space around the key is not part of it; a resume from another folder finds the file again."""
    monkeypatch.chdir(key_file.parent)
    source = f"--api-key-file {key_file.resolve()}"
    assert find(options(RELAY, "given", Path("key")), LLM) == (RELAY, "file-key", source)


@pytest.mark.parametrize(
    ("content", "said"),
    [(None, "No such file"), (b" \n", "holds no key"), (b"\xff\xfe", "not text")],
)
def test_key_file_that_holds_no_key_is_refused_by_name(tmp_path, content, said):
    """A missing, empty or binary file is said to be that, with its name."""
    file = tmp_path / "key"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(BadInput, match=said) as caught:
        find(options(RELAY, None, file), {})
    assert str(file) in str(caught.value)


@pytest.mark.parametrize(
    ("value", "insecure"), [("1", True), ("0", False), ("", False), (None, False)]
)
def test_tls_check_is_off_only_for_one(value, insecure):
    """`LLM_INSECURE_TLS=1`, and nothing else, turns the check of certificates off, for new and for
    resumed runs."""
    environment = {**LLM, **({} if value is None else {"LLM_INSECURE_TLS": value})}
    found = address.find(options(), environment)
    assert found is not None
    assert found.addresses[0].insecure_tls is insecure
    assert again(options(), environment).addresses[0].insecure_tls is insecure


def test_found_endpoint_does_not_show_its_key():
    """What a log or a traceback shows of an endpoint has neither key nor credentials in it."""
    shown = repr(
        address.find(options("https://user:secret@relay.example/v1?token=hidden", "given-key"), {})
    )
    assert "relay.example/v1" in shown
    assert not any(secret in shown for secret in ("given-key", "secret", "hidden"))


# Providers

DEEPSEEK = Provider(
    "deepseek",
    ("https://api.deepseek.example/v1",),
    key_env="DEEPSEEK_KEY",
    extra_headers={"X-A": "1"},
)
CLUSTER = Provider("cluster", url_env="CLUSTER_URLS", key_env="CLUSTER_KEY", key_required=False)


def test_key_of_a_provider_goes_to_its_own_address_alone():
    """Not to an address that the command names instead, nor do its headers; other variables' keys
    go to neither."""
    environment = {"DEEPSEEK_KEY": "deepseek-key", **LLM, **OPENAI}
    assert flat(address.find(options(), environment, DEEPSEEK)) == (
        "https://api.deepseek.example/v1",
        "deepseek-key",
        "DEEPSEEK_KEY",
    )
    elsewhere = address.find(options(OTHER), environment, DEEPSEEK)
    assert flat(elsewhere) == (OTHER, None, None)
    assert elsewhere is not None and elsewhere.addresses[0].headers == {}
    assert flat(address.find(options(OTHER, "given"), environment, DEEPSEEK)) == (
        OTHER,
        "given",
        "--api-key",
    )


def test_missing_key_of_a_provider_is_named_with_its_variable():
    """Before anything is sent; a provider whose key is no must goes on without one."""
    with pytest.raises(
        BadInput, match=r"set DEEPSEEK_KEY to the key for https://api\.deepseek\.example/v1"
    ):
        address.find(options(), LLM, DEEPSEEK)
    found = address.find(
        options(), {"CLUSTER_URLS": "http://a:8000/v1 http://b:8000/v1", **LLM}, CLUSTER
    )
    assert found is not None
    assert [one.url for one in found.addresses] == ["http://a:8000/v1", "http://b:8000/v1"]
    assert found.key_from is None and found.shown == "http://a:8000/v1 http://b:8000/v1"


def test_resumed_run_of_a_provider_follows_its_address_and_variable():
    """Another host in the variable is where it goes now; a key that is gone is asked for by its
    variable's name."""
    moved = again(
        options(),
        {"CLUSTER_URLS": "http://b:8000/v1"},
        CLUSTER,
        "http://a:8000/v1",
        None,
        address_from="provider",
    )
    assert flat(moved) == ("http://b:8000/v1", None, None)
    with pytest.raises(BadInput, match="set DEEPSEEK_KEY"):
        again(options(), LLM, DEEPSEEK, key_from="DEEPSEEK_KEY")
    found = again(options(), {"DEEPSEEK_KEY": "k-123456", **LLM}, DEEPSEEK, key_from="OLD_NAME")
    assert flat(found) == ("https://api.deepseek.example/v1", "k-123456", "DEEPSEEK_KEY")
    assert found.addresses[0].headers == {"X-A": "1"}


def test_run_on_a_provider_whose_address_a_command_gave_stays_there():
    """Neither its provider's own address nor a variable's gets what went there."""
    environment = {"DEEPSEEK_KEY": "k-123456", "CLUSTER_URLS": "http://b:8000/v1", **LLM}
    for provider in (DEEPSEEK, CLUSTER):
        with pytest.raises(
            BadInput, match=f"which nothing names now: `harness resume --name r --api-url {OTHER}`"
        ):
            again(options(), environment, provider, OTHER, None, address_from="--api-url")
        local = again(options(), environment, provider, LOCAL, None, address_from="--api-url")
        assert flat(local) == (LOCAL, None, None) and local.provider is provider
        assert local.addresses[0].headers == {}
    assert flat(again(options(OTHER, "given"), environment, DEEPSEEK)) == (
        OTHER,
        "given",
        "--api-key",
    )


def test_header_of_the_command_is_asked_for_again():
    """Its value is in no file, so `resume` cannot know it."""
    with pytest.raises(BadInput, match="the header X-Team by --extra-header: give it again"):
        again(options(), LLM, headers=["X-Team"])
    args = replace(options(), extra_header=[("X-Team", "blue")])
    assert again(args, LLM, headers=["X-Team"]).addresses[0].headers == {"X-Team": "blue"}


def test_certificates_are_those_of_the_command_and_the_providers_file():
    """A manifest could name one in its own folder."""
    own_file = replace(CLUSTER, ca_file="/own.pem")
    environment = {"CLUSTER_URLS": RELAY, **LLM}
    for provider, trusted in ((None, None), (own_file, "/own.pem")):
        found = again(options(), environment, provider, key_from=None, ca_file="/theirs.pem")
        assert found.addresses[0].ca_file == trusted
    args = replace(options(), ca_file="/given.pem")
    assert again(args, environment, ca_file="/theirs.pem").addresses[0].ca_file == "/given.pem"


def test_hosts_are_told_in_one_spelling():
    """Two models of one server share its limits, however its address is written."""

    def hosts(url: str) -> frozenset[str]:
        found = address.find(options(url, "a-key"), {})
        assert found is not None
        return found.hosts

    assert hosts(RELAY) == hosts("https://RELAY.example:443/other") == {"relay.example:443"}
    assert hosts(RELAY) != hosts(OTHER)


# An earlier run


@pytest.mark.parametrize(
    ("environment", "address_from", "url", "key_from", "found"),
    [
        (LLM, None, RELAY, "LLM_API_KEY", (RELAY, "llm-key", "LLM_API_KEY")),
        (LLM, "LLM_API_BASE", RELAY + "/elsewhere", None, (RELAY, "llm-key", "LLM_API_KEY")),
        (
            {**LLM, **OPENAI, "OPENAI_BASE_URL": OTHER},
            "OPENAI_BASE_URL",
            OTHER,
            None,
            (OTHER, "openai-key", "OPENAI_API_KEY"),
        ),
        (
            {},
            None,
            "http://localhost:8000/v1 http://[::1]:8000/v1",
            None,
            ("http://localhost:8000/v1", None, None),
        ),
    ],
)
def test_resumed_run_is_where_it_was_with_the_key_of_today(
    environment,
    address_from,
    url,
    key_from,
    found,
):
    """A variable that names its host gives the key; without one the manifest's address is used on
    loopback, bare."""
    assert (
        flat(again(options(), environment, None, url, key_from, address_from=address_from)) == found
    )


@pytest.mark.parametrize(
    "environment",
    [{}, {"LLM_API_KEY": "llm-key"}, {**LLM, "LLM_API_BASE": OTHER}, OPENAI, {**LLM, **OPENAI}],
)
def test_no_manifest_moves_a_request(environment):
    """Whatever way it claims: no address is taken from it, and of several none that no variable
    has."""
    ways = (None, "LLM_API_BASE", "--api-url", "provider", "--config /x", "--settings /x")
    urls = ("https://theirs.example/v1", f"{RELAY} https://theirs.example/v1", " ", "http://[", "x")
    for way, url in product(ways, urls):
        try:
            found = again(options(), environment, None, url, None, address_from=way)
        except BadInput as error:
            assert "--api-url" in str(error), (way, url)
        else:
            assert [one.url for one in found.addresses] == [
                environment.get("LLM_API_BASE")
            ] and RELAY in url, way


def test_resume_takes_from_the_environment_what_files_leave_out_of_an_address():
    """Credentials and query are not in a manifest: while the environment has the same host, they
    come from there."""
    whole = "https://user:secret@relay.example/v1/?api-version=2024"
    assert flat(again(options(), {"LLM_API_BASE": whole}, key_from=None)) == (whole, None, None)


def test_file_that_a_manifest_names_is_never_opened(tmp_path):
    """It would be waited for here; the address, which is the user's own, gets what their variables
    have."""
    os.mkfifo(tmp_path / "pipe")
    for key_from in (f"--api-key-file {tmp_path}/pipe", f"--config {tmp_path}/pipe"):
        found = again(options(), LLM, key_from=key_from, address_from="LLM_API_BASE")
        assert flat(found) == (RELAY, "llm-key", "LLM_API_KEY")
        with pytest.raises(BadInput):
            again(options(), {}, key_from=key_from)


def test_flags_of_a_command_line_name_address_and_key_again(key_file):
    """As far as they can be shown."""

    def flags(args: PlayOptions, environment: dict[str, str]) -> list[str]:
        found = address.find(args, environment)
        assert found is not None
        return found.flags

    assert flags(options(), LLM) == []
    assert flags(options(f"https://user:secret@relay.example/v1?k={'x' * 9}"), {}) == [
        "--api-url",
        RELAY,
    ]
    assert flags(options(RELAY, "given"), {}) == ["--api-url", RELAY, "--api-key", "..."]
    path = str(key_file.resolve())
    assert flags(options(RELAY, None, key_file), {}) == ["--api-url", RELAY, "--api-key-file", path]
    assert flags(options(None, None, key_file), LLM) == ["--api-key-file", path]
