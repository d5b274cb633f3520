"""A saved run in the schema of Every Eval Ever, version 0.3 (https://evalevalai.com): the figures
as JSON, and next to them a line for each user, with its conversation and its value of the metric
that users are ranked by.

Of benchmarks whose users have no values of their own there are figures alone. Names of fields are
the schema's. Its repository names a file as `file_path` says. `is_correct`, which the schema
requires, is whether a value is the best that the metric can have; nothing here says whether a model
is open, so that is unknown. The same folder gives the same bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime
from hashlib import sha256
from itertools import chain
from pathlib import Path
from uuid import UUID

import orjson

from harness import __version__
from harness.analysis.plays import Exchange, Plays
from harness.analysis.rows import records, values_of
from harness.analysis.saved_runs import SavedRun
from harness.benchmark import Metric
from harness.client.replies import tool_calls_of
from harness.commands.export.formats import as_json
from harness.errors import BadInput, InvalidReply
from harness.model import JSON, AssistantMessage, ToolCall, ToolMessage
from harness.scoring.reports import Report, Value
from harness.store import atomic
from harness.ui.streams import tell
from harness.ui.words import plural

VERSION = "0.3.0"
METHOD = "Student's t over users, corrected for skewness (Hall 1992)"


def write(path: Path, run: SavedRun, plays: Plays, report: Report | None) -> int:
    """Write both files, `NAME.json` and `NAME_samples.jsonl`; return the number of samples. Raise
    `BadInput`."""
    if report is None:
        raise BadInput(
            f"{run.label} has no report yet: `harness report --name {run.name}` makes it"
        )
    aggregate = _aggregate(run, report)
    without_value = list[str]()
    samples = _samples(run, plays, report, without_value)
    count = 0
    # The file is named in the figures only if it has samples.
    first = next(samples, None)
    if first:
        target = path.with_name(f"{path.stem}_samples.jsonl")
        count, checksum = _write_samples(target, chain([first], samples))
        aggregate["detailed_evaluation_results"] = {
            "format": "jsonl",
            "file_path": f"data/{report.benchmark}/{_model_id(run)}/{_file_id(run)}_samples.jsonl",
            "hash_algorithm": "sha256",
            "checksum": checksum,
            "total_rows": count,
        }
    left_out = len(set(without_value)) if count else 0
    if left_out:
        aggregate["source_metadata"]["additional_details"]["users_without_value"] = str(left_out)
        users = f"{plural(left_out, report.user)} without a value of {report.headline[-1]}"
        verb = "is" if left_out == 1 else "are"
        tell(f"{run.label}: {users} {verb} not among the samples")
    atomic.write(path, orjson.dumps(aggregate, option=orjson.OPT_INDENT_2) + b"\n", shared=True)
    return count


def _write_samples(path: Path, samples: Iterable[JSON]) -> tuple[int, str]:
    """Write a line for each sample; return their number and the file's SHA-256."""
    checksum = sha256()
    count = 0
    with atomic.replacing(path, shared=True) as file:
        for sample in samples:
            line = as_json(sample) + b"\n"
            file.write(line)
            checksum.update(line)
            count += 1
    return count, checksum.hexdigest()


# Figures


def _aggregate(run: SavedRun, report: Report) -> JSON:
    manifest = run.manifest
    provider = manifest.provenance.get("provider")
    model = {
        "name": report.model,
        "id": _model_id(run),
        "developer": _model_id(run).partition("/")[0],
        "additional_details": {"deployment_type": "unknown", "model_availability": "unknown"},
    }
    if provider:
        model["inference_platform"] = provider
    return {
        "schema_version": VERSION,
        "evaluation_id": _evaluation_id(run),
        "evaluation_timestamp": manifest.times["created"],
        "retrieved_timestamp": _epoch(manifest.times.get("updated") or manifest.times["created"]),
        "source_metadata": {
            "source_name": "behavior-harness",
            "source_type": "evaluation_run",
            "source_organization_name": "unknown",
            "evaluator_relationship": "other",
            "additional_details": {"run": run.name, "subset": run.files.subset},
        },
        "eval_library": {
            "name": "behavior-harness",
            "version": str(manifest.provenance.get("harness", __version__)),
        },
        "model_info": model,
        "evaluation_results": [
            _result(run, report, report.units[name], value)
            for name, value in report.values.items()
            if value.value is not None
        ],
    }


