"""Where requests go and with which key (docs/design.md, section 7; docs/providers.md).

A key goes only to the address that it was given for: a provider's variable to that provider's addresses, `LLM_API_KEY`
to `LLM_API_BASE`, `OPENAI_API_KEY` to `OPENAI_BASE_URL` or OpenAI itself, `--api-key` to the address of the same
command.
"""

from __future__ import annotations

import functools
import hashlib
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import urlsplit

from harness.benchmarks.files import content, is_descriptor
from harness.config import providers
from harness.config.options import Fallback, Session
from harness.config.origin import UNKNOWN
from harness.config.providers import Provider
from harness.config.secrets import LARGEST_KEY_FILE
from harness.defaults import OPENAI_URL
from harness.endpoint.address import Address, public_url
from harness.errors import BadInput
from harness.feature import function
from harness.model import JSON

MISSING = (
    "no endpoint: set LLM_API_BASE and LLM_API_KEY (or OPENAI_API_KEY for OpenAI itself, or give --api-url and "
    "--api-key) to the address and key of an OpenAI-compatible API, or name a --provider; `--model baseline/recency` "
    "needs none of these"
)

BASES = {"LLM_API_KEY": "LLM_API_BASE", "OPENAI_API_KEY": "OPENAI_BASE_URL"}
"""Variable of a key -> variable of the address that it was given for, in the order in which they are looked up."""

FROM_FILE = "--api-key-file "
"""Before the file's path, as the manifest names where a key is from."""


@dataclass(frozen=True, slots=True)
class Found:
    """`addresses` are replicas of one service. `key_from` names the option or variable that held the key, None if no
    key is sent; `provider` is None if no provider was named."""

    addresses: tuple[Address, ...]
    key_from: str | None
    provider: Provider | None = None

    @property
    def shown(self) -> str:
        """Return the addresses without credentials and query, separated by spaces."""
        return " ".join([address.shown for address in self.addresses])

    @property
    def hosts(self) -> frozenset[str]:
        return frozenset(host_of(address.url) for address in self.addresses)


@functools.lru_cache
def key_check(key: str | None) -> str | None:
    """Return a salted hash of a key, which identifies it and does not reveal it."""
    return _hash(key, os.urandom(8)) if key else None


def _is_same(key: str, check: str) -> bool:
    try:
        return _hash(key, bytes.fromhex(check.partition(":")[0])) == check
    except ValueError:
        return False


def _hash(key: str, salt: bytes) -> str:
    return f"{salt.hex()}:{hashlib.pbkdf2_hmac('sha256', key.encode(), salt, 20_000, dklen=6).hex()}"


def host_of(url: str) -> str:
    """Return host and port in one spelling; text that is no address unchanged."""
    try:
        parts = urlsplit(url)
        return f"{parts.hostname}:{parts.port or {'http': 80, 'https': 443}.get(parts.scheme)}"
    except ValueError:
        return url


Key = tuple[str | None, str | None]
"""A key and its source: the option or variable that held it."""
NO_KEY: Key = (None, None)


def find(args: Session, environment: Mapping[str, str], provider: Provider | None = None) -> Found | None:
    """Return the endpoint of a command, None if options and environment name none.

    Raise `BadInput` if a provider's address, key or headers are missing.
    """
    if given := args.endpoint:
        return at([given.url], (given.key, given.key_from), args, environment)
    key = _explicit_key(args)
    if provider is not None:
        return _at_provider(provider, args, environment, key)
    urls = list(args.api_url or ())
    if not urls:
        url = environment.get("LLM_API_BASE") or environment.get("OPENAI_BASE_URL")
        if not url and args.fallback:
            return _at_fallback(args.fallback, args, environment, key)
        if not url and environment.get("OPENAI_API_KEY") and not environment.get("LLM_API_KEY") and key == NO_KEY:
            url = OPENAI_URL
        if not url:
            return None
        urls = [url]
    if key == NO_KEY:
        key = _key_for(urls, environment, named=bool(args.api_url))
    return at(urls, key, args, environment)


def _at_fallback(fallback: Fallback, args: Session, environment: Mapping[str, str], key: Key) -> Found:
    """Return the endpoint in a settings file."""
    if key == NO_KEY and fallback.key_file:
        key = key_in(fallback.key_file), f"{FROM_FILE}{fallback.key_file.resolve()}"
    elif key == NO_KEY:
        key = _key_for(fallback.urls, environment, named=True)
    return at(fallback.urls, key, args, environment)


def at(
    urls: Sequence[str],
    key: Key,
    args: Session,
    environment: Mapping[str, str],
    provider: Provider | None = None,
    headers: Mapping[str, str] | None = None,
) -> Found:
    """Return an endpoint with the command's headers and certificates; `LLM_INSECURE_TLS=1` checks no certificate."""
    insecure, headers = environment.get("LLM_INSECURE_TLS") == "1", {**(headers or {}), **dict(args.extra_header)}
    ca_file = args.ca_file or (provider.ca_file if provider else None)
    return Found(tuple([Address(url, key[0], insecure, headers, ca_file) for url in urls]), key[1], provider)


