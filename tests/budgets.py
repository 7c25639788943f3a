"""How large the project is, and how large it may be. `tests/test_budgets.py` holds each number.

    python tests/budgets.py           # each number, and its ceiling
    python tests/budgets.py --lower   # write lower numbers into the ceilings

Ceilings are in `tests/budgets.toml`. A number there may only go down; what has a comment beside it stays as it is.

A line of code is a line with a token that is not a comment or a docstring, as the formatter writes it: a file with `;`, or with
a line over the formatter's limit that has no string, is refused. A function counts with its nested ones.

A number that was chosen on data (a threshold, a weight) says so beside its constant, with what it was chosen on:

    _BAR = 2.0  # chosen on: three talks, kept on six others
"""

import ast
import inspect
import re
import sys
import tokenize
import tomllib
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from types import FrameType

from memlayer_core import Memory, Settings, __all__ as root_names
from memlayer_core.opening import Options
from memlayer_core.storage.tables import tables

ROOT = Path(__file__).parents[1]
CEILINGS = Path(__file__).with_suffix(".toml")
CORE, SERVER = "memlayer_core", "packages/memlayer-server"
PACKAGES = (CORE, "langchain_memlayer", "llamaindex_memlayer", SERVER)
LONG = 60
"""Lines of code that a function may have."""

_LIMIT = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["ruff"]["line-length"]
_CHOSEN = re.compile(r"#+\s*chosen on: *\S")
# A string that begins a statement is a docstring.
_BETWEEN = {tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT}
_NO_CODE = {*_BETWEEN, tokenize.COMMENT, tokenize.NL, tokenize.ENDMARKER}