def _result(run: SavedRun, report: Report, metric: Metric, value: Value) -> JSON:
    uncertainty: JSON = {}
    if value.users is not None:
        uncertainty["num_samples"] = value.users
    if value.ci95:
        low, high = value.ci95
        uncertainty["confidence_interval"] = {
            "lower": low,
            "upper": high,
            "confidence_level": 0.95,
            "method": METHOD if report.intervals_over else "the benchmark's own",
        }
    low_bound, high_bound = metric.bounds or (None, None)
    config = {
        "evaluation_description": metric.definition or metric.name,
        "metric_id": f"{report.benchmark}.{metric.name}",
        "metric_name": metric.name,
        "metric_unit": metric.unit or "proportion",
        "lower_is_better": metric.lower_is_better,
        "score_type": "continuous",
        # JSON has no infinity; the schema takes the word.
        "min_score": "-Infinity" if low_bound is None else low_bound,
        "max_score": "Infinity" if high_bound is None else high_bound,
    }
    details: JSON = {
        "expected_users": report.coverage.expected_users,
        "scored_users": report.coverage.scored_users,
    }
    if metric.name in report.chance:
        details["chance_level"] = report.chance[metric.name]
    return {
        "evaluation_result_id": _result_id(run, metric.name),
        "evaluation_name": f"{report.benchmark}/{report.subset}",
        "source_data": _source_data(run),
        "metric_config": config,
        "score_details": {
            "score": value.value,
            "details": _as_strings(details),
            "uncertainty": uncertainty,
        },
        "generation_config": _generation(run),
    }


def _source_data(run: SavedRun) -> JSON:
    tasks = run.manifest.tasks
    details = _as_strings({"tasks_sha256": tasks["sha256"], "users_in_tasks": tasks["users"]})
    name = Path(tasks["path"]).name
    data_set = run.manifest.provenance.get("data_set")
    if not data_set:
        return {"dataset_name": name, "source_type": "other", "additional_details": details}
    details["commit"] = str(data_set["commit"])
    return {
        "dataset_name": name,
        "source_type": "hf_dataset",
        "hf_repo": str(data_set["name"]),
        "additional_details": details,
    }


def _generation(run: SavedRun) -> JSON:
    sampling = run.manifest.identity["sampling"]
    names = ("temperature", "top_p", "max_tokens")
    arguments = {name: sampling[name] for name in names if sampling.get(name) is not None}
    details = {
        name: value
        for name, value in sampling.items()
        if name not in names and value not in (None, {})
    }
    return {"generation_args": arguments, "additional_details": _as_strings(details)}


# Users


def _samples(
    run: SavedRun, plays: Plays, report: Report, without_value: list[str]
) -> Iterator[JSON]:
    """Yield a line for each record that has a value of the metric that users are ranked by; the
    user of another is added to `without_value`."""
    metric = report.units[report.headline[-1]]
    lowest, highest = metric.bounds or (None, None)
    best = lowest if metric.lower_is_better else highest
    for record in records(run):
        [values] = values_of(plays.benchmark, [record])
        value = values.get(metric.name)
        if value is None:
            without_value.append(str(record["user_id"]))
            continue
        played = plays.exchanges_of(record)
        exchanges = played.exchanges if played else ()
        yield {
            "schema_version": VERSION,
            "evaluation_id": _evaluation_id(run),
            "model_id": _model_id(run),
            "evaluation_name": f"{report.benchmark}/{report.subset}",
            "evaluation_result_id": _result_id(run, metric.name),
            "sample_id": str(record["user_id"]),
            "interaction_type": "multi_turn",
            "input": {
                "raw": exchanges[0].request.messages[-1].text if exchanges else "",
                "reference": [],
            },
            "messages": list(_messages(exchanges)),
            "answer_attribution": _attribution(exchanges),
            "evaluation": {
                "score": value,
                "is_correct": value == best,
                "num_turns": len(exchanges),
            },
            "token_usage": _tokens(exchanges),
            "metadata": _as_strings({"repeat": record.get("repeat", 1)}),
        }


