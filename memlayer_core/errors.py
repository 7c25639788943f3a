"""Every error that memlayer raises, in one tree.

::

    MemlayerError
    ├── InputError (ValueError)            the caller's arguments; nothing was written
    │   ├── InvalidScopeError              a tenant, user, agent or session id
    │   ├── InvalidMessageError            a message or a part of it
    │   │   ├── MessageTypeError (TypeError)   something that is no message at all
    │   │   ├── UnknownMessageError            an id that the session does not have
    │   │   └── MessageChangedError            a message is not what the caller saw last
    │   ├── InvalidRecordError             a record or a part of it
    │   │   └── UnknownRecordError             an id that no record of the user has
    │   ├── InvalidItemError               an item, its folder or its key, or a filter
    │   ├── InvalidLimitError              a limit that no context can keep
    │   └── InvalidStateError              a saved state or a session file
    ├── ImportStoppedError (ValueError)    an export that cannot be read further; its beginning was imported
    ├── ConfigurationError                 settings, paths, URLs, names of models
    │   ├── MissingExtraError (ImportError)    an optional package is not installed
    │   ├── EmbedderMismatchError          the store was built with another embedder
    │   └── NewerSchemaError               the store was written by a newer memlayer
    ├── StoreError                         the journal or the index
    │   ├── StoreUnavailableError          unreachable, locked, read-only or full; often passes
    │   ├── StoreClosedError               used after `close()`
    │   ├── IndexUnavailableError          Chroma is out of reach; recall goes on without it
    │   └── IndexCorruptError              Chroma's files are damaged; they can be rebuilt
    ├── EmbedderError                      an embedder raised, timed out or answered nonsense
    ├── ModelError                         a language model did not answer
    │   └── ModelContextError              the prompt is longer than it can read
    └── FlushTimeoutError (TimeoutError)   background work is not done yet; it goes on

Each error carries `hint` (what to do, also shown under the traceback) and `retryable` (whether the
same call may succeed later).
"""

from __future__ import annotations

__all__ = [
    "ConfigurationError",
    "EmbedderError",
    "EmbedderMismatchError",
    "FlushTimeoutError",
    "ImportStoppedError",
    "IndexCorruptError",
    "IndexUnavailableError",
    "InputError",
    "InvalidItemError",
    "InvalidLimitError",
    "InvalidMessageError",
    "InvalidRecordError",
    "InvalidScopeError",
    "InvalidStateError",
    "MemlayerError",
    "MessageChangedError",
    "MessageTypeError",
    "MissingExtraError",
    "ModelContextError",
    "ModelError",
    "NewerSchemaError",
    "StoreClosedError",
    "StoreError",
    "StoreUnavailableError",
    "UnknownMessageError",
    "UnknownRecordError",
]


class MemlayerError(Exception):
    """The root of memlayer's errors.

    Args:
        message: What went wrong, with the values that it went wrong with.
        hint: What to do about it, in one sentence.
    """

    retryable: bool = False

    def __init__(self, message: str, *, hint: str) -> None:
        super().__init__(message)
        self.hint = hint
        self.add_note(f"Hint: {hint}")


class InputError(MemlayerError, ValueError):
    """The caller's arguments cannot be used. Nothing was written."""


class InvalidScopeError(InputError):
    """A tenant, user, agent or session id is empty or cannot be stored."""


class InvalidMessageError(InputError):
    """A message, or a part of it, cannot be stored as it is."""


class MessageTypeError(InvalidMessageError, TypeError):
    """Something was given as a message that is none, such as a bare `str`."""


class UnknownMessageError(InvalidMessageError):
    """The session has no message of that id."""


class MessageChangedError(InvalidMessageError):
    """A message was to be changed, and is not what the caller saw last: somebody else was faster."""


class InvalidRecordError(InputError):
    """A record, or a part of it, cannot be stored as it is."""


class UnknownRecordError(InvalidRecordError):
    """The user has no record of that id, or no longer."""


class InvalidItemError(InputError):
    """An item, the folder or the key that it is put under, or a filter for items cannot be used."""


class InvalidLimitError(InputError):
    """A limit (tokens, hits, seconds) that no answer can keep."""


class InvalidStateError(InputError):
    """A saved state or a session file cannot be read, or belongs to something else."""


class ImportStoppedError(MemlayerError, ValueError):
    """An export cannot be read further. What stands before was imported, and stays."""


class ConfigurationError(MemlayerError):
    """Settings, a path, a URL or a model's name cannot be used."""


class MissingExtraError(ConfigurationError, ImportError):
    """An optional package is needed here and is not installed."""


class EmbedderMismatchError(ConfigurationError):
    """The store's vectors were made by another embedder than the one given."""


class NewerSchemaError(ConfigurationError):
    """The store was written by a newer version of memlayer."""


class StoreError(MemlayerError):
    """The journal or the index could not do what was asked."""


class StoreUnavailableError(StoreError):
    """The store is unreachable, locked for too long, read-only or full."""

    retryable = True


class StoreClosedError(StoreError):
    """The memory was used after `close()`."""


class IndexUnavailableError(StoreError):
    """Chroma is out of reach. Recall goes on over the journal alone."""

    retryable = True


class IndexCorruptError(StoreError):
    """Chroma's files are damaged. They are a projection and can be rebuilt from the journal."""


class EmbedderError(MemlayerError):
    """An embedder raised, took too long or answered with something that is no vector."""

    retryable = True


class ModelError(MemlayerError):
    """A language model did not answer: it is away, overloaded, or refused the call."""

    retryable = True


class ModelContextError(ModelError):
    """A prompt is longer than the model can read."""


class FlushTimeoutError(MemlayerError, TimeoutError):
    """Background work was not finished in the time given. It goes on."""

    retryable = True
