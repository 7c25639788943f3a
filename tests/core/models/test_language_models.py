"""Any model writes summaries: LangChain's, LlamaIndex's, a function, blocking or async."""

from __future__ import annotations

from typing import Any

import pytest
from langchain_core.language_models import FakeListChatModel, FakeListLLM, GenericFakeChatModel
from langchain_core.messages import AIMessage
from llama_index.core.llms import CompletionResponse, MockLLM
from tuned import Tuned

from memlayer_core import Memory, Message
from memlayer_core.errors import ConfigurationError, ModelContextError, ModelError
from memlayer_core.models.llm import language_model

TOLD = "The user told of Anna0 and Bela1 and of the cats that they took to the old quarter of Lisbon."


def asked(given: Any) -> str:
    """Return what a model says, made of what an application gives."""
    model = language_model(given)
    assert model is not None
    return model.ask("Be brief.", "Sum this up.").text


class Telling(MockLLM):
    """A model of LlamaIndex that says the same whatever it is asked, and tells what that cost."""

    def complete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> CompletionResponse:
        return CompletionResponse(text=TOLD, raw={"usage": {"prompt_tokens": 70, "completion_tokens": 9}})


class Awaited(MockLLM):
    """A model of LlamaIndex that can only be awaited."""

    def complete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> CompletionResponse:
        raise NotImplementedError

    async def acomplete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> CompletionResponse:
        return CompletionResponse(text=TOLD)


class Made:
    async def __call__(self, instructions: str, text: str) -> str:
        return f"{instructions}|{text}"


async def later(prompt: str) -> str:
    return prompt


async def told_later(prompt: str) -> str:
    return TOLD


def chat_model(*replies: AIMessage) -> GenericFakeChatModel:
    return GenericFakeChatModel(messages=iter(replies))


USAGE = {"input_tokens": 70, "output_tokens": 9, "total_tokens": 79}


@pytest.mark.parametrize(
    "given",
    [chat_model(AIMessage(TOLD, usage_metadata=USAGE)), Telling()],
    ids=["LangChain's", "LlamaIndex's"],
)
def test_a_chat_model_answers_and_tells_its_usage(given) -> None:
    model = language_model(given)
    assert model is not None
    reply = model.ask("Be brief.", "Sum this up.")
    assert (reply.text, reply.tokens_in, reply.tokens_out) == (TOLD, 70, 9)
    assert type(given).__name__ in model.name


CALLS = [{"name": "look", "args": {}, "id": "c1", "type": "tool_call"}]
BOTH, APART = "Be brief.\n\nSum this up.", "Be brief.|Sum this up."
GIVEN = {
    "a chat model that answers in blocks": (chat_model(AIMessage([{"type": "text", "text": TOLD}])), TOLD),
    "one that only calls tools": (chat_model(AIMessage("", tool_calls=CALLS)), ""),
    "LangChain's LLM of plain texts": (FakeListLLM(responses=[TOLD]), TOLD),
    "LlamaIndex's, which says what it is asked": (MockLLM(), BOTH),
    "LlamaIndex's that can only be awaited": (Awaited(), TOLD),
    "a function": (lambda prompt: prompt, BOTH),
    "a function of two arguments": (lambda instructions, text: f"{instructions}|{text}", APART),
    "an async function": (later, BOTH),
    "an object that is called": (Made(), APART),
}


@pytest.mark.parametrize(("given", "answer"), GIVEN.values(), ids=GIVEN)
def test_any_model_answers_with_a_text(given, answer) -> None:
    assert asked(given) == answer


@pytest.mark.parametrize(
    ("problem", "kind"),
    [
        (TimeoutError("60 s"), ModelError),
        (RuntimeError("429 Too Many Requests"), ModelError),
        (ValueError("This model's maximum context length is 8192 tokens"), ModelContextError),
    ],
)
def test_errors_are_ours_and_tell_no_secret(problem, kind) -> None:
    def broken(prompt: str) -> str:
        raise type(problem)(f"{problem} (api_key=sk-verysecret123)")

    with pytest.raises(ModelError) as raised:
        asked(broken)
    assert type(raised.value) is kind
    assert raised.value.retryable
    assert "verysecret" not in str(raised.value)


def test_what_is_no_model_and_what_returns_no_text_is_refused() -> None:
    for given in (42, "gpt-5-mini", int, object()):
        with pytest.raises(ConfigurationError, match="summariser") as refused:
            Memory.in_memory(summarizer=given)
        assert refused.value.hint
    with pytest.raises(ModelError, match="int"):
        asked(lambda prompt: 42)


@pytest.mark.parametrize(
    "given",
    [FakeListChatModel(responses=[TOLD]), Awaited(), told_later],
    ids=["langchain", "llamaindex", "async"],
)
def test_each_of_them_sums_up_what_left_the_window(given) -> None:
    settings = Tuned(max_tokens=600, index_delay=0, recall_tokens=0, episodes=False)
    with Memory.in_memory(summarizer=given, settings=settings) as memory:
        chat = memory.chat(user_id="u", session_id="s")
        for name in ("Anna0 and Bela1", "Caro2"):
            trams = "The trams there are yellow and loud. " * 15
            said = f"{name} took 2 cats to the old quarter of Lisbon. {trams}"
            chat.add_messages([Message("user", said), Message("assistant", f"I see. {said}")])
        chat.add("user", "And then?")
        chat.context()
        memory.flush(10)
        (summary,) = chat.summary()
        assert summary.text == TOLD
        assert TOLD in chat.context().messages[0].text
        (cost,) = memory.admin.costs()
        assert (cost.kind, cost.calls, cost.model) == ("summarize", 1, summary.model)
        assert cost.tokens_in > 100
        assert cost.tokens_out > 5


@pytest.mark.parametrize(
    ("said", "answer"),
    [
        (f"<think>Oslo?</think>{TOLD}", TOLD),
        (f"\n<THINKING>\nOslo?\n\n</THINKING>\n\n{TOLD}", TOLD),
        (f"<think></think>\n<think>Bergen?</think>{TOLD}", TOLD),
        (f"Oslo? No: Riga.\n</think>\n\n{TOLD}", TOLD),
        ("<think>Oslo? Perhaps", ""),
        (f"{TOLD} <think> is a tag, and </think> ends it.", None),
        ("The log says:\n<think>\nhm\n</think>\nand goes on.", None),
        ("<thinker> is no such tag.", None),
    ],
)
def test_what_a_model_thinks_in_front_of_its_answer_is_left_out(said, answer) -> None:
    assert asked(lambda prompt: said) == (said if answer is None else answer)


def test_a_summary_has_no_thoughts_in_front_of_it() -> None:
    talk = [Message("user", f"I am Anna, and on day {day} I saw the ship number {day}.") for day in range(60)]
    with Memory.in_memory(summarizer=lambda prompt: f"<think>Oslo?</think>{TOLD}") as memory:
        assert memory.summarize(talk, token_limit=120) == TOLD
