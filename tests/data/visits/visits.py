"""A benchmark for tests: which of some places a user visits, with everything that a benchmark may declare."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np

from harness import About, Benchmark, Cards, InvalidReply, Metric, Records, Scoring, Task, TaskFiles
from harness.document import Heading, Paragraph, Quote, Table


def everywhere(messages, seed):
    """Visits every place that is named."""
    line = messages[-1]["content"].partition("Places: ")[2].partition("\n")[0]
    return json.dumps({"visits": line.split(", ")})


def refuses(messages, seed):
    return "I had rather not."


class Visited(Records):
    def record(self, task, answer, metrics, outcome, repairs):
        made = super().record(task, answer, metrics, outcome, repairs)
        return {**made, "visited": len(set(task.truth))}


class Hits(Scoring):
    headline = ("Hit rate", "Detour")

    def statistics(self, records):
        rows = []
        for record in records:
            rate, detour, visited = record["metrics"]["Hit rate"], record["metrics"]["Detour"], record["visited"]
            rows.append([(rate or 0.0) * visited, visited, detour or 0.0, float(detour is not None)])
        return rows

    def figures(self, totals):
        """The hits of all over the visits of all, and the mean detour."""
        return np.stack([totals[:, 0] / totals[:, 1], totals[:, 2] / totals[:, 3]], axis=1)

    def sections(self, scored):
        yield Heading("Visits")
        yield Paragraph(f"{scored.totals[1]:.0f} visits of {scored.users} visitors in the {scored.subset}.")
        yield Table(("what", "number"), (("hits", f"{scored.totals[0]:.0f}"),))


class VisitorCards(Cards):
    def card(self, record, task, replies):
        yield Paragraph(
            f"Card of {record['user_id']}: {'no tasks' if task is None else ', '.join(task.truth) or 'nowhere'}"
        )
        for reply in replies:
            yield Quote("Reply", reply.text)


class Visits(Benchmark):
    name = "visits"
    version = "2"
    subsets = {"north": "visits/north.jsonl", "south": "visits/south.jsonl"}
    metrics = (
        Metric("Hit rate"),
        Metric("Detour", better="lower", unit="km", bounds=(0, None)),
    )
    about = About(user="visitor")
    task_files = TaskFiles(key_field="id", data_files=("visits/distances.json",))
    baselines = {"everywhere": everywhere, "refuses": refuses}
    scoring = Hits()
    records = Visited()
    cards = VisitorCards()

    @dataclass(frozen=True)
    class Settings:
        history_length: int = field(default=3, metadata={"help": "visits that the prompt has, 100% of them at most"})
        hints: bool = True
        style: Literal["short", "long"] = "short"
        scale: float = 1.0
        note: str = ""
        most: int | None = None
        few_shot: Path | None = None

    def prepare(self):
        self.km = json.loads((self.folder / "visits" / "distances.json").read_text())
        self.examples = self.settings.few_shot.read_text() if self.settings.few_shot else ""

    def parse(self, line, subset):
        for name in ("history", "places", "visits"):
            found = line[name]
            if not isinstance(found, list) or not all(isinstance(one, str) and one in self.km for one in found):
                raise ValueError("expected a list of known places")
        if not line["places"]:
            raise ValueError("expected one place or more")
        given = {"history": line["history"], "places": line["places"]}
        return Task(line["id"], given=given, truth=tuple(line["visits"]))

    async def play(self, given, chat):
        past = given["history"][-self.settings.history_length :] if self.settings.hints else []
        prompt = f"{self.examples}{self.settings.style} {self.settings.note} Past: {', '.join(past)}\n"
        prompt += f"Places: {', '.join(given['places'])}\nWhich ones? Answer as JSON: " + '{"visits": [...]}'

        def read(reply):
            if not set(reply["visits"]) <= set(given["places"]):
                raise InvalidReply("unknown_place", "a place is none of those named")
            return sorted(set(reply["visits"]))

        return await chat.json([{"role": "user", "content": prompt}], read=read)

    def measure(self, task, answer):
        if not task.truth:
            return {"Hit rate": None, "Detour": None}
        hits = len(set(answer or ()) & set(task.truth))
        extra = sum(self.km[one] for one in set(answer or ()) - set(task.truth))
        return {
            "Hit rate": hits / len(set(task.truth)),
            "Detour": None if answer is None else self.settings.scale * extra,
        }
