"""`--config`: the endpoint in another program's YAML file.

Its `llm` is a list of `{provider, base_url, api_key, model, concurrency or semaphore, timeout}`;
other fields are that program's own. It holds a key, so no message shows a value.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path

from harness.benchmarks.files import content
from harness.defaults import CONCURRENCY_MOST
from harness.errors import BadInput, to_install
from harness.model import JSON
from harness.option import ANY_TEXT, whole
from harness.options import fields, providers, trusted
from harness.options.options import Endpoint, PlayOptions

logger = logging.getLogger(__name__)

FROM_CONFIG = "--config "
"""Before the file's path, as the manifest says how the address was named."""
TAG_ERRORS = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)
"""Errors of YAML's tags on values that they cannot convert."""
MAX_FILE_BYTES = 1 << 20
"""Bytes of a file."""

PROVIDER_NAMES = {"qwen": "dashscope"} | {
    name: name for name in ("openai", "deepseek", "siliconflow", "zhipuai", "volcengine")
}
"""Provider that needs no address in a file -> its name in `providers.toml`."""


def endpoint_of(args: PlayOptions) -> Endpoint | None:
    """Return the endpoint of a command's file, None without one. Raise `BadInput` with file and
    field."""
    if args.config is None:
        return None
    if args.api_url or args.api_key or args.api_key_file or args.provider:
        raise BadInput(
            "--config names an endpoint with its key: do not give another address, provider or key"
        )
    endpoint, number_after = read(args.config)
    if number_after:
        logger.warning(
            "%s: only the first of its %d endpoints is used", args.config, number_after + 1
        )
    # `resume` follows a manifest to this file only after a command of this user has named it.
    trusted.remember([endpoint.address_from], os.environ)
    return endpoint


def endpoint_again(address_from: str) -> Endpoint | None:
    """Return the endpoint of a run's file as it is now, None if no command of this user has named
    that file: a run's folder may come from somebody else."""
    if not address_from.startswith(FROM_CONFIG) or not trusted.remembers(
        [address_from], os.environ
    ):
        return None
    return read(Path(address_from.removeprefix(FROM_CONFIG)))[0]


def read(path: Path) -> tuple[Endpoint, int]:
    """Return the first endpoint of a file, and how many follow it. Raise `BadInput` with file and
    field."""
    entries = _document(path).get("llm")
    if type(entries) is not list or not entries:
        raise BadInput(f"{path}: field llm: expected a list of at least one endpoint")
    first = entries[0]
    if type(first) is not dict:
        raise BadInput(f"{path}: field llm[0]: expected a mapping")
    pace = "semaphore"
    if first.get("concurrency") is not None:
        pace = "concurrency"
    checks = {
        "model": fields.MODEL,
        pace: whole(1, CONCURRENCY_MOST),
        "timeout": fields.SECONDS,
        # Without quotes YAML reads a key of digits as a number.
        "api_key": (ANY_TEXT[0], "a key in quotes"),
        "base_url": (ANY_TEXT[0], "an address"),
    }
    for name, (fits, expected) in checks.items():
        value = first.get(name)
        if (value is not None or name == "model") and not fits(value):
            raise BadInput(f"{path}: field llm[0].{name}: expected {expected}")
    url = first.get("base_url") or _known_address(first.get("provider"), path)
    key = first.get("api_key") or None
    limits = {"concurrency": first.get(pace), "timeout": first.get("timeout")}
    tuning = {name: value for name, value in limits.items() if value is not None}
    return (
        Endpoint(url, key, f"{FROM_CONFIG}{path.resolve()}", first["model"], tuning, str(path)),
        len(entries) - 1,
    )


def _known_address(provider: object, path: Path) -> str:
    """Return the address of a provider in the shipped providers file."""
    if type(provider) is not str or provider not in PROVIDER_NAMES:
        raise BadInput(
            f"{path}: field llm[0].base_url: expected an address, or as provider one of"
            f" {', '.join(PROVIDER_NAMES)}"
        )
    return providers.shipped().providers[PROVIDER_NAMES[provider]].base_url[0]


def _document(path: Path) -> JSON:
    try:
        import yaml
    except ImportError:
        raise BadInput(f"--config needs the package PyYAML: {to_install('PyYAML')}") from None
    try:
        # `safe_load`, since tags in the file could make other loaders run code.
        data: object = yaml.safe_load(content(path, MAX_FILE_BYTES))
    except OSError as error:
        raise BadInput(f"cannot read {path}: {error.strerror}") from None
    except (yaml.YAMLError, *TAG_ERRORS) as error:
        # The place alone: YAML's own message quotes lines, and one of them has the key.
        mark = getattr(error, "problem_mark", None)
        line = f", line {mark.line + 1}" if mark else ""
        raise BadInput(f"{path}{line}: expected YAML") from None
    if type(data) is not dict:
        raise BadInput(f"{path}: expected a mapping with the field llm")
    return data
