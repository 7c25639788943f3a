"""memlayer and what its users would use instead, behind one way to store turns and to search them.

Each is made with an empty folder and `embed`, a function from texts to vectors; `store` takes a user's turns
(`talks.Turn`), `search` returns ids of turns, the best first, of this user alone. Nothing is passed to a network,
and no language model is called.
"""

import asyncio
import importlib.util
import math
import os
import re
import warnings
from collections import defaultdict
from itertools import groupby
from typing import ClassVar

from goals import installed

from memlayer_core import Memory, Message, Settings

SPOKEN = re.compile(r"<message role='\w+'>(.*?)</message>", re.DOTALL)


class Searcher:
    """What all of them have.

    Attributes:
        name: What the tables call it.
        needs: Modules that have to be installed.
    """

    name: str
    needs = ("chromadb",)

    @classmethod
    def missing(cls):
        """Return why it cannot take part, or None."""
        absent = [module for module in cls.needs if not installed(module)]
        return f"not installed: {', '.join(absent)}" if absent else None

    def fill(self, user, turns):
        """Store many turns the fastest way that is public; they are found as if they had come one by one."""
        self.store(user, turns)

    def ready(self):
        """Return when everything that was stored can be found."""

    def close(self):
        pass


class Memlayer(Searcher):
    """`Memory.search`, in a directory; `embed` may be the name of an embedder too."""

    name = "memlayer"
    needs = ("memlayer_core",)

    def __init__(self, folder, embed, **settings):
        chosen = Settings(durability="normal", **settings)
        self.memory = Memory.open(folder, embedder=embed, settings=chosen)

    def store(self, user, turns):
        for session, said in groupby(turns, key=lambda turn: turn.session):
            self.memory.chat(user_id=user, session_id=session).add_messages(
                Message(turn.role, turn.text, id=turn.id, name=turn.name, created_at=turn.at) for turn in said
            )

    def ready(self):
        self.memory.flush(timeout=3600)

    def search(self, user, query, k, token_limit=None):
        hits = self.memory.search(query, user_id=user, limit=k, token_limit=token_limit)
        return [turn for hit in hits for turn in hit.message_ids]

    def close(self):
        self.memory.close()


class Chroma(Searcher):
    """One collection for all users, as its documentation begins: texts, and `where` for the user."""

    name = "Chroma alone"

    def __init__(self, folder, embed):
        import chromadb

        self.embed = embed
        self.client = chromadb.PersistentClient(str(folder))
        self.collection = self.client.create_collection(
            "turns", embedding_function=None, configuration={"hnsw": {"space": "cosine"}}
        )

    def store(self, user, turns):
        lines = [turn.line for turn in turns]
        self.collection.add(
            ids=[f"{user}/{turn.id}" for turn in turns],
            embeddings=self.embed(lines),
            documents=lines,
            metadatas=[{"user": user, "turn": turn.id} for turn in turns],
        )

    def search(self, user, query, k):
        found = self.collection.query(
            query_embeddings=self.embed([query]), n_results=k, where={"user": user}, include=["metadatas"]
        )
        return [one["turn"] for one in found["metadatas"][0]]

    def close(self):
        self.client.close()


class Bm25(Searcher):
    """Words alone: BM25 over lower-case words, with the usual constants."""

    name = "BM25 alone"
    needs = ()

    def __init__(self, folder, embed):
        self.turns, self.postings, self.lengths = [], defaultdict(dict), []

    def store(self, user, turns):
        for turn in turns:
            words = re.findall(r"\w+", turn.line.lower())
            for word in words:
                rows = self.postings[word]
                rows[len(self.turns)] = rows.get(len(self.turns), 0) + 1
            self.turns.append(turn.id)
            self.lengths.append(len(words))

    def search(self, user, query, k, saturation=1.5, length=0.75):
        mean, scores = sum(self.lengths) / len(self.turns), defaultdict(float)
        for word in re.findall(r"\w+", query.lower()):
            rows = self.postings.get(word, {})
            rarity = math.log(1 + (len(self.turns) - len(rows) + 0.5) / (len(rows) + 0.5))
            for row, times in rows.items():
                norm = saturation * (1 - length + length * self.lengths[row] / mean)
                scores[row] += rarity * times * (saturation + 1) / (times + norm)
        return [self.turns[row] for row in sorted(scores, key=lambda row: -scores[row])[:k]]


