"""The providers file: what ships, what a file of the user's changes, and what is said of one that
cannot be used."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.defaults import OPENAI_URL
from harness.errors import BadInput
from harness.options import fields, providers
from harness.options.providers import (
    Book,
    Provider,
    QueuedModel,
    addresses,
    headers,
    misspelt,
    split_model,
)
from tests.support import ROOT
from tests.support.allowed import allow

SECRET = "sk-test-0123456789"

PAGE = ROOT / "docs" / "providers.md"
LOCAL = {"vllm", "sglang", "llamacpp", "ollama", "lmstudio"}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "供应商.toml"


def read(file: Path, text: str) -> Book:
    file.write_text(text, encoding="utf-8")
    return providers.read(file, {})


def own(file: Path, fields: str) -> Provider:
    """A provider of the user's own with these fields."""
    return read(file, f'[providers.mine]\nbase_url = "http://h:1/v1"\n{fields}').providers["mine"]


def test_the_providers_that_researchers_use_ship():
    """Each hosted one has a TLS address and the variable of its key, and no rate that would be an
    account's own."""
    hosted = {name: one for name, one in providers.shipped().providers.items() if name not in LOCAL}
    assert {
        "openai",
        "deepseek",
        "dashscope",
        "siliconflow",
        "openrouter",
        "zhipuai",
        "volcengine",
    } <= hosted.keys()
    for one in hosted.values():
        assert one.base_url[0].startswith("https://") and len(one.base_url) == 1, one.name
        assert one.key_env and one.key_required, one.name
        assert (one.rpm, one.tpm, one.concurrency) == (None, None, None), one.name
    assert hosted["openai"].base_url == (OPENAI_URL,)


def test_servers_of_ones_own_are_on_loopback_and_need_no_key():
    """Their variables name another address, and one that is given no key is asked without one."""
    found = providers.shipped().providers
    for name in LOCAL:
        one = found[name]
        assert (
            one.base_url[0].startswith("http://127.0.0.1:") and one.url_env and not one.key_required
        ), name


def test_a_file_of_the_users_goes_over_the_shipped_one_field_by_field(file):
    """What it does not say of a provider stays as shipped; a provider of its own stands beside."""
    book = read(
        file,
        '[providers.deepseek]\nrpm = 500\n[providers."中转"]\nbase_url ='
        ' "https://relay.example/v1"\n',
    )
    deepseek = book.providers["deepseek"]
    assert (deepseek.rpm, deepseek.base_url) == (500, ("https://api.deepseek.com/v1",))
    assert (deepseek.key_env, deepseek.source) == ("DEEPSEEK_API_KEY", str(file))
    assert book.providers["中转"].base_url == ("https://relay.example/v1",)
    assert book.files == (providers.SHIPPED, file)
    assert book.providers["openai"].source == str(providers.SHIPPED)


def test_every_field_is_kept_as_it_is_meant(file):
    """Lists become tuples, an empty variable's name none, and a path is that of the file's
    folder."""
    one = own(
        file,
        'url_env = "HOSTS"\nkey_env = "MY_KEY"\nkey_required = false\nrpm = 60\ntpm ='
        ' 1e5\nconcurrency = "auto"\ntimeout = 30\nstream = "on"\nadapt ='
        ' ["no-temperature"]\nca_file = "证书.pem"\nextra_headers = {X-Title = "table"}\nextra_body'
        ' = {thinking = {type = "disabled"}}\n',
    )
    assert one == Provider(
        "mine",
        base_url=("http://h:1/v1",),
        url_env="HOSTS",
        key_env="MY_KEY",
        key_required=False,
        rpm=60,
        tpm=1e5,
        concurrency="auto",
        timeout=30,
        extra_body={"thinking": {"type": "disabled"}},
        extra_headers={"X-Title": "table"},
        stream="on",
        adapt=("no-temperature",),
        ca_file=str(file.parent / "证书.pem"),
        source=str(file),
    )
    assert own(file, 'key_env = ""').key_env is None


