"""A providers file: what is let in gives addresses, headers and models."""

from __future__ import annotations

from bench.fuzz import scratch
from harness.commands import providers
from harness.errors import BadInput

EXPECTED = (BadInput,)
SEEDS = [
    """
[providers.mine]
base_url = ["http://127.0.0.1:8000/v1", "https://[::1]/v1"]
key_env = ""
rpm = 60
tpm = 1e5
concurrency = "auto"
timeout = 5.5
stream = "on"
adapt = ["no_response_format"]
ca_file = "~/ca.pem"
extra_body = {enable_thinking = false, "a" = {b = [1, "猫"]}}
extra_headers = {X-Title = "a ${HOME} b"}

[providers.deepseek]
key_env = "MINE"

[queues]
night = ["deepseek:deepseek-chat", {model = "mine:x", name = "猫", seed = 3, top_p = 0.5, temperature = 0}]
""".encode(),
    b'[providers."a b"]\nurl_env = "X"\n[[queues.q]]\nmodel = "\\u0000"\nmax_tokens = 10\n',
]
PATH = scratch.file("providers.toml")
ENVIRONMENT = {"HOME": "/nowhere", "X": "http://h/v1 https://g/v1", "MINE": "猫"}


def run(data: bytes) -> None:
    book = providers.read(scratch.written(PATH, data), ENVIRONMENT)
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
