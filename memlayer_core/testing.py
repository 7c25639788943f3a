"""For your own tests: a suite of claims for each seam.

Subclass a suite in a test file, and give it a fixture of the name that it asks for:

    class TestMyEmbedder(EmbedderConformance):
        @pytest.fixture
        def embedder(self) -> Embedder:
            return MyEmbedder()
"""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from itertools import product
from typing import Any

from memlayer_core.message import Message, ToolCall
from memlayer_core.seams import Embedder, LanguageModel, MessageList, MessageStore, Policy, Portion, Redactor

NOON = datetime(2026, 5, 4, 12, tzinfo=UTC)
"""A fixed time to use as the present."""


_TEXTS = ("I moved to Tokyo.", "我搬到东京了。", "a" * 5000, "two\nlines", "🙂")


class EmbedderConformance:
    """What memlayer expects of an `Embedder`. The fixture `embedder` returns it."""

    def test_it_returns_one_unit_vector_for_each_text(self, embedder: Embedder) -> None:
        vectors = embedder.embed(_TEXTS)
        assert len(vectors) == len(_TEXTS)
        assert {vector.shape for vector in vectors} == {(len(vectors[0]),)}
        assert {str(vector.dtype) for vector in vectors} == {"float32"}
        assert all(abs(float(vector @ vector) - 1) < 1e-3 for vector in vectors)
        assert embedder.embed([]) == []

    def test_a_text_has_the_same_vector_alone_and_among_others(self, embedder: Embedder) -> None:
        for text, vector in zip(_TEXTS, embedder.embed(_TEXTS), strict=True):
            assert float(embedder.embed([text])[0] @ vector) > 0.999

    def test_a_query_has_a_vector_of_the_same_length(self, embedder: Embedder) -> None:
        vector = embedder.embed_query("Where did I move?")
        assert vector.shape == embedder.embed(["I moved."])[0].shape
        assert abs(float(vector @ vector) - 1) < 1e-3

    def test_the_async_method_returns_the_same(self, embedder: Embedder) -> None:
        query = asyncio.run(embedder.aembed_query(_TEXTS[0]))
        assert float(query @ embedder.embed_query(_TEXTS[0])) > 0.999

    def test_its_identity_is_a_name_that_stays(self, embedder: Embedder) -> None:
        before = embedder.identity
        embedder.embed(_TEXTS)
        assert before == embedder.identity
        assert before.strip()


class LanguageModelConformance:
    """What memlayer expects of a `LanguageModel`. The fixture `model` returns it."""

    def test_it_answers_with_text_and_counts_what_it_cost(self, model: LanguageModel) -> None:
        reply = model.ask("Sum up in one sentence.", "user: I moved to Tokyo.")
        assert isinstance(reply.text, str)
        assert all(count is None or count >= 0 for count in (reply.tokens_in, reply.tokens_out))

    def test_it_has_a_name(self, model: LanguageModel) -> None:
        assert model.name.strip()


class PolicyConformance:
    """What memlayer expects of a window `Policy`. The fixture `policy` returns it."""

    def test_what_allows_a_portion_allows_every_smaller_one(self, policy: Policy) -> None:
        sizes = (0, 1, 2, 3, 10, 40, 1000)
        portions = [Portion(*sizes) for sizes in product(sizes, sizes, (0, 10, 1000, 10**6))]
        allowed = [portion for portion in portions if policy.allows(portion)]
        for larger in allowed:
            smaller = [one for one in portions if all(a <= b for a, b in zip(one, larger, strict=True))]
            assert all(map(policy.allows, smaller)), larger

    def test_it_answers_the_same_again(self, policy: Policy) -> None:
        portion = Portion(10, 5, 500)
        assert policy.allows(portion) == policy.allows(portion)
        assert isinstance(policy.allows(portion), bool)


