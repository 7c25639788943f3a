"""How much of each prompt is a repetition of the one before: what providers' prompt caches make cheap.

Replays a conversation of a LoCoMo-format file as one session: at each user message the prompt is put together and
compared with the prompt before it; then the answer that the file has is stored. `unchanged` is the share of all
prompts' tokens that stand in an unchanged prefix, message by message and then character by character; `sent` is what
all prompts cost together (memlayer's estimate of tokens, for everybody), `longest` the longest of them. `calls` and
`spent` are a model's: calls for summaries, and the tokens in and out of them. The scripted model answers with a text
of about a hundred words; asked by memlayer, which judges summaries, with words of the conversation. By default
memlayer asks no model: `with a model` does. It is without recall, facts and episodes, as the others are.

In the same run, as far as they are installed: LangChain's `trim_messages`, its `SummarizationMiddleware` and the
classic `ConversationSummaryBufferMemory`, LlamaIndex's `Memory` and `ChatSummaryMemoryBuffer`, all with the same limit.

Goals: with recall at least 80 % unchanged at a limit of 3,000 tokens and 92 % at 8,000, with MiniLM, which finds more, 78 % and
90 %; without, 93 % and 97 %. At most a third of the prompts is recalled text. With a
model no more tokens sent than by any peer that sums up, and no more calls; LlamaIndex's `Memory` sends less, because it
keeps 70 % of the limit and nothing of what it drops.

Usage: python benchmarks/prefix.py FILE [--conversation N] [--quick] [--json] [--check]
"""

import tempfile
from collections import Counter
from itertools import takewhile
from pathlib import Path

from goals import goal, installed, options, tell
from locomo import read

from memlayer_core import Memory, Message, Settings
from memlayer_core.models.tokens import token_counter
from memlayer_core.storage.terms import index_terms

COUNT = token_counter("estimate")
LIMITS = (3000, 4000, 8000)
GOALS = {
    ("memlayer", 3000): 80,
    ("memlayer", 8000): 92,
    ("memlayer, minilm", 3000): 78,
    ("memlayer, minilm", 8000): 90,
    ("without recall", 3000): 93,
    ("without recall", 8000): 97,
    ("with a model", 3000): 93,
    ("with a model", 8000): 97,
}
SUMMING_UP = ("SummarizationMiddleware", "ConversationSummaryBufferMemory", "ChatSummaryMemoryBuffer")
SUMMARY = "They talked about what happened since the last time and what they plan to do next. " * 7


class Ledger:
    """What is sent, and what a summarising model is asked."""

    def __init__(self):
        self.sent = self.unchanged = self.calls = self.spent = self.longest = self.recalled = 0
        self.before = []

    def prompt(self, messages):
        cost = [COUNT.text(text) for text in messages]
        same = 0
        for text, known, tokens in zip(messages, [*self.before, None], cost, strict=False):
            if text != known:
                common = sum(
                    1
                    for _ in takewhile(lambda pair: pair[0] == pair[1], zip(text, known or "", strict=False))
                )
                same += COUNT.text(text[:common]) if common else 0
                break
            same += tokens
        self.sent += sum(cost)
        self.longest = max(self.longest, sum(cost))
        self.unchanged += min(same, sum(cost))
        self.before = messages

    def summarise(self, prompt):
        self.calls += 1
        self.spent += COUNT.text(str(prompt)) + COUNT.text(SUMMARY)
        return SUMMARY

    def told(self):
        return {
            "unchanged": round(100 * self.unchanged / self.sent, 1),
            "recalled": round(100 * self.recalled / self.sent, 1),
            "sent": self.sent,
            "longest": self.longest,
            "calls": self.calls,
            "spent": self.spent,
        }


def shown(messages):
    return [f"{message.role}: {message.text}" for message in messages]


def memlayer(turns, limit, ledger, summarizer=None, embedder="hashing", **settings):
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        chosen = Settings(durability="normal", **settings)
        parts = {"embedder": embedder, "tokenizer": "estimate", "summarizer": summarizer}
        with Memory.open(folder, **parts, settings=chosen) as memory:
            chat = memory.chat(user_id="u", session_id="s")
            chat.add("system", "Be a friend.")
            for asked, answered in turns:
                chat.add_messages(asked)
                context = chat.context(token_limit=limit)
                ledger.recalled += sum(piece.tokens for piece in context.pieces if piece.kind == "recall")
                ledger.prompt(shown(context.messages))
                chat.add_messages(answered)
                memory.flush()  # people take longer to write than the background work takes