def test_replicas_are_several_addresses_once_each(file):
    """A list of addresses keeps its order and names none twice."""
    book = read(
        file, '[providers.vllm]\nbase_url = ["http://b:1/v1", "http://a:1/v1", "http://b:1/v1"]\n'
    )
    assert book.providers["vllm"].base_url == ("http://b:1/v1", "http://a:1/v1")


def test_a_key_does_not_follow_a_provider_to_another_host(file):
    """Who gives a hosted provider another address says in the same place which key is for it."""
    moved = '[providers.openai]\nbase_url = "https://relay.example/v1"\n'
    with pytest.raises(BadInput, match=r"providers\.openai has another address.*OPENAI_API_KEY"):
        read(file, moved)
    with pytest.raises(BadInput, match=r"providers\.openai has another address"):
        read(file, '[providers.openai]\nbase_url = "http://api.openai.com/v1"\n')
    with pytest.raises(BadInput, match=r"providers\.openai has another address"):
        read(file, '[providers.openai]\nurl_env = "SOMEWHERE"\n')
    assert read(file, moved + 'key_env = "RELAY_KEY"\n').providers["openai"].key_env == "RELAY_KEY"
    same_host = '[providers.openai]\nbase_url = "https://api.openai.com/v2"\n'
    assert read(file, same_host).providers["openai"].key_env == "OPENAI_API_KEY"


def test_the_file_named_comes_first_then_this_folders_then_the_users(tmp_path, monkeypatch):
    """One file of the user's is read, and the others not even looked into."""
    monkeypatch.chdir(tmp_path)
    home, configured = tmp_path / "家", tmp_path / "xdg"
    told = {
        "HOME": str(home),
        "XDG_CONFIG_HOME": str(configured),
        "XDG_STATE_HOME": str(tmp_path / "state"),
    }
    places = [
        home / ".config/behavior-harness/providers.toml",
        configured / "behavior-harness/providers.toml",
        tmp_path / "providers.toml",
        tmp_path / "named.toml",
    ]
    for path in places:
        path.parent.mkdir(parents=True, exist_ok=True)

    def found(named: Path | None, environment: dict[str, str]) -> tuple[Path, ...]:
        return providers.read(named, environment).files[1:]

    assert found(None, told) == ()
    places[0].touch()
    assert found(None, {"HOME": str(home)}) == (places[0],)
    assert found(None, {"HOME": str(home), "XDG_CONFIG_HOME": "relative"}) == (places[0],)
    assert found(None, told) == ()
    places[1].touch()
    assert found(None, told) == (places[1],)
    places[2].touch()
    assert found(None, told) == (places[1],)
    allow(places[2], b"", told)
    assert found(None, told) == (Path("providers.toml"),)
    places[3].touch()
    assert found(places[3], told) == (places[3],)
    assert providers.read(None, {}).files == (providers.SHIPPED,)


@pytest.mark.parametrize(
    ("text", "provider", "model"),
    [
        ("deepseek:deepseek-chat", "deepseek", "deepseek-chat"),
        ("ollama:qwen2.5:7b", "ollama", "qwen2.5:7b"),
        ("qwen2.5:7b", None, "qwen2.5:7b"),
        ("deepseek/deepseek-r1:free", None, "deepseek/deepseek-r1:free"),
        ("DeepSeek:deepseek-chat", None, "DeepSeek:deepseek-chat"),
        ("gpt-4o-mini", None, "gpt-4o-mini"),
        ("deepseek", None, "deepseek"),
        (":x", None, ":x"),
    ],
)
def test_a_known_provider_before_the_first_colon_is_split_off(text, provider, model):
    """Colons in the names of models stay where they are."""
    assert split_model(text, providers.shipped()) == (provider, model)


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("deepseak:deepseek-chat", "deepseek"),
        ("deepsek:deepseek-chat", "deepseek"),
        ("DeepSeek:x", "deepseek"),
        ("opnai:gpt-5", "openai"),
        ("opanai:gpt-5", "openai"),
        ("openia:gpt-5", "openai"),
        ("oolama:qwen3:8b", "ollama"),
        ("siliconflow-int:org/m", "siliconflow-intl"),
    ],
)
def test_misspelt_provider_is_recognised(name, meant):
    """A letter is wrong, missing, doubled or elsewhere, or the case differs."""
    assert misspelt(name, providers.shipped()) == meant


