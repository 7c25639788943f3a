"""What comes with memlayer keeps the claims of every seam, and what breaks one of them is noticed."""

from typing import Any

import pytest
from message_store import DictStore

from memlayer_core import MaxMessages, MaxRounds, testing
from memlayer_core.models.hashing import HashingEmbedder
from memlayer_core.models.llm import language_model
from memlayer_core.seams import Embedder, LanguageModel, Policy, Portion, Redactor


class TestHashing(testing.EmbedderConformance):
    @pytest.fixture
    def embedder(self) -> Embedder:
        return HashingEmbedder()


class TestRedactor(testing.RedactorConformance):
    @pytest.fixture
    def redactor(self) -> Redactor:
        return lambda text: text.replace("secret", "[redacted]")


class TestFunction(testing.LanguageModelConformance):
    @pytest.fixture
    def model(self) -> LanguageModel:
        made = language_model(lambda prompt: f"In short: {len(prompt)} characters.")
        assert made is not None
        return made


class TestPolicies(testing.PolicyConformance):
    @pytest.fixture(params=[MaxMessages(4), MaxRounds(3)], ids=repr)
    def policy(self, request: pytest.FixtureRequest) -> Policy:
        return request.param


class AtLeast:
    """A policy that makes no sense: it allows much, and refuses little."""

    def allows(self, portion: Portion) -> bool:
        return portion.messages >= 3


class Long(HashingEmbedder):
    def embed(self, texts: Any) -> Any:
        return [2 * vector for vector in super().embed(texts)]


class LastWins(DictStore):
    """A store that does not compare versions."""

    def update_messages(self, session_id: Any, messages: Any, version: Any) -> bool:
        return super().update_messages(session_id, messages, self.get_messages(session_id).version)


def test_what_breaks_a_claim_is_noticed() -> None:
    with pytest.raises(AssertionError):
        testing.PolicyConformance().test_what_allows_a_portion_allows_every_smaller_one(AtLeast())
    with pytest.raises(AssertionError):
        testing.EmbedderConformance().test_it_returns_one_unit_vector_for_each_text(Long())
    with pytest.raises(AssertionError):
        testing.MessageStoreConformance().test_an_update_of_another_version_changes_nothing(LastWins())
