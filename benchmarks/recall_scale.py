"""What a search costs when many people share a store: 1,000 turns of 10 users, and 100,000 of 1,000.

Turns and vectors are made from a fixed seed. Each turn has 10 to 40 words of a vocabulary with Zipf's frequencies,
whose most frequent words are English ones; vectors are of 384 dimensions, unit length, and lie around 200 centres,
a few of which are a user's own. The embedder looks a text's vector up, so that no time goes into a model. A question
takes six words of a turn and four of the vocabulary; its vector is near the turn's.

Each participant has both stores open, as its documentation says to keep many users apart (`searchers.py`), filled
the fastest way that is public; one that is not filled after five minutes is measured with the users that it has
then. Questions of random users go to the small and the large store in turn, k = 10. `found` is the share of
questions whose turn came back; `filled` the seconds that filling took until everything could be found.

Goals: memlayer's median with 100,000 turns is at most twice that with 1,000, its 95th percentile is under 50 ms, and
no peer of the same size has a lower median.

Usage: python benchmarks/recall_scale.py [--quick] [--json] [--check] [--only NAME…]
"""

import itertools
import random
import statistics
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from goals import goal, options, tell
from searchers import Chroma, LangChain, LangGraphSqlite, LlamaIndexBlock, Mem0, Memlayer
from talks import Turn

PARTICIPANTS = (Memlayer, Chroma, LangChain, LlamaIndexBlock, LangGraphSqlite, Mem0)
TURNS = 100  # of each user
USERS, QUICK_USERS = (10, 1000), (2, 8)
QUESTIONS, QUICK_QUESTIONS = 300, 20
WARM = 10
PATIENCE = 300.0  # seconds
DIMENSION, CENTRES = 384, 200
K = 10
GOAL_GROWTH, GOAL_P95, GOAL_PEER = 2.0, 50.0, 1.0
FREQUENT = """
    the I to and a you of it is that in my was for on have we so but with me be this at not do are like just what
    about they from can all your one when time had there out would get know up go think if been really some how
""".split()  # noqa: SIM905  (a list of words reads better as prose)
VOCABULARY = FREQUENT + [
    "".join(parts)
    for parts in itertools.islice(
        itertools.product(
            ("ba", "ke", "li", "mo", "nu", "ra", "se", "ti", "vo", "zu"),
            ("den", "fal", "gor", "lin", "mar", "nes", "pol", "ros", "sim", "tun"),
            ("", "a", "er", "ing", "ow", "y"),
            ("", "ka", "lo", "mi", "pe", "ru", "sta", "tle"),
        ),
        None,
    )
]
CUMULATED = list(itertools.accumulate(1 / rank for rank in range(1, len(VOCABULARY) + 1)))


class Runtime:
    """All users' turns, the vector of every text, and questions without end."""

    def __init__(self, users):
        self.chance = random.Random(7)
        self.noise = np.random.default_rng(7)
        self.centres = self.noise.normal(size=(CENTRES, DIMENSION))
        self.vectors = {"": unit(np.ones(DIMENSION))}  # asked for by those that want to know the dimension
        self.turns = {f"user-{number}": self.talk() for number in range(users)}

    def words(self, count):
        return self.chance.choices(VOCABULARY, cum_weights=CUMULATED, k=count)

    def talk(self):
        own = self.chance.sample(range(CENTRES), 5)
        return [self.turn(number, self.centres[self.chance.choice(own)]) for number in range(TURNS)]

    def turn(self, number, centre):
        role = ("user", "assistant")[number % 2]
        text = " ".join(self.words(self.chance.randint(10, 40)))
        turn = Turn(f"turn-{number}", f"session-{number // 20}", role, None, text, None)
        vector = unit(centre + self.noise.normal(size=DIMENSION))
        for stored in (text, turn.line, f"<message role='{role}'>{turn.line}</message>"):
            self.vectors[stored] = vector
        return turn

    def question(self, users):
        """Return a user, a question, and the id of the turn that it is about."""
        user = self.chance.choice(users)
        turn = self.chance.choice(self.turns[user])
        known = turn.text.split()
        words = self.chance.sample(known, 6) + self.words(4)
        self.chance.shuffle(words)
        text = " ".join(words)
        self.vectors[text] = unit(self.vectors[turn.text] + 0.03 * self.noise.normal(size=DIMENSION))
        return user, text, turn.id

    def embed(self, texts):
        other = next(iter(self.vectors.values()))  # for the texts that an embedder is measured with
        return [self.vectors.get(text, other).tolist() for text in texts]