@pytest.mark.parametrize(
    "name",
    [
        "qwen3:8b",
        "llama3:8b",
        "llama:7b",
        "llama:13b-chat-q4_0",
        "ft:gpt-4o-mini:org::id",
        "中转:org/m",
        "goood:baseline/recency",
        "llama3.1:70b",
        "deepseek-r1:7b",
        "ft:m:a::1",
        ":a/b",
        "gpt-4o-mini",
        "hf.co/a/b:Q4_K_M",
        "deepseek/deepseek-r1:free",
        "ollama:qwen3:8b",
        "openrouter:deepseek/deepseek-r1:free",
    ],
)
def test_names_of_models_with_colons_are_not_taken_for_misspelt_providers(name):
    """Tags of ollama, variants of OpenRouter, fine-tuned models, and providers that are known."""
    assert not misspelt(name, providers.shipped())


def test_a_provider_without_a_model_is_refused():
    """`deepseek:` is no model's name."""
    with pytest.raises(BadInput, match="expected deepseek:MODEL"):
        split_model("deepseek: ", providers.shipped())


def test_a_queue_lists_models_with_what_differs(file):
    """An entry is a name, or a table; what it does not say is left to the command."""
    book = read(
        file,
        '[queues]\nweek = ["deepseek:deepseek-chat", {model = "dashscope:qwen3-8b", name ='
        ' "qwen3-不思考", extra_body = {enable_thinking = false}, temperature = 0.6, top_p = 0.95,'
        " seed = 7, max_tokens = 2048}]\n",
    )
    assert book.queues["week"] == (
        QueuedModel("deepseek:deepseek-chat"),
        QueuedModel(
            "dashscope:qwen3-8b", "qwen3-不思考", {"enable_thinking": False}, 0.6, 0.95, 7, 2048
        ),
    )


def test_the_variable_of_an_address_comes_before_the_file():
    """A vLLM that moves with each job is named by a variable, several hosts are replicas."""
    one = Provider("vllm", ("http://127.0.0.1:8000/v1",), url_env="HOSTS")
    assert addresses(one, {}) == ("http://127.0.0.1:8000/v1",)
    assert addresses(one, {"HOSTS": " "}) == ("http://127.0.0.1:8000/v1",)
    assert addresses(one, {"HOSTS": "http://a:1/v1, http://b:1/v1\nhttp://a:1/v1,"}) == (
        "http://a:1/v1",
        "http://b:1/v1",
    )
    assert addresses(Provider("x", ("http://h:1/v1",)), {"": "http://elsewhere:1/v1"}) == (
        "http://h:1/v1",
    )


def test_a_variable_that_cannot_be_used_is_named_and_not_shown():
    """A provider that only its variable can find says which one is missing; what it holds may be a
    secret."""
    one = Provider("job", (), url_env="HOSTS")
    with pytest.raises(BadInput, match="provider job: HOSTS is not set"):
        addresses(one, {})
    with pytest.raises(BadInput, match="provider job: HOSTS: expected an address") as raised:
        addresses(one, {"HOSTS": f"node7:8000 {SECRET}"})
    assert SECRET not in str(raised.value)