def scorer_of(file):
    """Return a participant that asks the class `Scorer` of a module: `index(turns)`, and `search(query, k)`."""

    class Foreign(Searcher):
        name = file.name
        needs = ()

        def __init__(self, folder, embed):
            spec = importlib.util.spec_from_file_location(file.stem, file)
            module = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
            self.scorer = module.Scorer()

        def store(self, user, turns):
            self.scorer.index(
                [
                    {
                        "id": turn.id,
                        "speaker": turn.name or turn.role,
                        "text": turn.text,
                        "session": turn.session,
                        "date": turn.at and f"{turn.at:%d %B %Y}",
                    }
                    for turn in turns
                ]
            )

        def search(self, user, query, k):
            return self.scorer.search(query, k)

    return Foreign


class LangChain(Searcher):
    """`VectorStoreRetrieverMemory` on Chroma.

    Its `save_context` adds documents to the retriever, without metadata. To tell users apart, the same documents
    are added here with metadata, and each user's retriever has a filter.
    """

    name = "LangChain retriever memory"
    needs = ("langchain_classic", "langchain_chroma")

    def __init__(self, folder, embed):
        import chromadb
        from langchain_chroma import Chroma as VectorStore

        self.client = chromadb.PersistentClient(str(folder))
        self.vectors = VectorStore(
            client=self.client, collection_name="turns", embedding_function=langchain_embeddings(embed)
        )
        self.memories = {}

    def memory(self, user, k):
        from langchain_classic.memory import VectorStoreRetrieverMemory

        if (user, k) not in self.memories:
            retriever = self.vectors.as_retriever(search_kwargs={"k": k, "filter": {"user": user}})
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)
                self.memories[user, k] = VectorStoreRetrieverMemory(retriever=retriever, return_docs=True)
        return self.memories[user, k]

    def store(self, user, turns):
        from langchain_core.documents import Document

        self.memory(user, 1).retriever.add_documents(
            [Document(page_content=turn.line, metadata={"user": user, "turn": turn.id}) for turn in turns]
        )

    def search(self, user, query, k):
        found = self.memory(user, k).load_memory_variables({"prompt": query})["history"]
        return [one.metadata["turn"] for one in found]

    def close(self):
        self.client.close()