def _messages(exchanges: tuple[Exchange, ...]) -> Iterator[JSON]:
    turn = 0
    for exchange in exchanges:
        for message in exchange.request.messages:
            line: JSON = {"turn_idx": turn, "role": message.role, "content": message.text}
            if isinstance(message, AssistantMessage):
                line["tool_calls"] = _calls(tool_calls_of(message.tool_calls))
            if isinstance(message, ToolMessage):
                line["tool_call_id"] = [message.tool_call_id]
            yield line
            turn += 1
        completion = exchange.completion
        reply: JSON = {"turn_idx": turn, "role": "assistant", "content": completion.shown}
        if completion.reasoning:
            reply["reasoning_trace"] = completion.reasoning
        if completion.tool_calls:
            reply |= {"content": completion.text, "tool_calls": _calls(completion.tool_calls)}
        yield reply
        turn += 1


def _calls(calls: Iterable[ToolCall]) -> list[JSON]:
    return [{"id": call.id, "name": call.name, "arguments": _arguments(call)} for call in calls]


def _arguments(call: ToolCall) -> dict[str, str]:
    """Return the arguments of a call by name, each as text as the schema has them; what is no JSON
    object under the name `arguments`."""
    try:
        return _as_strings(call.json())
    except InvalidReply:
        return {"arguments": call.arguments}


def _attribution(exchanges: tuple[Exchange, ...]) -> list[JSON]:
    if not exchanges:
        return []
    turns = sum(len(exchange.request.messages) + 1 for exchange in exchanges)
    return [
        {
            "turn_idx": turns - 1,
            "source": "messages[turn_idx].content",
            "extracted_value": exchanges[-1].completion.shown,
            "extraction_method": "custom",
            "is_terminal": True,
        }
    ]


def _tokens(exchanges: tuple[Exchange, ...]) -> JSON | None:
    completions = [exchange.completion for exchange in exchanges]
    # A sum without the replies that report no usage would look like a smaller total.
    if not completions or any(completion.prompt_tokens is None for completion in completions):
        return None
    sent = sum(completion.prompt_tokens or 0 for completion in completions)
    received = sum(completion.completion_tokens or 0 for completion in completions)
    return {"input_tokens": sent, "output_tokens": received, "total_tokens": sent + received}


# Identifiers


def _model_id(run: SavedRun) -> str:
    """Return the model as `developer/name`, by the provider's name where the model has no
    developer's."""
    model = run.manifest.identity["model"]
    if "/" in model:
        return model
    return f"{run.manifest.provenance.get('provider') or 'unknown'}/{model}"


def _evaluation_id(run: SavedRun) -> str:
    benchmark = f"{run.manifest.identity['benchmark']}/{run.files.subset}"
    return f"{benchmark}/{_model_id(run)}/{_epoch(run.manifest.times['created'])}"


def _file_id(run: SavedRun) -> UUID:
    """Return the identifier that the schema's repository names files by; another export of the run
    has it too."""
    return UUID(bytes=sha256(f"{_evaluation_id(run)} {run.name}".encode()).digest()[:16], version=4)


def _result_id(run: SavedRun, metric: str) -> str:
    return f"{_evaluation_id(run)}#{metric}"


def _epoch(moment: str) -> str:
    return str(int(datetime.fromisoformat(moment).timestamp()))


def _as_strings(values: JSON) -> dict[str, str]:
    texts = dict[str, str]()
    for name, value in values.items():
        texts[name] = value if isinstance(value, str) else orjson.dumps(value).decode()
    return texts