class RedactorConformance:
    """What memlayer expects of a `Redactor`. The fixture `redactor` returns it."""

    def test_it_returns_the_same_text_again_and_leaves_that_alone(self, redactor: Redactor) -> None:
        left = [redactor(text) for text in _TEXTS]
        assert all(isinstance(text, str) for text in left)
        assert [redactor(text) for text in (*_TEXTS, *left)] == [*left, *left]


class MessageStoreConformance:
    """What memlayer expects of a `MessageStore`. The fixture `message_store` returns an empty one."""

    LIST = (
        Message("system", "Be brief.", id="s"),
        Message("user", ({"type": "text", "text": "你好 🙂"}, {"type": "image", "url": "cat.png"}), id="u"),
        Message("assistant", id="a", tool_calls=(ToolCall("c1", "look", '{"at": 1}'),), created_at=NOON),
        Message("tool", "a cat", id="t", tool_call_id="c1", metadata={"seconds": 0.5}, model_visible=False),
    )

    def test_a_missing_session_is_an_empty_list(self, message_store: MessageStore) -> None:
        assert message_store.get_messages("nobody:0") == MessageList((), None)
        message_store.delete_messages("nobody:0")

    def test_what_is_stored_comes_back_equal_in_its_session_alone(self, message_store: MessageStore) -> None:
        assert message_store.update_messages("ada:1", self.LIST, None) is True
        messages, version = message_store.get_messages("ada:1")
        assert tuple(messages) == self.LIST
        assert isinstance(version, str)
        assert message_store.get_messages("ada:2").version is None
        if isinstance(messages, list):
            messages.clear()  # the list is the caller's own
        assert tuple(message_store.get_messages("ada:1").messages) == self.LIST

    def test_an_update_of_another_version_changes_nothing(self, message_store: MessageStore) -> None:
        assert message_store.update_messages("ada:1", self.LIST[:1], None) is True
        first = message_store.get_messages("ada:1").version
        assert message_store.update_messages("ada:1", self.LIST[:2], None) is False
        assert message_store.update_messages("ada:1", self.LIST[:2], first) is True
        assert message_store.update_messages("ada:1", self.LIST, first) is False
        assert tuple(message_store.get_messages("ada:1").messages) == self.LIST[:2]

    def test_what_is_deleted_is_missing(self, message_store: MessageStore) -> None:
        assert message_store.update_messages("ada:1", self.LIST, None) is True
        assert message_store.update_messages("ada:2", self.LIST[:1], None) is True
        before = message_store.get_messages("ada:1").version
        message_store.delete_messages("ada:1")
        assert message_store.get_messages("ada:1") == MessageList((), None)
        assert message_store.update_messages("ada:1", self.LIST, before) is False
        assert tuple(message_store.get_messages("ada:2").messages) == self.LIST[:1]

    def test_of_several_writers_each_message_is_stored_once(self, message_store: MessageStore) -> None:
        def write(number: int) -> None:
            new, done = Message("user", str(number), id=str(number)), False
            while not done:
                found = message_store.get_messages("ada:1")
                done = message_store.update_messages("ada:1", (*found.messages, new), found.version)

        with ThreadPoolExecutor(4) as threads:
            list(threads.map(write, range(20)))
        stored = [message.id for message in message_store.get_messages("ada:1").messages]
        assert sorted(stored, key=str) == sorted(map(str, range(20)))

    def test_the_async_methods_if_there_are_any_do_the_same(self, message_store: Any) -> None:
        verbs = [hasattr(message_store, f"a{verb}_messages") for verb in ("get", "update", "delete")]
        assert len(set(verbs)) == 1

        async def use() -> None:
            assert await message_store.aupdate_messages("ada:1", self.LIST, None) is True
            found = await message_store.aget_messages("ada:1")
            assert tuple(found.messages) == self.LIST
            assert await message_store.aupdate_messages("ada:1", self.LIST, None) is False
            await message_store.adelete_messages("ada:1")
            assert (await message_store.aget_messages("ada:1")).version is None

        if all(verbs):
            asyncio.run(use())