class LlamaIndexBlock(Searcher):
    """`VectorMemoryBlock` on Chroma, a block a user, each turn put on its own and the query asked alone.

    More than its users get from `Memory`, which puts turns in batches when they leave the window.
    """

    name = "LlamaIndex block, turn by turn"
    needs = ("llama_index.core", "llama_index.vector_stores.chroma")

    def __init__(self, folder, embed):
        import chromadb
        from llama_index.vector_stores.chroma import ChromaVectorStore

        self.client = chromadb.PersistentClient(str(folder))
        collection = self.client.create_collection("turns", embedding_function=None)
        self.embed, self.model = embed, llamaindex_embedding(embed)
        self.vectors = ChromaVectorStore.from_collection(collection)
        self.blocks = {}
        self.turns = defaultdict(list)
        """Ids by user and text: what a block returns is a text."""
        self.loop = asyncio.new_event_loop()

    def block(self, user, k):
        """Return the user's block: one that is shared keeps the filter of the first who asks."""
        from llama_index.core.memory import VectorMemoryBlock

        if (user, k) not in self.blocks:
            self.blocks[user, k] = VectorMemoryBlock(
                vector_store=self.vectors, embed_model=self.model, similarity_top_k=k
            )
        return self.blocks[user, k]

    def store(self, user, turns):
        self.loop.run_until_complete(self.put(user, turns))

    async def put(self, user, turns):
        block = self.block(user, 1)
        for turn in turns:
            self.turns[user, turn.line].append(turn.id)
            await block.aput([llamaindex_message(turn)], session_id=user)

    def fill(self, user, turns):
        from llama_index.core.schema import TextNode

        texts = [f"<message role='{turn.role}'>{turn.line}</message>" for turn in turns]
        self.vectors.add(
            [
                TextNode(text=text, metadata={"session_id": user}, embedding=vector)
                for text, vector in zip(texts, self.embed(texts), strict=True)
            ]
        )
        for turn in turns:
            self.turns[user, turn.line].append(turn.id)

    def search(self, user, query, k):
        from llama_index.core.llms import ChatMessage

        asked = [ChatMessage(role="user", content=query)]
        told = self.loop.run_until_complete(self.block(user, k).aget(asked, session_id=user))
        return self.named(user, told)

    def named(self, user, text):
        """Return the ids of the turns that stand in a text."""
        return [turn for line in SPOKEN.findall(text) for turn in self.turns[user, line]]

    def close(self):
        self.loop.close()
        self.client.close()


class LlamaIndexMemory(LlamaIndexBlock):
    """`Memory` with a `VectorMemoryBlock`, both with their defaults: what the block gives, then the newest turns."""

    name = "LlamaIndex Memory, defaults"
    needs = (*LlamaIndexBlock.needs, "aiosqlite")
    limits: ClassVar[dict[str, int]] = {}

    def __init__(self, folder, embed):
        from sqlalchemy.ext.asyncio import create_async_engine

        super().__init__(folder, embed)
        self.engine = create_async_engine(f"sqlite+aiosqlite:///{folder / 'memory.sqlite3'}")
        self.memories = {}

    def memory(self, user):
        from llama_index.core.memory import Memory as LlamaMemory, VectorMemoryBlock

        if user not in self.memories:
            block = VectorMemoryBlock(vector_store=self.vectors, embed_model=self.model)
            self.memories[user] = LlamaMemory.from_defaults(
                session_id=user, memory_blocks=[block], async_engine=self.engine, **self.limits
            )
        return self.memories[user]

    async def put(self, user, turns):
        memory = self.memory(user)
        for turn in turns:
            self.turns[user, turn.line].append(turn.id)
            await memory.aput(llamaindex_message(turn))

    fill = LlamaIndexBlock.store

    def search(self, user, query, k):
        told = self.loop.run_until_complete(self.memory(user).aget(input=query))
        recalled = [message.content for message in told if message.role.value == "system"]
        window = [message.content for message in told if message.role.value != "system"]
        ids = self.named(user, "\n".join(recalled))
        ids += [turn for line in reversed(window) for turn in self.turns[user, line]]
        return list(dict.fromkeys(ids))[:k]

    def close(self):
        self.loop.run_until_complete(self.engine.dispose())
        super().close()


class LlamaIndexBest(LlamaIndexMemory):
    """The same with the limits that found most: a short window, and turns that leave it in small batches."""

    name = "LlamaIndex Memory, best limits"
    limits: ClassVar[dict[str, int]] = {"token_limit": 2048, "token_flush_size": 200}


class LangGraph(Searcher):
    """LangGraph's `InMemoryStore` with an index, a namespace a user."""

    name = "LangGraph InMemoryStore"
    needs = ("langgraph.store.memory",)

    def __init__(self, folder, embed):
        self.folder = folder
        self.store_of_theirs = self.made(
            {"dims": len(embed([""])[0]), "embed": langchain_embeddings(embed), "fields": ["text"]}
        )

    def made(self, index):
        from langgraph.store.memory import InMemoryStore

        return InMemoryStore(index=index)

    def store(self, user, turns):
        for turn in turns:
            self.store_of_theirs.put((user,), turn.id, {"text": turn.line})

    def search(self, user, query, k):
        return [item.key for item in self.store_of_theirs.search((user,), query=query, limit=k)]


