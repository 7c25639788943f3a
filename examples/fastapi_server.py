"""A chat over HTTP with FastAPI: one memory for the server, answers that are streamed, and a shutdown that loses nothing.

Run it: `python examples/fastapi_server.py`, with `DATABASE_URL=postgresql://…` for PostgreSQL. It needs `pip install fastapi uvicorn`. Ask it in another terminal:
`curl -N localhost:8000/chat -H 'content-type: application/json' -d '{"user_id": "ada", "session_id": "1", "text": "Hello!"}'`
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import uvicorn
from fastapi import FastAPI, Request
from fastapi.responses import StreamingResponse
from pydantic import BaseModel

from memlayer_core import Chat, Context, Memory


class Question(BaseModel):
    """A request. In production the user's id comes from the login, and never from the body."""

    user_id: str
    session_id: str
    text: str


def place() -> dict[str, str]:
    """Return where the memory is: `DATABASE_URL` for PostgreSQL, which several servers share, or a directory."""
    if "DATABASE_URL" in os.environ:
        return {"database_url": os.environ["DATABASE_URL"]}
    return {"path": os.environ.get("MEMLAYER_DIRECTORY", "./memory")}


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    """Open the memory before the first request, and close it after the last one."""
    app.state.memory = await asyncio.to_thread(Memory.open, **place())
    # Questions do without the embedder until it is loaded.
    warming = asyncio.create_task(app.state.memory.admin.awarm())
    try:
        yield
    finally:
        await asyncio.wait([warming])
        await app.state.memory.aclose()


app = FastAPI(lifespan=lifespan)


@app.get("/health")
async def health(request: Request) -> dict[str, object]:
    """Tell a load balancer whether the store answers (else 500), and what does not work at the moment."""
    status = await request.app.state.memory.admin.astatus()
    return {"status": "ok", "jobs": status.backlog.queued, "problems": status.problems}


@app.post("/chat")
async def chat(question: Question, request: Request) -> StreamingResponse:
    """Store the question, and stream the answer."""
    session = request.app.state.memory.chat(user_id=question.user_id, session_id=question.session_id)
    await session.aadd("user", question.text)  # it is on disk before the model is called
    context = await session.acontext()
    return StreamingResponse(answer(session, context), media_type="text/plain")


async def answer(session: Chat, context: Context) -> AsyncIterator[str]:
    """Stream an answer, and store it: also the beginning of one whose reader is gone."""
    parts: list[str] = []
    try:
        async for part in model(context):
            parts.append(part)
            yield part
    finally:
        if parts:
            await asyncio.shield(session.aadd("assistant", "".join(parts)))


async def model(context: Context) -> AsyncIterator[str]:
    """Stream words. Your model goes here: `client.responses.stream(input=context.to_openai(), …)`."""
    knows = any("Coco" in str(message.content) for message in context.messages)
    for word in ("Your parrot ", "is called ", "Coco." if knows else "what?"):
        yield word
        await asyncio.sleep(float(os.environ.get("SECONDS_FOR_A_WORD", "0.1")))


if __name__ == "__main__":
    uvicorn.run(app, host="127.0.0.1", port=int(os.environ.get("PORT", "8000")), timeout_graceful_shutdown=30)
