"""The models of a benchmark's roles, as `--role judge=openai:gpt-4o` and the settings file name
them."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from harness import defaults
from harness.benchmark import Benchmark
from harness.client.connect import usable
from harness.client.request_body import Sampling
from harness.cost import Price, price_in
from harness.errors import BadInput, which_is_known
from harness.options import address, models, options, prices, providers
from harness.options.options import PlayOptions
from harness.options.plan import EndpointChoice, Plan
from harness.options.providers import Book, Provider
from harness.store.manifest import EndpointProvenance, Manifest

SETTINGS: Mapping[str, Callable[[str], Any]] = {
    "temperature": float,
    "top_p": float,
    "seed": int,
    "max_tokens": int,
    "price": price_in,
}
"""What may follow a role's model, after commas: `judge=openai:gpt-4o,temperature=0.2`."""
# A model's name may hold commas: only one before a known parameter ends it.
SETTING = re.compile(f",(?=(?:{'|'.join(SETTINGS)})=)")
FORM = "expected NAME=[PROVIDER:]MODEL, and after commas temperature=T, max_tokens=N, price=IN/OUT"


@dataclass(frozen=True, slots=True)
class RoleModel:
    """The model that a command names for a role, its parameters, and the price of a million tokens
    of prompts and of completions; None leaves a parameter out of the requests."""

    role: str
    model: str
    temperature: float | None = defaults.TEMPERATURE
    top_p: float | None = None
    seed: int | None = None
    max_tokens: int | None = None
    price: Price | None = None


def role_model(text: str) -> RoleModel:
    """Return the model of a role in `judge=openai:gpt-4o,temperature=0.2`. Raise `ValueError`."""
    named, *settings = SETTING.split(text)
    role, equals, model = named.partition("=")
    if not (equals and role.isidentifier() and model.strip()):
        raise ValueError(FORM)
    values = {}
    for setting in settings:
        name, _, value = setting.partition("=")
        try:
            values[name] = SETTINGS[name](value)
        except ValueError as error:
            raise ValueError(f"{role}: {name}: {error}") from None
    return RoleModel(role, model.strip(), **values)


def role_models(
    cls: type[Benchmark], named: Sequence[str], of_entry: Mapping[str, str]
) -> list[RoleModel]:
    """Return the models of a benchmark's roles: those of an entry of a queue take the place of the
    command's. Raise `BadInput` for a role that it does not have, or that has no model."""
    texts = [*named, *(f"{role}={model}" for role, model in of_entry.items())]
    chosen = {}
    for text in texts:
        try:
            choice = role_model(text)
        except ValueError as error:
            raise BadInput(f"--role: {error}") from None
        if choice.role not in cls.roles:
            known = which_is_known(choice.role, cls.roles) if cls.roles else ", which has none"
            raise BadInput(f"--role: no role {choice.role} in {cls.name}{known}")
        chosen[choice.role] = choice
    for role, declared in cls.roles.items():
        if declared.required and role not in chosen:
            raise BadInput(
                f"{cls.name} needs a model for the role {role} ({declared.task}): name it with"
                f" --role {role}=[PROVIDER:]MODEL"
            )
    return [chosen[role] for role in cls.roles if role in chosen]


def with_roles(plan: Plan, args: PlayOptions, book: Book, chosen: Sequence[RoleModel]) -> Plan:
    """Return a plan with the models of its roles. Raise `BadInput` for one without an address."""
    plans = {}
    for choice in chosen:
        name, model = providers.split_model(choice.model, book)
        provider = models.provider_named(name, book, args)
        _check_provider(choice, provider, book)
        role_args = _for_role(args) if provider else replace(args, provider=None)
        is_baseline = model.startswith(defaults.BASELINE_PREFIX) and not provider
        endpoint = None if is_baseline else address.find(role_args, os.environ, provider)
        if endpoint is None and not is_baseline:
            raise BadInput(f"role {choice.role}: {address.MISSING}")
        sampling = Sampling(
            model,
            choice.temperature,
            choice.top_p,
            choice.seed,
            choice.max_tokens,
            dict(provider.extra_body) if provider else {},
        )
        price = None
        if endpoint:
            price = choice.price or prices.price_of(endpoint, model, book)
        plans[choice.role] = _role_plan(plan, role_args, sampling, endpoint, price)
    return _joined(plan, plans)


