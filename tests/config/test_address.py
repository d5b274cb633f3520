"""Which key goes to which address, from options and environment alone; a key never goes to another's address."""

from __future__ import annotations

import os
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest

from harness.config import address
from harness.config.address import Found
from harness.config.options import Session
from harness.config.providers import Provider
from harness.defaults import OPENAI_URL
from harness.errors import BadInput

RELAY, OTHER = "https://relay.example/v1", "https://other.example/v1"
LLM = {"LLM_API_BASE": RELAY, "LLM_API_KEY": "llm-key"}
OPENAI = {"OPENAI_API_KEY": "openai-key"}


def options(url: str | None = None, key: str | None = None, file: Path | None = None) -> Session:
    return Session(api_url=[url] if url else None, api_key=key, api_key_file=file)


def find(args: Session, environment: dict[str, str]) -> tuple[str, str | None, str | None] | None:
    """Address, key and where the key came from."""
    return flat(address.find(args, environment))


def flat(found: Found | None) -> tuple[str, str | None, str | None] | None:
    return (found.addresses[0].url, found.addresses[0].key, found.key_from) if found else None


def again(
    args: Session,
    environment: dict[str, str],
    key_from: str | None = "LLM_API_KEY",
    url: str = RELAY,
    ran_with: str = "llm-key",
    own: bool = True,
) -> tuple[str, str | None, str | None] | None:
    provenance = {"endpoint": url, "key_from": key_from, "key_check": address.key_check(ran_with)}
    return flat(address.again(args, provenance, environment, "Qwen3-8B", None, own=own))


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
        (options(), {**OPENAI, "LLM_API_BASE": OPENAI_URL + "/"}, (OPENAI_URL + "/", "openai-key", "OPENAI_API_KEY")),
        (options(url=OTHER), {"LLM_API_KEY": "llm-key"}, (OTHER, "llm-key", "LLM_API_KEY")),
        (options(url=RELAY + "/"), LLM, (RELAY + "/", "llm-key", "LLM_API_KEY")),
        (options(url=OPENAI_URL), OPENAI, (OPENAI_URL, "openai-key", "OPENAI_API_KEY")),
        (options(url=OTHER, key="given"), {**LLM, **OPENAI}, (OTHER, "given", "--api-key")),
        (options(key="given"), LLM, (RELAY, "given", "--api-key")),
    ],
)
def test_address_and_key_of_a_new_run(
    args: Session, environment: dict[str, str], found: tuple[str, str | None, str | None] | None
) -> None:
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
def test_key_does_not_go_to_another_address(args: Session, environment: dict[str, str]) -> None:
    """Another host, port or scheme than the key's own gets the request without a key."""
    found = find(args, environment)
    assert found is not None
    assert found[1:] == (None, None)


def test_no_mixture_of_variables_sends_a_key_to_an_address_that_is_not_its_own() -> None:
    """Over every combination of the variables and `--api-url`: a pair's key meets only the pair's address."""
    values = {
        "LLM_API_BASE": (None, "https://a.example/v1", OPENAI_URL),
        "LLM_API_KEY": (None, "llm-key"),
        "OPENAI_BASE_URL": (None, "https://b.example/v1"),
        "OPENAI_API_KEY": (None, "openai-key"),
    }
    for combination in product((None, "https://a.example/v1", "https://c.example/v1"), *values.values()):
        url = combination[0]
        environment = {name: value for name, value in zip(values, combination[1:], strict=True) if value}
        found = find(options(url=url), environment)
        if found is None or found[1] is None:
            continue
        if found[1] == "openai-key":
            assert found[0] == environment.get("OPENAI_BASE_URL", OPENAI_URL)
        else:
            assert found[0] == environment.get("LLM_API_BASE", url)


