"""StarRating: a taste profile from a user's past reviews, then the stars of the next one."""

from harness import Benchmark, Chat, InvalidReply, Metric, Task

PROFILE = (
    'Reviews of one user:\n{reviews}\nDescribe the taste of this user. Answer as JSON: {{"profile":'
    ' "..."}}'
)
RATING = (
    'Profile of a user: {profile}\nNext item: {item}\nHow many stars? Answer as JSON: {{"stars": 1'
    " to 5}}"
)


def four_stars(messages, seed):
    """Answer as if everybody gave four stars: the floor that a model has to beat."""
    return '{"profile": "likes most places", "stars": 4}'


class StarRating(Benchmark):
    """Two requests a user: a taste profile from past reviews, then the stars of the next one."""

    name = "stars"
    version = "1"
    subsets = {"yelp": "yelp_star_tasks.jsonl"}
    metrics = (Metric("MAE", better="lower", unit="stars", bounds=(0, 4)), Metric("Exact"))
    baselines = {"four-stars": four_stars}

    def parse(self, line, subset):
        if line["stars"] not in range(1, 6):
            raise ValueError("expected stars from 1 to 5")
        if not isinstance(line["item"], str):
            raise ValueError("expected text")
        reviews = "\n".join(
            f"{review['stars']} stars: {review['text']}" for review in line["reviews"]
        )
        given = {"reviews": reviews, "item": line["item"]}
        return Task(line["user_id"], steps=2, given=given, truth=line["stars"])

    async def play(self, given, chat: Chat):
        profile = await chat.json(PROFILE.format(reviews=given["reviews"]), read=_profile)
        stars = await chat.json(RATING.format(profile=profile, item=given["item"]), read=_stars)
        return {"profile": profile, "stars": stars}

    def measure(self, task, answer):
        worst = max(task.truth - 1, 5 - task.truth)
        error = worst if answer is None else abs(answer["stars"] - task.truth)
        return {"MAE": error, "Exact": float(error == 0)}


def _profile(reply):
    if not isinstance(reply["profile"], str) or not reply["profile"].strip():
        raise InvalidReply("no_profile", "profile is empty or no text")
    return reply["profile"]


def _stars(reply):
    if reply["stars"] not in range(1, 6):
        raise InvalidReply("no_stars", "stars is no whole number from 1 to 5")
    return reply["stars"]
