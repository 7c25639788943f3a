"""Any model answers, of any framework or none; what it says of a prompt that is too long is known, and no error quotes anybody."""

import logging
from typing import Any, ClassVar

import pytest
from langchain_core.language_models import FakeListLLM, GenericFakeChatModel
from langchain_core.messages import AIMessage
from llama_index.core.llms import CompletionResponse, MockLLM
from refusals import refused
from sqlalchemy import text

from memlayer_core import Memory, Scope, errors
from memlayer_core.events import ContextOverflowed, Event
from memlayer_core.models.llm import is_overflow, language_model, retry_limit
from memlayer_core.seams import Reply
from tests.conftest import PROMPT

TOLD = "The user told of Anna0 and Bela1 and of the cats that they took to the old quarter of Lisbon."


def asked(given: Any) -> str:
    """Return what a model says, made of what an application gives."""
    model = language_model(given)
    assert model is not None
    return model.ask("Be brief.", "Sum this up.").text


class Telling(MockLLM):
    """A model of LlamaIndex that says the same whatever it is asked, and tells what that cost."""

    def complete(self, *args: Any, **kwargs: Any) -> CompletionResponse:
        return CompletionResponse(text=TOLD, raw={"usage": {"prompt_tokens": 70, "completion_tokens": 9}})


class Awaited(MockLLM):
    """A model of LlamaIndex that can only be awaited."""

    def complete(self, *args: Any, **kwargs: Any) -> CompletionResponse:
        raise NotImplementedError

    async def acomplete(self, *args: Any, **kwargs: Any) -> CompletionResponse:
        return CompletionResponse(text=TOLD)


async def told_later(prompt: str) -> str:
    return TOLD


def chat_model(reply: AIMessage) -> GenericFakeChatModel:
    return GenericFakeChatModel(messages=iter([reply]))


def test_a_chat_model_answers_and_tells_its_usage() -> None:
    usage = {"input_tokens": 70, "output_tokens": 9, "total_tokens": 79}
    for given in (chat_model(AIMessage(TOLD, usage_metadata=usage)), Telling()):
        model = language_model(given)
        assert model is not None
        reply = model.ask("Be brief.", "Sum this up.")
        assert (reply.text, reply.tokens_in, reply.tokens_out) == (TOLD, 70, 9)
        assert type(given).__name__ in model.name


CALLS = [{"name": "look", "args": {}, "id": "c1", "type": "tool_call"}]
BOTH, APART = "Be brief.\n\nSum this up.", "Be brief.|Sum this up."
GIVEN: dict[str, tuple[Any, str]] = {
    "a chat model that answers in blocks": (chat_model(AIMessage([{"type": "text", "text": TOLD}])), TOLD),
    "one that only calls tools": (chat_model(AIMessage("", tool_calls=CALLS)), ""),
    "LangChain's LLM of plain texts": (FakeListLLM(responses=[TOLD]), TOLD),
    "LlamaIndex's, which says what it is asked": (MockLLM(), BOTH),
    "LlamaIndex's that can only be awaited": (Awaited(), TOLD),
    "a function": (lambda prompt: prompt, BOTH),
    "a function of two arguments": (lambda instructions, text: f"{instructions}|{text}", APART),
    "an async function": (told_later, TOLD),
}


def test_any_model_answers_with_a_text() -> None:
    for name, (given, answer) in GIVEN.items():
        assert asked(given) == answer, name


def test_errors_are_ours_and_tell_no_secret_and_what_is_no_model_is_refused_at_once(tmp_path) -> None:
    for problem in ("429 Too Many Requests", "This model's maximum context length is 8192 tokens"):

        def broken(prompt: str, problem: str = problem) -> str:
            raise ValueError(f"{problem} (api_key=sk-verysecret123)")

        with pytest.raises(errors.ModelError) as raised:
            asked(broken)
        assert type(raised.value) is (errors.ModelContextError if "maximum" in problem else errors.ModelError)
        assert raised.value.retryable
        assert "verysecret" not in str(raised.value)
    for name, said in {"summarizer": "summariser", "extractor": "extractor", "model": "`model`"}.items():
        for given in (42, "gpt-5-mini", int):
            own = {"embedder": "hashing", name: given}
            told = f"{said} must be a model"
            refused(errors.ConfigurationError, told, Memory.open, tmp_path / "new", **own)
    assert not (tmp_path / "new").exists()
    refused(errors.ModelError, "int", asked, lambda prompt: 42)


