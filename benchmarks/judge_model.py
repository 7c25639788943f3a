"""How well a chat model of yours keeps a memory: what it learns of sentences as people type them.

`data/judge.json` has 136 short talks in English, German and Chinese, each with what should become of it:

- `statement`: something that somebody says of themselves or of people around them. It must be known.
- `wish`: how somebody wants to be answered, and its taking back a week later. It must be told always, and then no more.
- `trap`: quotes, pasted text, questions, jokes, other people, things that "move". Nothing of it may be known of the user.
- `change`: something that changes a week later. The new value must be in force, and the old one not.

Each talk is a store of its own, and each of its turns is read before the next one. A record counts by what its value and its sentence
say; keys are the model's own. The result has the share of good ones by kind and language, what went wrong, and the calls and tokens.

Usage: python benchmarks/judge_model.py package.module:attribute [--only KIND…] [--language CODE…] [--quick] [--json] [--check]
The attribute is a chat model of LangChain or LlamaIndex, or a function, as `Memory.open(model=…)` takes it.
"""

import json
from collections import Counter, defaultdict
from datetime import UTC, datetime, timedelta
from importlib import import_module
from pathlib import Path

from goals import goal, options, tell

from memlayer_core import Memory, Message

DATA = Path(__file__).with_name("data") / "judge.json"
MONDAY = datetime(2026, 5, 4, 9, tzinfo=UTC)
KINDS = ("statement", "wish", "trap", "change")
FEW = 2  # talks of each kind and language in a quick run
USER = "you"


def says(records, words):
    """Tell whether the value or the sentence of a record has one of some words."""
    texts = [f"{one.value or ''} {one.raw}".casefold() for one in records]
    return any(word.casefold() in text for text in texts for word in words)


def turns_of(talk, memory):
    """Say a talk's turns, a week apart; yield what is known after each."""
    chat = memory.chat(user_id=USER, session_id="talk")
    for week, text in enumerate(talk["said"]):
        at = MONDAY + timedelta(weeks=week)
        chat.add_messages([Message("user", text, created_at=at), Message("assistant", "OK.", created_at=at)])
        memory.flush()
        yield memory.records(user_id=USER, about=None)


def faults_of(talk, memory):
    """Return what is wrong with what became of a talk."""
    states = list(turns_of(talk, memory))
    of_user = [one for one in states[-1] if one.subject == "user" and one.modality != "denies"]
    known = states[-1] if "of" in talk else of_user
    faults = [f"not known: {words[0]}" for words in talk.get("known", ()) if not says(known, words)]
    faults += [f"known: {word}" for word in talk.get("never", ()) if says(of_user, [word])]
    faults += [f"still known: {word}" for word in talk.get("old", ()) if says(of_user, [word])]
    if wish := talk.get("always"):
        begun, ended = ([one for one in state if one.always] for state in states)
        faults += [] if says(begun, wish) else [f"not told always: {wish[0]}"]
        faults += (
            [f"still told always: {wish[0]}"]
            if {one.memory_id for one in begun} & {one.memory_id for one in ended}
            else []
        )
    if (of := talk.get("of")) and not faults:
        whose = {one.subject for one in known if says([one], talk["known"][0])}
        faults += (
            []
            if any(word.casefold() in (who or "") for who in whose for word in of)
            else [f"known of {', '.join(sorted(map(str, whose)))}"]
        )
    return faults


def judge(model, talks):
    """Return the numbers of good talks by kind and language, the faults, and the costs."""
    good, every, faults, costs = Counter(), Counter(), defaultdict(list), Counter()
    for talk in talks:
        place = f"{talk['kind']}, {talk['language']}"
        with Memory.in_memory(extractor=model) as memory:
            found = faults_of(talk, memory)
            for cost in memory.admin.costs(user_id=USER):
                costs.update(calls=cost.calls, tokens_in=cost.tokens_in, tokens_out=cost.tokens_out)
            costs.update(gave_up=sum(one.outcome == "gave up" for one in memory.ledger(user_id=USER)))
        every[place] += 1
        good[place] += not found
        if found:
            faults[place].append({"said": talk["said"], "faults": found})
    shares = {place: round(100 * good[place] / every[place], 1) for place in every}
    return {"good": shares, "talks": dict(every), "faults": dict(faults), "costs": dict(costs)}


def show(result):
    for place, share in result["good"].items():
        print(f"{place:20} {share:5.1f} % of {result['talks'][place]}")
        for one in result["faults"].get(place, ()):
            print(f"    {' / '.join(one['said'])!r:.90}: {'; '.join(one['faults'])}")
    print(", ".join(f"{name} {count:,}" for name, count in result["costs"].items()))


def main():
    parser = options(__doc__, f"{FEW} talks of each kind and language")
    parser.add_argument("model", help="package.module:attribute")
    parser.add_argument("--only", nargs="+", choices=KINDS, default=KINDS)
    parser.add_argument("--language", nargs="+")
    asked = parser.parse_args()
    module, _, name = asked.model.partition(":")
    talks, left = [], Counter()
    for talk in json.loads(DATA.read_text(encoding="utf-8")):
        left[talk["kind"], talk["language"]] += 1
        is_wanted = talk["kind"] in asked.only and talk["language"] in (asked.language or [talk["language"]])
        if is_wanted and not (asked.quick and left[talk["kind"], talk["language"]] > FEW):
            talks.append(talk)
    result = judge(getattr(import_module(module), name), talks)
    result["goals"] = [goal(f"{place}, %", share, at_least=90) for place, share in result["good"].items()]
    tell(result, asked, show)


if __name__ == "__main__":
    main()
