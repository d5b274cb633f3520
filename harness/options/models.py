"""Resolve the models that a command names: names, providers, addresses, sampling, pace."""

from __future__ import annotations

import logging
import os
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from harness import defaults
from harness.client import quirks
from harness.client.connect import usable
from harness.client.request_body import Sampling
from harness.cost import Price
from harness.errors import BadInput, in_brief, which_is_known
from harness.model import JSON, Message, Request
from harness.options import address, options, prices, providers
from harness.options.options import RunOptions, Session
from harness.options.providers import Book, Provider, QueuedModel
from harness.store.manifest import Manifest, manifests

logger = logging.getLogger(__name__)

OWN_MEMBERS = frozenset({"model", "messages"})
PARAMETERS = ("temperature", "top_p", "seed", "max_tokens")
"""Of requests: options of a command, and fields of an entry of a queue."""


@dataclass(frozen=True, slots=True)
class Model:
    """One model of a command: its run's name, its requests' parameters, their endpoint, the pace,
    and the price.

    `sampling` has only what the user set; the default temperature is the benchmark's. `queued` is
    what its entry of a queue has for extensions, and `roles` the models of roles there.
    """

    name: str
    sampling: Sampling
    found: address.Found | None
    pace: JSON
    price: Price | None
    queued: Mapping[str, Any]
    roles: Mapping[str, str]


def resolve(entry: QueuedModel, book: Book, args: RunOptions, missing: list[str]) -> Model | None:
    """Return the model of an entry, None if something is missing, which is added to `missing`."""
    placed = bool(args.provider or args.endpoint)
    if not placed and (near := providers.misspelt(entry.model, book)):
        name, _, rest = entry.model.partition(":")
        words = (
            f"{name} is no known provider: did you mean {near}:{rest}? (If {entry.model} is the"
            " model's own name, "
        )
        missing.append(f"{words}name its provider with --provider.)")
        return None
    provider_name, model = named(entry, args, book)
    run_name = options.new_run_name(args.name or entry.name or default_run_name(args, model), model)
    provider = provider_named(provider_name, book, args)
    unknown = None if provider or placed else providers.unknown_provider(model, book)
    baseline = model.startswith(defaults.BASELINE_PREFIX) and not (
        args.api_url or args.endpoint or provider
    )
    try:
        found = None if baseline else address.find(args, os.environ, provider)
        for one in found.addresses if found else ():
            usable(one)
    except BadInput as error:
        missing.append(str(error))
        return None
    if found is None and not baseline:
        missing += filter(None, (address.MISSING, unknown))
    elif found and unknown and "/" in model.partition(":")[2]:
        logger.warning(
            "%s as a whole is used as the name of a model of %s: %s", model, found.shown, unknown
        )
    extra = {**(provider.extra_body if provider else {}), **entry.extra_body, **args.extra_body}
    by_user = {
        name: getattr(args if getattr(args, name) is not None else entry, name)
        for name in PARAMETERS
    }
    sampling = Sampling(model, **by_user, extra_body=extra)
    _check_encodable(sampling)
    pace = pace_of(provider) if provider else args.endpoint.tuning if args.endpoint else {}
    price = args.price if found and args.price else prices.price_of(found, model, book)
    return Model(run_name, sampling, found, pace, price, entry.extensions, entry.roles)


def check_keys(args: RunOptions, models: Sequence[Model]) -> None:
    """Raise `BadInput` if a key or header of the command itself would go to several endpoints."""
    places = {model.found.hosts for model in models if model.found}
    given = {
        "--api-key": args.api_key,
        "--api-key-file": args.api_key_file,
        "--extra-header": args.extra_header,
    }
    if len(places) > 1 and (option := next(filter(given.get, given), None)):
        raise BadInput(
            f"{option} is for one endpoint, and these models have {len(places)}: put it into the"
            " providers file (key_env, extra_headers), or run them one by one"
        )


def named(entry: QueuedModel, args: RunOptions, book: Book) -> tuple[str | None, str]:
    """Return provider and model of an entry. With an address of its own the whole name is the
    model."""
    if args.provider or args.endpoint:
        return args.provider, entry.model
    return providers.split_model(entry.model, book)


