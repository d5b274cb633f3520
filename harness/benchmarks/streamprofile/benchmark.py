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

from harness.benchmark import (
    About,
    Benchmark,
    Configuration,
    Imports,
    Records,
    Task,
    TaskFiles,
)
from harness.benchmarks.records import read_of
from harness.benchmarks.settings import checked
from harness.benchmarks.streamprofile import authors, summary
from harness.benchmarks.streamprofile import prompt as prompts
from harness.benchmarks.streamprofile import task as tasks
from harness.benchmarks.streamprofile.cards import UserCards
from harness.benchmarks.streamprofile.metrics import (
    GAINS,
    METRICS,
    StepMetrics,
    measure_step,
)
from harness.benchmarks.streamprofile.reply import StepAnswer, read, schema
from harness.benchmarks.streamprofile.synth import generate
from harness.benchmarks.streamprofile.task import (
    PLATFORMS,
    StepInput,
    UserInput,
)
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
        user: UserInput = task.given
        steps = []
        for step, truth, predicted, measured in zip(
            user.steps, task.truth, answer, metrics, strict=True
        ):
            data = {
                "step_id": step.step_id,
                "prediction": predicted.tags,
                "ground_truth": truth.listed,
                "metrics": measured.values,
                "reasoning": predicted.reasoning,
                "persona_summary": predicted.persona,
                "outcome": predicted.outcome,
                "repairs": predicted.repairs,
            }
            steps.append(data | _further_measures(step, measured))

        return {
            "user_id": user.user_id,
            "platform": user.platform,
            "username": user.username,
            "steps": steps,
        }

    def rescore(self, task: Task, data: JSON) -> JSON:
        pairs = zip(task.given.steps, task.truth, strict=True)
        by_step_id = {step.step_id: (step, truth) for step, truth in pairs}
        steps = []
        with read_of(task.key):
            from_authors = "usage" not in data
            _check_steps(task, data)
            for saved in data["steps"]:
                step, truth = by_step_id[saved["step_id"]]
                # Metrics use sets, and the authors' runner keeps repeated tags.
                prediction = tuple(dict.fromkeys(saved["prediction"]))
                measured = measure_step(truth, step, prediction)
                rescored = {
                    **saved,
                    "prediction": prediction,
                    "metrics": measured.values,
                }
                if from_authors:
                    rescored["ground_truth"] = truth.listed
                    rescored["outcome"] = authors.outcome(saved)
                    rescored["repairs"] = ()

                # It is missing where the prediction is not longer than asked for.
                rescored.pop("metrics_at_asked", None)
                steps.append(rescored | _further_measures(step, measured))

        return {**data, "steps": steps}

    def rows(self, record: JSON) -> Iterable[JSON]:
        about: JSON = {}
        for name in ("user_id", "repeat", "platform"):
            if name in record:  # `repeat` only with repeats
                about[name] = record[name]

        for step in record["steps"]:
            row = about.copy()
            for name in ("step_id", "outcome", "asked", "out_of_pool"):
                row[name] = step.get(name)

            yield {**row, **step["metrics"]}

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
    completed = step.copy()
    for name, metrics in (
        ("metrics", METRICS),
        ("metrics_at_asked", METRICS),
        ("ceiling", GAINS),
    ):
        if step.get(name):
            completed[name] = dict.fromkeys(metrics) | step[name]

    return completed


def published() -> Published:
    """Return the scores that were published with the benchmark (published.toml, in percent)."""
    data = tomllib.loads(Path(__file__).with_name("published.toml").read_text(encoding="utf-8"))
    figures: dict[str, dict[str, dict[str, float]]] = {}
    for model in data["models"]:
        name = model.pop("name")
        for metric, percentages in model.items():
            row = figures.setdefault(metric, {})[name] = {}
            for column, percent in zip(data["columns"], percentages, strict=True):
                row[column] = percent / 100

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
            default=True,
            metadata={"help": "ablation: carry no persona from step to step"},
        )

    def prepare(self) -> Configuration:
        self.cards = UserCards(self.asking.parse_retries)
        path: Path | None = None
        files: Mapping[str, bytes] = {}
        if self.recorded is None:
            self._prompt = prompts.load(self.settings.prompt, self.digests)
            source = self._prompt.source
            path = self._prompt.path
            files = self._prompt.files
        else:
            # Answers are only measured, so the prompt itself is not needed.
            source = checked(self.recorded, "prompt", str)

        identity = {
            "prompt": source,
            "persona": self.settings.persona,
            **self.asking.identity,
        }
        return Configuration(source, path, files, identity)

    def parse(self, line: JSON, subset: str) -> Task:
        return tasks.parse(line, subset)

    async def play(self, user: UserInput, chat: Chat) -> tuple[StepAnswer, ...]:
        persona = ""
        answers = []
        for step in user.steps:
            answer = await self._step(user, step, persona, chat)
            answers.append(answer)
            if self.settings.persona:
                persona = answer.persona

        return tuple(answers)

    async def _step(self, user: UserInput, step: StepInput, persona: str, chat: Chat) -> StepAnswer:
        messages = self._prompt.messages(user, step, persona)
        answer_schema = None
        if self.asking.wants_schema:
            answer_schema = schema(step.pool, step.asked)

        try:
            answer = await chat.read(
                messages,
                lambda completion: read(completion, step.pool),
                schema=answer_schema,
            )
        except InvalidReply as error:
            return StepAnswer(persona, (), "", outcome=error.kind)

        # A reply without a summary must not erase what earlier steps learned.
        if answer.persona.strip():
            return answer

        return structs.replace(answer, persona=persona)

    def measure(self, task: Task, answer: Sequence[StepAnswer]) -> Any:
        """Return a `StepMetrics` for each step: the figures are made of records (`scores.py`)."""
        measured = []
        for truth, step, predicted in zip(task.truth, task.given.steps, answer, strict=True):
            measured.append(measure_step(truth, step, predicted.tags))

        return tuple(measured)

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
    """Raise `BadInput` where a user's steps are not those of the task, each once: a score of fewer
    of them, or of one of them twice, is no score of this user."""
    known = {step.step_id for step in task.given.steps}
    counts = Counter([saved["step_id"] for saved in data["steps"]])
    for step_id in counts:
        if step_id not in known:
            raise BadInput(
                f"user {task.key}: step_id {in_brief(step_id)} of the results is not in the tasks"
                " file"
            )

    for step_id, count in counts.items():
        if count > 1:
            raise BadInput(f"user {task.key}: duplicate step_id {step_id}")

    missing = known - counts.keys()
    if missing:
        raise BadInput(
            f"user {task.key}: {len(missing)} of {len(known)} steps are missing, as step_id"
            f" {min(missing)}"
        )


def _further_measures(step: StepInput, measured: StepMetrics) -> JSON:
    """Return what the scorer needs of a step in addition to its metrics."""
    measures: JSON = {
        "asked": step.asked,
        "out_of_pool": measured.out_of_pool,
        "ceiling": measured.ceiling,
    }
    if measured.at_asked is not None:
        measures["metrics_at_asked"] = measured.at_asked

    return measures
