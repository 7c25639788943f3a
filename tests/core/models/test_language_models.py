"""Any model writes summaries: LangChain's, LlamaIndex's, a function, blocking or async."""

from __future__ import annotations

import pytest
from tuned import Tuned

from memlayer_core import Memory, Message
from memlayer_core.errors import ConfigurationError, ModelContextError, ModelError
from memlayer_core.models.llm import language_model

TOLD = "The user told of Anna0 and Bela1 and of the cats that they took to the old quarter of Lisbon."


def asked(model) -> str:
    return model.ask("Be brief.", "Sum this up.").text


def test_a_langchain_chat_model_answers_and_tells_its_usage() -> None:
    from langchain_core.language_models import GenericFakeChatModel
    from langchain_core.messages import AIMessage

    used = {"input_tokens": 70, "output_tokens": 9, "total_tokens": 79}
    replies = iter([AIMessage(TOLD, usage_metadata=used), AIMessage([{"type": "text", "text": TOLD}])])
    model = language_model(GenericFakeChatModel(messages=replies))
    assert model is not None
    reply = model.ask("Be brief.", "Sum this up.")
    assert (reply.text, reply.tokens_in, reply.tokens_out) == (TOLD, 70, 9)
    assert asked(model) == TOLD
    assert "FakeChatModel" in model.name


def test_a_langchain_reply_that_only_calls_tools_is_an_empty_text() -> None:
    from langchain_core.language_models import GenericFakeChatModel
    from langchain_core.messages import AIMessage

    calls = [{"name": "look", "args": {}, "id": "c1", "type": "tool_call"}]
    model = language_model(GenericFakeChatModel(messages=iter([AIMessage("", tool_calls=calls)])))
    assert model is not None
    assert asked(model) == ""


def test_a_langchain_llm_of_plain_texts_answers() -> None:
    from langchain_core.language_models import FakeListLLM

    model = language_model(FakeListLLM(responses=[TOLD]))
    assert model is not None
    assert asked(model) == TOLD


def test_a_llamaindex_llm_answers() -> None:
    from llama_index.core.llms import MockLLM

    model = language_model(MockLLM())  # says what it is asked
    assert model is not None
    assert asked(model) == "Be brief.\n\nSum this up."


def test_a_llamaindex_llm_tells_its_usage() -> None:
    from llama_index.core.llms import CompletionResponse, MockLLM

    class Counting(MockLLM):
        def complete(self, prompt: str, formatted: bool = False, **kwargs):  # type: ignore[no-untyped-def, override]
            return CompletionResponse(text=TOLD, raw={"usage": {"prompt_tokens": 70, "completion_tokens": 9}})

    model = language_model(Counting())
    assert model is not None
    reply = model.ask("Be brief.", "Sum this up.")
    assert (reply.text, reply.tokens_in, reply.tokens_out) == (TOLD, 70, 9)


def test_a_llamaindex_llm_that_can_only_be_awaited_answers() -> None:
    from llama_index.core.llms import CompletionResponse, MockLLM

    class Awaited(MockLLM):
        def complete(self, prompt: str, formatted: bool = False, **kwargs):  # type: ignore[no-untyped-def, override]
            raise NotImplementedError

        async def acomplete(self, prompt: str, formatted: bool = False, **kwargs):  # type: ignore[no-untyped-def, override]
            return CompletionResponse(text=TOLD)

    model = language_model(Awaited())
    assert model is not None
    assert asked(model) == TOLD


def test_functions_of_one_or_two_arguments_blocking_or_async_answer() -> None:
    async def later(prompt: str) -> str:
        return prompt

    class Made:
        async def __call__(self, instructions: str, text: str) -> str:
            return f"{instructions}|{text}"

    for given, answer in (
        (lambda prompt: prompt, "Be brief.\n\nSum this up."),
        (lambda instructions, text: f"{instructions}|{text}", "Be brief.|Sum this up."),
        (later, "Be brief.\n\nSum this up."),
        (Made(), "Be brief.|Sum this up."),
    ):
        model = language_model(given)
        assert model is not None
        assert asked(model) == answer


@pytest.mark.parametrize(
    ("problem", "kind"),
    [
        (TimeoutError("60 s"), ModelError),
        (RuntimeError("429 Too Many Requests"), ModelError),
        (ValueError("This model's maximum context length is 8192 tokens"), ModelContextError),
        (RuntimeError("prompt is too long: 210000 tokens > 200000 maximum"), ModelContextError),
    ],
)
def test_errors_are_ours_and_tell_no_secret(problem, kind) -> None:
    def broken(prompt: str) -> str:
        raise type(problem)(f"{problem} (api_key=sk-verysecret123)")

    model = language_model(broken)
    assert model is not None
    with pytest.raises(ModelError) as raised:
        asked(model)
    assert type(raised.value) is kind
    assert raised.value.retryable
    assert "verysecret" not in str(raised.value)


def test_what_returns_no_text_is_an_error_and_no_summary() -> None:
    model = language_model(lambda prompt: 42)
    assert model is not None
    with pytest.raises(ModelError, match="int"):
        asked(model)


@pytest.mark.parametrize("given", [42, "gpt-5-mini", int, object()])
def test_what_is_no_model_is_refused_before_anything_is_opened(given) -> None:
    with pytest.raises(ConfigurationError, match="summariser") as refused:
        Memory.in_memory(summarizer=given)
    assert refused.value.hint


@pytest.mark.parametrize("framework", ["langchain", "llamaindex", "async"])
def test_each_of_them_sums_up_what_left_the_window(framework) -> None:
    async def told(prompt: str) -> str:
        return TOLD

    if framework == "langchain":
        from langchain_core.language_models import FakeListChatModel

        model = FakeListChatModel(responses=[TOLD])
    elif framework == "llamaindex":
        from llama_index.core.llms import CompletionResponse, MockLLM

        class Telling(MockLLM):
            def complete(self, prompt: str, formatted: bool = False, **kwargs):  # type: ignore[no-untyped-def, override]
                return CompletionResponse(text=TOLD)

        model = Telling()
    else:
        model = told
    settings = Tuned(max_tokens=600, index_delay=0, recall_tokens=0, episodes=False)
    with Memory.in_memory(summarizer=model, settings=settings) as memory:
        chat = memory.chat(user_id="u", session_id="s")
        for name in ("Anna0 and Bela1", "Caro2"):
            said = (
                f"{name} took 2 cats to the old quarter of Lisbon. "
                + "The trams there are yellow and loud. " * 15
            )
            chat.add_messages([Message("user", said), Message("assistant", "I see. " + said)])
        chat.add("user", "And then?")
        chat.context()
        memory.flush(10)
        (summary,) = chat.summary()
        assert summary.text == TOLD
        assert TOLD in chat.context().messages[0].text
        (cost,) = memory.admin.costs()
        assert (cost.kind, cost.calls) == ("summarize", 1)
        assert cost.model == summary.model
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
    for function in (lambda prompt: said, lambda instructions, text: said):
        model = language_model(function)
        assert model is not None
        assert asked(model) == (said if answer is None else answer)
    talk = [Message("user", f"I am Anna, and on day {day} I saw the ship number {day}.") for day in range(60)]
    with Memory.in_memory(summarizer=lambda prompt: f"<think>Oslo?</think>{TOLD}") as memory:
        assert "<think>" not in memory.summarize(talk, token_limit=120)