def _check_provider(choice: RoleModel, provider: Provider | None, book: Book) -> None:
    """Raise `BadInput` for a provider that is not known. The whole as the name of a model at the
    general endpoint would be paid for there, perhaps by the model under test; what follows the
    colon may be a tag (`llama:7b`)."""
    model = choice.model.partition(":")[2]
    unknown = None if provider else providers.unknown_provider(choice.model, book)
    if unknown and not providers.TAG.fullmatch(model):
        raise BadInput(f"role {choice.role}: {unknown}")


def with_earlier_roles(plan: Plan, args: PlayOptions, book: Book, manifest: Manifest) -> Plan:
    """Return a plan to resume with the roles of its manifest, each where it is named today. Raise
    `BadInput` as `address.for_resume` does."""
    plans = {}
    provenance = manifest.provenance
    for role, sampling in plan.sampling.roles.items():
        recorded = provenance["roles"][role]
        # A key or header of the command is for the endpoint of the model under test.
        is_elsewhere = recorded["endpoint"] != provenance["endpoint"]
        role_args = _for_role(args) if is_elsewhere else args
        endpoint = _found_again(plan, role_args, book, role, recorded)
        price = None
        if endpoint:
            price = prices.price_of(endpoint, sampling.model, book)
            price = price or manifest.price_at(endpoint.shown, role)
        plans[role] = _role_plan(plan, role_args, sampling, endpoint, price)
    return _joined(plan, plans)


def _found_again(
    plan: Plan, args: PlayOptions, book: Book, role: str, recorded: EndpointProvenance
) -> address.ResolvedEndpoint | None:
    if recorded["endpoint"] == defaults.EMBEDDED:
        return None
    name = recorded.get("provider")
    provider = None
    if name:
        provider = models.provider_named(name, book, args)
    # `resume` has no --role; `run` with the same name continues the run.
    command = shlex.join(
        ["harness", "run", "--name", plan.name, "--role", f"{role}=PROVIDER:MODEL"]
    )
    run = address.EarlierRun(f"the role {role} of {plan.name}", recorded, provider, command)
    return address.for_resume(args, run, os.environ)


def _for_role(args: PlayOptions) -> PlayOptions:
    """Return options without those that are about the endpoint of the model under test."""
    return replace(
        args,
        endpoint=None,
        provider=None,
        api_url=None,
        api_key=None,
        api_key_file=None,
        extra_header=(),
    )


def _role_plan(
    plan: Plan,
    args: PlayOptions,
    sampling: Sampling,
    endpoint: address.ResolvedEndpoint | None,
    price: Price | None,
) -> Plan:
    """Return the plan of a role: on the account of the model under test it has its limits, else
    those of its provider."""
    for place in endpoint.addresses if endpoint else ():
        usable(place)
    role_plan = replace(
        plan,
        sampling=sampling,
        endpoint_choice=EndpointChoice.of(args, endpoint, price),
        roles={},
    )
    if role_plan.shares_with(plan):  # the limits of an account hold for all that use it
        return role_plan
    # The command's limits are those of the account of the model under test.
    without_limits = replace(args, concurrency=None, rpm=None, tpm=None)
    pace = models.pace_of(endpoint.provider) if endpoint and endpoint.provider else {}
    return replace(role_plan, tuning=options.tuning(without_limits, pace))


def _joined(plan: Plan, plans: Mapping[str, Plan]) -> Plan:
    sampling = {role: role_plan.sampling for role, role_plan in plans.items()}
    return replace(plan, roles=plans, sampling=replace(plan.sampling, roles=sampling))
