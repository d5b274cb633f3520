"""StreamProfileBench as a benchmark: how a user is played, measured and recorded (docs/design.md,
section 8)."""

from __future__ import annotations

import tomllib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from msgspec import structs

from harness.benchmark import About, Benchmark, Configuration, Imports, Records, Task, TaskFiles
from harness.benchmarks.records import read_of
from harness.benchmarks.settings import checked
from harness.benchmarks.streamprofile import authors, summary
from harness.benchmarks.streamprofile import prompt as prompts
from harness.benchmarks.streamprofile import task as tasks
from harness.benchmarks.streamprofile.cards import UserCards
from harness.benchmarks.streamprofile.metrics import GAINS, METRICS, StepMetrics, measure_step
from harness.benchmarks.streamprofile.reply import StepAnswer, read, schema
from harness.benchmarks.streamprofile.synth import generate
from harness.benchmarks.streamprofile.task import PLATFORMS, StepInput, UserInput
from harness.chat import Chat
from harness.errors import BadInput, InvalidReply, in_brief
from harness.model import JSON, Published

COLUMNS = ("zhihu", "weibo", "toutiao", "xiaohongshu", "douban")
"""Platforms in the order of the published tables."""

PUBLISHED = (
    "Published: as printed in {source}, whose F1^NS is that of its code: users with both parts 0"
    " are left out. Avg. of F1^NS is the printed Overall, which is not the mean of the platforms."
    " Only runs with the authors' prompt compare with it; best and second best are marked among the"
    " runs alone."
)


class StepFiles(TaskFiles):
    def outline(self, line: JSON, subset: str) -> tuple[str | int, int]:
        tasks.check(line, subset)
        return line["user_id"], len(line["prediction_tasks"])


class Steps(Records):
    """A record has what each step predicted, and the metrics of it."""

    has_answer = False

    def record(
        self,
        task: Task,
        answer: Sequence[StepAnswer],
        metrics: Sequence[StepMetrics],
        outcome: str,
        repairs: Sequence[str],
    ) -> JSON:
        steps = [
            {
                "step_id": step.step_id,
                "prediction": predicted.tags,
                "ground_truth": truth.listed,
                "metrics": measured.values,
                "reasoning": predicted.reasoning,
                "persona_summary": predicted.persona,
                "outcome": predicted.outcome,
                "repairs": predicted.repairs,
                **_measured(step, measured),
            }
            for step, truth, predicted, measured in zip(
                task.given.steps, task.truth, answer, metrics, strict=True
            )
        ]
        given: UserInput = task.given
        return {
            "user_id": given.user_id,
            "platform": given.platform,
            "username": given.username,
            "steps": steps,
        }

    def rescore(self, task: Task, data: JSON) -> JSON:
        given = {
            step.step_id: (step, truth)
            for step, truth in zip(task.given.steps, task.truth, strict=True)
        }
        steps = []
        with read_of(task.key):
            from_authors = "usage" not in data
            _check_steps(task, data)
            for saved in data["steps"]:
                step, truth = given[saved["step_id"]]
                prediction = tuple(dict.fromkeys(saved["prediction"]))
                measured = measure_step(truth, step, prediction)
                again = {**saved, "prediction": prediction, "metrics": measured.values}
                if from_authors:
                    again |= {
                        "ground_truth": truth.listed,
                        "outcome": authors.outcome(saved),
                        "repairs": (),
                    }
                again.pop("metrics_at_asked", None)
                steps.append(again | _measured(step, measured))
        return {**data, "steps": steps}

    def rows(self, record: JSON) -> Iterable[JSON]:
        about: JSON = {
            name: record[name] for name in ("user_id", "repeat", "platform") if name in record
        }
        for step in record["steps"]:
            known = {
                name: step.get(name) for name in ("step_id", "outcome", "asked", "out_of_pool")
            }
            yield {**about, **known, **step["metrics"]}

    def completed(self, record: JSON) -> JSON:
        steps = record["steps"]
        if all(len(step["metrics"]) in (0, len(METRICS)) for step in steps):
            return record
        return {**record, "steps": [_completed(step) for step in steps]}

    def outcomes(self, record: JSON) -> Iterable[str]:
        return (step["outcome"] for step in record["steps"])

    def repairs(self, record: JSON) -> Iterable[str]:
        return (name for step in record["steps"] for name in step["repairs"])


def _completed(step: JSON) -> JSON:
    made = step.copy()
    for name, metrics in (("metrics", METRICS), ("metrics_at_asked", METRICS), ("ceiling", GAINS)):
        if step.get(name):
            made[name] = {**dict.fromkeys(metrics), **step[name]}
    return made