def _at_provider(provider: Provider, args: Session, environment: Mapping[str, str], key: Key) -> Found:
    """Return a provider's own addresses, or those of the command instead, to which its key is never sent.

    A `key` takes precedence over the provider's own.
    """
    own = providers.addresses(provider, environment) if not args.api_url or provider.base_url else ()
    urls = args.api_url or own
    at_home = {public_url(url) for url in urls} <= {public_url(url) for url in own}
    if key == NO_KEY and at_home and provider.key_env:
        if value := environment.get(provider.key_env):
            key = value, provider.key_env
        elif provider.key_required:
            raise BadInput(
                f"no key for {provider.name}: set {provider.key_env} to the key for {public_url(urls[0])}, "
                "or give --api-key-file"
            )
    headers = providers.headers(provider, environment) if at_home else {}
    return at(urls, key, args, environment, provider, headers)


def again(
    args: Session, provenance: JSON, environment: Mapping[str, str], run: str, provider: Provider | None, *, own: bool
) -> Found:
    """Return the endpoint of an earlier run. Raise `BadInput` if the variable of its key is not set.

    A run at a provider's own address follows the provider; one with an address from the command keeps it. If the run is
    not this user's `own`, its folder decides none of this: another user may have written it.
    """
    missing = [name for name in provenance.get("headers") or () if name not in dict(args.extra_header)]
    if missing:
        raise BadInput(f"{run} was given the header {missing[0]} by --extra-header: give it again")
    if own:
        args = replace(args, ca_file=args.ca_file or provenance.get("ca_file"))  # for this run only
    if args.provider or args.api_url:
        found = find(args, environment, provider)
        assert found is not None  # an address or a provider is named
        return found
    earlier = _Earlier(args, provenance, environment, run, provider)
    return earlier.endpoint() if own else earlier.endpoint_if_foreign()


@dataclass(frozen=True, slots=True)
class _Earlier:
    """An earlier run, and the command that resumes it."""

    args: Session
    provenance: JSON
    environment: Mapping[str, str]
    run: str
    provider: Provider | None

    def endpoint(self) -> Found:
        """Return the endpoint of this user's own run: the same address and key as before."""
        key, key_from = _explicit_key(self.args), self.provenance["key_from"]
        is_provider_address = self.provider is not None and self.provenance.get("address_from") is None
        if self.provider is None or not is_provider_address:
            urls = [_whole(url, self.environment) for url in self.provenance["endpoint"].split()]
            if key == NO_KEY and key_from is not None:
                key = self._key(key_from, urls)
            return at(urls, key, self.args, self.environment, self.provider)
        if key == NO_KEY and key_from is not None and key_from.startswith("--"):  # a variable may be another one now
            key = self._key(key_from, providers.addresses(self.provider, self.environment))
        found = _at_provider(self.provider, self.args, self.environment, key)
        self._check_host(found, self.provider)
        return found

    def endpoint_if_foreign(self) -> Found:
        """Return the endpoint of a run from anywhere: an address that this user's files or variables name, with the
        key that they assign to it, or without one."""
        args = self.args
        given = {"--api-key-file": args.api_key_file, "--api-key": args.api_key, "--extra-header": args.extra_header}
        if named := [option for option, value in given.items() if value]:
            raise BadInput(f"{self.run}: {UNKNOWN}: give the address for {named[0]} too, with --api-url or --provider")
        if self.provider is not None and self.provenance.get("address_from") is None:
            found = _at_provider(self.provider, args, self.environment, NO_KEY)
            self._check_host(found, self.provider)
        else:
            urls = [self._address_in_environment()]
            found = at(urls, _key_for(urls, self.environment, named=False), args, self.environment, self.provider)
        if found.key_from is None and self.provenance["key_from"] is not None:
            raise BadInput(
                f"{self.run} was run with a key, and your variables have none for {found.shown}: "
                f"give --api-url {found.shown} and --api-key-file"
            )
        return found

    def _address_in_environment(self) -> str:
        """Return the address of this run that the environment has. Raise `BadInput` if it has none."""
        for key, base in BASES.items():
            address = _address_of(key, self.environment)
            is_set = self.environment.get(key) or self.environment.get(base)
            if (
                address
                and is_set
                and {public_url(url) for url in self.provenance["endpoint"].split()} == {public_url(address)}
            ):
                return address
        raise BadInput(
            f"{self.run}: {UNKNOWN}, and none of your variables has its address {self.provenance['endpoint']}: "
            "give --api-url to continue there or elsewhere"
        )

    def _check_host(self, found: Found, provider: Provider) -> None:
        """Raise `BadInput` if another file or variable would move a run to another host of its provider.

        The user's own servers, which need no key, may have moved.
        """
        may_move = self.args.providers or (provider.url_env and not provider.key_required)
        if not may_move and set(map(host_of, found.shown.split())).isdisjoint(
            map(host_of, self.provenance["endpoint"].split())
        ):
            raise BadInput(
                f"{self.run} ran on {provider.name} at {self.provenance['endpoint']}, and {provider.source} has it at "
                f"{found.shown}: give its file with --providers, or --provider {provider.name} to continue there"
            )

    def _key(self, key_from: str, urls: Sequence[str]) -> Key:
        """Return the key of the run, from its source at the time.

        Raise `BadInput` if only the run's manifest assigns the key to the address, and it is not the key used before:
        the file or variable may hold another key now.
        """
        named, shown = function("endpoint_again"), _shown(urls)
        if named and (given := named(key_from)):
            if public_url(given.url) != shown or given.key is None:
                raise BadInput(f"{self.run} ran on {shown}, and {given.source} now names {public_url(given.url)}")
            return given.key, key_from
        key, check = self._key_in(key_from, urls), self.provenance.get("key_check")
        if _address_of(key_from, self.environment) is None and not (check and _is_same(key, check)):
            raise BadInput(
                f"the key in {key_from.removeprefix(FROM_FILE)} is not the one that {self.run} was run with: "
                f"give --api-url {shown} with it if it is for that address"
            )
        return key, key_from

    def _key_in(self, key_from: str, urls: Sequence[str]) -> str:
        run, shown = self.run, _shown(urls)
        if key_from.startswith(FROM_FILE) and not is_descriptor(path := Path(key_from.removeprefix(FROM_FILE))):
            return _key_of_file(path)
        if key_from == "--api-key" or key_from.startswith(FROM_FILE):
            raise BadInput(f"{run} was given its key by {key_from}: give it again, for {shown}")
        if key_from not in BASES:
            raise BadInput(f"{run}: its manifest names {key_from}, which is no source of keys: give --api-key-file")
        if not self.environment.get(key_from):
            raise BadInput(f"{run} took its key for {shown} from {key_from}, which is not set: set it, then resume")
        own = _address_of(key_from, self.environment)
        if own is not None and any(public_url(own) != public_url(url) for url in urls):
            raise BadInput(
                f"{run} took its key for {shown} from {key_from}, which now is the key for {public_url(own)}: "
                "set the two that belong together, then resume, or give --api-url and --api-key"
            )
        return self.environment[key_from]


