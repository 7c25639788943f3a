"""The traps that frameworks and layered memories set: each has a test that is marked with its number."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

TESTS = Path(__file__).parent

LANGCHAIN = {
    1: "what is read again at a turn's end has another length, and the user's message is lost",
    2: "turns overlap in one session, and the second question is lost",
    3: "an error while writing is logged and swallowed; one while reading is not",
    4: "an input of two keys and no name for the message saves nothing, silently",
    5: "a bare chat model's input is loaded from JSON: unusual messages lose fields, or cost the turn",
    6: "a stream is stored as chunks, and one that ends early or fails not at all",
    7: "the whole history, instructions or what a graph returns are sent again, and stored again",
    8: "stored messages gain ids, times or metadata",
    9: "callers change the list that they read, and the messages in it",
    10: "an agent's output of text alone drops its tool messages",
    11: "an async method blocks its loop",
    12: "what every serialiser keeps: tool calls, usage, names, ids, blocks, chunks, artifacts, status",
    13: "JSON lacks bytes, times, sets, objects, subclasses, and keys that are not text",
    14: "constructors drop a call's extras, and bring cleared calls back from a message's other fields",
    15: "lone surrogates, NUL, NaN and infinity, in what is said and in what is looked for",
    16: "content that is a list: its text is what is found, counted and told",
    17: "a window begins with a tool's result, parts calls from results, or is empty in a long run of tools",
    18: "a token counter is called with reversed lists; instructions larger than the limit are sent alone",
    19: "results come directly after their call; two user messages follow each other after a turn that failed",
    20: "a message that removes messages is stored as one; ids are put into messages of others",
    21: "a summary destroys the transcript, drops what it should sum up, and is streamed to the user",
    22: "one object serves every conversation at once",
    23: "what is pruned is a copy of the history: nothing goes, and the summary is lost on a restart",
    24: "more than one input key, messages as input, further output keys",
    25: "a message is removed from a state by its user between runs, and by middleware inside one",
}

LLAMAINDEX = {
    1: "what has a length or a truth value is taken for none while it is empty",
    2: "a workflow copies what is in its state, and the agent writes into the copy",
    3: "agents write into the messages that they read, and callers into those that they gave",
    4: "a context that is used again ignores the memory that is handed in",
    5: "a dump is pure JSON without secrets, by which another process finds class and store",
    6: "messages in a dump roll the journal back",
    7: "a mistyped argument is dropped; a dump's own class name is refused",
    8: "made by an engine or agent: chat_history, token_limit, llm, and no global model",
    9: "get is given arguments of other memories; the first one is the question",
    10: "engines take the length of what the tokenizer gives; an initial count above the limit",
    11: "async in name only; nothing to add",
    12: "a window begins with an answer, or parts a call from its results, in both spellings",
    13: "a system message is evicted",
    14: "nothing is told although there is a history",
    15: "a history that was set is over the limit until the next write, which leaves one message",
    16: "what is inserted comes behind the user's message, which agents expect last",
    17: "what is recalled or summed up makes a second system message, or another condensed question",
    18: "context engines fill in the braces in what is remembered",
    19: "calls, thoughts and citations count nothing; media are fetched to be counted",
    20: "content that is None, several blocks, every kind of block and every role",
    21: "JSON lacks what a message holds, one message loses the batch, and a set deletes first",
    22: "a thought loses its signature, or its place",
    23: "what is ours stands in additional_kwargs, and goes to the provider",
    24: "tool calls are handed raw to the model that sums up",
    25: "a streamed answer's blocks are replaced by its text",
    26: "set replaces, and is called with the same history at every turn",
    27: "reset forgets other sessions and users, or leaves what it should empty",
    28: "get_all is everything that was said, also what left the window",
    29: "an index is a place and no key, negative and out of range too",
    30: "parallel first writes, and parallel archiving",
    31: "another thread writes, another loop reads",
    32: "the same words twice are two messages",
}

LAYERED = {
    1: "an episode is stored without its user, and no search finds it",
    2: "what was done and what came of it is extracted and not stored",
    3: "what has faded already is faded again by its whole age",
    4: "memory stands before the instructions",
    5: "a conflict is not noted, a change is noted where there is none, and what is said again still expires",
    6: "the new value is told as the old one",
    7: "learning is called asynchronous, and the turn waits for it",
    8: "what is found does not depend on the question",
    9: "messages are removed by their words, and equal ones elsewhere go with them",
    10: "a call and its result part; instructions alone are over the limit, silently",
    11: "two threads that look first and write then store a fact twice",
    12: "an example that is not JSON teaches a model to answer with none",
    13: "0.3 is no longer 0.3 in fewer bits, and a threshold decides otherwise",
}


def marked() -> Iterator[tuple[str, int]]:
    """Framework and number of each mark, as it stands in the tests' source."""
    for path in TESTS.rglob("test_*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "pytest.mark.trap":
                framework, *numbers = (ast.literal_eval(argument) for argument in node.args)
                for number in numbers:
                    yield framework, number


@pytest.mark.slow
def test_each_trap_has_a_test() -> None:
    known = {("langchain", number) for number in LANGCHAIN}
    known |= {("llamaindex", number) for number in LLAMAINDEX}
    known |= {("layered", number) for number in LAYERED}
    assert set(marked()) == known
