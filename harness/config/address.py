"""Where requests go and with which key (docs/design.md, section 7; docs/providers.md).

A key goes only to the address that it was given for: a provider's variable to that provider's addresses, `LLM_API_KEY`
to `LLM_API_BASE`, `OPENAI_API_KEY` to `OPENAI_BASE_URL` or OpenAI itself, `--api-key` to the address of the same
command.
"""

from __future__ import annotations

import functools
import hashlib
import os
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from harness.benchmarks.files import content, is_descriptor
from harness.config import config_file, providers
from harness.config.origin import UNKNOWN
from harness.config.providers import Provider
from harness.config.secrets import LARGEST_KEY_FILE
from harness.defaults import OPENAI_URL
from harness.endpoint.address import Address, public_url
from harness.errors import BadInput
from harness.model import JSON

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
        """Return the addresses as files and displays show them."""
        return " ".join([address.shown for address in self.addresses])

    @property
    def hosts(self) -> frozenset[str]:
        return frozenset(_host(address.url) for address in self.addresses)


@functools.lru_cache
def key_check(key: str | None) -> str | None:
    """Return a salted hash of a key, which identifies it and does not reveal it."""
    salt = os.urandom(8)
    return f"{salt.hex()}:{_trace(key, salt)}" if key else None


def _is_same(key: str, check: str) -> bool:
    salt, _, trace = check.partition(":")
    try:
        return _trace(key, bytes.fromhex(salt)) == trace
    except ValueError:
        return False


def _trace(key: str, salt: bytes) -> str:
    return hashlib.pbkdf2_hmac("sha256", key.encode(), salt, 20_000, dklen=6).hex()


def _host(url: str) -> str:
    """Return host and port in one spelling; text that is no address unchanged."""
    try:
        parts = urlsplit(url)
        return f"{parts.hostname}:{parts.port or {'http': 80, 'https': 443}.get(parts.scheme)}"
    except ValueError:
        return url


@dataclass(frozen=True, slots=True)
class _Kept:
    """What all addresses of a command share."""

    insecure_tls: bool
    ca_file: str | None
    headers: Mapping[str, str]

    def addresses(self, urls: Sequence[str], key: str | None, provider: Provider | None = None) -> tuple[Address, ...]:
        ca_file = self.ca_file or (provider.ca_file if provider else None)
        return tuple([Address(url, key, self.insecure_tls, self.headers, ca_file) for url in urls])


def find(args: Namespace, environment: Mapping[str, str], provider: Provider | None = None) -> Found | None:
    """Return the endpoint of a command, None if options and environment name none.

    Raise `BadInput` if a provider's address, key or headers are missing.
    """
    if provider is not None:
        return _at(provider, args, environment, _explicit_key(args))
    key, key_from = _explicit_key(args)
    urls = args.api_url or []
    if not urls:
        url = environment.get("LLM_API_BASE") or environment.get("OPENAI_BASE_URL")
        if not url and environment.get("OPENAI_API_KEY") and not environment.get("LLM_API_KEY") and key is None:
            url = OPENAI_URL
        if not url:
            return None
        urls = [url]
    if key is None:
        key, key_from = _key_for(urls, environment, named=bool(args.api_url))
    return Found(_kept(args, environment).addresses(urls, key), key_from)


def _at(
    provider: Provider, args: Namespace, environment: Mapping[str, str], given: tuple[str | None, str | None]
) -> Found:
    """Return a provider's own addresses, or those of the command instead, to which its key is never sent.

    `given` is a key that takes precedence over the provider's own, and its source.
    """
    key, key_from = given
    own = providers.addresses(provider, environment) if not args.api_url or provider.base_url else ()
    urls = args.api_url or own
    at_home = {public_url(url) for url in urls} <= {public_url(url) for url in own}
    if key is None and at_home and provider.key_env:
        key = environment.get(provider.key_env) or None
        key_from = provider.key_env if key else None
        if key is None and provider.key_required:
            raise BadInput(
                f"no key for {provider.name}: set {provider.key_env} to the key for {public_url(urls[0])}, "
                "or give --api-key-file"
            )
    kept = _kept(args, environment, providers.headers(provider, environment) if at_home else {})
    return Found(kept.addresses(urls, key, provider), key_from, provider)


def _kept(args: Namespace, environment: Mapping[str, str], headers: Mapping[str, str] | None = None) -> _Kept:
    return _Kept(insecure(environment), args.ca_file, {**(headers or {}), **dict(args.extra_header)})