def test_key_file_comes_before_other_keys_and_is_named_by_its_whole_path(
    key_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Space around the key is not part of it; a resume from another folder finds the file again."""
    monkeypatch.chdir(key_file.parent)
    source = f"--api-key-file {key_file.resolve()}"
    assert find(options(RELAY, "given", Path("key")), LLM) == (RELAY, "file-key", source)


@pytest.mark.parametrize(
    ("content", "said"), [(None, "No such file"), (b" \n", "holds no key"), (b"\xff\xfe", "not text")]
)
def test_key_file_that_holds_no_key_is_refused_by_name(tmp_path: Path, content: bytes | None, said: str) -> None:
    """A missing, empty or binary file is said to be that, with its name."""
    file = tmp_path / "key"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(BadInput, match=said) as caught:
        find(options(RELAY, None, file), {})
    assert str(file) in str(caught.value)


@pytest.mark.parametrize(("value", "insecure"), [("1", True), ("0", False), ("", False), (None, False)])
def test_tls_check_is_off_only_for_one(value: str | None, insecure: bool) -> None:
    """`LLM_INSECURE_TLS=1`, and nothing else, turns the check of certificates off, for new and for resumed runs."""
    environment = {**LLM, **({} if value is None else {"LLM_INSECURE_TLS": value})}
    found = address.find(options(), environment)
    assert found is not None
    assert found.addresses[0].insecure_tls is insecure
    provenance = {"endpoint": RELAY, "key_from": "LLM_API_KEY"}
    assert address.again(options(), provenance, environment, "r", None, own=True).addresses[0].insecure_tls is insecure


def test_found_endpoint_does_not_show_its_key() -> None:
    """What a log or a traceback shows of an endpoint has neither key nor credentials in it."""
    shown = repr(address.find(options("https://user:secret@relay.example/v1?token=hidden", "given-key"), {}))
    assert "relay.example/v1" in shown
    assert not any(secret in shown for secret in ("given-key", "secret", "hidden"))


# Providers

DEEPSEEK = Provider(
    "deepseek", ("https://api.deepseek.example/v1",), key_env="DEEPSEEK_KEY", extra_headers={"X-A": "1"}
)
CLUSTER = Provider("cluster", url_env="CLUSTER_URLS", key_env="CLUSTER_KEY", key_required=False)


def test_key_of_a_provider_goes_to_its_own_address_alone() -> None:
    """Not to an address that the command names instead, nor do its headers; other variables' keys go to neither."""
    environment = {"DEEPSEEK_KEY": "deepseek-key", **LLM, **OPENAI}
    assert flat(address.find(options(), environment, DEEPSEEK)) == (
        "https://api.deepseek.example/v1",
        "deepseek-key",
        "DEEPSEEK_KEY",
    )
    elsewhere = address.find(options(OTHER), environment, DEEPSEEK)
    assert flat(elsewhere) == (OTHER, None, None)
    assert elsewhere is not None and elsewhere.addresses[0].headers == {}
    assert flat(address.find(options(OTHER, "given"), environment, DEEPSEEK)) == (OTHER, "given", "--api-key")


def test_missing_key_of_a_provider_is_named_with_its_variable() -> None:
    """Before anything is sent; a provider whose key is no must goes on without one."""
    with pytest.raises(BadInput, match=r"set DEEPSEEK_KEY to the key for https://api\.deepseek\.example/v1"):
        address.find(options(), LLM, DEEPSEEK)
    found = address.find(options(), {"CLUSTER_URLS": "http://a:8000/v1 http://b:8000/v1", **LLM}, CLUSTER)
    assert found is not None
    assert [one.url for one in found.addresses] == ["http://a:8000/v1", "http://b:8000/v1"]
    assert found.key_from is None and found.shown == "http://a:8000/v1 http://b:8000/v1"


def test_resumed_run_of_a_provider_follows_its_address_and_variable() -> None:
    """Another host in the variable is where it goes now; a key that is gone is asked for by its variable's name."""
    was = {"endpoint": "http://a:8000/v1", "key_from": None, "provider": "cluster"}
    moved = address.again(options(), was, {"CLUSTER_URLS": "http://b:8000/v1"}, "r", CLUSTER, own=True)
    assert flat(moved) == ("http://b:8000/v1", None, None)
    was = {"endpoint": "https://api.deepseek.example/v1", "key_from": "DEEPSEEK_KEY", "provider": "deepseek"}
    with pytest.raises(BadInput, match="set DEEPSEEK_KEY"):
        address.again(options(), was, LLM, "r", DEEPSEEK, own=True)
    assert flat(address.again(options(), was, {"DEEPSEEK_KEY": "k-123456"}, "r", DEEPSEEK, own=True)) == (
        "https://api.deepseek.example/v1",
        "k-123456",
        "DEEPSEEK_KEY",
    )


def test_run_does_not_follow_its_provider_to_a_host_that_another_file_names() -> None:
    """Read from another folder, a shipped provider of the same name must not get what the run's own one got."""
    was = {"endpoint": "https://relay.example/v1", "key_from": "DEEPSEEK_KEY", "provider": "deepseek"}
    environment = {"DEEPSEEK_KEY": "k-123456"}
    with pytest.raises(BadInput, match=r"ran on deepseek at https://relay\.example/v1, and .* has it at https://api\."):
        address.again(options(), was, environment, "r", DEEPSEEK, own=True)
    args = options()
    args = replace(args, provider="deepseek")
    assert flat(address.again(args, was, environment, "r", DEEPSEEK, own=True)) == (
        "https://api.deepseek.example/v1",
        "k-123456",
        "DEEPSEEK_KEY",
    )


def test_run_whose_address_a_command_gave_stays_there(key_file: Path) -> None:
    """Neither its provider's own address nor a variable's gets what went there, or the other way round."""
    was = {"endpoint": OTHER, "key_from": "--api-key", "provider": "deepseek", "address_from": "--api-url"}
    environment = {"DEEPSEEK_KEY": "k-123456", "CLUSTER_URLS": "http://b:8000/v1"}
    assert flat(address.again(options(key="given"), was, environment, "r", DEEPSEEK, own=True)) == (
        OTHER,
        "given",
        "--api-key",
    )
    keyless = {**was, "key_from": None}
    assert flat(address.again(options(), keyless, environment, "r", DEEPSEEK, own=True)) == (OTHER, None, None)
    assert flat(address.again(options(), keyless, environment, "r", CLUSTER, own=True)) == (OTHER, None, None)
    source = f"--api-key-file {key_file}"
    of_file = {**was, "key_from": source, "key_check": address.key_check("file-key")}
    assert flat(address.again(options(), of_file, environment, "r", DEEPSEEK, own=True)) == (OTHER, "file-key", source)


def test_run_at_its_provider_keeps_headers_and_moves_with_its_variable_whatever_its_key_is_from(
    key_file: Path,
) -> None:
    """A key of a file is read again, and goes where the provider is."""
    source = f"--api-key-file {key_file}"
    check = address.key_check("file-key")
    was = {"endpoint": DEEPSEEK.base_url[0], "key_from": source, "provider": "deepseek", "key_check": check}
    found = address.again(options(), was, {}, "r", DEEPSEEK, own=True)
    assert flat(found) == ("https://api.deepseek.example/v1", "file-key", source)
    assert found.addresses[0].headers == {"X-A": "1"}
    was = {"endpoint": "http://a:8000/v1", "key_from": source, "provider": "cluster", "key_check": check}
    moved = address.again(options(), was, {"CLUSTER_URLS": "http://b:8000/v1"}, "r", CLUSTER, own=True)
    assert flat(moved) == ("http://b:8000/v1", "file-key", source)


def test_hosted_provider_is_not_followed_to_where_a_variable_points_now() -> None:
    """`OPENAI_BASE_URL`, set to a relay since, is not where a run at OpenAI goes on with its key."""
    openai = Provider("openai", (OPENAI_URL,), "OPENAI_BASE_URL", "OPENAI_API_KEY")
    was = {"endpoint": OPENAI_URL, "key_from": "OPENAI_API_KEY", "provider": "openai"}
    with pytest.raises(BadInput, match="ran on openai at"):
        address.again(options(), was, {**OPENAI, "OPENAI_BASE_URL": RELAY}, "r", openai, own=True)


def test_certificates_of_one_run_are_not_trusted_by_the_next() -> None:
    """`resume` takes each run's own."""
    args, was = options(), {"endpoint": RELAY, "key_from": "LLM_API_KEY"}
    assert (
        address.again(args, {**was, "ca_file": "/ca.pem"}, LLM, "r", None, own=True).addresses[0].ca_file == "/ca.pem"
    )
    assert address.again(args, was, LLM, "r", None, own=True).addresses[0].ca_file is None


def test_provider_of_the_command_is_where_a_resumed_run_goes() -> None:
    """Wherever its key came from before."""
    was = {"endpoint": RELAY, "key_from": "LLM_API_KEY"}
    args = options()
    args = replace(args, provider="deepseek")
    found = address.again(args, was, {"DEEPSEEK_KEY": "k-123456", **LLM}, "r", DEEPSEEK, own=True)
    assert flat(found) == ("https://api.deepseek.example/v1", "k-123456", "DEEPSEEK_KEY")


def test_header_of_the_command_is_asked_for_again() -> None:
    """Its value is in no file, so `resume` cannot know it."""
    was = {"endpoint": RELAY, "key_from": "LLM_API_KEY", "headers": ["X-Team"]}
    with pytest.raises(BadInput, match="the header X-Team by --extra-header: give it again"):
        address.again(options(), was, LLM, "r", None, own=True)
    args = options()
    args = replace(args, extra_header=[("X-Team", "blue")])
    assert address.again(args, was, LLM, "r", None, own=True).addresses[0].headers == {"X-Team": "blue"}


def test_hosts_are_told_in_one_spelling() -> None:
    """Two models of one server share its limits, however its address is written."""

    def hosts(url: str) -> frozenset[str]:
        found = address.find(options(url, "a-key"), {})
        assert found is not None
        return found.hosts

    assert hosts(RELAY) == hosts("https://RELAY.example:443/other") == {"relay.example:443"}
    assert hosts(RELAY) != hosts(OTHER)


# An earlier run


def test_resumed_run_finds_its_key_where_it_was() -> None:
    """The variable that the run's manifest names, with or without the address beside it; no key where it had none."""
    assert again(options(), LLM) == (RELAY, "llm-key", "LLM_API_KEY")
    assert again(options(), {"LLM_API_KEY": "llm-key"}) == (RELAY, "llm-key", "LLM_API_KEY")
    assert again(options(), {}, key_from=None) == (RELAY, None, None)
    assert again(options(), {**LLM, **OPENAI}, key_from=None) == (RELAY, None, None)
    assert again(options(), {**LLM, **OPENAI}, "OPENAI_API_KEY", OPENAI_URL) == (
        OPENAI_URL,
        "openai-key",
        "OPENAI_API_KEY",
    )


@pytest.mark.parametrize("key_from", ["LLM_API_KEY", "OPENAI_API_KEY"])
@pytest.mark.parametrize("value", [None, ""])
def test_resume_names_the_variable_that_is_missing(key_from: str, value: str | None) -> None:
    """Run, address and variable stand in one sentence."""
    with pytest.raises(BadInput, match=rf"Qwen3-8B .*{RELAY}.*{key_from}, which is not set"):
        again(options(), {} if value is None else {key_from: value}, key_from)


@pytest.mark.parametrize(
    ("environment", "key_from"),
    [
        ({"LLM_API_BASE": OTHER, "LLM_API_KEY": "other-key"}, "LLM_API_KEY"),
        ({"OPENAI_BASE_URL": OTHER, "OPENAI_API_KEY": "other-key"}, "OPENAI_API_KEY"),
        ({"OPENAI_API_KEY": "openai-key"}, "OPENAI_API_KEY"),
    ],
)
def test_variable_that_now_holds_the_key_of_another_address_is_not_sent(
    environment: dict[str, str], key_from: str
) -> None:
    """Who moved on to another provider in the same shell must not send its key to the old one."""
    with pytest.raises(BadInput, match=f"Qwen3-8B .*{RELAY}.*{key_from}, which now is the key for") as caught:
        again(options(), environment, key_from)
    assert "other-key" not in str(caught.value)


def test_resume_asks_again_for_a_key_given_as_an_option() -> None:
    """`--api-key` is written nowhere, so it must be given again, and then it is taken."""
    with pytest.raises(BadInput, match=f"--api-key: give it again, for {RELAY}"):
        again(options(), LLM, "--api-key")
    assert again(options(key="given"), LLM, "--api-key") == (RELAY, "given", "--api-key")


def test_resume_reads_the_key_file_again(key_file: Path) -> None:
    """The file that the manifest names is read anew; if it is gone, it is named."""
    source = f"--api-key-file {key_file}"
    assert again(options(), LLM, source, ran_with="file-key") == (RELAY, "file-key", source)
    key_file.unlink()
    with pytest.raises(BadInput, match=str(key_file)):
        again(options(), LLM, source)


def test_manifest_cannot_make_another_variable_be_sent() -> None:
    """A folder from somebody else that names `AWS_SECRET_ACCESS_KEY` as its key gets nothing of it."""
    with pytest.raises(BadInput, match="AWS_SECRET_ACCESS_KEY"):
        again(options(), {"AWS_SECRET_ACCESS_KEY": "secret"}, "AWS_SECRET_ACCESS_KEY")


@pytest.mark.parametrize(
    "check", [None, "", "xx:yy", address.key_check("another-key")], ids=["none", "empty", "no trace", "another key's"]
)
def test_key_that_is_not_the_one_the_run_had_is_not_sent_where_its_folder_says(
    check: str | None, key_file: Path
) -> None:
    """The variable may hold another key by now, and the folder may be somebody else's, who would like to have it."""
    for key_from in ("LLM_API_KEY", f"--api-key-file {key_file}"):
        was = {"endpoint": OTHER, "key_from": key_from, "key_check": check, "address_from": "--api-url"}
        with pytest.raises(BadInput, match="is not the one that r was run with: give --api-url"):
            address.again(options(), was, {"LLM_API_KEY": "llm-key"}, "r", None, own=True)
    assert again(options(OTHER), {"LLM_API_KEY": "new-key"}) == (OTHER, "new-key", "LLM_API_KEY")


def test_trace_of_a_key_does_not_hold_it() -> None:
    """Salted, short, and the same for the same key in one process."""
    trace = address.key_check("sk-test-0123456789")
    assert trace == address.key_check("sk-test-0123456789") and trace != address.key_check("sk-test-0123456780")
    assert trace is not None and "0123456789" not in trace and len(trace) == 29
    assert address.key_check(None) is None


def test_run_that_moves_to_another_address_takes_the_key_of_that_one() -> None:
    """`resume --api-url` looks for a key as a new run does, and does not carry the old one along."""
    assert again(options(url=OTHER), LLM) == (OTHER, None, None)
    assert again(options(url=OTHER), {"LLM_API_BASE": OTHER, "LLM_API_KEY": "other-key"}) == (
        OTHER,
        "other-key",
        "LLM_API_KEY",
    )
    assert again(options(url=OTHER, key="given"), LLM) == (OTHER, "given", "--api-key")


def test_resume_takes_from_the_environment_what_files_leave_out_of_an_address() -> None:
    """Credentials and query are not in a manifest: while the environment has the same address, they come from there."""
    whole = "https://user:secret@relay.example/v1/?api-version=2024"
    assert again(options(), {"LLM_API_BASE": whole}, key_from=None) == (whole, None, None)
    assert again(options(), {"OPENAI_BASE_URL": whole, **OPENAI}, "OPENAI_API_KEY") == (
        whole,
        "openai-key",
        "OPENAI_API_KEY",
    )


def test_variable_of_a_provider_may_be_called_otherwise_by_now() -> None:
    """The providers file says where its key is; the run follows."""
    was = {"endpoint": "https://api.deepseek.example/v1", "key_from": "OLD_NAME", "provider": "deepseek"}
    found = address.again(options(), was, {"DEEPSEEK_KEY": "k-123456"}, "r", DEEPSEEK, own=True)
    assert flat(found) == ("https://api.deepseek.example/v1", "k-123456", "DEEPSEEK_KEY")


# A run that is not known as this user's own


def foreign(args: Session, environment: dict[str, str], provider: Provider | None = None, **was: str | None) -> Found:
    provenance = {"endpoint": RELAY, "key_from": None, **was}
    return address.again(args, provenance, environment, "r", provider, own=False)


@pytest.mark.parametrize(
    ("environment", "endpoint", "found"),
    [
        (LLM, RELAY, (RELAY, "llm-key", "LLM_API_KEY")),
        (LLM, f"{RELAY}/ {RELAY}", (RELAY, "llm-key", "LLM_API_KEY")),
        ({"LLM_API_BASE": RELAY}, RELAY.replace("//", "//user:theirs@"), (RELAY, None, None)),
        (OPENAI, OPENAI_URL, (OPENAI_URL, "openai-key", "OPENAI_API_KEY")),
        ({**LLM, **OPENAI, "OPENAI_BASE_URL": OTHER}, OTHER, (OTHER, "openai-key", "OPENAI_API_KEY")),
    ],
)
def test_run_from_elsewhere_goes_on_at_an_address_of_the_environment(
    environment: dict[str, str], endpoint: str, found: tuple[str, str | None, str | None]
) -> None:
    """With the key that belongs to it, whatever the manifest says of keys."""
    assert flat(foreign(options(), environment, endpoint=endpoint, key_check=address.key_check("llm-key"))) == found


@pytest.mark.parametrize("environment", [{}, LLM, {"LLM_API_KEY": "llm-key"}, {**LLM, **OPENAI}])
@pytest.mark.parametrize("endpoint", [OTHER, f"{RELAY} {OTHER}", " ", "http://[", "x"])
@pytest.mark.parametrize("key_from", [None, "LLM_API_KEY", "OPENAI_API_KEY"])
def test_run_from_elsewhere_wants_an_address_that_nobody_here_named(
    environment: dict[str, str], endpoint: str, key_from: str | None
) -> None:
    """Even with the trace of the very key: who has seen the folder of another run has that."""
    check = address.key_check("llm-key")
    with pytest.raises(BadInput, match="give --api-url"):
        foreign(options(), environment, endpoint=endpoint, key_from=key_from, key_check=check)


def test_file_that_a_manifest_from_elsewhere_names_is_never_opened(tmp_path: Path) -> None:
    """It would be waited for here; the address, which is the user's own, gets what their variables have."""
    os.mkfifo(tmp_path / "pipe")
    for key_from in (f"--api-key-file {tmp_path}/pipe", f"--config {tmp_path}/pipe"):
        assert flat(foreign(options(), LLM, key_from=key_from)) == (RELAY, "llm-key", "LLM_API_KEY")
        with pytest.raises(BadInput, match="your variables have none for"):
            foreign(options(), {"CLUSTER_URLS": RELAY}, CLUSTER, key_from=key_from)


@pytest.mark.parametrize("given", ["api_key", "api_key_file", "extra_header"])
def test_key_or_header_for_a_run_from_elsewhere_wants_its_address(given: str, key_file: Path) -> None:
    """Else the manifest would say where it goes."""
    args = options()
    args = replace(
        args, **{given: {"api_key": "given", "api_key_file": key_file, "extra_header": [("X-A", "1")]}[given]}
    )
    for provider in (None, CLUSTER):
        with pytest.raises(BadInput, match=r"give the address for --.* too"):
            foreign(args, {**LLM, "CLUSTER_URLS": RELAY}, provider)
    args = replace(args, api_url=[OTHER])
    assert foreign(args, LLM).shown == OTHER


def test_certificates_of_a_run_from_elsewhere_are_those_of_the_command_and_the_providers_file() -> None:
    """A manifest could name one in its own folder."""
    own_file = replace(CLUSTER, ca_file="/own.pem")
    environment = {"CLUSTER_URLS": RELAY, **LLM}
    for provider, trusted in ((None, None), (own_file, "/own.pem")):
        assert foreign(options(), environment, provider, ca_file="/theirs.pem").addresses[0].ca_file == trusted
    args = options()
    args = replace(args, ca_file="/given.pem")
    assert foreign(args, environment, ca_file="/theirs.pem").addresses[0].ca_file == "/given.pem"


@pytest.mark.parametrize("check", [None, "", address.key_check("another-key")], ids=["none", "empty", "another key's"])
def test_key_of_a_file_is_checked_at_a_provider_too(check: str | None, key_file: Path) -> None:
    """Without the trace of the very key, no manifest says that it belongs there."""
    was = {"endpoint": RELAY, "key_from": f"--api-key-file {key_file}", "provider": "cluster", "key_check": check}
    with pytest.raises(BadInput, match="is not the one that r was run with"):
        address.again(options(), was, {"CLUSTER_URLS": RELAY}, "r", CLUSTER, own=True)


def test_key_of_a_configuration_goes_to_the_address_beside_it_alone(tmp_path: Path) -> None:
    """Not to that of a provider that the manifest names."""
    file = tmp_path / "config.yml"
    file.write_text(f"llm: [{{base_url: '{OTHER}', api_key: conf-key, model: m}}]", encoding="utf-8")
    was = {"endpoint": RELAY, "key_from": f"--config {file}", "provider": "cluster"}
    check = address.key_check("conf-key")
    with pytest.raises(BadInput, match=f"now names {OTHER}"):
        address.again(options(), {**was, "key_check": check}, {"CLUSTER_URLS": RELAY}, "r", CLUSTER, own=True)