class Source:
    """A file, and its lines of code."""

    def __init__(self, path: Path) -> None:
        self.name = path.relative_to(ROOT).as_posix()
        text = path.read_text(encoding="utf-8")
        self.tree = ast.parse(text)
        self.code: set[int] = set()
        self.chosen = 0
        self.faults: list[str] = []
        begins = True
        for token in tokenize.generate_tokens(iter(text.splitlines(keepends=True)).__next__):
            self.chosen += token.type == tokenize.COMMENT and _CHOSEN.match(token.string) is not None
            if token.type not in _NO_CODE and not (begins and token.type == tokenize.STRING):
                self.code.update(range(token.start[0], token.end[0] + 1))
                self._judge(token)
            begins = token.type in _BETWEEN or (begins and token.type in _NO_CODE)

    def _judge(self, token: tokenize.TokenInfo) -> None:
        where = f"{self.name}:{token.start[0]}"
        if token.string == ";":
            self.faults.append(f"{where}: `;` joins two statements: write each on a line of its own")
        if token.end[1] > _LIMIT and token.type != tokenize.STRING and not set("\"'") & set(token.line):
            self.faults.append(f"{where}: the line is longer than {_LIMIT}: run `ruff format`")

    def functions(self) -> Iterator[tuple[str, int]]:
        """Yield each function's place, and its lines of code."""
        for node in ast.walk(self.tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                yield f"{self.name}:{node.lineno} {node.name}", self._lines(node)

    def imports(self) -> int:
        """Count the lines of imports, and of `__all__`."""
        return sum(
            self._lines(node)
            for node in ast.walk(self.tree)
            if isinstance(node, ast.Import | ast.ImportFrom)
            or (isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__")
        )

    def _lines(self, node: ast.stmt) -> int:
        return len(self.code.intersection(range(node.lineno, (node.end_lineno or node.lineno) + 1)))


@cache
def sources(folder: str) -> list[Source]:
    """Read the Python files of a folder."""
    paths = sorted((ROOT / folder).rglob("*.py"))
    return [Source(path) for path in paths if folder != SERVER or "tests" not in path.parts]


def long_functions() -> dict[str, int]:
    """Return the packages' functions that are too long."""
    functions = (one for package in PACKAGES for source in sources(package) for one in source.functions())
    return {name: lines for name, lines in functions if lines > LONG}


@cache
def numbers() -> dict[str, float]:
    """Count everything that has a budget."""
    counts: Counter[str] = Counter()
    homes = [(folder, source) for folder in (*PACKAGES, "tests") for source in sources(folder)]
    homes += [("tests", source) for source in sources(f"{SERVER}/tests")]
    for folder, source in homes:
        room = source.name.split("/")[1] if source.name.count("/") > 1 else "(root)"
        for place in (folder, *([f"{folder}/{room}"] if folder == CORE else [])):
            counts[f"lines of {place}"] += len(source.code)
            counts[f"files of {place}"] += 1
    core = sources(CORE)
    share = sum(source.imports() for source in core) / sum(len(source.code) for source in core)
    parameters = inspect.signature(Memory.open).parameters.values()
    return {
        **counts,
        "tables": len(tables.tables) - 1,  # that of words is an index
        "settings": len(Settings.model_fields),
        "keyword parameters of Memory.open": sum(one.kind is one.KEYWORD_ONLY for one in parameters)
        + len(Options.__annotations__),
        "public names of the root": len(root_names),
        "percent of imports and __all__ in the core": round(100 * share, 1),
        "numbers chosen on data": sum(source.chosen for package in PACKAGES for source in sources(package)),
        f"functions of more than {LONG} lines": len(long_functions()),
        **_trips(),
    }


def _trips() -> dict[str, int]:
    """Count the named functions and the files that one `add` and one `context` run in their thread."""
    with (
        TemporaryDirectory() as folder,  # what is in memory is read by another thread
        Memory.open(folder, embedder="hashing", tokenizer="estimate") as memory,
    ):
        earlier = memory.chat(user_id="louis", session_id="in-may")
        earlier.add("user", "I moved to Tokyo and I am allergic to nuts.")
        for number in range(15):
            earlier.add("user", f"On day {number} I repaired boat {number} of the yard.")
            earlier.add("assistant", f"Boat {number} floats again.")
        chat = memory.chat(user_id="louis", session_id="today")
        # The first one loads modules.
        for question in ("What am I allergic to?", "What should I not eat in Tokyo?"):
            memory.flush()
            added = _run(lambda asked=question: chat.add("user", asked))
            memory.flush()
            told = _run(lambda: chat.context(token_limit=3000))
        assert chat.context(token_limit=3000).recall, "nothing is recalled: what a context costs is not seen"
    return {
        f"{what} of one {verb}": count
        for verb, run in (("add", added), ("context", told))
        for what, count in (("functions", len(run)), ("files", len({file for file, _ in run})))
    }


def _run(call: Callable[[], object]) -> set[tuple[str, str]]:
    seen: set[tuple[str, str]] = set()
    folders = tuple(str(ROOT / package) for package in PACKAGES)

    def profile(frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        # It has a name.
        if event == "call" and code.co_filename.startswith(folders) and code.co_name[0] != "<":
            seen.add((code.co_filename, code.co_qualname))

    sys.setprofile(profile)
    try:
        call()
    finally:
        sys.setprofile(None)
    return seen


def ceilings() -> dict[str, float]:
    """Read the ceilings."""
    return tomllib.loads(CEILINGS.read_text())


def lower() -> None:
    """Write each number that is below its ceiling into the ceilings, and take out what is no more."""
    kept = []
    for line in CEILINGS.read_text().splitlines():
        name, _, ceiling = line.strip('"').partition('" = ')
        if re.fullmatch(r"[\d.]+", ceiling):
            number = numbers().get(name)
            kept += [] if number is None else [f'"{name}" = {min(number, float(ceiling)):g}']
        else:
            kept.append(line)
    CEILINGS.write_text("\n".join(kept) + "\n")


if __name__ == "__main__":
    if "--lower" in sys.argv:
        lower()
    held = ceilings()
    for name in dict.fromkeys([*numbers(), *held]):
        print(f"{numbers().get(name, 0):>9,}  {held.get(name, 'none'):>9}  {name}")