def insecure(environment: Mapping[str, str]) -> bool:
    """Return whether certificates that cannot be checked are accepted."""
    return environment.get("LLM_INSECURE_TLS") == "1"


def again(
    args: Namespace, provenance: JSON, environment: Mapping[str, str], run: str, provider: Provider | None, *, own: bool
) -> Found:
    """Return the endpoint of an earlier run. Raise `BadInput` if the variable of its key is not set.

    A run at a provider's own address follows the provider; one with an address from the command keeps it. If the run is
    not this user's `own`, its folder decides none of this: another user may have written it.
    """
    missing = [name for name in provenance.get("headers") or () if name not in dict(args.extra_header)]
    if missing:
        raise BadInput(f"{run} was given the header {missing[0]} by --extra-header: give it again")
    if own:
        args = Namespace(**{**vars(args), "ca_file": args.ca_file or provenance.get("ca_file")})  # this run's alone
    if args.provider or args.api_url:
        found = find(args, environment, provider)
        assert found is not None  # an address or a provider is named
        return found
    return (_own if own else _foreign)(args, provenance, environment, run, provider)


def _foreign(
    args: Namespace, provenance: JSON, environment: Mapping[str, str], run: str, provider: Provider | None
) -> Found:
    """Return the endpoint of a run from anywhere: an address that this user's files or variables name, with the key
    that they assign to it, or without one."""
    given = {"--api-key-file": args.api_key_file, "--api-key": args.api_key, "--extra-header": args.extra_header}
    if named := [option for option, value in given.items() if value]:
        raise BadInput(f"{run}: {UNKNOWN}, so give the address for {named[0]} too, with --api-url or --provider")
    if provider is not None and provenance.get("address_from") is None:
        found = _at(provider, args, environment, (None, None))
        _check_moved(found, provider, provenance["endpoint"], args, run)
    else:
        urls = [_base_of_environment(provenance["endpoint"], environment, run)]
        key, key_from = _key_for(urls, environment, named=False)
        found = Found(_kept(args, environment).addresses(urls, key, provider), key_from, provider)
    if found.key_from is None and provenance["key_from"] is not None:
        raise BadInput(
            f"{run} was run with a key, and your variables have none for {found.shown}: "
            f"give --api-url {found.shown} and --api-key-file"
        )
    return found


def _base_of_environment(was: str, environment: Mapping[str, str], run: str) -> str:
    """Return the address of the environment that a run was made on. Raise `BadInput` if there is none."""
    bases = [
        _address_of(key, environment) for key, base in BASES.items() if environment.get(key) or environment.get(base)
    ]
    for base in filter(None, bases):
        if was.split() and {public_url(base)} == {public_url(url) for url in was.split()}:
            return base
    raise BadInput(
        f"{run}: {UNKNOWN}, and none of your variables has its address {was}: "
        "give --api-url to continue there or elsewhere"
    )


def _own(
    args: Namespace, provenance: JSON, environment: Mapping[str, str], run: str, provider: Provider | None
) -> Found:
    """Return the endpoint of this user's own run: the same address and key as before."""
    was: str = provenance["endpoint"]
    key, source = _explicit_key(args)
    key_from: str | None = provenance["key_from"]
    if provider is None or provenance.get("address_from") is not None:
        urls = [_whole(url, environment) for url in was.split()]
        if key is None and key_from is not None:
            key, source = _key_again(key_from, urls, environment, run), key_from
            _check_same(key, key_from, provenance.get("key_check"), urls, environment, run)
        return Found(_kept(args, environment).addresses(urls, key, provider), source, provider)
    if key is None and key_from is not None and key_from.startswith("--"):  # the variable may have another name now
        at = providers.addresses(provider, environment)
        key, source = _key_again(key_from, at, environment, run), key_from
        _check_same(key, key_from, provenance.get("key_check"), at, environment, run)
    found = _at(provider, args, environment, (key, source))
    _check_moved(found, provider, was, args, run)
    return found


def _check_moved(found: Found, provider: Provider, was: str, args: Namespace, run: str) -> None:
    """Raise `BadInput` if another file or variable would move a run to another host of its provider.

    The user's own servers, which need no key, may have moved.
    """
    hosts = set(map(_host, found.shown.split()))
    may_move = args.providers or (provider.url_env and not provider.key_required)
    if not may_move and hosts.isdisjoint(map(_host, was.split())):
        raise BadInput(
            f"{run} ran on {provider.name} at {was}, and {provider.source} has it at {found.shown}: name the file that "
            f"it was in with --providers, or give --provider {provider.name} to continue there"
        )


