"""Prompts, agents, providers files and asbench's configurations that nobody can use."""

from __future__ import annotations

from tests.corpus import Case

BAD_PROMPTS = (
    Case("empty", b"", ("prompt",)),
    Case("not UTF-8", "请看这些帖子：${posts} ${pool}".encode("gb18030"), ("UTF-8",)),
    Case("UTF-16", "${posts} ${pool}".encode("utf-16"), ("UTF-8",)),
    Case("a place too many", b"${posts} ${pool} ${answer}", ("unknown place ${answer}",)),
    Case("a place with a control sign", b"${posts} ${pool} ${\x1b[2J}", ("unknown place",)),
    Case("no pool", b"${posts}", ("no place ${pool}",)),
    Case("no user", b"[system]\n${posts} ${pool}\n", ("[user]",)),
    Case("users twice", b"[user]\n${posts}\n[user]\n${pool}\n", ("[user]",)),
    Case("words before the parts", b"x\n[user]\n${posts}${pool}\n", ("[user]",)),
)

BAD_AUTHORS_PROMPTS = (
    Case("a syntax error", b"def x(:\n", ("line 1",)),
    Case("NUL bytes", b"\x00", ("bench_task.py",)),
    Case("an exception", b"raise ValueError('no')\n", ("bench_task.py",)),
    Case("an exit", b"raise SystemExit(0)\n", ("bench_task.py",)),
    Case("no builder", b"x = 1\n", ("BenchTaskBuilder",)),
    Case("depth", b"x = " + b"(" * 5000 + b")" * 5000, ("bench_task.py",)),
)

BAD_AGENTS = (
    Case("empty", b"", ("DailyMobilityAgent",)),
    Case("a syntax error", b"\n\ndef x(:\n", ("line 3",)),
    Case("NUL bytes", b"x = 1\x00", ("agent",)),
    Case("no UTF-8", b"x = '\xff'\n", ("agent",)),
    Case("an exit", b"import sys\nsys.exit(0)\n", ("line 2",)),
    Case("an unknown module", b"import no_such_module_at_all\n", ("line 1",)),
    Case("depth", b"x = " + b"-" * 100_000 + b"1\n", ("agent",)),
)

BAD_PROVIDERS = (
    Case("no TOML", b"[providers", ("end", "TOML")),
    Case("not UTF-8", b'[providers.a]\nbase_url = "\xff"', ("UTF-8",)),
    Case("NUL bytes", b"\x00\x00", ("TOML",)),
    Case("depth", b"a = " + b"[" * 100_000, ("TOML",)),
    Case("depth of names", b"[" + b"a." * 5000 + b"a]\nx = 1\n", ("unknown field",)),
    Case("5,000 digits", b"[providers.a]\nrpm = " + b"9" * 5000, ("TOML",)),
    Case("a table twice", b"[providers.a]\n[providers.a]\n", ("TOML",)),
    Case("a table unknown", b"[x]\n", ("unknown field 'x'",)),
    Case("providers that are a list", b"providers = []", ("field providers",)),
    Case("a name with a path", b'[providers."../a"]\n', ("'../a'",)),
    Case("no address", b"[providers.a]\n", ("providers.a.base_url",)),
    Case(
        "an address without a scheme",
        b'[providers.a]\nbase_url = "localhost/v1"',
        ("providers.a.base_url",),
    ),
    Case(
        "an address with a line end",
        b'[providers.a]\nbase_url = "http://h/\\nv1"',
        ("providers.a.base_url",),
    ),
    Case(
        "a port beyond", b'[providers.a]\nbase_url = "http://h:99999/v1"', ("providers.a.base_url",)
    ),
    Case("nan", b'[providers.a]\nbase_url = "http://h/v1"\nrpm = nan', ("providers.a.rpm",)),
    Case(
        "a date in a body",
        b"[providers.a]\nextra_body = {a = 2001-01-01}",
        ("providers.a.extra_body",),
    ),
    Case(
        "a header with a line end",
        b'[providers.a]\nextra_headers = {X = "a\\r\\nb"}',
        ("extra_headers",),
    ),
    Case("a key", b'[providers.a]\napi_key = "sk-test-0"', ("providers.a.api_key", "key_env")),
    Case("an empty queue", b"[queues]\nq = []", ("queues.q",)),
    Case("a model that is a number", b"[queues]\nq = [1]", ("queues.q[0]",)),
    Case(
        "a name with a path in a queue",
        b'[queues]\nq = [{model = "m", name = "../x"}]',
        ("queues.q[0].name",),
    ),
    Case("a model with NUL", b'[queues]\nq = ["a\\u0000b"]', ("queues.q[0].model",)),
)

BAD_CONFIGS = (
    Case("empty", b"", ("llm",)),
    Case("no YAML", b"llm: [", ("line", "YAML")),
    Case("NUL bytes", b"\x00", ("YAML",)),
    Case("a tag of Python", b"llm: !!python/object/apply:os.system [echo]", ("YAML",)),
    Case("depth", b"[" * 3000, ("YAML",)),
    Case("laughs", b"a: &a [x, x]\nb: &b [*a, *a]\nllm: {c: [*b, *b]}\n", ("llm",)),
    Case("an alias of itself", b"llm: &a [*a]", ("llm[0]",)),
    Case("a date that is none", b"llm: 2001-13-41", ("YAML",)),
    Case(
        "a key in no text",
        b"llm: [{model: m, base_url: 'http://h/v1', api_key: 1}]",
        ("llm[0].api_key",),
    ),
    Case("no model", b"llm: [{base_url: 'http://h/v1'}]", ("llm[0].model",)),
    Case(
        "infinity",
        b"llm: [{model: m, base_url: 'http://h/v1', timeout: .inf}]",
        ("llm[0].timeout",),
    ),
    Case("nan", b"llm: [{model: m, base_url: 'http://h/v1', timeout: .nan}]", ("llm[0].timeout",)),
    Case("a host that is none", b"llm: [{model: m, base_url: 'http://[::1/v1'}]", ()),
    Case("a model with NUL", b'llm: [{model: "a\\0b", base_url: "http://h/v1"}]', ()),
    Case("a model with half a pair", b'llm: [{model: "\\ud800", base_url: "http://h/v1"}]', ()),
)
