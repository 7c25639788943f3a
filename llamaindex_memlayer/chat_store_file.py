"""The file of a copy of a chat store, in the form of LlamaIndex's `SimpleChatStore`.

::

    {"store": {"monday": [{"role": "user", "additional_kwargs": {}, "blocks": […]}]}, "class_name": "…"}

Nothing here opens files or URLs in a message.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import fsspec
import llama_index.core
from llama_index.core.base.llms.types import ChatMessage

from llamaindex_memlayer.messages import FRAMEWORK, from_core, to_core
from memlayer_core import Message
from memlayer_core.errors import InvalidStateError, StoreUnavailableError
from memlayer_core.integration import Raw, json_text, parse_json, short_repr, write_whole

__all__ = ["read", "write"]

_HINT = "Give a file that `MemlayerChatStore.persist` or `SimpleChatStore.persist` wrote."


def write(
    path: str, conversations: Mapping[str, Sequence[ChatMessage]], fs: fsspec.AbstractFileSystem | None
) -> None:
    """Write conversations to a file. A local file is written completely or not at all.

    Raises:
        StoreUnavailableError: The file cannot be written.
    """
    store = {key: [_dump(message) for message in messages] for key, messages in conversations.items()}
    text = json_text({"store": store, "class_name": "MemlayerChatStore"})
    try:
        if fs is None:
            write_whole(Path(path), text)
        else:
            fs.makedirs(os.path.dirname(path), exist_ok=True)  # noqa: PTH120  (a path of whatever file system)
            with fs.open(path, "w", encoding="utf-8") as file:
                file.write(text)
    except OSError as problem:
        raise StoreUnavailableError(
            f"the chat store's file {path!r} cannot be written: {problem.strerror or problem}",
            hint="Give a path that this process may write.",
        ) from problem


def read(path: str, fs: fsspec.AbstractFileSystem | None) -> dict[str, list[ChatMessage]]:
    """Return the conversations of a file; none if there is no such file.

    Raises:
        InvalidStateError: The file is no chat store; the error names the message that cannot be read.
        StoreUnavailableError: The file cannot be read.
    """
    files = fs if fs is not None else fsspec.filesystem("file")
    try:
        if not files.exists(path):
            return {}
        text = files.cat_file(path)
    except OSError as problem:
        raise StoreUnavailableError(
            f"the chat store's file {path!r} cannot be read: {problem.strerror or problem}",
            hint="Give a path that this process may read.",
        ) from problem
    what = f"the chat store's file {path!r}"
    document = parse_json(text, what, InvalidStateError)
    if isinstance(document, str):  # as some versions of the framework wrote it
        document = parse_json(document, what, InvalidStateError)
    store = document.get("store") if isinstance(document, Mapping) else None
    if not isinstance(store, Mapping) or not all(isinstance(one, list) for one in store.values()):
        raise InvalidStateError(f"{what} has no lists of messages in `store`", hint=_HINT)
    return {
        key: [_message(form, f"message {place} of {key!r} in {what}") for place, form in enumerate(forms)]
        for key, forms in store.items()
    }


def _dump(message: ChatMessage) -> Mapping[str, Any]:
    raw = to_core(message).raw
    assert raw is not None  # every translation has it
    return raw.dump


def _message(form: object, what: str) -> ChatMessage:
    """Return a message of its JSON, which memlayer or LlamaIndex wrote."""
    if not isinstance(form, Mapping):
        raise InvalidStateError(f"{what} is no object, but {short_repr(form)}", hint=_HINT)
    try:
        if "blocks" not in form:  # before messages had them
            return ChatMessage.model_validate(form)
        dump = {"additional_kwargs": {}, **form}
        return from_core(Message("user", raw=Raw(FRAMEWORK, llama_index.core.__version__, dump)))
    except (ValueError, TypeError, KeyError, AttributeError) as problem:
        raise InvalidStateError(f"{what} cannot be read: {problem!s:.200}", hint=_HINT) from None