class LangGraphSqlite(LangGraph):
    """LangGraph's `SqliteStore` with an index: all vectors of a namespace are compared, and no words are searched."""

    name = "LangGraph SqliteStore"
    needs = ("langgraph.store.sqlite", "sqlite_vec")

    @classmethod
    def missing(cls):
        import sqlite3

        if not hasattr(sqlite3.Connection, "enable_load_extension"):
            return "this Python's sqlite3 cannot load extensions"
        return super().missing()

    def made(self, index):
        import sqlite3

        from langgraph.store.sqlite import SqliteStore

        self.connection = sqlite3.connect(
            self.folder / "store.sqlite3", check_same_thread=False, isolation_level=None
        )
        # It reads `text_fields`, where its type and the other stores say `fields`.
        store = SqliteStore(self.connection, index={**index, "text_fields": index["fields"]})
        store.setup()
        return store

    def fill(self, user, turns):
        from langgraph.store.base import PutOp

        self.store_of_theirs.batch([PutOp((user,), turn.id, {"text": turn.line}) for turn in turns])

    def close(self):
        self.connection.close()


class Mem0(Searcher):
    """mem0 on Chroma with `infer=False`: texts are stored as they are, and no model is asked."""

    name = "mem0, infer=False"
    needs = ("mem0", "chromadb", "langchain_core", "langchain")

    def __init__(self, folder, embed):
        os.environ["MEM0_TELEMETRY"] = "False"
        os.environ["MEM0_DIR"] = str(folder)
        from mem0 import Memory as TheirMemory

        self.embed = embed
        self.memory = TheirMemory.from_config(
            {
                "vector_store": {"provider": "chroma", "config": {"path": str(folder / "chroma")}},
                "embedder": {"provider": "langchain", "config": {"model": langchain_embeddings(embed)}},
                "llm": {"provider": "openai", "config": {"api_key": "never used"}},
                "history_db_path": str(folder / "history.db"),
            }
        )

    def store(self, user, turns):
        for turn in turns:
            said = [{"role": turn.role, "content": turn.line}]
            self.memory.add(said, user_id=user, metadata={"turn": turn.id}, infer=False)

    def fill(self, user, turns):
        lines = [turn.line for turn in turns]
        self.memory.vector_store.insert(
            vectors=self.embed(lines),
            ids=[f"{user}/{turn.id}" for turn in turns],
            payloads=[
                {
                    "user_id": user,
                    "turn": turn.id,
                    "role": turn.role,
                    "data": turn.line,
                    "text_lemmatized": turn.line,
                }
                for turn in turns
            ],
        )

    def search(self, user, query, k):
        found = self.memory.search(query, filters={"user_id": user}, top_k=k, threshold=0)
        return [one["metadata"]["turn"] for one in found["results"]]

    def close(self):
        self.memory.close()


def langchain_embeddings(embed):
    from langchain_core.embeddings import Embeddings

    class Ours(Embeddings):
        def embed_documents(self, texts):
            return embed(texts)

        def embed_query(self, text):
            return embed([text])[0]

    return Ours()


def llamaindex_embedding(embed):
    from llama_index.core.embeddings import BaseEmbedding

    class Ours(BaseEmbedding):
        def _get_text_embedding(self, text):
            return embed([text])[0]

        _get_query_embedding = _get_text_embedding

        async def _aget_query_embedding(self, query):
            return embed([query])[0]

    return Ours()


def llamaindex_message(turn):
    from llama_index.core.llms import ChatMessage

    return ChatMessage(role=turn.role, content=turn.line)


PEERS = (LangChain, LlamaIndexMemory, LlamaIndexBest, LlamaIndexBlock, LangGraph, Mem0)
"""Beside `Chroma`, which every memlayer has."""
