"""What the saved replies of a run say of it besides answers and cost.

This is the one place for such a fact: it is declared in `ReplyFacts`, counted in `ReplyCounts.add`,
and put into words in `ReplyFacts.sentences`. The manifest and the report have it under the key
`replies`; pages, `compare`, `merge`, `reeval` and `verify` take it from there. A new fact has a
default, which means "not counted" in older files and is left out of new ones.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Annotated

from msgspec import Meta, Struct

from harness.model import NEVER_ANSWERED, Completion

MAX_ANSWERERS, MAX_NAME = 100, 200
"""Answerers that are told apart, since an endpoint may send another fingerprint with every reply,
and the characters that are kept of a name."""
SHOWN_ANSWERERS = 8
DATED = re.compile(r"-(\d{4}-\d\d-\d\d|\d{8}|\d{6}|\d{4})")
"""What follows an alias in the name of its snapshot: gpt-4o-mini-2024-07-18, gpt-4-0613."""


class Answerer(Struct, frozen=True, omit_defaults=True):
    """Who gave so many `replies`, in the endpoint's words; None where it did not say."""

    replies: Annotated[int, Meta(ge=1, lt=1 << 53)]
    model: str | None = None
    provider: str | None = None
    system_fingerprint: str | None = None


class ReplyFacts(Struct, frozen=True, omit_defaults=True):
    """`answered_by` is who answered as the model under test, the most frequent first, and `roles`
    who answered in each role; empty where no reply says it."""

    answered_by: tuple[Answerer, ...] = ()
    roles: dict[str, tuple[Answerer, ...]] = {}

    def sentences(self) -> Iterator[str]:
        """Yield the facts for people, as main clauses."""
        if self.answered_by:
            yield f"answered by: {_shares(self.answered_by)}"
        for role, answerers in self.roles.items():
            yield f"{role}: answered by {_shares(answerers)}"

    def warning(self, asked: str) -> str | None:
        """Return in what the models that answered differ from the one that was asked for, or from
        each other.

        None without a difference: a dated snapshot is the model itself, but two of them are two.
        """
        models = dict.fromkeys(answerer.model for answerer in self.answered_by if answerer.model)
        if len(models) > 1:
            return f"{asked} was asked for, and several models answered: {_listed([*models])}"
        for model in models:
            is_snapshot = model.startswith(asked) and DATED.fullmatch(model[len(asked) :])
            if model != asked and not is_snapshot:
                return f"{asked} was asked for, and {model} answered"
        return None


def _shares(answerers: Sequence[Answerer]) -> str:
    total = sum(answerer.replies for answerer in answerers)
    shares = [
        f"{name} {100 * replies / total:.0f} % ({replies})"
        for name, replies in _replies_by_name(answerers)
    ]
    return f"{_listed(shares)} of {total} replies"


def _replies_by_name(answerers: Sequence[Answerer]) -> list[tuple[str, int]]:
    """Return the replies by who answered, with provider and fingerprint where these differ."""
    providers = {answerer.provider for answerer in answerers}
    fingerprints = {answerer.system_fingerprint for answerer in answerers}
    replies: Counter[str] = Counter()
    for answerer in answerers:
        details = []
        if answerer.provider and len(providers) > 1:
            details.append(f"provider {answerer.provider}")
        if answerer.system_fingerprint and len(fingerprints) > 1:
            details.append(f"fingerprint {answerer.system_fingerprint}")
        in_brackets = f" ({', '.join(details)})" if details else ""
        replies[f"{answerer.model or 'not known'}{in_brackets}"] += answerer.replies
    return replies.most_common()


def _listed(names: Sequence[str]) -> str:
    shown = [*names[:SHOWN_ANSWERERS]]
    if len(names) > SHOWN_ANSWERERS:
        shown.append(f"{len(names) - SHOWN_ANSWERERS} more")
    return ", ".join(shown)


_Names = tuple[str | None, str | None, str | None]
"""Model, provider and fingerprint, as in `Answerer`."""
UNNAMED: _Names = None, None, None


class ReplyCounts:
    """Count the facts of `ReplyFacts`."""

    def __init__(self) -> None:
        self._of_model = AnswererCounts()
        self._of_roles: dict[str, AnswererCounts] = {}

    def add(self, completion: Completion, role: str = "") -> None:
        """Count a saved reply of a role, empty for the model under test."""
        self._of(role).add(completion)

    def merge(self, facts: ReplyFacts) -> None:
        """Count what another run has counted."""
        self._of_model.merge(facts.answered_by)
        for role, answerers in facts.roles.items():
            self._of(role).merge(answerers)

    def _of(self, role: str) -> AnswererCounts:
        if role:
            return self._of_roles.setdefault(role, AnswererCounts())
        return self._of_model

    @property
    def facts(self) -> ReplyFacts:
        roles = {role: counts.ranked for role, counts in sorted(self._of_roles.items())}
        return ReplyFacts(
            self._of_model.ranked, {role: ranked for role, ranked in roles.items() if ranked}
        )


class AnswererCounts:
    """Count the replies of each answerer."""

    def __init__(self) -> None:
        self._answerers: Counter[_Names] = Counter()

    def add(self, completion: Completion) -> None:
        names = completion.model, completion.provider, completion.system_fingerprint
        # A request that was refused may have reached no model: that it names none says nothing.
        if names != UNNAMED or completion.finish_reason not in NEVER_ANSWERED:
            self._count(names, 1)

    def merge(self, answerers: Iterable[Answerer]) -> None:
        for answerer in answerers:
            names = answerer.model, answerer.provider, answerer.system_fingerprint
            self._count(names, answerer.replies)

    def _count(self, names: _Names, replies: int) -> None:
        if names not in self._answerers:
            names = self._new(names)
        self._answerers[names] += replies

    def _new(self, names: _Names) -> _Names:
        """Return the names under which a new answerer is counted."""
        model, provider, fingerprint = [name and name[:MAX_NAME] for name in names]
        cut = model, provider, fingerprint
        # A router may send another fingerprint with each reply, and memory must not grow with them.
        if len(self._answerers) < MAX_ANSWERERS or cut in self._answerers:
            return cut
        return UNNAMED

    @property
    def ranked(self) -> tuple[Answerer, ...]:
        """Return who answered, the most frequent first. Replies that do not say it count among
        others alone."""
        if self._answerers.keys() <= {UNNAMED}:
            return ()
        # Then by name: the order in which replies came must not show in a report.
        ranked = sorted(
            self._answerers.items(), key=lambda item: (-item[1], [name or "" for name in item[0]])
        )
        return tuple(Answerer(replies, *names) for names, replies in ranked)


def together(runs: Iterable[ReplyFacts]) -> ReplyFacts:
    """Return the facts of several runs as those of one."""
    counts = ReplyCounts()
    for facts in runs:
        counts.merge(facts)
    return counts.facts