def published() -> Published:
    """Return the scores that were published with the benchmark (published.toml, in percent)."""
    data = tomllib.loads(Path(__file__).with_name("published.toml").read_text(encoding="utf-8"))
    columns, models = data["columns"], data["models"]
    figures = {
        metric: {
            model["name"]: {
                column: value / 100 for column, value in zip(columns, model[metric], strict=True)
            }
            for model in models
        }
        for metric in models[0]
        if metric != "name"
    }
    return Published(data["source"], PUBLISHED.format(source=data["source"]), figures)


class StreamProfile(Benchmark):
    name = "streamprofile"
    version = "1"
    subsets: ClassVar = {platform: f"{platform}_inference_tasks.jsonl" for platform in COLUMNS}
    metrics = summary.MEANS
    about = About(
        title="StreamProfileBench",
        invalid_as="Invalid answers count as empty",
        language="zh",
        floor="recency",
        parser_version="2",
    )
    scoring = summary.StepScoring()
    task_files = StepFiles(version="1", data_set="WaterWang-001/StreamProfileBench")
    records = Steps()
    cards = UserCards()
    imports = Imports(authors, published, summary.upgraded, same_note=True)

    @dataclass(frozen=True)
    class Settings:
        prompt: Path | None = field(
            default=None,
            metadata={
                "help": "a prompt template, or the authors' bench_task.py, whose code is run"
            },
        )
        persona: bool = field(
            default=True, metadata={"help": "ablation: carry no persona from step to step"}
        )

    def prepare(self) -> Configuration:
        self.cards = UserCards(self.asking.parse_retries)
        if self.recorded is None:
            self._prompt = prompt = prompts.load(self.settings.prompt, self.digests)
            source, path, files = prompt.source, prompt.path, prompt.files
        else:  # answers are only measured
            source, path, files = checked(self.recorded, "prompt", str), None, {}
        identity = {"prompt": source, "persona": self.settings.persona, **self.asking.identity}
        return Configuration(source, path, files, identity)

    def parse(self, line: JSON, subset: str) -> Task:
        return tasks.parse(line, subset)

    async def play(self, given: UserInput, chat: Chat) -> tuple[StepAnswer, ...]:
        persona, answers = "", []
        for step in given.steps:
            answer = await self._step(given, step, persona, chat)
            answers.append(answer)
            persona = answer.persona if self.settings.persona else ""
        return tuple(answers)

    async def _step(
        self, given: UserInput, step: StepInput, persona: str, chat: Chat
    ) -> StepAnswer:
        messages = self._prompt.messages(given, step, persona)
        try:
            wanted = schema(step.pool, step.asked) if self.asking.wants_schema else None
            reading = await chat.read(
                messages, lambda completion: read(completion, step.pool), schema=wanted
            )
        except InvalidReply as error:
            return StepAnswer(persona, (), "", outcome=error.kind)
        return reading if reading.persona.strip() else structs.replace(reading, persona=persona)

    def measure(self, task: Task, answer: Sequence[StepAnswer]) -> Any:
        """Return a `StepMetrics` for each step: the figures are made of records (`scores.py`)."""
        return tuple(
            measure_step(truth, step, predicted.tags)
            for truth, step, predicted in zip(task.truth, task.given.steps, answer, strict=True)
        )

    @classmethod
    def synthesise(
        cls,
        folder: Path,
        users: int,
        seed: int,
        subsets: Sequence[str] = tuple(PLATFORMS),
        mean_steps: float = 6.0,
    ) -> Mapping[str, Iterable[bytes]]:
        return {
            cls.subsets[subset]: generate(subset, users, seed, mean_steps) for subset in subsets
        }


def _check_steps(task: Task, data: JSON) -> None:
    """Raise `BadInput` where a user's steps are not those of the task, each once: what scores a
    part of them, or one of them twice, is no score of this user."""
    seen, known = (
        Counter(saved["step_id"] for saved in data["steps"]),
        {step.step_id for step in task.given.steps},
    )
    if unknown := [number for number in seen if number not in known]:
        raise BadInput(
            f"user {task.key}: step_id {in_brief(unknown[0])} of the results is not in the tasks"
            " file"
        )
    if twice := [number for number, count in seen.items() if count > 1]:
        raise BadInput(f"user {task.key}: duplicate step_id {twice[0]}")
    if missing := known - seen.keys():
        raise BadInput(
            f"user {task.key}: {len(missing)} of {len(known)} steps are missing, as step_id"
            f" {min(missing)}"
        )


def _measured(step: StepInput, measured: StepMetrics) -> JSON:
    """Return what the scorer needs of a step in addition to its metrics."""
    found: JSON = {
        "asked": step.asked,
        "out_of_pool": measured.out_of_pool,
        "ceiling": measured.ceiling,
    }
    if measured.at_asked is not None:
        found["metrics_at_asked"] = measured.at_asked
    return found