def _check_same(
    key: str, key_from: str, check: str | None, urls: Sequence[str], environment: Mapping[str, str], run: str
) -> None:
    """Raise `BadInput` if only the run's manifest assigns the key to the address, and it is not the key used before.

    The file or variable may hold another key now.
    """
    assigned = key_from.startswith(config_file.FROM_CONFIG) or _address_of(key_from, environment) is not None
    if not assigned and not (check and _is_same(key, check)):
        shown = " ".join(map(public_url, urls))
        raise BadInput(
            f"the key in {key_from.removeprefix(FROM_FILE)} is not the one that {run} was run with: "
            f"give --api-url {shown} with it if it is for that address"
        )


def _key_again(key_from: str, urls: Sequence[str], environment: Mapping[str, str], run: str) -> str:
    """Return the key of an earlier run, from its source at the time."""
    shown = " ".join(map(public_url, urls))
    if key_from.startswith(FROM_FILE) and not is_descriptor(Path(key_from.removeprefix(FROM_FILE))):
        return _key_of_file(Path(key_from.removeprefix(FROM_FILE)))
    if key_from.startswith(config_file.FROM_CONFIG):
        given = config_file.read(Path(key_from.removeprefix(config_file.FROM_CONFIG)))
        if public_url(given.url) != shown or given.key is None:
            raise BadInput(f"{run} ran on {shown}, and {given.path} now names {public_url(given.url)}")
        return given.key
    if key_from == "--api-key" or key_from.startswith(FROM_FILE):
        raise BadInput(f"{run} was given its key by {key_from}: give it again, for {shown}")
    if key_from not in BASES:
        raise BadInput(f"{run}: its manifest names {key_from}, which is no source of keys: give --api-key-file")
    if not environment.get(key_from):
        raise BadInput(f"{run} took its key for {shown} from {key_from}, which is not set: set it, then resume")
    own = _address_of(key_from, environment)
    if own is not None and any(public_url(own) != public_url(url) for url in urls):
        raise BadInput(
            f"{run} took its key for {shown} from {key_from}, which now is the key for {public_url(own)}: "
            "set the two that belong together, then resume, or give --api-url and --api-key"
        )
    return environment[key_from]


MISSING = (
    "no endpoint: set LLM_API_BASE and LLM_API_KEY (or OPENAI_API_KEY for OpenAI itself, or give --api-url and "
    "--api-key) to the address and key of an OpenAI-compatible API, or name a --provider; `--model baseline/recency` "
    "needs none of these"
)


def _explicit_key(args: Namespace) -> tuple[str | None, str | None]:
    if args.api_key_file is not None:
        path: Path = args.api_key_file
        return key_in(path), f"{FROM_FILE}{path if is_descriptor(path) else path.resolve()}"
    return (args.api_key, "--api-key") if args.api_key else (None, None)


def key_in(path: Path) -> str:
    """Return the key in a file that an option of this command names. Raise `BadInput` if it has none."""
    return _key_handed_over(path) if is_descriptor(path) else _key_of_file(path)


@functools.lru_cache
def _key_handed_over(path: Path) -> str:
    """Return the key in a pipe, which can be read only once, for all models of a command."""
    return _key_of_file(path, functools.partial(content, pipe=True))


def _key_of_file(path: Path, read: Callable[[Path, int], bytes] = content) -> str:
    try:
        key = read(path, LARGEST_KEY_FILE).decode("utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"cannot read the key in {path}: {getattr(error, 'strerror', None) or 'not text'}") from None
    if not key:
        raise BadInput(f"{path} holds no key")
    return key


def _key_for(urls: Sequence[str], environment: Mapping[str, str], *, named: bool) -> tuple[str | None, str | None]:
    """Return the key of the variable that belongs to these addresses. `LLM_API_KEY` without an address of its own goes
    with one that the command named."""
    for key_name in BASES:
        own = _address_of(key_name, environment)
        its_own = named if own is None else all(public_url(own) == public_url(url) for url in urls)
        if environment.get(key_name) and its_own:
            return environment[key_name], key_name
    return None, None


def _address_of(key_name: str, environment: Mapping[str, str]) -> str | None:
    """Return the address that a variable's key belongs to, None if the environment does not name it."""
    return environment.get(BASES.get(key_name, "")) or (OPENAI_URL if key_name == "OPENAI_API_KEY" else None)


def _whole(url: str, environment: Mapping[str, str]) -> str:
    """Return a run's address with the credentials and query that its files omit, if the environment still has
    them."""
    named = [environment.get(base_name) or "" for base_name in BASES.values()]
    return next((base for base in named if public_url(base) == url), url)
