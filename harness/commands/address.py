"""Where requests go and with which key (docs/design.md, section 7).

A key goes only to the address that it was given for: `LLM_API_KEY` to `LLM_API_BASE`, `OPENAI_API_KEY` to
`OPENAI_BASE_URL` or OpenAI itself, `--api-key` to the address of the same command.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from harness.commands import asbench
from harness.config import OPENAI_URL
from harness.endpoint.address import Address, public_url
from harness.errors import BadInput

BASES = {"LLM_API_KEY": "LLM_API_BASE", "OPENAI_API_KEY": "OPENAI_BASE_URL"}
"""Variable of a key -> variable of the address that it was given for, in the order in which they are looked up."""


@dataclass(frozen=True, slots=True)
class Found:
    """`key_from` names the option or variable that held the key, None where no key is sent."""

    address: Address
    key_from: str | None


def find(args: Namespace, environment: Mapping[str, str]) -> Found | None:
    """The endpoint of a command, None where options and environment name none."""
    key, key_from = _explicit_key(args)
    url = args.api_url or None
    if url is None:
        url = environment.get("LLM_API_BASE") or environment.get("OPENAI_BASE_URL")
        if not url and environment.get("OPENAI_API_KEY") and not environment.get("LLM_API_KEY") and key is None:
            url = OPENAI_URL
        if not url:
            return None
    if key is None:
        key, key_from = _key_for(url, environment, named=bool(args.api_url))
    return Found(Address(url, key, insecure(environment)), key_from)


def insecure(environment: Mapping[str, str]) -> bool:
    """Whether certificates that cannot be checked are accepted."""
    return environment.get("LLM_INSECURE_TLS") == "1"


def again(args: Namespace, url: str, key_from: str | None, environment: Mapping[str, str], run: str) -> Found:
    """The endpoint of an earlier run. Raises `BadInput` naming the variable that held its key, if that is gone."""
    key, source = _explicit_key(args)
    unchecked = insecure(environment)
    if args.api_url:
        if key is None:
            key, source = _key_for(args.api_url, environment, named=True)
        return Found(Address(args.api_url, key, unchecked), source)
    url = _whole(url, environment)
    if key is not None or key_from is None:
        return Found(Address(url, key, unchecked), source)
    if key_from.startswith("--api-key-file "):
        path = Path(key_from.removeprefix("--api-key-file "))
        return Found(Address(url, _key_of_file(path), unchecked), key_from)
    if key_from.startswith(asbench.FROM_CONFIG):
        given = asbench.read(Path(key_from.removeprefix(asbench.FROM_CONFIG)))
        if public_url(given.url) != public_url(url):
            raise BadInput(f"{run} ran on {public_url(url)}, and {given.path} now names {public_url(given.url)}")
        return Found(given.address(unchecked), key_from)
    if key_from == "--api-key":
        raise BadInput(f"{run} was given its key by --api-key: give it again, for {public_url(url)}")
    if key_from not in BASES:
        raise BadInput(f"{run}: its manifest names {key_from}, where no key is looked for: give --api-key-file")
    if not environment.get(key_from):
        raise BadInput(
            f"{run} took its key for {public_url(url)} from {key_from}, which is not set: set it, then resume"
        )
    own = _address_of(key_from, environment)
    if own is not None and public_url(own) != public_url(url):
        raise BadInput(
            f"{run} took its key for {public_url(url)} from {key_from}, which now is the key for {public_url(own)}: "
            "set the two that belong together, then resume, or give --api-url and --api-key"
        )
    return Found(Address(url, environment[key_from], unchecked), key_from)


MISSING = (
    "no endpoint: set LLM_API_BASE and LLM_API_KEY (or OPENAI_API_KEY for OpenAI itself, or give --api-url and "
    "--api-key) to the address and key of an OpenAI-compatible API; `--model baseline/recency` needs neither"
)


def _explicit_key(args: Namespace) -> tuple[str | None, str | None]:
    if args.api_key_file is not None:
        return _key_of_file(args.api_key_file), f"--api-key-file {args.api_key_file.resolve()}"
    return (args.api_key, "--api-key") if args.api_key else (None, None)


def _key_of_file(path: Path) -> str:
    try:
        key = path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"cannot read the key in {path}: {getattr(error, 'strerror', None) or 'not text'}") from None
    if not key:
        raise BadInput(f"{path} holds no key")
    return key


def _key_for(url: str, environment: Mapping[str, str], *, named: bool) -> tuple[str | None, str | None]:
    """The variable's key whose address this is. `LLM_API_KEY` without an address of its own goes with one that
    the command itself named."""
    for key_name in BASES:
        own = _address_of(key_name, environment)
        if environment.get(key_name) and (named if own is None else public_url(own) == public_url(url)):
            return environment[key_name], key_name
    return None, None


def _address_of(key_name: str, environment: Mapping[str, str]) -> str | None:
    """The address that a variable's key was given for, None where the environment does not tell."""
    return environment.get(BASES[key_name]) or (OPENAI_URL if key_name == "OPENAI_API_KEY" else None)


def _whole(url: str, environment: Mapping[str, str]) -> str:
    """A run's address as its files tell it, with the credentials and query that they leave out, if the environment
    still has them."""
    named = [environment.get(base_name) or "" for base_name in BASES.values()]
    return next((base for base in named if public_url(base) == url), url)
