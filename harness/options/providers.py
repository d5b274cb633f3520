"""The providers file: addresses, keys' variables and limits of providers, and queues of models
(docs/providers.md).

The user's own file overrides the shipped `providers.toml` in this folder, field by field within a
provider. Such a file never contains keys: it names the variables that hold them. No message shows
its values.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec

from harness.cost import Price
from harness.errors import BadInput
from harness.model import JSON
from harness.option import Check
from harness.options import fields, user_files
from harness.options.extension import extensions
from harness.options.user_files import Document

FILE = "providers.toml"
SHIPPED = Path(__file__).with_name(FILE)

NAME = re.compile(r"[\w.-]+")
TAG = re.compile(r"latest|\d+(\.\d+)?[bm](-.*)?", re.I)
"""What follows a colon in the name of a model, never in a provider's: its size."""
ALIKE = 0.85
"""Similarity from which a name counts as a typing error; `llama3`/`ollama` and
`deepseek-r1`/`deepseek` are below."""


@dataclass(frozen=True, slots=True)
class Provider:
    """One place that serves models: an account of a hosted API, or the user's own servers.

    `base_url` are replicas of one service; the variable `url_env`, if set, overrides it. `key_env`
    is the variable of the key, None if requests are sent without one; `key_required` means that a
    missing key is an error. `rpm` and `tpm` are requests and tokens a minute, `timeout` is in
    seconds, `concurrency` a number or `auto`; None leaves each to the command. `adapt` are quirks
    that need not be learned. `prices` are those of its models that the user's file has; the shipped
    ones are in prices.toml. `source` is its file, for messages.
    """

    name: str
    base_url: tuple[str, ...] = ()
    url_env: str | None = None
    key_env: str | None = None
    key_required: bool = True
    rpm: float | None = None
    tpm: float | None = None
    concurrency: int | str | None = None
    timeout: float | None = None
    extra_body: JSON = field(default_factory=dict)
    extra_headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    stream: str = "auto"
    adapt: tuple[str, ...] = ()
    ca_file: str | None = None
    prices: Mapping[str, Price] = field(default_factory=dict)
    source: str = ""


@dataclass(frozen=True, slots=True)
class QueuedModel:
    """An entry of a queue. `model` is as the command line takes it; None leaves a value to the
    command.

    `extensions` are the fields of extensions.
    """

    model: str
    name: str | None = None
    extra_body: JSON = field(default_factory=dict)
    temperature: float | None = None
    top_p: float | None = None
    seed: int | None = None
    max_tokens: int | None = None
    roles: Mapping[str, str] = field(default_factory=dict)
    extensions: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Book:
    """The content of the files; `files` are in the order in which they were read."""

    providers: Mapping[str, Provider]
    queues: Mapping[str, tuple[QueuedModel, ...]]
    files: tuple[Path, ...]


def read(named: Path | None, environment: Mapping[str, str]) -> Book:
    """Return the shipped file, overridden by the `named` one, else by that of this folder if it is
    allowed, else by the user's own. Raise `BadInput` with file and field."""
    user_document = user_files.read(FILE, named, environment)
    if user_document is None:
        return shipped()
    return over(shipped(), user_document)


def shipped() -> Book:
    return over(Book({}, {}, ()), user_files.document(SHIPPED))


def split_model(text: str, book: Book) -> tuple[str | None, str]:
    """Return provider and model of `deepseek:deepseek-chat`; None and the whole text without a
    provider before a colon.

    The part before the first colon counts only if it is a known provider's name, so that
    `qwen2.5:7b` and `deepseek/deepseek-r1:free` stay models. Raises `BadInput` for a provider
    without a model.
    """
    provider, colon, model = text.partition(":")
    if not colon or provider not in book.providers:
        return None, text
    if not model.strip():
        raise BadInput(f"{text} names a provider without a model: expected {provider}:MODEL")
    return provider, model


def unknown_provider(text: str, book: Book) -> str | None:
    """Return a message that the part before the first colon is no provider, None if it cannot be
    one's name."""
    # The first colon alone: names of models have colons of their own (`qwen2.5:7b`).
    name, colon, _ = text.partition(":")
    if not colon or name in book.providers or not NAME.fullmatch(name):
        return None
    return f"{name} is no provider of {book.files[-1]}: known are {', '.join(book.providers)}"


def misspelt(text: str, book: Book) -> str | None:
    """Return the provider whose name is spelt nearly like the part before the first colon, None if
    there is none, or if a tag of a model follows the colon (`llama:7b`)."""
    name, _, model = text.partition(":")
    if unknown_provider(text, book) is None or TAG.fullmatch(model):
        return None
    name = name.lower()
    known = {provider.lower(): provider for provider in book.providers}
    for similar in known:
        if _is_slip(name, similar):
            return known[similar]
    for similar in get_close_matches(name, known, 1, ALIKE):
        return known[similar]
    return None


def _is_slip(name: str, known: str) -> bool:
    """Return whether one letter differs, or the same letters are in another order."""
    differ = sum(a != b for a, b in zip(name, known, strict=False))
    # Of three letters or fewer nearly any two names are alike.
    return len(name) == len(known) > 3 and (differ <= 1 or sorted(name) == sorted(known))


def addresses(provider: Provider, environment: Mapping[str, str]) -> tuple[str, ...]:
    """Return its replicas' addresses: from the variable `url_env` (separated by spaces or commas),
    else from the file.

    Raise `BadInput` if neither has any, or the variable holds no address.
    """
    value = ""
    if provider.url_env:
        value = environment.get(provider.url_env, "")
    urls = tuple(dict.fromkeys(filter(None, re.split(r"[\s,]+", value))))
    if not urls and not provider.base_url:
        raise BadInput(
            f"provider {provider.name}: {provider.url_env} is not set: set it to the address,"
            " http(s)://HOST[:PORT]/v1"
        )
    if not all(map(fields.is_address, urls)):
        raise BadInput(
            f"provider {provider.name}: {provider.url_env}: expected an address of the form "
            "http(s)://HOST[:PORT]/v1, or several separated by spaces or commas"
        )
    return urls or provider.base_url


