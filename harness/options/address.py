"""Where requests go and with which key (docs/design.md, section 7; docs/providers.md).

A key goes only to the address that it was given for: a provider's variable to that provider's
addresses, `LLM_API_KEY` to `LLM_API_BASE`, `OPENAI_API_KEY` to `OPENAI_BASE_URL` or OpenAI itself,
`--api-key` to the address of the same command. Today's options, variables and files name both: a
manifest says only in which way its address was named.
"""

from __future__ import annotations

import functools
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from ipaddress import ip_address
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from harness.benchmarks.files import content, is_descriptor
from harness.client.address import Address, public_url
from harness.defaults import OPENAI_URL
from harness.errors import BadInput
from harness.options import endpoint_file, providers
from harness.options.options import Endpoint, Fallback, PlayOptions
from harness.options.providers import Provider
from harness.options.secrets import LARGEST_KEY_FILE

MISSING = (
    "no endpoint: set LLM_API_BASE and LLM_API_KEY (or OPENAI_API_KEY for OpenAI itself, or give"
    " --api-url and --api-key) to the address and key of an OpenAI-compatible API, or name a"
    " --provider; `--model baseline/recency` needs none of these"
)

BASES = {"LLM_API_KEY": "LLM_API_BASE", "OPENAI_API_KEY": "OPENAI_BASE_URL"}
"""Variable of a key -> variable of the address that it was given for, in the order in which they
are looked up."""

FROM_FILE = "--api-key-file "
"""Before the file's path, as the manifest names where a key is from."""

FLAG, PROVIDER = "--api-url", "provider"
"""How an address was named, as the manifest has it (`address_from`): by the flag or by a provider's
entry. Else it is a variable's name, or an option with the path of a file."""


@dataclass(frozen=True, slots=True)
class ResolvedEndpoint:
    """`addresses` are replicas of one service. `key_from` names the option or variable that held
    the key, None if no key is sent; `provider` is None if no provider was named. `address_from`
    says how the address was named."""

    addresses: tuple[Address, ...]
    key_from: str | None
    provider: Provider | None = None
    address_from: str = FLAG

    @property
    def shown(self) -> str:
        """Return the addresses without credentials and query, separated by spaces."""
        return " ".join([address.shown for address in self.addresses])

    @property
    def hosts(self) -> frozenset[str]:
        return hosts_in(address.url for address in self.addresses)

    @property
    def flags(self) -> list[str]:
        """Return the words of a command line that name address and key as this command's own
        did."""
        arguments = list[str]()
        option, _, path = self.address_from.partition(" ")
        if self.address_from == FLAG:
            for address in self.addresses:
                arguments += [FLAG, address.shown]
        elif path:
            arguments += [option, path]
        key_option, _, key_file = (self.key_from or "").partition(" ")
        if key_option in ("--api-key", FROM_FILE.strip()):
            # A key is not shown, and a descriptor is another one in the next command.
            is_shown = key_file and not is_descriptor(Path(key_file))
            arguments += [key_option, key_file if is_shown else "..."]
        return arguments


def host_of(url: str) -> str:
    """Return host and port in one spelling; text that is no address unchanged."""
    try:
        split = urlsplit(url)
        # An address with its scheme's default port is the same host as one without any.
        return f"{split.hostname}:{split.port or {'http': 80, 'https': 443}.get(split.scheme)}"
    except ValueError:
        return url


def hosts_in(urls: Iterable[str]) -> frozenset[str]:
    return frozenset(map(host_of, urls))


def _is_loopback(url: str) -> bool:
    try:
        host = urlsplit(url).hostname or ""
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


Key = tuple[str | None, str | None]
"""A key and its source: the option or variable that held it."""
NO_KEY: Key = (None, None)


def find(
    args: PlayOptions, environment: Mapping[str, str], provider: Provider | None = None
) -> ResolvedEndpoint | None:
    """Return the endpoint of a command, None if options and environment name none.

    Raise `BadInput` if a provider's address, key or headers are missing.
    """
    if args.endpoint:
        return _at_endpoint(args.endpoint, args, environment)
    if provider is not None:
        return _at_provider(provider, args, environment)
    if args.api_url:
        return _at(
            args.api_url, args, environment, FLAG, _key_for(args.api_url, environment, named=True)
        )
    by_variables = [*_at_variables(args, environment)]
    if by_variables and by_variables[0].address_from in BASES.values():
        return by_variables[0]
    if args.fallback:
        return _at_fallback(args.fallback, args, environment)
    # A variable for an address is set on purpose; OpenAI's key alone may be there for another
    # program.
    is_for_openai = not (environment.get("LLM_API_KEY") or _explicit_key(args))
    if by_variables and is_for_openai:
        return by_variables[0]
    return None


