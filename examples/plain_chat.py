"""A chat without a framework: store the question, give a model the context, store the answer.

Run it: `python examples/plain_chat.py`. No key and no network is needed: the model is a function of a few lines.
"""

from __future__ import annotations

from collections.abc import Sequence

from memlayer_core import Memory, Message


def ask_model(messages: Sequence[Message]) -> str:
    """Answer from the messages alone. Your model goes here, for example OpenAI's.

    client.chat.completions.create(model="gpt-5-mini", messages=[{"role": m.role, "content": m.text} for m in messages])
    """
    question, context = messages[-1].text, " ".join(message.text for message in messages)
    if "?" not in question:
        return "I will remember that."
    return "To peanuts." if "I am allergic to peanuts" in context else "You did not tell me."


def answer(memory: Memory, user: str, session: str, question: str) -> None:
    """Answer a question with what the memory knows, and store both."""
    chat = memory.chat(user_id=user, session_id=session)
    chat.add("user", question)
    context = chat.context(token_limit=1000)  # the newest turns, and older ones that bear on the question
    reply = ask_model(context.messages)
    chat.add("assistant", reply)
    print(f"[{session}] {user}: {question}")
    for piece in context.pieces:
        if piece.kind == "recall":
            print(f"    recalled: {piece.text}")
    print(f"    assistant: {reply}\n")


# `Memory.open("./memory")` keeps it on disk instead, and finds texts by their meaning, too.
with Memory.in_memory() as memory:
    answer(memory, "ada", "monday", "I am allergic to peanuts.")
    answer(memory, "ada", "monday", "I also like jazz.")
    answer(memory, "ada", "friday", "What am I allergic to?")  # another session of the same user
    answer(memory, "bob", "friday", "What am I allergic to?")  # another user: nothing is recalled