def unit(vector):
    return (vector / np.linalg.norm(vector)).astype(np.float32)


class Store:
    """A participant with some users' turns, and what was measured of it."""

    def __init__(self, made, folder, rt, users):
        start = time.perf_counter()
        folder.mkdir()
        self.searcher, self.users = made(folder, rt.embed), []
        for user in users:
            if time.perf_counter() - start > PATIENCE:
                break
            self.searcher.fill(user, rt.turns[user])
            self.users.append(user)
        self.searcher.ready()
        self.filled = time.perf_counter() - start
        self.taken, self.found = [], []

    def ask(self, user, text, turn):
        start = time.perf_counter()
        found = self.searcher.search(user, text, K)
        self.taken.append(time.perf_counter() - start)
        self.found.append(turn in found)

    def told(self):
        taken = sorted(1000 * seconds for seconds in self.taken[WARM:])
        return {
            "turns": TURNS * len(self.users),
            "median_ms": round(statistics.median(taken), 3),
            "p95_ms": round(taken[len(taken) * 95 // 100], 3),
            "found": round(statistics.mean(self.found), 3),
            "filled_s": round(self.filled, 1),
        }


def measure(made, rt, sizes, questions):
    print(f"{made.name} …", file=sys.stderr)
    users = list(rt.turns)
    with tempfile.TemporaryDirectory(prefix="memlayer-bench-", ignore_cleanup_errors=True) as folder:
        stores = []
        try:
            stores.extend(Store(made, Path(folder, str(size)), rt, users[:size]) for size in sizes)
            for _ in range(WARM + questions):
                for store in stores:
                    store.ask(*rt.question(store.users))
            return {str(TURNS * size): store.told() for size, store in zip(sizes, stores, strict=True)}
        finally:
            for store in stores:
                store.searcher.close()


def judged(found, sizes):
    small, large = (str(TURNS * size) for size in sizes)
    if Memlayer.name not in found:
        return []
    ours = found[Memlayer.name]
    growth = ours[large]["median_ms"] / ours[small]["median_ms"]
    goals = [
        goal(
            f"memlayer: median with {int(large):,} turns, times {int(small):,}", growth, at_most=GOAL_GROWTH
        ),
        goal("memlayer: 95th percentile, ms", ours[large]["p95_ms"], at_most=GOAL_P95),
    ]
    for name, theirs in found.items():
        if name != Memlayer.name and theirs[large]["turns"] == ours[large]["turns"]:
            times = theirs[large]["median_ms"] / ours[large]["median_ms"]
            goals.append(goal(f"median of {name}, times memlayer's", times, at_least=GOAL_PEER))
    return goals


def show(result):
    print(f"Milliseconds of a search by one of many users, {TURNS} turns each, k = {K}")
    print(f"{'':>32}{'turns':>9}{'median':>9}{'p95':>9}{'found':>8}{'filled, s':>11}")
    for name, sizes in result["found"].items():
        for size, told in sizes.items():
            short = "" if told["turns"] == int(size) else f"  of {int(size):,}: the time for filling was over"
            print(
                f"{name:>32}{told['turns']:>9,}{told['median_ms']:>9.2f}{told['p95_ms']:>9.2f}"
                f"{told['found']:>8.0%}{told['filled_s']:>11.1f}{short}"
            )
    for name, reason in result["skipped"].items():
        print(f"{name}: SKIPPED, {reason}")


def main():
    parser = options(__doc__, "200 and 800 turns, few questions")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="those whose name holds one of these words")
    asked = parser.parse_args()
    sizes = QUICK_USERS if asked.quick else USERS
    rt = Runtime(sizes[-1])
    wanted = [
        made
        for made in PARTICIPANTS
        if not asked.only or any(word.lower() in made.name.lower() for word in asked.only)
    ]
    skipped = {made.name: reason for made in wanted if (reason := made.missing())}
    found = {
        made.name: measure(made, rt, sizes, QUICK_QUESTIONS if asked.quick else QUESTIONS)
        for made in wanted
        if made.name not in skipped
    }
    tell({"found": found, "skipped": skipped, "goals": judged(found, sizes)}, asked, show)


if __name__ == "__main__":
    main()