def entries(args: RunOptions, book: Book, models: Sequence[str]) -> list[QueuedModel]:
    """Return the `models` of the command, then those of its queue."""
    found = [QueuedModel(model) for model in models]
    if args.queue is not None:
        if args.queue not in book.queues:
            known = which_is_known(args.queue, book.queues)
            raise BadInput(
                f"{args.source('queue')}: no queue {args.queue} in {book.files[-1]}{known}"
            )
        found += book.queues[args.queue]
    if args.name and len(found) > 1:
        where = args.source("name")
        raise BadInput(
            f"{where} is for one model: in a queue of the providers file each entry can have a name"
        )
    for entry in found:
        _check_name(entry.model)
        if both := next((name for name in entry.extensions if args.option(name) is not None), None):
            raise BadInput(
                f"{args.source(both)} is for all runs together, and {book.files[-1]}:"
                f" queues.{args.queue} gives {entry.model} a {both} of its own: use one"
            )
    names = Counter(folder_of(entry, args, book) for entry in found)
    twice = [name for name, count in names.items() if count > 1]
    if twice and not args.name:
        raise BadInput(
            f"{names[twice[0]]} of the models would share the folder {twice[0]}: give each a name,"
            " in a queue of the providers file"
        )
    return found


def _check_name(model: str) -> None:
    """Raise `BadInput` for a model's name with white space, such as that of several models."""
    names = model.split()
    if names != [model]:
        meant = shlex.join([word for name in names for word in ("--model", name)])
        raise BadInput(
            f"no model's name has white space, got {in_brief(model)}: did you mean {meant}?"
        )


def folder_of(entry: QueuedModel, args: RunOptions, book: Book) -> str:
    """Return the name of the run of an entry: its own, or the default."""
    model = named(entry, args, book)[1]
    return options.run_name(entry.name or default_run_name(args, model), model)


def default_run_name(args: RunOptions, model: str) -> str:
    """Return the name of a run that nobody has named: the last part of the model's name, as the
    authors' runner has it.

    The name of the benchmark comes before it, unless that is the default one, and `demo` before
    both on the tasks that ship. Where earlier versions have left a run of the same benchmark, model
    and kind of tasks under the last part alone, that run is continued.
    """
    benchmark, last = args.found().name, options.run_name(None, model)
    prefixes = ["demo"] if args.demo else []
    prefixes += [] if benchmark == defaults.BENCHMARK else [benchmark]
    name = "-".join([*prefixes, last])
    if prefixes and not (args.results_dir / name).exists():
        earlier = manifests(args.results_dir / last).values()
        if any(_is_same_run(manifest, args, model) for manifest in earlier):
            return last
    return name


def _is_same_run(manifest: Manifest, args: RunOptions, model: str) -> bool:
    identity = manifest.identity
    has_same_tasks = defaults.ships(manifest.tasks["path"]) == args.demo
    return has_same_tasks and (identity["benchmark"], identity["model"]) == (
        args.found().name,
        model,
    )


def provider_named(name: str | None, book: Book, args: Session) -> Provider | None:
    if name is None:
        return None
    if (provider := book.providers.get(name)) is None:
        known = which_is_known(name, book.providers)
        raise BadInput(f"{args.source('provider')}: no provider {name} in {book.files[-1]}{known}")
    try:
        quirks.checked(provider.adapt)
    except BadInput as error:
        raise BadInput(f"{provider.source}: providers.{provider.name}.adapt: {error}") from None
    return provider


def pace_of(provider: Provider) -> JSON:
    """Return the pace in the providers file, by the names of `Tuning`."""
    limits = {name: getattr(provider, name) for name in ("rpm", "tpm", "timeout", "stream")}
    pace = {name: value for name, value in limits.items() if value is not None}
    if provider.concurrency is not None:
        pace["concurrency"] = (
            None if provider.concurrency == defaults.AUTO else provider.concurrency
        )
    return pace


def _check_encodable(sampling: Sampling) -> None:
    """Raise `BadInput` for values that cannot be in a JSON body."""
    if own := OWN_MEMBERS & sampling.extra_body.keys():
        raise BadInput(
            f"the member {min(own)} of a request is the harness's own: it cannot be in extra_body"
        )
    try:
        sampling.encode(Request((Message("user", ""),)))
    except TypeError as error:
        raise BadInput(
            f"a request with these parameters cannot be written as JSON: {error}"
        ) from None