class Mine:
    """A model of our own seam."""

    name = "mine"

    def ask(self, instructions: str, text: str, schema: Any = None) -> Reply:
        raise errors.ModelContextError("it is too long", hint="Say less.")


def test_a_model_of_the_seam_is_asked_and_its_own_errors_pass() -> None:
    refused(errors.ModelContextError, "it is too long", asked, Mine())


LOG = "The log says:\n<think>\nhm\n</think>\nand goes on."
THOUGHT = [
    (f"<think>Oslo?</think>{TOLD}", TOLD),
    (f"\n<THINKING>\nOslo?\n\n</THINKING>\n\n{TOLD}", TOLD),
    (f"<think></think>\n<think>Bergen?</think>{TOLD}", TOLD),
    (f"Oslo? No: Riga.\n</think>\n\n{TOLD}", TOLD),
    ("<think>Oslo? Perhaps", ""),
    *((said, said) for said in (f"{TOLD} <think> is a tag, </think> its end.", "<thinker> is no tag.", LOG)),
]


def test_what_a_model_thinks_in_front_of_its_answer_is_left_out() -> None:
    for said, answer in THOUGHT:
        assert asked(lambda prompt, said=said: said) == answer


class ContextOverflowError(Exception):
    """As LangChain calls it."""


class BadRequestError(Exception):
    """As OpenAI and Anthropic call it, with what they tell beside the text."""

    def __init__(self, text: str, code: str | None = None, **fields: object) -> None:
        super().__init__(text)
        vars(self).update(fields, **({} if code is None else {"code": code}))


class Answer:
    """The HTTP response behind an error; one that is streamed has no text."""

    body: ClassVar = {"error": {"code": "exceed_context_size_error"}}
    text = property(lambda _: 1 / 0)


WORDS = """
input length and `max_tokens` exceed context limit: 190000 + 20000 > 200000
Error code: 413 - {'type': 'error', 'error': {'type': 'request_too_large', 'message': 'Request exceeds the maximum size'}}
The decoder prompt (length 9000) is longer than the maximum model length of 8192.
Range of input length should be [1, 6000]
The input token count (1234567) exceeds the maximum number of tokens allowed (1048576).
Unable to submit request because the input token count is 1234 but model only supports up to 1000.
too many tokens: total number of tokens in the prompt cannot exceed 4081 - received 5000
Prompt contains 40000 tokens, too large for model with 32768 maximum context length
Input validation error: `inputs` tokens + `max_new_tokens` must be <= 4096. Given: 4000 `inputs` tokens
Trying to keep the first 5000 tokens when context the overflows.
Malformed input request: expected maxLength: 50000, actual: 60000, please reformat your input
Current length is 9000 while limit is 8192
Invalid 'messages[1].content': string too long. Expected a string with maximum length 1048576
number of input tokens must be no more than 32768, got 40000
max tokens of 4096 exceeded
Client error '413 Payload Too Large' for url 'http://localhost'
Request too large for gpt-4o on tokens per min (TPM): Limit 30000, Requested 45000.
"""
OTHER_WORDS = """
no
Rate limit reached: too many tokens per min (TPM)
ThrottlingException: Too many tokens, please wait before trying again.
max_tokens is too large: 200000. This model supports at most 4096 completion tokens
max_tokens: 10000 > 4096, which is the maximum allowed number of output tokens for this model
`max_tokens` must be less than or equal to `8192`
Invalid 'tools[0].function.name': string too long. Expected a string with maximum length 64
messages.0.content.1.image.source.base64: image exceeds 5 MB maximum: 6000000 bytes > 5242880 bytes
You exceeded your current quota, please check your plan
Post /api/chat: context deadline exceeded (Client.Timeout exceeded while awaiting headers)
Request timed out.
messages.1: `tool_use` ids were found without `tool_result` blocks immediately after
"""
TOO_LONG = [
    ContextOverflowError("no"),
    errors.ModelContextError("no", hint="none"),
    BadRequestError("no", "context_length_exceeded"),
    BadRequestError("no", "1261"),
    BadRequestError("no", status_code=413),
    BadRequestError("Bad Request", status_code=400, response=Answer()),
    *map(ValueError, WORDS.strip().splitlines()),
]
OTHER = [
    BadRequestError("invalid", "invalid_api_key"),
    BadRequestError("no", status_code=400),
    *map(ValueError, OTHER_WORDS.strip().splitlines()),
]


