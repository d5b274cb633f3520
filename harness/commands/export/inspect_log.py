"""A saved run as a log of Inspect (https://inspect.aisi.org.uk): a sample a user, its requests as a
conversation.

The file is a ZIP archive of JSON, version 2 of that format: `header.json` (the evaluation, its
settings and figures), a file for each sample, and `summaries.json` with what a list of samples
shows. Names of fields are Inspect's. The same folder gives the same bytes.
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryFile
from zipfile import ZIP_DEFLATED, ZipFile, ZipInfo

from harness import __version__
from harness.analysis.plays import Exchange, Plays, Transcript, cost, seconds
from harness.analysis.rows import records, steps_of, values_of
from harness.analysis.saved_runs import SavedRun
from harness.benchmarks.records import read_of
from harness.client.replies import tool_calls_of
from harness.commands.export.formats import as_json
from harness.errors import BadInput, InvalidReply
from harness.model import JSON, AssistantMessage, Message, ToolCall, ToolMessage
from harness.scoring.reports import Report
from harness.store import atomic
from harness.store.manifest import COMPLETE, INCOMPLETE

VERSION = 2
STATUS = {COMPLETE: "success", INCOMPLETE: "error"}
"""By the state of a run; `cancelled` for the others, whose users are not all played."""
STOP_REASONS = {
    "stop": "stop",
    "length": "max_tokens",
    "content_filter": "content_filter",
    "context_length": "model_length",
    "tool_call": "tool_calls",
    "tool_calls": "tool_calls",
    "unclosed": "stop",
}
"""By finish reason; `unknown` for the others."""
SUMMARY_FIELDS = (
    "id",
    "epoch",
    "target",
    "scores",
    "model_usage",
    "total_time",
    "working_time",
    "completed",
)
MAX_INPUT_CHARACTERS = 1000
"""Characters of the first message in the list of samples."""


def write(path: Path, run: SavedRun, plays: Plays, report: Report | None) -> int:
    """Write the log of a run; return the number of its samples. A user that cannot be played again
    has no messages."""
    summaries = list[JSON]()
    usage = Counter[str]()
    with atomic.replacing(path, shared=True) as target, TemporaryFile() as file:
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
        shutil.copyfileobj(file, target)
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


def _id(run: SavedRun, kind: str) -> str:
    """Return an identifier that another export of the same run has too."""
    seed = f"{kind} {run.name} {run.files.subset} {run.manifest.times['created']}"
    return sha256(seed.encode()).hexdigest()[:22]


def _eval(run: SavedRun) -> JSON:
    manifest = run.manifest
    identity = run.manifest.identity
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
    for name, figure in report.values.items():
        if figure.value is not None:
            value = {
                "name": "value",
                "value": figure.value,
                "metadata": {"ci95": figure.ci95, "users": figure.users},
            }
            yield {"name": name, "scorer": report.benchmark, "metrics": {"value": value}}


# Samples


def _samples(run: SavedRun, plays: Plays) -> Iterator[JSON]:
    for record in records(run):
        steps = steps_of(type(plays.benchmark), record, None)
        played = plays.exchanges_of(record)
        [values] = values_of(plays.benchmark, [record])
        with read_of(str(record.get("user_id"))):
            sample = _sample(run, record, steps, values, played)
        yield sample


def _sample(
    run: SavedRun, record: JSON, steps: Sequence[JSON], values: JSON, played: Transcript | None
) -> JSON:
    """Return the sample of a user; without `played`, messages and costs are empty."""
    exchanges: tuple[Exchange, ...] = ()
    groups: Sequence[tuple[Exchange, ...]] = [()] * len(steps)
    if played:
        exchanges = played.exchanges
        groups = played.groups(len(steps))
    first_messages: object = ""
    output: JSON = {}
    if exchanges:
        first_messages = [*map(_message, exchanges[0].request.messages)] or ""
        output = _output(exchanges[-1])
    seconds = cost(exchanges)["seconds"]
    rows = [{**step, **cost(group)} for step, group in zip(steps, groups, strict=True)]
    return {
        "id": record["user_id"],
        "epoch": record.get("repeat", 1),
        "input": first_messages,
        "target": "",
        "messages": list(_messages(steps, groups)),
        "output": output,
        "scores": {run.manifest.identity["benchmark"]: {"value": values}},
        "metadata": {"steps": rows},
        "model_usage": {_model(run): _usage(exchanges)},
        "total_time": seconds,
        "working_time": seconds,
        "completed": True,
    }


def _summary(sample: JSON) -> JSON:
    """Return what a list of samples shows of one: its last message of the first request, cut."""
    summary = {name: sample[name] for name in SUMMARY_FIELDS}
    messages = sample["input"]
    summary["input"] = messages[-1]["content"][:MAX_INPUT_CHARACTERS] if messages else ""
    summary["message_count"] = len(sample["messages"])
    return summary


def _messages(steps: Sequence[JSON], groups: Sequence[Sequence[Exchange]]) -> Iterator[JSON]:
    """Yield the messages of all requests, a system message only where it changes, each with its
    reply.

    A reply has its seconds and tokens; the last one of a step has that step's row, too.
    """
    system: Message | None = None
    is_grouped = all(groups)
    for step, group in zip(steps, groups, strict=True):
        for exchange in group:
            for message in exchange.request.messages:
                if message == system:
                    continue
                yield _message(message)
                if message.role == "system":
                    system = message
            metadata = cost((exchange,))
            if is_grouped and exchange is group[-1]:
                metadata = {**step, **metadata}
            yield _reply(exchange) | {"metadata": metadata}


def _message(message: Message) -> JSON:
    entry: JSON = {"role": message.role, "content": message.text, "source": "input"}
    if isinstance(message, ToolMessage):
        entry["tool_call_id"] = message.tool_call_id
    if isinstance(message, AssistantMessage):
        entry["tool_calls"] = _calls(tool_calls_of(message.tool_calls))
    return entry


def _calls(calls: Iterable[ToolCall]) -> list[JSON]:
    """Return tool calls in Inspect's form, in which arguments are an object; the model's text of
    those that are none is their `parse_error`."""
    entries = []
    for call in calls:
        line: JSON = {"id": call.id, "function": call.name, "type": "function"}
        try:
            line["arguments"] = call.json()
        except InvalidReply:
            line |= {"arguments": {}, "parse_error": call.arguments}
        entries.append(line)
    return entries


def _reply(exchange: Exchange) -> JSON:
    completion = exchange.completion
    text = completion.text if completion.tool_calls else completion.shown
    content: object = text
    if completion.reasoning:
        content = [
            {"type": "reasoning", "reasoning": completion.reasoning},
            {"type": "text", "text": text},
        ]
    reply: JSON = {"role": "assistant", "content": content, "source": "generate"}
    if completion.model:
        reply["model"] = completion.model
    if completion.tool_calls:
        reply["tool_calls"] = _calls(completion.tool_calls)
    return reply


def _output(exchange: Exchange) -> JSON:
    completion = exchange.completion
    choice: JSON = {
        "message": _reply(exchange),
        "stop_reason": STOP_REASONS.get(completion.finish_reason or "", "unknown"),
    }
    if completion.logprobs and "content" in completion.logprobs:
        choice["logprobs"] = {"content": completion.logprobs["content"]}
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
    completions = [exchange.completion for exchange in exchanges]
    sent = sum(completion.prompt_tokens or 0 for completion in completions)
    received = sum(completion.completion_tokens or 0 for completion in completions)
    usage = {"input_tokens": sent, "output_tokens": received, "total_tokens": sent + received}
    for name, field in (
        ("input_tokens_cache_read", "cached_tokens"),
        ("reasoning_tokens", "reasoning_tokens"),
    ):
        all_counts = [getattr(completion, field) for completion in completions]
        counts = [count for count in all_counts if count is not None]
        if counts:
            usage[name] = sum(counts)
    return usage
