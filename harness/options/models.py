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
from harness.options.options import PlayOptions, RunOptions
from harness.options.providers import Book, Provider, QueuedModel
from harness.store.manifest import Manifest, manifests

logger = logging.getLogger(__name__)

RESERVED_MEMBERS = frozenset({"model", "messages"})
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
    resolved: address.ResolvedEndpoint | None
    pace: JSON
    price: Price | None
    queued: Mapping[str, Any]
    roles: Mapping[str, str]


def resolve(entry: QueuedModel, book: Book, args: RunOptions, missing: list[str]) -> Model | None:
    """Return the model of an entry, None if something is missing, which is added to `missing`."""
    has_endpoint = bool(args.provider or args.endpoint)
    similar = None if has_endpoint else providers.misspelt(entry.model, book)
    if similar:
        name, _, model = entry.model.partition(":")
        missing.append(
            f"{name} is no known provider: did you mean {similar}:{model}? (If {entry.model} is the"
            " model's own name, name its provider with --provider.)"
        )
        return None
    provider_name, model = named(entry, args, book)
    run_name = options.new_run_name(args.name or entry.name or default_run_name(args, model), model)
    provider = provider_named(provider_name, book, args)
    is_addressed = bool(args.api_url or args.endpoint or provider)
    is_baseline = model.startswith(defaults.BASELINE_PREFIX) and not is_addressed
    unknown = None
    if not provider and not has_endpoint:
        unknown = providers.unknown_provider(model, book)
    endpoint = None
    if not is_baseline:
        try:
            endpoint = _usable_endpoint(provider, args)
        except BadInput as error:
            missing.append(str(error))
            return None
        if endpoint is None:
            missing += filter(None, (address.MISSING, unknown))
    # A tag such as `:7b` has no slash; `name:organisation/model` looks like an unknown provider.
    if endpoint and unknown and "/" in model.partition(":")[2]:
        logger.warning(
            "%s as a whole is used as the name of a model of %s: %s", model, endpoint.shown, unknown
        )
    # The more specific goes first: the command's option, the queue's entry, the provider.
    extra = {**entry.extra_body, **args.extra_body}
    pace: JSON = {}
    if provider:
        extra = provider.extra_body | extra
        pace = pace_of(provider)
    elif args.endpoint:
        pace = args.endpoint.tuning
    sampling = Sampling(model, **_parameters(entry, args), extra_body=extra)
    _check_encodable(sampling)
    price = None
    if endpoint:
        price = args.price or prices.price_of(endpoint, model, book)
    return Model(run_name, sampling, endpoint, pace, price, entry.extensions, entry.roles)


def _usable_endpoint(
    provider: Provider | None, args: RunOptions
) -> address.ResolvedEndpoint | None:
    """Return the endpoint of a command, None if nothing names one. Raise `BadInput` for an address
    that cannot be connected to."""
    endpoint = address.find(args, os.environ, provider)
    if endpoint:
        for server in endpoint.addresses:
            usable(server)
    return endpoint


def _parameters(entry: QueuedModel, args: RunOptions) -> dict[str, Any]:
    """Return the parameters that the user set: an option, or else a field of the queue's entry."""
    parameters = dict[str, Any]()
    for name in PARAMETERS:
        value = getattr(args, name)
        parameters[name] = getattr(entry, name) if value is None else value
    return parameters


