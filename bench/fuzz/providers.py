"""A providers file: what is let in gives addresses, headers and models."""

from __future__ import annotations

from bench.fuzz import scratch
from harness.errors import BadInput
from harness.options import providers, user_files

EXPECTED = (BadInput,)
MOST_BYTES = 320
SEEDS = [
    (
        b'[providers.mine]\nbase_url = ["http://127.0.0.1:80/v1", "https://[::1]/v1"]\nkey_env ='
        b' ""\nrpm = 60\n'
    ),
    (
        b'[providers.a]\nurl_env = "X"\ntpm = 1e5\nconcurrency = "auto"\ntimeout = 5.5\nstream ='
        b' "on"\n'
    ),
    (
        b'[providers.a]\nurl_env = "X"\nadapt = ["no_response_format"]\nca_file ='
        b' "~/ca.pem"\nkey_required = false\n'
    ),
    """[providers.a]
url_env = "X"
extra_body = {"thinking" = false, "a" = {"b" = [1, "猫"]}}
extra_headers = {"X-Title" = "a ${HOME} b"}
""".encode(),
    (
        b'[providers.deepseek]\nkey_env = "MINE"\n[queues]\nnight = ["deepseek:chat", {"model" ='
        b' "deepseek:x"}]\n'
    ),
    """[queues]
q = [{"model" = "mine:x", "name" = "猫", "seed" = 3, "top_p" = 0.5, "max_tokens" = 10}]
""".encode(),
    b'[providers.deepseek]\nbase_url = "http://h/v1"\n',
    (
        b'[providers.a]\nurl_env = "X"\nextra_headers = {"Authorization" = "x"}\n[queues]\nq ='
        b' ["deepseek:"]\n'
    ),
    b'[providers.a]\nurl_env = "MINE"\nextra_headers = {"Host" = "${MINE}", "X" = "${MINE}"}\n',
    b'[providers."a b"]\nurl_env = "X"\n[[queues.q]]\nmodel = "\\u0000"\n',
    b"a = 1979-05-27T07:32:00Z\nb = [0x1f, 1_0, inf]\nc.'d' = '''e'''\n",
]
PATH = scratch.file("providers.toml")
SHIPPED = providers.shipped()
ENVIRONMENT = {"HOME": "/nowhere", "X": "http://h/v1 https://g/v1", "MINE": "猫"}


def run(data: bytes) -> None:
    book = providers.over(SHIPPED, user_files.document(scratch.written(PATH, data)))
    for provider in book.providers.values():
        if provider.source != str(PATH):
            continue
        try:
            providers.addresses(provider, ENVIRONMENT)
        finally:
            providers.headers(provider, ENVIRONMENT)
    for queued in book.queues.values():
        for one in queued:
            try:
                providers.split_model(one.model, book)
            except BadInput:
                continue
