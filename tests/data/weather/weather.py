"""A benchmark for tests: which of two cities is warmer, found with a tool that is called for both in one reply."""

import json
import math

from harness import Benchmark, InvalidReply, Metric, Task
from harness.model import Message, Request

DEGREES = {"Oslo": "3", "Rome": "19", "北京": "11"}
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "temperature",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string"}},
                "required": ["city"],
            },
        },
    }
]
LOGPROBS = {"logprobs": True, "top_logprobs": 2}


def thermometer(messages, seed):
    """Calls the tool for each city, then names the warmer one."""
    if messages[-1]["role"] == "user":
        cities = messages[-1]["content"].removesuffix("?").split(" or ")
        calls = [
            {
                "id": f"t{number}",
                "function": {"name": "temperature", "arguments": json.dumps({"city": city})},
            }
            for number, city in enumerate(cities)
        ]
        return {"tool_calls": calls}
    warmest = max(messages[-2:], key=lambda message: int(message["content"]))
    [called] = [call for call in messages[-3]["tool_calls"] if call["id"] == warmest["tool_call_id"]]
    city = json.loads(called["function"]["arguments"])["city"]
    return {"content": city, "logprobs": {"content": [{"token": city, "logprob": -0.25, "top_logprobs": []}]}}


class Weather(Benchmark):
    name = "weather"
    subsets = {"pairs": "pairs.jsonl"}
    metrics = (Metric("Right"), Metric("Certainty"))
    baselines = {"thermometer": thermometer}

    def parse(self, line, subset):
        first, second = line["cities"]
        return Task(line["user_id"], given=f"{first} or {second}?", truth=line["warmer"], steps=2)

    async def play(self, given, chat):
        asked = Message("user", given)
        first = await chat.ask(Request((asked,), json_object=False, tools=TOOLS, parameters=LOGPROBS))
        if len(first.tool_calls) != 2:
            raise InvalidReply("no_calls")
        results = [call.result(DEGREES.get(call.json().get("city"), "0")) for call in first.tool_calls]
        messages = (asked, first.as_message(), *results)
        last = await chat.ask(Request(messages, json_object=False, tools=TOOLS, parameters=LOGPROBS))
        if last.logprobs is None:
            raise InvalidReply("no_logprobs")
        return {"city": last.text, "logprob": sum(token["logprob"] for token in last.logprobs["content"])}

    def measure(self, task, answer):
        if answer is None:
            return {"Right": 0.0, "Certainty": None}
        return {"Right": float(answer["city"] == task.truth), "Certainty": math.exp(answer["logprob"])}
