"""The traps that frameworks and layered memories set: each has a test that is marked with its number.

langchain 1: what is read again at a turn's end has another length, and the user's message is lost
langchain 2: turns overlap in one session, and the second question is lost
langchain 3: an error while writing is logged and swallowed; one while reading is not
langchain 4: an input of two keys and no name for the message saves nothing, silently
langchain 5: a bare chat model's input is loaded from JSON: unusual messages lose fields, or cost the turn
langchain 6: a stream is stored as chunks, and one that ends early or fails not at all
langchain 7: the whole history, instructions or what a graph returns are sent again, and stored again
langchain 8: stored messages gain ids, times or metadata
langchain 9: callers change the list that they read, and the messages in it
langchain 10: an agent's output of text alone drops its tool messages
langchain 11: an async method blocks its loop
langchain 12: what every serialiser keeps: tool calls, usage, names, ids, blocks, chunks, artifacts, status
langchain 13: JSON lacks bytes, times, sets, objects, subclasses, and keys that are not text
langchain 14: constructors drop a call's extras, and bring cleared calls back from a message's other fields
langchain 15: lone surrogates, NUL, NaN and infinity, in what is said and in what is looked for
langchain 16: content that is a list: its text is what is found, counted and told
langchain 17: a window begins with a tool's result, parts calls from results, or is empty in a long run of tools
langchain 18: a token counter is called with reversed lists; instructions larger than the limit are sent alone
langchain 19: results come directly after their call; two user messages follow each other after a turn that failed
langchain 20: a message that removes messages is stored as one; ids are put into messages of others
langchain 21: a summary destroys the transcript, drops what it should sum up, and is streamed to the user
langchain 22: one object serves every conversation at once
langchain 23: what is pruned is a copy of the history: nothing goes, and the summary is lost on a restart
langchain 24: more than one input key, messages as input, further output keys
langchain 25: a message is removed from a state by its user between runs, and by middleware inside one

llamaindex 1: what has a length or a truth value is taken for none while it is empty
llamaindex 2: a workflow copies what is in its state, and the agent writes into the copy
llamaindex 3: agents write into the messages that they read, and callers into those that they gave
llamaindex 4: a context that is used again ignores the memory that is handed in
llamaindex 5: a dump is pure JSON without secrets, by which another process finds class and store
llamaindex 6: messages in a dump roll the journal back
llamaindex 7: a mistyped argument is dropped; a dump's own class name is refused
llamaindex 8: made by an engine or agent: chat_history, token_limit, llm, and no global model
llamaindex 9: get is given arguments of other memories; the first one is the question
llamaindex 10: engines take the length of what the tokenizer gives; an initial count above the limit
llamaindex 11: async in name only; nothing to add
llamaindex 12: a window begins with an answer, or parts a call from its results, in both spellings
llamaindex 13: a system message is evicted
llamaindex 14: nothing is told although there is a history
llamaindex 15: a history that was set is over the limit until the next write, which leaves one message
llamaindex 16: what is inserted comes behind the user's message, which agents expect last
llamaindex 17: what is recalled or summed up makes a second system message, or another condensed question
llamaindex 18: context engines fill in the braces in what is remembered
llamaindex 19: calls, thoughts and citations count nothing; media are fetched to be counted
llamaindex 20: content that is None, several blocks, every kind of block and every role
llamaindex 21: JSON lacks what a message holds, one message loses the batch, and a set deletes first
llamaindex 22: a thought loses its signature, or its place
llamaindex 23: what is ours stands in additional_kwargs, and goes to the provider
llamaindex 24: tool calls are handed raw to the model that sums up
llamaindex 25: a streamed answer's blocks are replaced by its text
llamaindex 26: set replaces, and is called with the same history at every turn
llamaindex 27: reset forgets other sessions and users, or leaves what it should empty
llamaindex 28: get_all is everything that was said, also what left the window
llamaindex 29: an index is a place and no key, negative and out of range too
llamaindex 30: parallel first writes, and parallel archiving
llamaindex 31: another thread writes, another loop reads
llamaindex 32: the same words twice are two messages

layered 1: an episode is stored without its user, and no search finds it
layered 2: what was done and what came of it is extracted and not stored
layered 3: what has faded already is faded again by its whole age
layered 4: memory stands before the instructions
layered 5: a conflict is not noted, a change is noted where there is none, and what is said again still expires
layered 6: the new value is told as the old one
layered 7: learning is called asynchronous, and the turn waits for it
layered 8: what is found does not depend on the question
layered 9: messages are removed by their words, and equal ones elsewhere go with them
layered 10: a call and its result part; instructions alone are over the limit, silently
layered 11: two threads that look first and write then store a fact twice
layered 12: an example that is not JSON teaches a model to answer with none
layered 13: 0.3 is no longer 0.3 in fewer bits, and a threshold decides otherwise
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest


def marked() -> Iterator[tuple[str, int]]:
    """Framework and number of each mark, as it stands in the tests' source."""
    for path in Path(__file__).parent.rglob("test_*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "pytest.mark.trap":
                framework, *numbers = (ast.literal_eval(argument) for argument in node.args)
                for number in numbers:
                    yield framework, number


@pytest.mark.slow
def test_each_trap_has_a_test() -> None:
    listed = re.findall(r"^(\w+) (\d+): ", __doc__ or "", re.MULTILINE)
    assert set(marked()) == {(framework, int(number)) for framework, number in listed}