def headers(provider: Provider, environment: Mapping[str, str]) -> dict[str, str]:
    """Return its extra headers with their variables filled in. Raise `BadInput` for one that is not
    set."""
    filled = {}
    for name, value in provider.extra_headers.items():
        # No message has the value: it may be a secret.
        where = f"{provider.source}: providers.{provider.name}.extra_headers.{name}"
        for variable in fields.PLACE.findall(value):
            if not environment.get(variable):
                raise BadInput(f"{where} uses the variable {variable}, which is not set: set it")
        filled[name] = fields.PLACE.sub(lambda place: environment[place[1]], value)
        if not fields.is_header_value(filled[name]):
            raise BadInput(
                f"{where}: its variable holds line ends, control characters, or characters beyond"
                " Latin-1"
            )
    return filled


def over(book: Book, document: Document) -> Book:
    """Return a book overridden by a file. Raise `BadInput` with file and field."""
    path = document.path
    content = document.content
    for name in sorted(content.keys() - {"providers", "queues"}):
        raise BadInput(
            f"{path}: unknown field {name!r}: expected tables [providers.NAME], and [queues]"
        )
    providers = dict(book.providers)
    for name, entry in _entries(content, "providers", path):
        providers[name] = _provider(providers.get(name, Provider(name)), entry, path)
    queues = dict(book.queues)
    for name, entry in _entries(content, "queues", path):
        queues[name] = _queue(name, entry, path)
    return Book(providers, queues, (*book.files, path))


def _entries(document: JSON, kind: str, path: Path) -> list[tuple[str, Any]]:
    """Return name and content of each provider, or of each queue."""
    entries = document.get(kind, {})
    if type(entries) is not dict:
        raise BadInput(f"{path}: field {kind}: expected a table")
    for name in entries:
        if not NAME.fullmatch(name):
            raise BadInput(
                f"{path}: {kind}: the name {name!r}: expected letters, digits, '-', '_' and '.'"
                " only"
            )
    return list(entries.items())


def _provider(below: Provider, entry: object, path: Path) -> Provider:
    """Return a provider with the fields of a table over those that it has `below`."""
    where = f"{path}: providers.{below.name}"
    values = fields.checked(entry, fields.PROVIDER, where)
    fields.check_headers(values.get("extra_headers", {}), f"{where}.extra_headers")
    if "base_url" in values:
        urls = values["base_url"]
        # A file may name the same address twice, and replicas get equal shares.
        values["base_url"] = tuple(dict.fromkeys(urls if type(urls) is list else [urls]))
    if "adapt" in values:
        values["adapt"] = tuple(values["adapt"])
    for name in ("url_env", "key_env"):
        if name in values:
            # TOML has no null, so "" takes away the variable of the shipped entry.
            values[name] = values[name] or None
    if "ca_file" in values:
        # Relative to the file that names it, wherever the command is started.
        values["ca_file"] = str(path.absolute().parent / os.path.expanduser(values["ca_file"]))
    if "prices" in values:
        prices = dict(below.prices)
        for model, price in values["prices"].items():
            prices[model] = _price(price, f"{where}.prices.{model}")
        values["prices"] = prices
    provider = replace(below, **values, source=str(path))
    if not provider.base_url and provider.url_env is None:
        raise BadInput(
            f"{where}.base_url: expected an address, or in url_env the name of the variable that"
            " has it"
        )
    # A key goes only to the address that it was named for.
    if "key_env" not in values and below.key_required and _has_moved(below, provider):
        raise BadInput(
            f"{where} has another address than before, to which the key in {below.key_env} would"
            " go: name in key_env the variable that holds the key for it"
        )
    return provider


def _price(value: object, where: str) -> Price:
    try:
        return msgspec.convert(value, Price)
    except msgspec.ValidationError as error:
        problem = str(error).replace("$.", "")
        raise BadInput(f"{where}: {problem[0].lower()}{problem[1:]}") from None


def _has_moved(below: Provider, changed: Provider) -> bool:
    """Return whether a key would go to another host than the one that it was named for."""
    known = {urlsplit(url)[:2] for url in below.base_url}
    elsewhere = {urlsplit(url)[:2] for url in changed.base_url} - known
    return below.key_env is not None and bool(elsewhere or changed.url_env != below.url_env)


def _queue(name: str, entries: object, path: Path) -> tuple[QueuedModel, ...]:
    where = f"{path}: queues.{name}"
    if type(entries) is not list or not entries:
        raise BadInput(
            f'{where}: expected a list of models, such as ["deepseek:deepseek-chat", {{model ='
            ' "..."}]'
        )
    extension_checks = dict[str, Check]()
    for extension in extensions():
        extension_checks |= extension.queue_checks
    queue = list[QueuedModel]()
    for number, entry in enumerate(entries):
        place = f"{where}[{number}]"
        table = {"model": entry} if type(entry) is str else entry
        values = fields.checked(table, {**fields.QUEUED, **extension_checks}, place)
        if "model" not in values:
            raise BadInput(f"{place}.model: expected {fields.MODEL[1]}")
        of_extensions = {}
        for field_name in extension_checks.keys() & values.keys():
            of_extensions[field_name] = values.pop(field_name)
        queue.append(QueuedModel(**values, extensions=of_extensions))
    return tuple(queue)
