"""Service: an agent with tools serves a simulated customer, and then the shop's state is checked.

Tasks, shop and policy have the form of tau2-bench's retail domain (Barres et al. 2025,
arXiv:2506.07982; MIT licence). A task succeeds if the shop ends as its expected actions leave it,
and the agent has said what it had to. Tasks that need other tools than these are not scored."""

import copy
import inspect
import json
import re
from random import Random

from harness import About, Benchmark, InvalidReply, Metric, Role, Task, TaskFiles
from harness.graders import PassHatK
from harness.model import Message, Request

MAX_REPLIES = 60
GREETING = "How can I help you?"
STOP = "###STOP###"
CUSTOMER = f"""Play a customer of a shop, who talks to its agent. Say one short message at a time,
and no more than you are asked for. Say {STOP} once your wish is met or refused.\n\n"""


class Shop:
    """Tools on a shop. `touched` are copies of the users and orders that a play has looked at."""

    def __init__(self, data):
        self.data = data
        self.touched = {}

    def entry(self, kind, key):
        return self.touched.setdefault((kind, key), copy.deepcopy(self.data[kind][key]))

    def order(self, order_id, status):
        order = self.entry("orders", order_id)
        if order["status"] != status:
            raise ValueError(f"the order is {order['status']}, not {status}")
        return order

    def find_user_id_by_email(self, email):
        users = self.data["users"].items()
        return next((key for key, user in users if user["email"] == email), "no such user")

    def get_user_details(self, user_id):
        return self.entry("users", user_id)

    def get_order_details(self, order_id):
        return self.entry("orders", order_id)

    def get_product_details(self, product_id):
        return self.entry("products", product_id)

    def cancel_pending_order(self, order_id, reason):
        order = self.order(order_id, "pending")
        paid = order["payment_history"]
        order["payment_history"] = paid + [one | {"transaction_type": "refund"} for one in paid]
        order |= {"status": "cancelled", "cancel_reason": reason}
        return order

    def return_delivered_order_items(self, order_id, item_ids, payment_method_id):
        order = self.order(order_id, "delivered")
        order |= {"status": "return requested", "return_items": sorted(item_ids)}
        order["return_payment_method_id"] = payment_method_id
        return order

    def call(self, call):
        """Return what the agent gets for a call: the result, or what was wrong with it."""
        try:
            return json.dumps(TOOLS[call.name](self, **call.json()), ensure_ascii=False)
        except (InvalidReply, KeyError, TypeError, ValueError) as error:
            return f"Error: {error}"

    def state(self):
        """Return what differs from the shop as it was."""
        entries = self.touched.items()
        return {f"{k} {key}": now for (k, key), now in entries if now != self.data[k][key]}


VERBS = "find_", "get_", "cancel_", "return_"
TOOLS = {name: tool for name, tool in vars(Shop).items() if name.startswith(VERBS)}


def described(name):
    """Return a tool in OpenAI's form, from the signature of its method."""
    texts = {"type": "array", "items": {"type": "string"}}
    names = list(inspect.signature(TOOLS[name]).parameters)[1:]
    properties = {key: texts if key.endswith("_ids") else {"type": "string"} for key in names}
    schema = {"type": "object", "properties": properties, "required": list(properties)}
    return {"type": "function", "function": {"name": name, "parameters": schema}}


def agent(messages, seed):
    """Cancel the order that the customer names; one time in three, by the seed, forget to."""
    text = str(messages[2:3])
    order = re.search(r"#W\d+", text)
    forgets = Random(f"{seed} {text}").random() < 1 / 3
    if order is None or forgets or messages[-1]["role"] == "tool":
        return "It is done."
    arguments = {"order_id": order[0], "reason": "no longer needed"}
    function = {"name": "cancel_pending_order", "arguments": json.dumps(arguments)}
    return {"tool_calls": [{"id": "1", "function": function}]}


def customer(messages, seed):
    """Tell the wish, then end."""
    wish = messages[0]["content"].partition("\n\n")[2]
    return wish if wish and len(messages) == 2 else STOP


class Service(Benchmark):
    name = "service"
    subsets = {"retail": "tasks.json"}
    task_files = TaskFiles(key_field="id", data_files=("db.json", "policy.md"))
    metrics = (Metric("Success", definition="the shop is as it should be, and all is said"),)
    roles = {"customer": Role("plays the customer")}
    baselines = {"agent": agent, "customer": customer}
    about = About(title="Service", user="customer")
    scoring = PassHatK("Success", ks=(2, 4))

    def prepare(self):
        self.shop = json.loads((self.folder / "db.json").read_text("utf-8"))
        self.policy = (self.folder / "policy.md").read_text("utf-8")

    def parse(self, line, subset):
        wish = line["user_scenario"]["instructions"]
        criteria = line["evaluation_criteria"]
        actions = [(action["name"], action["arguments"]) for action in criteria["actions"] or []]
        truth = {"actions": actions, "said": criteria.get("communicate_info") or []}
        given = "\n".join(text for text in wish.values() if text)
        return Task(line["id"], given=given, truth=truth, steps=4, synthetic="synthetic" in line)

    async def play(self, given, chat):
        shop, said = Shop(self.shop), []
        tools = [described(name) for name in TOOLS]
        to_agent = [Message("system", self.policy), Message("assistant", GREETING)]
        to_customer = [Message("system", CUSTOMER + given), Message("user", GREETING)]
        for _ in range(MAX_REPLIES):
            if to_customer[-1].role == "user":
                words = await chat.text(to_customer, role="customer")
                if STOP in words:
                    return {"state": shop.state(), "said": " ".join(said)}
                to_customer.append(Message("assistant", words))
                to_agent.append(Message("user", words))
            reply = await chat.ask(Request(tuple(to_agent), json_object=False, tools=tools))
            to_agent.append(reply.as_message())
            to_agent += [call.result(shop.call(call)) for call in reply.tool_calls]
            if not reply.tool_calls:
                said.append(reply.text)
                to_customer.append(Message("user", reply.text))
        raise InvalidReply("endless")

    def measure(self, task, answer):
        expected = Shop(self.shop)
        for name, arguments in task.truth["actions"]:
            if name not in TOOLS:
                return {"Success": None}
            TOOLS[name](expected, **arguments)
        if answer is None:
            return {"Success": 0.0}
        said = answer["said"].replace(",", "").lower()
        is_said = all(text.lower() in said for text in task.truth["said"])
        return {"Success": float(is_said and answer["state"] == expected.state())}
