"""Settle requests by the replies of another run, where it has them."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from harness.analysis import selection
from harness.client.quirks import QUIRKS, unwanted
from harness.engine.hooks import Hooks, Say
from harness.engine.replay import PendingRequest
from harness.engine.runner import Settle, User
from harness.errors import BadInput
from harness.extensions.reuse import Reuse
from harness.extensions.reuse.saved_replies import SavedReplies
from harness.model import JSON, Completion
from harness.options.options import PlayOptions
from harness.options.plan import Plan
from harness.store.manifest import Identity, Manifest, differences, load
from harness.store.run import RunFiles, value_text


class Reusing(Hooks):
    def __init__(self, options: Reuse, command: PlayOptions) -> None:
        assert options.reuse is not None  # it is on
        self._folder = selection.folder(options.reuse, command.results_dir)
        self._estimating = command.option("estimate", False)
        self._replies: dict[Path, SavedReplies] = {}
        """By the path of the manifest of the run that uses them."""

    def options_to_resume(self, plan: Plan) -> Sequence[str]:
        return ["--reuse", str(self._folder)]

    def check(self, plans: Sequence[Plan]) -> None:
        if self._estimating:
            raise BadInput("--estimate is for requests that are paid for: not with --reuse")

    def prepare(self, plans: Sequence[Plan], held: ExitStack, say: Say) -> None:
        for plan in plans:
            for subset in plan.tasks:
                replies = saved_replies(self._folder, plan, subset)
                held.callback(replies.close)
                self._replies[RunFiles(plan.folder, subset).manifest] = replies

    def update_manifest(self, plan: Plan, manifest: Manifest, old: Manifest | None) -> None:
        quirks = self._replies[RunFiles(plan.folder, manifest.subset).manifest].quirks
        manifest.provenance["quirks_used"] = sorted({*manifest.provenance["quirks_used"], *quirks})

    def wrap_settle(self, settle: Settle) -> Settle:
        async def reused(user: User, pending: PendingRequest) -> Completion:
            replies = self._replies[user.run.store.files.manifest]
            # The check that one reply is as good as another is for the model under test.
            reply = None if pending.role else replies.reply(pending.digest, pending.nth)
            if reply is None:
                return await settle(user, pending)
            user.runner.progress.replayed += 1
            user.save(pending, reply)
            return reply.completion

        return reused


def saved_replies(folder: Path, plan: Plan, subset: str) -> SavedReplies:
    """Return the replies of the run in a folder. Raise `BadInput` if they are not what this run's
    own requests would get: of another model, of other sampling, or samples."""
    about = f"--reuse {folder}"
    files = RunFiles(folder, subset)
    identity = plan.identity()
    if plan.folder.exists() and plan.folder.samefile(folder):
        raise BadInput(f"{about}: it is this very run, which takes up its own replies without that")
    earlier = load(files.manifest)
    if earlier is None:
        raise BadInput(f"{about}: it has no run of {subset}")
    # In a request's body the fields of `extra_body` replace those of the options.
    temperature = {**identity["sampling"], **plan.sampling.extra_body}["temperature"]
    if temperature != 0:
        raise BadInput(
            f"{about}: only at temperature 0 is one reply as good as another, and this run's is"
            f" {temperature}"
        )
    different = differences(_requested(earlier.identity), _requested(identity))
    for name, (theirs, ours) in different.items():
        raise BadInput(
            f"{about}: {name} is {value_text(theirs)} there, and {value_text(ours)} in this run"
        )
    # Quirks with which the model got another request than this run's.
    used = {*earlier.provenance.get("quirks_used", ())}
    spoiled = used & {"no_temperature", *unwanted(plan.benchmark.asking.needs_schema)}
    if spoiled:
        raise BadInput(
            f"{about}: its requests were not sent as this run needs them:"
            f" {QUIRKS[min(spoiled)].sentence}"
        )
    return SavedReplies(files.responses, folder.resolve().name, used & QUIRKS.keys())


def _requested(identity: Identity) -> JSON:
    return {"model": identity["model"], "sampling": identity["sampling"]}