@pytest.mark.requirement("A23")
def test_a_prompt_that_is_too_long_is_recognized_and_nothing_else_is_taken_for_it() -> None:
    outer = RuntimeError("the workflow failed")
    outer.__cause__ = TOO_LONG[2]
    assert [problem for problem in (*TOO_LONG, outer) if not is_overflow(problem)] == []
    assert [problem for problem in OTHER if is_overflow(problem)] == []


@pytest.mark.requirement("A23")
def test_sixty_percent_are_tried_of_the_limit_or_of_what_was_refused() -> None:
    scope, reason = Scope("louis", "s"), "the model refused it: ContextOverflowError"
    for tokens, limit in ((9000, 4800), (1000, 600)):
        events: list[Event] = []
        assert retry_limit(events.append, scope, TOO_LONG[0], token_limit=8000, tokens=tokens) == limit
        assert events == [ContextOverflowed(scope.namespace, "s", tokens, limit, reason)]
    with pytest.raises(BadRequestError):
        retry_limit(lambda _: None, scope, OTHER[0], token_limit=100, tokens=100)


SECRET = "my diagnosis is scurvy"
SETTINGS = PROMPT.replace(job_attempts=2, job_backoff=0.01, max_tokens=300, session_idle_days=None)


def embed(texts: list[str]) -> list[list[float]]:
    raise ValueError(f"cannot embed {texts!r}")


def answer(prompt: str) -> str:
    raise RuntimeError(f"cannot answer {prompt!r}")


def test_it_is_nowhere_but_in_the_cause(open_at, caplog) -> None:
    """What is said in a session whose older turns are summed up, and asked for from another, is quoted by no error."""
    caplog.set_level(logging.DEBUG, "memlayer")
    memory = open_at(embedder=embed, summarizer=answer, settings=SETTINGS)
    told: list[object] = []
    memory.listen(told.append)
    chat = memory.chat(user_id="louis", session_id="s")
    for number in range(12):
        chat.add("user", f"{SECRET}, number {number}, and so I eat as many oranges and lemons as I can find.")
        chat.add("assistant", "Eat more of them, and see your doctor again next week about it.")
        told.extend(chat.context().reasons)
    told.extend(memory.chat(user_id="louis", session_id="t").context("What is my diagnosis?").reasons)
    told.extend(hit.reasons for hit in memory.search("What is my diagnosis?", user_id="louis"))
    try:
        memory.flush(10)
    except errors.FlushTimeoutError as problem:
        told.append(problem)
    status = memory.admin.status()
    told.extend(status.problems.values())
    told.extend(memory.runtime.db.read(lambda c: c.execute(text("SELECT error FROM memlayer_jobs")).all()))
    told.extend((record.getMessage(), record.exc_text, record.exc_info) for record in caplog.records)
    said = "\n".join(map(repr, told))
    assert "ValueError" in said
    assert "RuntimeError" in said
    assert status.backlog.dead
    for word in ("diagnosis", "scurvy", "oranges", "doctor"):
        assert word not in said
    with pytest.raises(errors.EmbedderError) as raised:
        memory.runtime.embedder.embed([SECRET])
    assert SECRET not in str(raised.value)
    assert SECRET in str(raised.value.__cause__)
    for problem in (ValueError(SECRET), errors.InvalidMessageError(SECRET, hint="")):
        assert errors.in_short(problem) == type(problem).__name__
    assert errors.in_short(errors.MemlayerError("the disk is full", hint="")) == "the disk is full"