def check_keys(args: RunOptions, models: Sequence[Model]) -> None:
    """Raise `BadInput` if a key or header of the command itself would go to several endpoints."""
    # A key goes only to the address that it was given for.
    endpoints = {model.resolved.hosts for model in models if model.resolved}
    if len(endpoints) < 2:
        return
    values = {
        "--api-key": args.api_key,
        "--api-key-file": args.api_key_file,
        "--extra-header": args.extra_header,
    }
    for option in filter(values.get, values):
        raise BadInput(
            f"{option} is for one endpoint, and these models have {len(endpoints)}: put it into the"
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
    queue = [QueuedModel(model) for model in models]
    if args.queue is not None:
        if args.queue not in book.queues:
            known = which_is_known(args.queue, book.queues)
            raise BadInput(
                f"{args.source('queue')}: no queue {args.queue} in {book.files[-1]}{known}"
            )
        queue += book.queues[args.queue]
    if args.name and len(queue) > 1:
        where = args.source("name")
        raise BadInput(
            f"{where} is for one model: in a queue of the providers file each entry can have a name"
        )
    for entry in queue:
        _check_name(entry.model)
        for name in entry.extensions:
            if args.option(name) is not None:
                raise BadInput(
                    f"{args.source(name)} is for all runs together, and {book.files[-1]}:"
                    f" queues.{args.queue} gives {entry.model} a {name} of its own: use one"
                )
    if args.name:
        return queue
    # One folder has one configuration: the second model would be refused as a change of the first.
    for folder, count in Counter(folder_of(entry, args, book) for entry in queue).items():
        if count > 1:
            raise BadInput(
                f"{count} of the models would share the folder {folder}: give each a name, in a"
                " queue of the providers file"
            )
    return queue


def _check_name(model: str) -> None:
    """Raise `BadInput` for a model's name with white space, such as that of several models."""
    names = model.split()
    if names != [model]:
        flags = " ".join([f"--model {shlex.quote(name)}" for name in names])
        raise BadInput(
            f"no model's name has white space, got {in_brief(model)}: did you mean {flags}?"
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
    benchmark = args.benchmark_class.name
    model_name = options.run_name(None, model)
    prefixes = ["demo"] if args.demo else []
    if benchmark != defaults.BENCHMARK:
        prefixes.append(benchmark)
    name = "-".join([*prefixes, model_name])
    if prefixes and not (args.results_dir / name).exists():
        for manifest in manifests(args.results_dir / model_name).values():
            if _is_same_run(manifest, args, model):
                return model_name
    return name


def _is_same_run(manifest: Manifest, args: RunOptions, model: str) -> bool:
    identity = manifest.identity
    if defaults.ships(manifest.tasks["path"]) != args.demo:
        return False
    return identity["benchmark"] == args.benchmark_class.name and identity["model"] == model


def provider_named(name: str | None, book: Book, args: PlayOptions) -> Provider | None:
    if name is None:
        return None
    provider = book.providers.get(name)
    if provider is None:
        known = which_is_known(name, book.providers)
        raise BadInput(f"{args.source('provider')}: no provider {name} in {book.files[-1]}{known}")
    try:
        quirks.checked(provider.adapt)
    except BadInput as error:
        raise BadInput(f"{provider.source}: providers.{provider.name}.adapt: {error}") from None
    return provider


def pace_of(provider: Provider) -> JSON:
    """Return the pace in the providers file, by the names of `RunTuning`."""
    pace = dict[str, Any]()
    for name in ("rpm", "tpm", "timeout", "stream", "concurrency"):
        value = getattr(provider, name)
        if value is not None:
            pace[name] = value
    # Here None is `auto`, while a name that is missing leaves the number to the command.
    if provider.concurrency == defaults.AUTO:
        pace["concurrency"] = None
    return pace


def _check_encodable(sampling: Sampling) -> None:
    """Raise `BadInput` for values that cannot be in a JSON body."""
    # They would replace the model and the prompts that the run is about.
    reserved = RESERVED_MEMBERS & sampling.extra_body.keys()
    if reserved:
        raise BadInput(
            f"the member {min(reserved)} of a request is the harness's own: it cannot be in"
            " extra_body"
        )
    try:
        # Encoded once here: a value that JSON does not have is refused before the first request.
        sampling.encode(Request((Message("user", ""),)))
    except TypeError as error:
        raise BadInput(
            f"a request with these parameters cannot be written as JSON: {error}"
        ) from None
