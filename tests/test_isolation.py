"""Nothing is ever seen outside its scope, and nothing inside it disappears: a state machine tries to show otherwise."""

from collections import defaultdict
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import settings as hypothesis_settings, strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, rule
from tuned import Tuned

from memlayer_core import Memory, Scope

NAMES = "louis Louis l\u043euis louis'-- % _ * ../louis louis.louis default 🐍 e\u0301 \u00e9 None s1"
HOSTILE = [*NAMES.split(), '"; DROP TABLE memlayer_messages; --', "a" * 10_000, " louis"]
"""Among them a look-alike letter."""
ids = st.sampled_from(HOSTILE)
words = st.sampled_from(["pineapple", "mango", "東京", "tokyo", "the code"])


class Reopening(RuleBasedStateMachine):
    """A memory in a directory, which is closed and opened again, and indexes; other machines add their rules, and count."""

    settings = Tuned(index_delay=60, durability="normal", exact_scan_limit=1)

    def __init__(self) -> None:
        super().__init__()
        self.directory = TemporaryDirectory()
        self.memory = self.open()
        self.count = 0

    def open(self) -> Memory:
        return Memory.open(Path(self.directory.name) / "m", embedder="hashing", settings=self.settings)

    @rule()
    def indexes(self) -> None:
        self.memory.flush(60)

    @rule()
    def reopens(self) -> None:
        self.memory.close()
        self.memory = self.open()

    def teardown(self) -> None:
        self.memory.close()
        self.directory.cleanup()


class Isolation(Reopening):
    """Writes, searches, clears and reopens with ids that look alike; a plain dict says what is right."""

    scopes = Bundle("scopes")

    def __init__(self) -> None:
        super().__init__()
        self.said: dict[Scope, list[str]] = defaultdict(list)

    def reached(self, scope: Scope) -> set[str]:
        """Return what the user of a scope said, to its agent if it names one."""
        return {
            text
            for other, texts in self.said.items()
            if (other.tenant_id, other.user_id) == (scope.tenant_id, scope.user_id)
            if scope.agent_id in {None, other.agent_id}
            for text in texts
        }

    @rule(target=scopes, user=ids, session=ids, agent=st.none() | ids, tenant=ids)
    def someone(self, user, session, agent, tenant) -> Scope:
        return Scope(user, session, agent, tenant)

    @rule(scope=scopes, word=words)
    def says(self, scope, word) -> None:
        self.count += 1
        text = f"{word} number{self.count}"
        self.memory.chat_of(scope).add("user", text)
        self.said[scope].append(text)

    @rule(scope=scopes)
    def clears(self, scope) -> None:
        assert self.memory.chat_of(scope).clear() == len(self.said.pop(scope, []))

    @rule(scope=scopes, word=words, narrow=st.booleans())
    def searches(self, scope, word, narrow) -> None:
        ids = {name: getattr(scope, name) for name in ("user_id", "tenant_id", "agent_id")}
        session = scope.session_id if narrow else None
        found = self.memory.search(word, **ids, session_id=session, limit=1000)
        within = {*self.said.get(scope, [])} if narrow else self.reached(scope)
        assert {hit.text for hit in found} <= within
        assert {text for text in within if word in text} <= {hit.text for hit in found}

    @rule(scope=scopes, word=words)
    def reads_a_context(self, scope, word) -> None:
        context = self.memory.chat_of(scope).context(word)
        assert {piece.text for piece in context.pieces} <= self.reached(scope)

    @invariant()
    def every_session_holds_what_was_said_in_it(self) -> None:
        for scope, texts in self.said.items():
            assert [m.content for m in self.memory.chat_of(scope).history()] == texts


TestIsolation = pytest.mark.slow(Isolation.TestCase)
TestIsolation.settings = hypothesis_settings(max_examples=25, stateful_step_count=25, deadline=None)
