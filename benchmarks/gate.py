"""Whether a context recalls what answers a question, and is silent where nothing from the past is needed.

A set (`--data`) has, in English and in Chinese, short facts that users tell with a question that each answers in
other words, small talk, and tasks that need nothing of a user's past; all were written for this project, under its
licence. The gate was made with `gate` and `gate_second`; `gate_reserve` was kept back: look at its results last, and
change nothing because of a text in it. The facts are stored as one user's messages, in memories of 10, 40 and 400 texts
(the largest is filled with the talks of `data/bilingual.json`). Then a fresh session of the same user asks `chat.context`:

- `answered`: the share of the questions whose fact is told; `unmarked`: the same without the question mark;
- `lines`: how many lines are told to an answered question, as a mean;
- `small talk`, `tasks`: the share of them that recall anything; `near`: the same of tasks whose topic is that of a fact,
  as "How do bees make honey?" for one who keeps bees. Instructions ("Always answer in …") are not counted: they are told
  wherever help is asked for.

Goals with MiniLM in English, and together with the multilingual embedder in both languages: at least 95 % answered, at most
3 % of small talk and 10 % of tasks.

Usage: python benchmarks/gate.py [--data gate|gate_second|gate_reserve] [--embedder minilm|minilm+multilingual|hashing]
       [--third 0|1|2] [--verbose] [--quick] [--json] [--check]
"""

import json
import statistics
import tempfile
from contextlib import ExitStack
from pathlib import Path

from contexts import shown
from goals import goal, options, tell

from memlayer_core import Memory, Message, Settings
from memlayer_core.models import minilm, multilingual
from memlayer_core.storage.terms import is_instruction

DATA = Path(__file__).resolve().parent / "data"
SESSION = 10  # texts
SIZES = (10, 40, 400)
SETS = ("gate", "gate_second", "gate_reserve")
SILENT = ("small talk", "tasks", "near")
COLUMNS = ("answered", "unmarked", "lines", *SILENT)
THIRDS = 3
PAIR = "minilm+multilingual"


def users_of(language, size, facts):
    """Return the users' memories: role and text by id, `size` for each, so that each fact is in at least one."""
    known = {f"fact-{at}": ("user", one["fact"]) for at, one in enumerate(facts)}
    if size <= len(known):
        starts = [min(start, len(known) - size) for start in range(0, len(known), size)]
        return [dict(list(known.items())[start : start + size]) for start in starts]
    talks = json.loads((DATA / "bilingual.json").read_text(encoding="utf-8"))
    said = {
        turn["id"]: (turn["role"], turn["text"])
        for talk in talks
        if talk["language"] == language
        for session in talk["sessions"]
        for turn in session["turns"]
    }
    return [known | dict(list(said.items())[: size - len(known)])]


def fill(memory, users):
    """Store each user's texts, ten a session."""
    for user, texts in enumerate(users):
        for start, some in enumerate(batched(texts.items(), SESSION)):
            chat = memory.chat(user_id=str(user), session_id=f"s{start}")
            chat.add_messages(Message(role, text, id=one) for one, (role, text) in some)
    memory.flush(timeout=600)


def batched(values, size):
    values = list(values)
    return [values[start : start + size] for start in range(0, len(values), size)]


def answers(memory, users, data, third=None):
    """Return of each text that is asked: its column, what came of it, and itself."""
    rows = []
    for at, one in asked_of(data["facts"], third):
        fact = f"fact-{at}"
        user = next(user for user, texts in enumerate(users) if fact in texts)
        told = shown(memory, str(user), one["question"]).ids
        rows.append(("answered", fact in told, one["question"]))
        if told:
            rows.append(("lines", len(told), one["question"]))
        bare = one["question"].rstrip("?\uff1f")
        rows.append(("unmarked", fact in shown(memory, str(user), bare).ids, bare))
    for column in SILENT:
        for at, text in asked_of(data.get(column.replace(" ", "_"), ()), third):
            # A near task is asked by everybody: one of them told the fact.
            who = range(len(users)) if column == "near" else [at % len(users)]
            rows.append((column, any(recalls(memory, users, user, text) for user in who), text))
    return rows


def recalls(memory, users, user, text):
    """Tell whether a context has anything but instructions for a text."""
    told = shown(memory, str(user), text).ids
    return any(not is_instruction(users[user].get(one, ("", ""))[1]) for one in told)


def asked_of(texts, third):
    return [(at, one) for at, one in enumerate(texts) if third is None or at % THIRDS == third]


def means(rows):
    """Return the mean of each column: in percent, but for the lines. None: there is nothing to count."""
    found = {}
    for column in COLUMNS:
        values = [value for where, value, _ in rows if where == column]
        scale = 1 if column == "lines" else 100
        found[column] = round(scale * statistics.mean(values), 1) if values else None
    return found


def measure(name, language, size, embedder, third, verbose):
    data = json.loads((DATA / f"{name}.json").read_text(encoding="utf-8"))[language]
    users = users_of(language, size, data["facts"])
    settings = Settings(durability="normal")
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(ignore_cleanup_errors=True))
        opened = Memory.open(folder, embedder=embedder, settings=settings)
        memory = stack.enter_context(opened)
        fill(memory, users)
        rows = answers(memory, users, data, third)
    if verbose:
        for column, value, text in rows:
            if column != "lines" and bool(value) != (column in {"answered", "unmarked"}):
                print(f"{column:>12} {embedder} {size:>4}: {text}")
    return means(rows)


def show(result):
    print(f"{'%, but for lines':>24}" + "".join(f"{column:>12}" for column in COLUMNS))
    for name, found in result["found"].items():
        print(
            f"{name:>24}"
            + "".join(f"{'-' if (value := found[column]) is None else value:>12}" for column in COLUMNS)
        )


def main():
    parser = options(__doc__, "memories of 40 texts in English")
    parser.add_argument("--data", choices=SETS, default="gate", help="which set")
    parser.add_argument("--embedder", choices=("minilm", PAIR, "hashing"), help="one of them only")
    parser.add_argument("--third", type=int, choices=range(THIRDS), help="every third text, from this one on")
    parser.add_argument("--verbose", action="store_true", help="print each text that went wrong")
    asked = parser.parse_args()
    english = minilm.is_present(minilm.folder())
    both = english and multilingual.is_present()
    embedders = ["minilm"] * english + [PAIR] * both + ["hashing"]
    cases = [
        (language, size, embedder)
        for embedder in embedders
        if asked.embedder in {None, embedder}
        for language in ("en",) + (() if asked.quick else ("zh",))
        for size in ((40,) if asked.quick else SIZES)
    ]
    found = {
        f"{embedder}, {language}, {size}": measure(
            asked.data, language, size, embedder, asked.third, asked.verbose
        )
        for language, size, embedder in cases
    }
    goals = []
    for name, told in found.items():
        if name.startswith(("minilm, en", PAIR)):
            goals += [
                goal(f"{name}: % answered", told["answered"], at_least=95),
                goal(f"{name}: % of small talk", told["small talk"], at_most=3),
                goal(f"{name}: % of tasks", told["tasks"], at_most=10),
            ]
    tell({"found": found, "goals": goals}, asked, show)


if __name__ == "__main__":
    main()