def test_a_header_takes_the_value_of_a_variable(file):
    """`${NAME}` stands for the variable, wherever in the value; a provider never shows its
    headers."""
    one = own(file, 'extra_headers = {api-key = "${RELAY_KEY}", X-Team = "a ${TEAM}-$ ü"}')
    assert headers(one, {"RELAY_KEY": SECRET, "TEAM": "${x}"}) == {
        "api-key": SECRET,
        "X-Team": "a ${x}-$ ü",
    }
    assert "RELAY_KEY" not in repr(one)
    with pytest.raises(
        BadInput, match=r"extra_headers\.X-Team uses the variable TEAM, which is not set"
    ):
        headers(one, {"RELAY_KEY": SECRET})
    with pytest.raises(
        BadInput, match=r"extra_headers\.api-key: its variable holds line ends"
    ) as raised:
        headers(one, {"RELAY_KEY": f"{SECRET}\r\nX-Other: 1", "TEAM": "x"})
    assert SECRET not in str(raised.value)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        (f'api_key = "{SECRET}"', r"mine\.api_key: keys do not belong in this file.*key_env"),
        (f'Key = "{SECRET}"', r"mine\.Key: keys do not belong in this file"),
        ('base_ulr = "x"', "mine: unknown field 'base_ulr': expected some of base_url, url_env"),
        (f'key_env = "{SECRET}"', r"mine\.key_env: expected the name of a variable"),
        ('url_env = "A B"', r"mine\.url_env: expected the name of a variable"),
        ('key_required = "no"', r"mine\.key_required: expected true or false"),
        ("rpm = 0", r"mine\.rpm: expected a number above 0"),
        ("rpm = true", r"mine\.rpm: expected a number above 0"),
        ("tpm = inf", r"mine\.tpm: expected a number above 0"),
        ("concurrency = 0", r"mine\.concurrency: expected a whole number"),
        ("concurrency = true", r"mine\.concurrency: expected a whole number"),
        (
            'concurrency = "many"',
            r'mine\.concurrency: expected a whole number from 1 to 100000, or "auto"',
        ),
        ("timeout = 1e9", r"mine\.timeout: expected seconds"),
        ('stream = "yes"', r"mine\.stream: expected one of auto, on, off"),
        ("stream = true", r"mine\.stream: expected one of auto, on, off"),
        ('adapt = "x"', r"mine\.adapt: expected a list"),
        ("adapt = [1]", r"mine\.adapt: expected a list"),
        ('ca_file = ""', r"mine\.ca_file: expected the path"),
        ("extra_body = 3", r"mine\.extra_body: expected a table"),
        ("extra_body = {a = [2026-01-01]}", r"mine\.extra_body: expected a table of JSON values"),
        ("extra_body = {a = {b = nan}}", r"mine\.extra_body: expected a table of JSON values"),
        (
            "extra_body = {a = 9223372036854775808}",
            r"mine\.extra_body: expected a table of JSON values",
        ),
        ('extra_headers = "x"', r"mine\.extra_headers: expected a table"),
        (f'extra_headers = {{authorization = "{SECRET}"}}', "header authorization is for the key"),
        (
            'extra_headers = {Content-Type = "text/plain"}',
            "header Content-Type is set by the harness",
        ),
        ('extra_headers = {"X Y" = "1"}', "'X Y' cannot be a header's name"),
        ('extra_headers = {"标题" = "1"}', "'标题' cannot be a header's name"),
        ("extra_headers = {X = 1}", r"extra_headers: the header X: expected text in Latin-1"),
        (
            f'extra_headers = {{X = "{SECRET}\\n"}}',
            r"extra_headers: the header X: expected text in Latin-1",
        ),
        (
            'extra_headers = {X = "\\u007f"}',
            r"extra_headers: the header X: expected text in Latin-1",
        ),
        ('extra_headers = {X = "表"}', r"extra_headers: the header X: expected text in Latin-1"),
        (
            'extra_headers = {X = "${A-B}"}',
            r"extra_headers: the header X: expected the name of a variable between \$\{ and \}",
        ),
        (
            'extra_headers = {X = "${A"}',
            r"extra_headers: the header X: expected the name of a variable",
        ),
        (
            'extra_headers = {X = "${}"}',
            r"extra_headers: the header X: expected the name of a variable",
        ),
    ],
)
def test_a_field_that_cannot_be_used_is_told_by_file_and_name(file, fields, said):
    """One sentence with file, provider, field and what was expected, and never a value, which might
    be a key."""
    with pytest.raises(BadInput, match=said) as raised:
        own(file, fields)
    assert str(file) in str(raised.value)
    assert SECRET not in str(raised.value)


