"""Twins: what people answer to held-out questions of a survey, from the answers they gave before.

Tasks are rows of Twin-2K-500 as published (Toubia et al. 2025, arXiv:2505.17479; CC BY 4.0): a
person's earlier answers as text, and the questions of wave 4 twice: with the answers of wave 4, and
with the person's earlier answers to the same questions. One request a person has all questions."""

import csv
import io
import json
import re
from collections import Counter
from random import Random

import numpy

from harness import About, Benchmark, InvalidReply, Metric, Scoring, Task, TaskFiles

ASKED = "Someone gave these answers. Which choice does this person take in each question below?"
FORM = 'Answer as JSON, with the number of a choice for each question: {"Q1": 2, "Q2": 5, ...}'
CHOICES = {"MC": "Options", "Matrix": "Columns"}  # by type; sliders and numbers are left out
QUESTION = re.compile(r"^(Q\d+)\. .*\n((?:  \d+ = .*\n)+)", re.M)
SCALE = ["Strongly oppose", "Oppose", "Neither", "Support", "Strongly support"]
TOPICS = ["railways", "schools", "forests", "museums", "harbours"]
COLUMNS = "pid", "wave1_3_persona_text", "wave4_Q_wave1_3_A", "wave4_Q_wave4_A", "synthetic"


def questions_in(blocks):
    """Yield id, text, choices, and the answer (from 1, None if missing) of each question."""
    for block in json.loads(blocks):
        for question in block["Questions"]:
            if question["QuestionType"] not in CHOICES:
                continue
            choices = question[CHOICES[question["QuestionType"]]]
            rows = question.get("Rows", [""])
            answers = question["Answers"].get("SelectedByPosition")
            if not isinstance(answers, list):
                answers = [answers] * len(rows)
            for row, answer in zip(rows, answers, strict=True):
                text = " ".join(f"{question['QuestionText']} {row}".split())
                yield f"{question['QuestionID']} {row}", text, choices, answer


def drawn(messages, seed):
    """Draw each answer: the chance level, played."""
    rng = Random(f"{seed} {messages}")
    questions = QUESTION.findall(messages[-1]["content"])
    return json.dumps({name: rng.randint(1, choices.count("\n")) for name, choices in questions})


def frequent(messages, seed):
    """Give the choice that this person took most often before, or else the first one."""
    persona, _, survey = messages[-1]["content"].partition(ASKED)
    counts = Counter(re.findall(r"^Answer: \d+ - (.*)", persona, re.M))
    answers = {}
    for name, lines in QUESTION.findall(survey):
        choices = re.findall(" = (.*)", lines)
        answers[name] = 1 + choices.index(max(choices, key=counts.__getitem__))
    return json.dumps(answers)


class Agreement(Scoring):
    """Figures of sums over the answers of all people: ratios then have no small denominators."""

    secondary = (Metric("Retest", definition="share of questions that people answer as before"),)

    def statistics(self, records):
        return [record["metrics"]["sums"] for record in records]

    def figures(self, totals):
        questions, right, retest, _, n, x, y, xx, yy, xy = totals.T
        pearson = (n * xy - x * y) / numpy.sqrt((n * xx - x * x) * (n * yy - y * y))
        return numpy.column_stack([right / questions, right / retest, pearson, retest / questions])

    def chance(self, scored):
        questions, _, retest, guessed = scored.totals[:4]
        relative = guessed / max(retest, 1)
        return {"Accuracy": guessed / questions, "Relative": relative, "Correlation": 0.0}


class Twins(Benchmark):
    name = "twins"
    subsets = {"wave4": "wave_persona_chunk_001.parquet"}
    task_files = TaskFiles(key_field="pid", data_set="LLM-Digital-Twin/Twin-2K-500")
    metrics = (
        Metric("Accuracy", definition="share of questions answered as the person does in wave 4"),
        Metric("Relative", bounds=(0, None), definition="Accuracy / Retest"),
        Metric("Correlation", unit="r", bounds=(-1, 1), definition="of answers on a scale"),
    )
    about = About(title="Twins", user="person")
    baselines = {"frequent": frequent, "drawn": drawn}
    scoring = Agreement()

    def parse(self, line, subset):
        persona = line["wave1_3_persona_text"]
        if not isinstance(persona, str):
            raise ValueError("expected text")
        before = {name: answer for name, _, _, answer in questions_in(line["wave4_Q_wave1_3_A"])}
        questions = [*questions_in(line["wave4_Q_wave4_A"])]
        asked = [(text, choices) for _, text, choices, _ in questions]
        truth = [(before[name], now, len(choices)) for name, _, choices, now in questions]
        given = {"persona": persona, "questions": asked}
        return Task(line["pid"], given=given, truth=truth, synthetic="synthetic" in line)

    async def play(self, given, chat):
        lines = [given["persona"], ASKED]
        for number, (text, choices) in enumerate(given["questions"], 1):
            lines.append(f"Q{number}. {text}")
            lines.extend(f"  {place} = {choice}" for place, choice in enumerate(choices, 1))

        def read(reply):
            answers = [reply[f"Q{number}"] for number in range(1, len(given["questions"]) + 1)]
            for (text, choices), answer in zip(given["questions"], answers, strict=True):
                if answer not in range(1, len(choices) + 1):
                    raise InvalidReply("no_choice", f"no number of a choice in: {text}")
            return answers

        return await chat.json("\n".join([*lines, FORM]), read=read)

    def measure(self, task, answer):
        answers = answer or [0] * len(task.truth)
        rows = [[0.0] * 10]
        for (before, now, size), said in zip(task.truth, answers, strict=True):
            if before and now:
                on_scale = float(size > 2 and said > 0)
                x = on_scale * said / size
                y = on_scale * now / size
                hits = [1.0, float(said == now), float(before == now), 1 / size]
                rows.append([*hits, on_scale, x, y, x * x, y * y, x * y])
        return {"sums": numpy.sum(rows, axis=0).tolist()}

    @classmethod
    def synthesise(cls, folder, users, seed):
        rng = Random(seed)
        table = io.StringIO()
        rows = csv.writer(table, lineterminator="\n")
        rows.writerow(COLUMNS)
        for pid in range(1, users + 1):
            mood = [rng.randint(1, 5) for topic in TOPICS]
            earlier = [f"Answer: {place} - {SCALE[place - 1]}" for place in mood]
            rows.writerow([pid, "\n".join(earlier), wave(mood, rng), wave(mood, rng), "yes"])
        return {"wave_persona_chunk_001.csv": [table.getvalue().encode()]}


def wave(mood, rng):
    """Return questions as published, with answers of which most are those of the person's mood."""
    answers = [place if rng.random() < 0.7 else rng.randint(1, 5) for place in mood]
    question = {"QuestionID": "QID1", "QuestionType": "Matrix", "QuestionText": "Money for"}
    question |= {"Rows": TOPICS, "Columns": SCALE, "Answers": {"SelectedByPosition": answers}}
    return json.dumps([{"BlockName": "Budget", "Questions": [question]}])
