"""Users' names out of what is shown of them: their key stands there instead (docs/design.md, section 5).

Prompts name the user, so personas, thoughts and replies may. A name is found in any case and as JSON escapes it, since
replies are JSON; of Latin letters not within a longer word. Not covered: one character, which is a word like any other
and names nobody, and whatever a model makes of a name (a short form, another script).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace

from harness.model import JSON, Block, Quote, Tags

WORD = re.compile(r"[A-Za-z0-9_]")
BEFORE = r"(?:(?<![A-Za-z0-9_])|(?<=\\[bfnrt])|(?<=\\u[0-9a-f]{4}))"
"""Where a word can begin: the letters of an escape before it are not part of it."""
AFTER = r"(?![A-Za-z0-9_])"


def unnamed(data: JSON) -> Callable[[str], str]:
    """What takes the name in a record out of texts."""
    name = data.get("username")
    if not isinstance(name, str) or len(name := name.strip()) < 2:
        return str
    spelt = dict.fromkeys((name, json.dumps(name, ensure_ascii=False)[1:-1], json.dumps(name)[1:-1]))
    found, key = re.compile("|".join(map(_whole, spelt)), re.IGNORECASE), str(data["user_id"])
    return lambda text: found.sub(lambda _: key, text)


def without_name(block: Block, hide: Callable[[str], str]) -> Block:
    """A block of a card, with its texts by users and models through `hide`."""
    if isinstance(block, Quote):
        return replace(block, text=hide(block.text))
    if isinstance(block, Tags):
        return replace(block, tags=tuple((hide(tag), kind) for tag, kind in block.tags))
    return block


def _whole(name: str) -> str:
    before, after = (edge if WORD.match(end) else "" for edge, end in ((BEFORE, name[0]), (AFTER, name[-1])))
    return f"{before}{re.escape(name)}{after}"
