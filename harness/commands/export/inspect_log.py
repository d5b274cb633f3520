"""A saved run as a log of Inspect (https://inspect.aisi.org.uk): a sample a user, its requests as a
conversation.

The file is a ZIP archive of JSON, version 2 of that format: `header.json` (the evaluation, its
settings and figures), a file for each sample, and `summaries.json` with what a list of samples
shows. Names of fields are Inspect's. The same folder gives the same bytes.
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterator, Sequence
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryFile
from zipfile import ZIP_DEFLATED, ZipFile, ZipInfo

from harness import __version__
from harness.analysis.plays import Exchange, Plays, Transcript, cost, seconds
from harness.analysis.rows import records, steps_of, values_of
from harness.analysis.saved_runs import SavedRun
from harness.benchmarks.records import read_of
from harness.commands.export.formats import as_json
from harness.errors import BadInput
from harness.model import JSON, Message
from harness.scoring.reports import Report
from harness.store import atomic
from harness.store.manifest import COMPLETE, INCOMPLETE

VERSION = 2
STATUS = {COMPLETE: "success", INCOMPLETE: "error"}
"""By the state of a run; `cancelled` for the others, whose users are not all played."""
STOPS = {
    "stop": "stop",
    "length": "max_tokens",
    "content_filter": "content_filter",
    "context_length": "model_length",
}
STOPS |= {"tool_call": "tool_calls", "unclosed": "stop"}
"""By finish reason; `unknown` for the others."""
SUMMARY = (
    "id",
    "epoch",
    "target",
    "scores",
    "model_usage",
    "total_time",
    "working_time",
    "completed",
)
SHORT = 1000
"""Characters of the first message in the list of samples."""


def write(path: Path, run: SavedRun, plays: Plays, report: Report | None) -> int:
    """Write the log of a run; return the number of its samples. A user that cannot be played again
    has no messages."""
    summaries, usage = list[JSON](), Counter[str]()
    with atomic.replacing(path, shared=True) as whole, TemporaryFile() as file:
        with ZipFile(file, "w", ZIP_DEFLATED) as archive:
            _add(
                archive,
                "_journal/start.json",
                {"version": VERSION, "eval": _eval(run), "plan": _plan(run)},
            )
            for sample in _samples(run, plays):
                _add(archive, f"samples/{sample['id']}_epoch_{sample['epoch']}.json", sample)
                summaries.append(_summary(sample))
                usage.update(sample["model_usage"][_model(run)])
            _add(archive, "summaries.json", summaries)
            _add(archive, "header.json", _header(run, report, len(summaries), dict(usage)))
        file.seek(0)
        shutil.copyfileobj(file, whole)
    return len(summaries)


def _add(archive: ZipFile, name: str, data: object) -> None:
    if "\0" in name:
        raise BadInput(f"{name!r} cannot be the name of a sample's file")
    info = ZipInfo(name)  # without the time of day
    info.compress_type = ZIP_DEFLATED
    archive.writestr(info, as_json(data))


# Header


def _model(run: SavedRun) -> str:
    return run.manifest.identity["model"]


def _id(run: SavedRun, of: str) -> str:
    """Return an identifier that another export of the same run has too."""
    seed = f"{of} {run.name} {run.files.subset} {run.manifest.times['created']}"
    return sha256(seed.encode()).hexdigest()[:22]


def _eval(run: SavedRun) -> JSON:
    manifest, identity = run.manifest, run.manifest.identity
    sampling = {name: value for name, value in identity["sampling"].items() if value is not None}
    return {
        "eval_id": _id(run, "eval"),
        "run_id": _id(run, "run"),
        "task_id": _id(run, "task"),
        "created": manifest.times["created"],
        "task": f"{identity['benchmark']}/{run.files.subset}",
        "task_version": identity["prompt_version"],
        "dataset": {
            "name": Path(manifest.tasks["path"]).name,
            "samples": run.expected_users,
            "shuffled": False,
        },
        "model": _model(run),
        "model_generate_config": sampling,
        "config": {"epochs": manifest.repeats},
        "packages": {"behavior-harness": manifest.provenance.get("harness", __version__)},
        "metadata": {"run": run.name, "tasks_sha256": manifest.tasks["sha256"]},
    }


def _plan(run: SavedRun) -> JSON:
    return {
        "name": "plan",
        "steps": [{"solver": "behavior-harness", "params": run.manifest.identity["settings"]}],
    }


def _header(run: SavedRun, report: Report | None, samples: int, usage: JSON) -> JSON:
    times = run.manifest.times
    ended = times.get("updated") or times["created"]
    return {
        "version": VERSION,
        "status": STATUS.get(run.manifest.state, "cancelled"),
        "eval": _eval(run),
        "plan": _plan(run),
        "results": {
            "total_samples": run.expected_users * run.manifest.repeats,
            "completed_samples": samples,
            "scores": [] if report is None else list(_figures(report)),
        },
        "stats": {
            "started_at": times["created"],
            "completed_at": ended,
            "model_usage": {_model(run): usage},
        },
    }


def _figures(report: Report) -> Iterator[JSON]:
    """Yield the figures of a report that are defined, each as a score with one value."""
    for name, of in report.values.items():
        if of.value is not None:
            value = {
                "name": "value",
                "value": of.value,
                "metadata": {"ci95": of.ci95, "users": of.users},
            }
            yield {"name": name, "scorer": report.benchmark, "metrics": {"value": value}}


# Samples


def _samples(run: SavedRun, plays: Plays) -> Iterator[JSON]:
    for record in records(run):
        steps, played = steps_of(type(plays.benchmark), record, None), plays.of(record)
        [values] = values_of(plays.benchmark, [record])
        with read_of(str(record.get("user_id"))):
            sample = _sample(run, record, steps, values, played)
        yield sample


def _sample(
    run: SavedRun, record: JSON, steps: Sequence[JSON], values: JSON, played: Transcript | None
) -> JSON:
    exchanges = played.exchanges if played else ()
    groups = played.groups(len(steps)) if played else [() for _ in steps]
    spent = cost(exchanges)
    return {
        "id": record["user_id"],
        "epoch": record.get("repeat", 1),
        "input": [_message(message) for each in exchanges[:1] for message in each.request.messages]
        or "",
        "target": "",
        "messages": list(_messages(steps, groups)),
        "output": _output(exchanges[-1]) if exchanges else {},
        "scores": {run.manifest.identity["benchmark"]: {"value": values}},
        "metadata": {
            "steps": [{**step, **cost(of)} for step, of in zip(steps, groups, strict=True)]
        },
        "model_usage": {_model(run): _usage(exchanges)},
        "total_time": spent["seconds"],
        "working_time": spent["seconds"],
        "completed": True,
    }


def _summary(sample: JSON) -> JSON:
    asked = sample["input"][-1]["content"][:SHORT] if sample["input"] else ""
    return {
        **{name: sample[name] for name in SUMMARY},
        "input": asked,
        "message_count": len(sample["messages"]),
    }


def _messages(steps: Sequence[JSON], groups: Sequence[Sequence[Exchange]]) -> Iterator[JSON]:
    """Yield the messages of all requests, a system message only where it changes, each with its
    reply.

    A reply has its seconds and tokens; the last one of a step has that step's row, too.
    """
    system, known = None, all(groups)
    for step, group in zip(steps, groups, strict=True):
        for each in group:
            for message in each.request.messages:
                if message.role != "system" or message != system:
                    yield _message(message)
                system = message if message.role == "system" else system
            own = step if known and each is group[-1] else {}
            yield _reply(each) | {"metadata": {**own, **cost((each,))}}


def _message(message: Message) -> JSON:
    return {"role": message.role, "content": message.text, "source": "input"}


def _reply(exchange: Exchange) -> JSON:
    completion = exchange.completion
    content: object = completion.shown
    if completion.reasoning:
        content = [
            {"type": "reasoning", "reasoning": completion.reasoning},
            {"type": "text", "text": completion.shown},
        ]
    model = {"model": completion.model} if completion.model else {}
    return {"role": "assistant", "content": content, "source": "generate", **model}


def _output(exchange: Exchange) -> JSON:
    completion = exchange.completion
    choice = {
        "message": _reply(exchange),
        "stop_reason": STOPS.get(completion.finish_reason or "", "unknown"),
    }
    usage = _usage((exchange,))
    return {
        "model": completion.model or "",
        "choices": [choice],
        "usage": usage,
        "time": seconds(exchange),
    }


def _usage(exchanges: Sequence[Exchange]) -> JSON:
    """Return the tokens of replies by Inspect's names; those that an endpoint does not count are 0
    or left out."""
    of = [each.completion for each in exchanges]
    sent, received = (
        sum(one.prompt_tokens or 0 for one in of),
        sum(one.completion_tokens or 0 for one in of),
    )
    parts = {
        "input_tokens_cache_read": [
            one.cached_tokens for one in of if one.cached_tokens is not None
        ],
        "reasoning_tokens": [
            one.reasoning_tokens for one in of if one.reasoning_tokens is not None
        ],
    }
    made = {"input_tokens": sent, "output_tokens": received, "total_tokens": sent + received}
    return made | {name: sum(counts) for name, counts in parts.items() if counts}