def _shown(urls: Sequence[str]) -> str:
    return " ".join(map(public_url, urls))


def _explicit_key(args: Session) -> Key:
    if args.api_key_file is not None:
        path = args.api_key_file
        return key_in(path), f"{FROM_FILE}{path if is_descriptor(path) else path.resolve()}"
    return (args.api_key, "--api-key") if args.api_key else NO_KEY


def key_in(path: Path) -> str:
    """Return the key in a file that an option of this command names. Raise `BadInput` if it has none."""
    return _key_handed_over(path) if is_descriptor(path) else _key_of_file(path)


@functools.lru_cache
def _key_handed_over(path: Path) -> str:
    """Return the key in a pipe, which can be read only once, for all models of a command."""
    return _key_of_file(path, functools.partial(content, pipe=True))


def _key_of_file(path: Path, read: Callable[[Path, int], bytes] = content) -> str:
    try:
        key = read(path, LARGEST_KEY_FILE).decode("utf-8-sig").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"cannot read the key in {path}: {getattr(error, 'strerror', None) or 'not text'}") from None
    if not key:
        raise BadInput(f"{path} holds no key")
    return key


def _key_for(urls: Sequence[str], environment: Mapping[str, str], *, named: bool) -> Key:
    """Return the key of the variable that belongs to these addresses. `LLM_API_KEY` without an address of its own goes
    with one that the command named."""
    for key_name in BASES:
        own = _address_of(key_name, environment)
        its_own = named if own is None else all(public_url(own) == public_url(url) for url in urls)
        if environment.get(key_name) and its_own:
            return environment[key_name], key_name
    return NO_KEY


def _address_of(key_name: str, environment: Mapping[str, str]) -> str | None:
    """Return the address that a variable's key belongs to, None if the environment does not name it."""
    return environment.get(BASES.get(key_name, "")) or (OPENAI_URL if key_name == "OPENAI_API_KEY" else None)


def _whole(url: str, environment: Mapping[str, str]) -> str:
    """Return a run's address with the credentials and query that its files omit, if the environment still has
    them."""
    named = [environment.get(base_name) or "" for base_name in BASES.values()]
    return next((base for base in named if public_url(base) == url), url)
