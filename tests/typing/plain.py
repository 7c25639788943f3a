"""What a program without a framework writes. Nothing here is run: type checkers read it."""

from datetime import UTC, datetime, timedelta

from memlayer_core import (
    Chat,
    Context,
    Hit,
    MaxMessages,
    MaxRounds,
    MaxTokens,
    MemlayerError,
    Memory,
    Message,
    RecallFilter,
    Record,
    Scope,
    Settings,
    ToolCall,
)
from memlayer_core.chat import UserMemory
from memlayer_core.errors import StoreError
from memlayer_core.events import Event, MessagesStored
from memlayer_core.facts.model import Access
from memlayer_core.message import Receipt
from memlayer_core.window.model import Piece


def talk(memory: Memory) -> str:
    chat: Chat = memory.chat(user_id="ada", session_id="monday", roles=["editor"])
    receipt: Receipt = chat.add("user", "I moved to Riga.", name="Ada", metadata={"app": {"page": 3}})
    chat.add("assistant", tool_calls=[ToolCall("c1", "weather", '{"town": "Riga"}')])
    chat.add("tool", [{"type": "text", "text": "Rain."}], tool_call_id="c1")
    chat.add_messages([Message("assistant", "Take an umbrella."), Message("user", "Thanks")])
    chat.add_temporary(Message("user", "(in a hurry)"))
    context: Context = chat.context("Where?", token_limit=3000, policy=[MaxRounds(4), "max_messages"])
    pieces: list[Piece] = [piece for piece in context.pieces if piece.tokens > 10]
    sent: list[str] = [f"{message.role}: {message.text}" for message in context.messages]
    openai: list[dict[str, object]] = context.to_openai()
    recalled: str | None = context.recall
    texts: list[str] = [piece.text for piece in pieces]
    history: list[Message] = chat.history(-20)
    again: list[Message] = [Message.from_json(message.to_json()) for message in history]
    return f"{receipt.stored} {len(pieces)} {sent} {openai} {recalled} {texts} {again} {context.tokens + 1}"


def policies(chat: Chat) -> None:
    chat.context(policy="max_rounds")
    chat.context(policy=MaxTokens(2000))
    chat.context(policy={"max_rounds": 4, "max_messages": 12})
    chat.context(policy=["max_rounds", MaxMessages(8)])
    chat.context(pending=[Message("user", "And now?")], filter=RecallFilter(kinds=["record"]))


def records(memory: Memory, chat: Chat) -> list[str]:
    until = datetime.now(UTC) + timedelta(days=30)
    chat.remember("Ada is in Oslo.", expires_at=until)
    text = "Ada is allergic to nuts."
    record: Record = chat.remember(text, type="preference", tags=["food"], importance=0.9, always=True)
    changed = chat.revise(record.memory_id, text="Ada is allergic to all nuts.", confidence=1.0, merge=[])
    chat.remember("The office closes at six.", visibility="share", allowed_roles=["editor"])
    for one in memory.records(user_id="ada", tags=["food"], as_of=datetime(2026, 5, 1, tzinfo=UTC)):
        print(one.text, one.key, one.value, one.valid_from)
    print(Access(visibility="public").is_shared)
    why = memory.why(changed.memory_id, user_id="ada")
    quotes = [one.quote for one in why.evidence]
    outcomes = [entry.outcome for entry in memory.ledger(user_id="ada")]
    reasons = [entry.reason for entry in memory.ledger(user_id="ada")]
    deleted = memory.forget(user_id="ada")
    return [*quotes, *outcomes, *reasons, str(deleted.messages)]


def search(memory: Memory) -> list[tuple[str, float]]:
    hits = memory.search("allergic", user_id="ada", limit=5, filter=RecallFilter(tags=["food"]))
    first: Hit = hits[0]
    notes = [f"{reason.code} {reason.text}" for reason in first.reasons]
    dates = [hit.record.valid_from for hit in hits if hit.record is not None]
    print(notes, dates, first.message_ids)
    return [(hit.text, hit.score) for hit in hits]


def look_after(memory: Memory) -> None:
    def note(event: Event) -> None:
        if isinstance(event, MessagesStored):
            print(event.stored)

    stop = memory.listen(note)
    try:
        memory.flush(timeout=10)
        print(memory.admin.status().problems, memory.admin.costs(user_id="ada"))
        print(memory.sessions(user_id="ada"))
        memory.export("backup.jsonl", user_id="ada")
        print(memory.import_from("backup.jsonl").stored)
    except StoreError as problem:
        print(problem.hint)
    except MemlayerError as problem:
        print(problem)
    stop()


async def talk_in_a_loop() -> str:
    async with Memory.open("./memory", settings=Settings(max_tokens=4000)) as memory:
        chat = memory.chat_of(Scope("ada", "monday"))
        await chat.aadd("user", "I moved to Riga.")
        await chat.aadd_messages([Message("assistant", "Noted.")])
        context = await chat.acontext("Where do I live?")
        hits = await memory.asearch("Riga", user_id="ada")
        record = await chat.aremember("Ada prefers trains.", key="travel", value="train")
        known = await memory.arecords(user_id="ada")
        await memory.aforget(user_id="ada", record_id=record.memory_id)
        return f"{context.tokens} {hits[0].text} {[one.text for one in known]}"


with Memory.in_memory() as opened:
    remembered = UserMemory(opened.chat(user_id="ada"))
    remembered.record([Message("user", "My parrot is called Coco.")])
    print(talk(opened), remembered.retrieve("What is my parrot called?").upper())