def with_minilm(turns, limit, ledger):
    memlayer(turns, limit, ledger, embedder="minilm")


def without_recall(turns, limit, ledger):
    memlayer(turns, limit, ledger, recall_tokens=0)


def with_a_model(turns, limit, ledger):
    def summarise(instructions, prompt):
        ledger.calls += 1
        told = Counter(index_terms(prompt.partition("<conversation>")[2])).most_common(50)
        summary = f"They talked about {', '.join(word for word, _ in told)}."
        ledger.spent += COUNT.text(instructions + prompt) + COUNT.text(summary)
        return summary

    memlayer(turns, limit, ledger, summarizer=summarise, recall_tokens=0, episodes=False)


def trim_messages(turns, limit, ledger):
    from langchain_core.messages import SystemMessage, trim_messages as trim

    from langchain_memlayer import from_core

    said = [SystemMessage("Be a friend.")]
    for asked, answered in turns:
        said += [from_core(message) for message in asked]
        kept = trim(
            said,
            max_tokens=limit,
            token_counter=lambda some: sum(COUNT.text(str(one.content)) + 4 for one in some),
            include_system=True,
            start_on="human",
        )
        ledger.prompt([f"{one.type}: {one.content}" for one in kept])
        said += [from_core(message) for message in answered]


def summarization_middleware(turns, limit, ledger):
    from langchain.agents.middleware import SummarizationMiddleware
    from langchain_core.language_models import GenericFakeChatModel
    from langchain_core.messages import AIMessage, RemoveMessage
    from langgraph.graph.message import add_messages

    from langchain_memlayer import from_core

    class Model(GenericFakeChatModel):
        def invoke(self, prompt, *_, **__):
            return AIMessage(ledger.summarise(prompt))

    middleware = SummarizationMiddleware(
        Model(messages=iter(())),
        trigger=("tokens", limit),
        keep=("tokens", limit // 2),
        token_counter=lambda some: sum(COUNT.text(str(one.content)) + 4 for one in some),
    )
    said = []
    for asked, answered in turns:
        said = add_messages(said, [from_core(message) for message in asked])
        changed = middleware.before_model({"messages": said}, None)
        if changed:
            said = [
                one for one in add_messages(said, changed["messages"]) if not isinstance(one, RemoveMessage)
            ]
        ledger.prompt(["system: Be a friend.", *(f"{one.type}: {one.content}" for one in said)])
        said = add_messages(said, [from_core(message) for message in answered])


def summary_buffer(turns, limit, ledger):
    from langchain_classic.memory import ConversationSummaryBufferMemory
    from langchain_core.language_models import FakeListLLM

    class Model(FakeListLLM):
        def _call(self, prompt, *_, **__):
            return ledger.summarise(prompt)

        def get_num_tokens_from_messages(self, messages, *_, **__):
            return sum(COUNT.text(str(one.content)) + 4 for one in messages)

    memory = ConversationSummaryBufferMemory(
        llm=Model(responses=["x"]), max_token_limit=limit, return_messages=True
    )
    for asked, answered in turns:
        loaded = memory.load_memory_variables({})["history"]
        question = "\n".join(message.text for message in asked)
        ledger.prompt(
            ["system: Be a friend.", *(f"{one.type}: {one.content}" for one in loaded), f"human: {question}"]
        )
        memory.save_context({"input": question}, {"output": "\n".join(message.text for message in answered)})


def llamaindex_memory(turns, limit, ledger):
    from llama_index.core.memory import Memory as Their

    _llamaindex(
        turns,
        ledger,
        Their.from_defaults(token_limit=limit, tokenizer_fn=lambda text: range(COUNT.text(str(text)))),
    )


def chat_summary_buffer(turns, limit, ledger):
    from llama_index.core.llms import CompletionResponse, MockLLM
    from llama_index.core.memory import ChatSummaryMemoryBuffer

    class Model(MockLLM):
        def complete(self, prompt, *_, **__):
            return CompletionResponse(text=ledger.summarise(prompt))

        def chat(self, messages, *_, **__):
            from llama_index.core.llms import ChatMessage, ChatResponse

            return ChatResponse(message=ChatMessage(ledger.summarise(messages), role="assistant"))

    _llamaindex(
        turns,
        ledger,
        ChatSummaryMemoryBuffer.from_defaults(
            llm=Model(), token_limit=limit, tokenizer_fn=lambda text: range(COUNT.text(str(text)))
        ),
    )


def _llamaindex(turns, ledger, memory):
    from llamaindex_memlayer import from_core

    for asked, answered in turns:
        for message in asked:
            memory.put(from_core(message))
        ledger.prompt(["system: Be a friend.", *(f"{one.role.value}: {one.content}" for one in memory.get())])
        for message in answered:
            memory.put(from_core(message))


PARTICIPANTS = {
    "memlayer": ("memlayer_core", memlayer),
    "memlayer, minilm": ("memlayer_core", with_minilm),
    "without recall": ("memlayer_core", without_recall),
    "with a model": ("memlayer_core", with_a_model),
    "trim_messages": ("langchain_core", trim_messages),
    "SummarizationMiddleware": ("langchain.agents", summarization_middleware),
    "ConversationSummaryBufferMemory": ("langchain_classic", summary_buffer),
    "LlamaIndex Memory": ("llama_index.core", llamaindex_memory),
    "ChatSummaryMemoryBuffer": ("llama_index.core", chat_summary_buffer),
}


def turns_of(file, number):
    """Return the conversation as turns: what the user says, and what is answered."""
    turns = []
    for session in read(file, number).sessions:
        for message in session.messages:
            plain = Message(message.role, message.text, created_at=message.created_at)
            if message.role == "user" and (not turns or turns[-1][1]):
                turns.append(([], []))
            if turns:
                turns[-1][message.role != "user"].append(plain)
    return turns


def show(result):
    print(
        f"{result['turns']} turns; % of prompt tokens unchanged, % that is recalled text, tokens sent, the longest "
        "prompt's, summary calls and their tokens"
    )
    for limit, found in result["limits"].items():
        print(f"limit {int(limit):,}")
        for name, told in found.items():
            print(
                f"{name:>34}{told['unchanged']:>8.1f} %{told['recalled']:>8.1f} %{told['sent']:>12,}{told['longest']:>8,}"
                f"{told['calls']:>6}{told['spent']:>10,}"
            )
    for name in result["skipped"]:
        print(f"{name}: SKIPPED, it is not installed")


def main():
    parser = options(__doc__, "the first 60 turns")
    parser.add_argument("file", type=Path, help="a LoCoMo-format file")
    parser.add_argument("--conversation", type=int, default=1, help="which of the file's, counted from 1")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="those whose name holds one of these words")
    asked = parser.parse_args()
    turns = turns_of(asked.file, asked.conversation)[: 60 if asked.quick else None]
    wanted = {
        name: made
        for name, made in PARTICIPANTS.items()
        if not asked.only or any(word.lower() in name.lower() for word in asked.only)
    }
    found = {}
    for limit in LIMITS:
        found[limit] = {}
        for name, (module, replay) in wanted.items():
            if installed(module):
                ledger = Ledger()
                replay(turns, limit, ledger)
                found[limit][name] = ledger.told()
    result = {
        "turns": len(turns),
        "limits": {str(limit): told for limit, told in found.items()},
        "skipped": [name for name, (module, _) in wanted.items() if not installed(module)],
        "goals": [
            goal(f"{name}, limit {limit:,}: % unchanged", found[limit][name]["unchanged"], at_least=least)
            for (name, limit), least in GOALS.items()
            if name in found[limit]
        ]
        + [
            goal(f"{name}, limit {limit:,}: % recalled", told["recalled"], at_most=100 / 3)
            for limit, some in found.items()
            for name, told in some.items()
            if told["recalled"]
        ]
        + [
            goal(
                f"with a model, limit {limit:,}: {what}, beside {name}",
                told["with a model"][what],
                at_most=peer[what],
            )
            for limit, told in found.items()
            if "with a model" in told
            for name in SUMMING_UP
            if (peer := told.get(name)) is not None
            for what in ("sent", "calls")
        ],
    }
    tell(result, asked, show)


if __name__ == "__main__":
    main()
