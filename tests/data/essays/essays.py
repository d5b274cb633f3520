"""Each user writes a sentence on a topic, and a judge grades it."""

from harness import Benchmark, Metric, Role, Task


class Essays(Benchmark):
    name = "essays"
    subsets = {"short": "essays.jsonl"}  # noqa: RUF012
    metrics = (Metric("Grade"),)
    roles = {"judge": Role("grades each sentence")}  # noqa: RUF012
    baselines = {"yes": lambda messages, seed: '{"grade": 1.0}'}  # noqa: RUF012

    def parse(self, line, subset):
        return Task(line["user_id"], given=line["topic"], steps=1, synthetic=True)

    async def play(self, given, chat):
        sentence = await chat.text(f"Write a sentence on {given}.")
        grade = await chat.json(f"Grade: {sentence}", lambda data: float(data["grade"]), role="judge")
        return {"sentence": sentence, "grade": grade}

    def measure(self, task, answer):
        return {"Grade": None if answer is None else answer["grade"]}