@pytest.mark.parametrize(
    "address",
    [
        '"h:1/v1"',
        '"ftp://h/v1"',
        "[]",
        "[3]",
        '["http://h:1/v1", ""]',
        '"http://u:secret-word@h:1/v1"',
        "3",
    ],
)
def test_an_address_that_cannot_be_used_is_told(file, address):
    """An address has a scheme and a host, and no password, which would be a key in the file."""
    with pytest.raises(BadInput, match=r"providers\.x\.base_url: expected an address") as raised:
        read(file, f"[providers.x]\nbase_url = {address}\n")
    assert "secret-word" not in str(raised.value)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("\n[providers\n", "line 2: expected TOML in UTF-8"),
        ("[providers]\nx = 3", r"providers\.x: expected a table with fields such as base_url"),
        ('[queues]\nx = "m"', r"queues\.x: expected a list of models"),
        ('[queues]\nx = [{name = "n"}]', r"queues\.x\[0\]\.model: expected the name of a model"),
        ('[queues]\nx = ["m", " "]', r"queues\.x\[1\]\.model: expected the name of a model"),
        (
            '[queues]\nx = [{model = "m", temperature = -1}]',
            r"queues\.x\[0\]\.temperature: expected a number from 0",
        ),
        ('[queues]\nx = [{model = "m", top_p = 0}]', r"queues\.x\[0\]\.top_p: expected"),
        (
            '[queues]\nx = [{model = "m", seed = 1.5}]',
            r"queues\.x\[0\]\.seed: expected a whole number",
        ),
        (
            '[queues]\nx = [{model = "m", max_tokens = 0}]',
            r"queues\.x\[0\]\.max_tokens: expected a whole number",
        ),
        ('[queues]\nx = [{model = "m", key = "k"}]', r"queues\.x\[0\]\.key: keys do not belong"),
    ],
)
def test_a_file_that_cannot_be_used_is_told(file, text, said):
    """The file, where in it, and what was expected."""
    with pytest.raises(BadInput, match=said) as raised:
        read(file, text)
    assert str(file) in str(raised.value)


def test_a_byte_order_mark_is_no_mistake(file):
    """Editors of one system put one in front."""
    file.write_bytes(b"\xef\xbb\xbf[providers.deepseek]\nrpm = 1\n")
    assert providers.read(file, {}).providers["deepseek"].rpm == 1


def test_a_header_that_can_be_sent_is_given_back():
    """The command line's headers are checked as those of a file are."""
    assert fields.header("X-Title", "ü") == ("X-Title", "ü")
    with pytest.raises(BadInput, match="header Authorization is for the key") as raised:
        fields.header("Authorization", SECRET)
    assert SECRET not in str(raised.value)


def test_the_page_on_providers_tells_each_one_as_it_ships():
    """Its table has every provider with address and variables, and no other."""
    rows = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if "` | `http" in line]
    found = providers.shipped().providers
    assert [row.removeprefix("| `").partition(":")[0] for row in rows] == list(found)
    for row, one in zip(rows, found.values(), strict=True):
        told = (one.base_url[0], one.key_env or "none", one.url_env or "| |")
        assert all(word in row for word in told), one.name
        assert ("if set" in row) == (one.key_env is not None and not one.key_required), one.name


def test_the_file_on_that_page_can_be_used(file):
    """Who copies the example gets no error."""
    example = PAGE.read_text(encoding="utf-8").partition("```toml\n")[2].partition("```")[0]
    assert read(file, example).queues["week"][0] == QueuedModel("deepseek:deepseek-chat")
