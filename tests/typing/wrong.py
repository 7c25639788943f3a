"""What a type checker has to refuse: each line that ends in `refused`, and no other."""

from langchain_memlayer import MemlayerChatMessageHistory, MemlayerMiddleware, with_memory
from llamaindex_memlayer import MemlayerMemory, MemlayerMemoryBlock, MemlayerRetriever
from memlayer_core import Memory, Message, RecallFilter, Settings, WindowMemory
from memlayer_core.seams import MessageList


def shout(text: str, volume: int) -> str:
    return text.upper() * volume


def count(text: str) -> list[str]:
    return text.split()


class Halfway:
    """A store that cannot delete."""

    def get_messages(self, session_id: str) -> MessageList:
        return MessageList()


memory = Memory.in_memory(embedder="minilm2")  # refused
memory.chat("ada")  # refused
chat = memory.chat(user_id="ada")
chat.add("human", "Hello")  # refused
chat.add_messages(["Hello"])  # refused
chat.context(token_limit="3000")  # refused
chat.context(policy=4)  # refused
chat.remember("Ada likes tea.", visibility="everybody")  # refused
chat.remember("Ada likes tea.", colour="green")  # refused
memory.search("tea")  # refused
memory.search("tea", user_id="ada", filter=RecallFilter(colour="green"))  # refused
print(memory.search("tea", user_id="ada")[0].txt)  # refused
text: int = chat.context("tea").recall  # refused
Memory.open("./memory", redactor=shout)  # refused
Memory.open("./memory", tokenizer=count, settings={"max_tokens": 100})  # refused
WindowMemory(Halfway(), "monday")  # refused
WindowMemory({}, "monday")  # refused
Message("user", "Hello").role = "assistant"  # refused
Settings().max_tokens = "many"  # refused

MemlayerChatMessageHistory("monday", memory)  # refused
MemlayerMiddleware(memory, user_id=7)  # refused
MemlayerMiddleware(memory, mode="static")  # refused
with_memory(lambda value: value, memory, session="monday")  # refused
MemlayerMemory.from_defaults(memory, token_limit="3000")  # refused
MemlayerMemoryBlock("memory")  # refused
MemlayerRetriever(memory, filters={"kind": "record"})  # refused