def _at(
    urls: Sequence[str],
    args: PlayOptions,
    environment: Mapping[str, str],
    address_from: str,
    key: Key = NO_KEY,
    provider: Provider | None = None,
    headers: Mapping[str, str] | None = None,
) -> ResolvedEndpoint:
    """Return an endpoint with the command's headers and certificates; a key of the command takes
    precedence.

    `LLM_INSECURE_TLS=1` checks no certificate.
    """
    # A key of this command is meant for the address of this command.
    value, key_from = _explicit_key(args) or key
    insecure = environment.get("LLM_INSECURE_TLS") == "1"
    headers = {**(headers or {}), **dict(args.extra_header)}
    ca_file = args.ca_file or (provider.ca_file if provider else None)
    addresses = [Address(url, value, insecure, headers, ca_file) for url in urls]
    return ResolvedEndpoint(tuple(addresses), key_from, provider, address_from)


def _at_endpoint(
    endpoint: Endpoint, args: PlayOptions, environment: Mapping[str, str]
) -> ResolvedEndpoint:
    """Return the endpoint in an endpoint file."""
    key_from = None
    if endpoint.key:
        key_from = endpoint.address_from
    return _at([endpoint.url], args, environment, endpoint.address_from, (endpoint.key, key_from))


def _at_fallback(
    fallback: Fallback, args: PlayOptions, environment: Mapping[str, str]
) -> ResolvedEndpoint:
    """Return the endpoint in a settings file."""
    key = _key_for(fallback.urls, environment, named=True)
    # Not read where an option gives a key: the file may be gone, and nobody needs it.
    if fallback.key_file and not _explicit_key(args):
        key = key_in(fallback.key_file), f"{FROM_FILE}{fallback.key_file.resolve()}"
    return _at(fallback.urls, args, environment, fallback.address_from, key)


def _at_variables(args: PlayOptions, environment: Mapping[str, str]) -> Iterator[ResolvedEndpoint]:
    """Yield the endpoints that the general variables name; the last is OpenAI itself, if its key is
    there alone.

    They move no run to another host: `resume` continues every run, and a stray variable must not
    take them all.
    """
    urls = {variable: environment.get(variable) for variable in BASES.values()}
    if environment.get("OPENAI_API_KEY") and not urls["OPENAI_BASE_URL"]:
        urls["OPENAI_API_KEY"] = OPENAI_URL
    for variable, url in urls.items():
        if url:
            yield _at([url], args, environment, variable, _key_for([url], environment, named=False))


def _at_provider(
    provider: Provider, args: PlayOptions, environment: Mapping[str, str]
) -> ResolvedEndpoint:
    """Return a provider's own addresses, or those of the command instead, to which its key is never
    sent."""
    provider_urls: tuple[str, ...] = ()
    # `addresses` refuses a provider whose variable is not set, which --api-url makes needless.
    if provider.base_url or not args.api_url:
        provider_urls = providers.addresses(provider, environment)
    urls = args.api_url or provider_urls
    # At other addresses than its own a provider's key would reach whoever runs them.
    at_home = set(map(public_url, urls)) <= set(map(public_url, provider_urls))
    key = NO_KEY
    if at_home and provider.key_env and not _explicit_key(args):
        value = environment.get(provider.key_env)
        if value:
            key = value, provider.key_env
        elif provider.key_required:
            raise BadInput(
                f"no key for {provider.name}: set {provider.key_env} to the key for"
                f" {public_url(urls[0])}, or give --api-key-file"
            )
    headers = providers.headers(provider, environment) if at_home else {}
    variable = provider.url_env or ""
    address_from = PROVIDER
    if args.api_url:
        address_from = FLAG
    elif variable in BASES.values() and environment.get(variable):
        address_from = variable
    return _at(urls, args, environment, address_from, key, provider, headers)


@dataclass(frozen=True, slots=True)
class EarlierRun:
    """A run to go on with: its name, what its manifest says of its endpoint, its provider as it is
    today, and the command that resumes it, to which flags can be added."""

    name: str
    provenance: Mapping[str, Any]
    provider: Provider | None
    command: str

    @property
    def address_from(self) -> str | None:
        """Return how the address was named; None of manifests that do not say it, where only a
        variable can have."""
        recorded: str | None = self.provenance.get("address_from")
        if recorded or self.provider:
            return recorded or PROVIDER
        key_from: str = self.provenance["key_from"] or ""
        is_endpoint_file = " " in key_from and not key_from.startswith(FROM_FILE)
        if is_endpoint_file:
            return key_from
        return None

    @property
    def urls(self) -> list[str]:
        urls: list[str] = self.provenance["endpoint"].split()
        return urls

    def at(self, urls: Sequence[str], *flags: str) -> str:
        """Return the command to type to go on at an address."""
        arguments = list[str]()
        for url in urls:
            arguments += [FLAG, public_url(url)]
        return f"`{self.command} {shlex.join([*(arguments or (FLAG, 'URL')), *flags])}`"


def for_resume(
    args: PlayOptions, run: EarlierRun, environment: Mapping[str, str]
) -> ResolvedEndpoint:
    """Return the endpoint of an earlier run: named in the same way as before, as that names it
    today.

    The manifest decides neither where requests go nor what is sent with them, but on loopback,
    without a key. Raise `BadInput`, with the command to type, where nothing of today names the
    endpoint, or only a general variable would move the run to another host.
    """
    # A manifest has the names of headers alone, since a value may be a secret.
    for name in run.provenance.get("headers") or ():
        if name not in dict(args.extra_header):
            raise BadInput(
                f"{run.name} was given the header {name} by --extra-header: give it again"
            )
    if args.endpoint or args.provider or args.api_url:
        endpoint = find(args, environment, run.provider)
        assert endpoint is not None  # an address or a provider is named
        return endpoint
    endpoint = _named_as_before(args, run, environment) or _on_loopback(args, run, environment)
    # Without its key the run would fail user by user, and each with the same sentence.
    if endpoint.key_from is None and run.provenance["key_from"] is not None:
        raise BadInput(
            f"{run.name} was run with a key ({run.provenance['key_from']}), and nothing names one"
            f" for {endpoint.shown} now: set it, or give it:"
            f" {run.at(endpoint.shown.split(), '--api-key-file', 'FILE')}"
        )
    return endpoint


def _named_as_before(
    args: PlayOptions, run: EarlierRun, environment: Mapping[str, str]
) -> ResolvedEndpoint | None:
    """Return what names an endpoint for a run today, None if nothing does."""
    option, _, path = (run.address_from or "").partition(" ")
    # A settings file is followed to where the one that counts now names an address.
    if path and args.fallback and args.fallback.address_from.startswith(f"{option} "):
        return _at_fallback(args.fallback, args, environment)
    if path:
        file_endpoint = endpoint_file.endpoint_again(run.address_from or "")
        return _at_endpoint(file_endpoint, args, environment) if file_endpoint else None
    if run.provider and option != FLAG:
        named = [_at_provider(run.provider, args, environment)]
    else:
        named = [*_at_variables(args, environment)]
    for endpoint in named:
        # A provider's entry is about this provider alone, so its new address counts; a variable is
        # for every run.
        if endpoint.address_from == PROVIDER or endpoint.hosts <= hosts_in(run.urls):
            return replace(endpoint, provider=run.provider)
    if option == FLAG or not named:  # the variables are for other runs
        return None
    raise BadInput(
        f"{run.name} ran on {' '.join(run.urls)}, and {named[0].address_from} alone moves no run to"
        f" another host: to go on at {named[0].shown}, {run.at(named[0].shown.split())}; to stay,"
        f" {run.at(run.urls)}"
    )


def _on_loopback(
    args: PlayOptions, run: EarlierRun, environment: Mapping[str, str]
) -> ResolvedEndpoint:
    """Return the endpoint that a manifest has on this machine. Raise `BadInput` for any other."""
    # A manifest may come from somebody else: an address in it must not receive a key of this user.
    is_sent = bool(_explicit_key(args) or args.extra_header)
    if is_sent or not run.urls or not all(map(_is_loopback, run.urls)):
        raise BadInput(
            f"{run.name} ran on {' '.join(run.urls)}, which nothing names now: {run.at(run.urls)}"
        )
    return _at(run.urls, args, environment, run.address_from or FLAG, NO_KEY, run.provider)


def _explicit_key(args: PlayOptions) -> Key | None:
    """Return the key that an option of the command gives, None without one."""
    if args.api_key_file is not None:
        path = args.api_key_file
        return key_in(path), f"{FROM_FILE}{path if is_descriptor(path) else path.resolve()}"
    if args.api_key:
        return (args.api_key, "--api-key")
    return None


def key_in(path: Path) -> str:
    """Return the key in a file that an option of this command names. Raise `BadInput` if it has
    none."""
    if is_descriptor(path):
        return _key_handed_over(path)
    return _key_of_file(path)


@functools.lru_cache
def _key_handed_over(path: Path) -> str:
    """Return the key in a pipe, which can be read only once, for all models of a command."""
    return _key_of_file(path, functools.partial(content, pipe=True))


def _key_of_file(path: Path, read: Callable[[Path, int], bytes] = content) -> str:
    try:
        # Editors on Windows write a byte order mark, which no server takes for a part of the key.
        key = read(path, LARGEST_KEY_FILE).decode("utf-8-sig").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(
            f"cannot read the key in {path}: {getattr(error, 'strerror', None) or 'not text'}"
        ) from None
    if not key:
        raise BadInput(f"{path} holds no key")
    return key


def _key_for(urls: Sequence[str], environment: Mapping[str, str], *, named: bool) -> Key:
    """Return the key of the variable that belongs to these addresses. `LLM_API_KEY` without an
    address of its own goes with one that the command named."""
    for key_name, address_name in BASES.items():
        key = environment.get(key_name)
        key_address = environment.get(address_name)
        if key_name == "OPENAI_API_KEY":
            # OpenAI's key without an address is for OpenAI, never for any address that a command
            # names.
            key_address = key_address or OPENAI_URL
        belongs = named
        if key_address:
            belongs = set(map(public_url, urls)) <= {public_url(key_address)}
        if key and belongs:
            return key, key_name
    return NO_KEY
