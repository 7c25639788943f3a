"""Every error that memlayer raises, in one tree.

::

    MemlayerError
    ├── InputError (ValueError)            the caller's arguments; nothing was written
    │   ├── InvalidScopeError              a tenant, user, agent or session id
    │   ├── InvalidMessageError            a message or a part of it
    │   │   ├── MessageTypeError (TypeError)   something that is not a message at all
    │   │   ├── UnknownMessageError            an id that the session does not have
    │   │   └── MessageChangedError            a message is not what the caller saw last
    │   ├── InvalidRecordError             a record or a part of it
    │   │   └── UnknownRecordError             an id that no record of the user has
    │   ├── InvalidItemError               an item, its folder or its key, or a filter
    │   ├── InvalidFilterError             a filter of a search that cannot be used
    │   ├── InvalidLimitError              a limit that cannot be used
    │   └── InvalidStateError              a saved state or a session file
    ├── ImportStoppedError (ValueError)    an export that cannot be read further; its beginning was imported
    ├── ConfigurationError                 settings, paths, URLs, names of models
    │   ├── MissingExtraError (ImportError)    an optional package is not installed
    │   ├── EmbedderMismatchError          the store was built with another embedder
    │   ├── NewerSchemaError               the store was written by a newer memlayer
    │   └── OlderSchemaError               the store was written by an earlier memlayer; the hint says how to convert it
    ├── RetryableError                     the same call may succeed later; a base of some below
    ├── StoreError                         the journal or the index
    │   ├── StoreUnavailableError          unreachable, locked or read-only; often temporary
    │   │   └── StoreFullError                 its disk is full
    │   ├── StoreClosedError               used after `close()`
    │   ├── JournalCorruptError            the journal's pages are damaged; the hint says how to recover
    │   ├── IndexUnavailableError          Chroma cannot be reached; recall works without it
    │   └── IndexCorruptError              Chroma's files are damaged; they can be rebuilt
    ├── EmbedderError                      an embedder raised, timed out or returned no vectors
    ├── RerankerError                      a reranker raised, timed out or returned no scores; the order stays
    ├── LongTermMemoryError                another long-term memory raised, timed out or returned no text
    ├── ModelError                         a language model did not answer
    │   └── ModelContextError              the prompt is longer than it can read
    ├── RedactorError                      a redactor raised or returned no text; nothing was written
    └── FlushTimeoutError (TimeoutError)   background jobs are not done yet; they go on

Each error has a `hint` (what to do, also printed below the traceback) and `retryable` (whether the same call may
succeed later).
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any


class MemlayerError(Exception):
    """The root of memlayer's errors.

    Args:
        message: What is wrong, with the values that are wrong.
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
    """An argument must be a message and is not, such as a bare `str`."""


class UnknownMessageError(InvalidMessageError):
    """The session has no message of that id."""


class MessageChangedError(InvalidMessageError):
    """A message cannot be changed, since it is not what the caller last saw: somebody else changed it."""


class InvalidRecordError(InputError):
    """A record, or a part of it, cannot be stored as it is."""


class UnknownRecordError(InvalidRecordError):
    """The user has no record of that id, or no longer has it."""


class InvalidItemError(InputError):
    """An item, its folder, its key, or a filter for items cannot be used."""


class InvalidFilterError(InputError):
    """A filter of a search cannot be used. Nothing was searched."""


class InvalidLimitError(InputError):
    """A limit (tokens, hits, seconds) cannot be used: no answer can be within it."""


class InvalidStateError(InputError):
    """A saved state or a session file cannot be read, or belongs to something else."""


class ImportStoppedError(MemlayerError, ValueError):
    """An export cannot be read further. The lines before are imported."""


class ConfigurationError(MemlayerError):
    """Settings, a path, a URL or a model's name cannot be used."""


class MissingExtraError(ConfigurationError, ImportError):
    """An optional package is needed here and is not installed."""


class EmbedderMismatchError(ConfigurationError):
    """Another embedder than the one in use made the store's vectors."""


class NewerSchemaError(ConfigurationError):
    """A newer version of memlayer wrote the store."""


class OlderSchemaError(ConfigurationError):
    """An earlier version of memlayer wrote the store. The hint names the commands that convert it."""


class RetryableError(MemlayerError):
    """The same call may succeed later."""

    retryable = True


class StoreError(MemlayerError):
    """The journal or the index failed."""


class StoreUnavailableError(RetryableError, StoreError):
    """The store is unreachable, locked for too long, or read-only."""


class StoreFullError(StoreUnavailableError):
    """The disk of the store is full. Nothing was written."""


class StoreClosedError(StoreError):
    """The memory was used after `close()`."""


class JournalCorruptError(StoreError):
    """The journal's pages are damaged, or the file is not a journal at all."""


class IndexUnavailableError(RetryableError, StoreError):
    """Chroma cannot be reached. Recall works with the journal alone."""


class IndexCorruptError(StoreError):
    """Chroma's files are damaged. They can be built again from the journal."""


class EmbedderError(RetryableError):
    """An embedder raised, took too long, or returned something that is not a vector."""


class RerankerError(RetryableError):
    """A reranker raised, did not answer in time, or returned no scores. The order of the hits stays as it was."""


class LongTermMemoryError(RetryableError):
    """A long-term memory that stands in for memlayer's raised, did not answer in time, or returned no text."""


class ModelError(RetryableError):
    """A language model did not answer: it is not reachable, is overloaded, or refused the call."""


class ModelContextError(ModelError):
    """A prompt is longer than the model can read, or its answer longer than the model may write."""


class RedactorError(RetryableError):
    """Your redactor raised, or returned something that is not text. What it should have redacted was not written."""


class FlushTimeoutError(RetryableError, TimeoutError):
    """Background jobs were not finished within the timeout. They go on."""


def repr_of(value: object, longest: int = 80) -> str:
    """Return the beginning of a value's representation, for errors; its type's name if it has none.

    A list that is nested thousands deep has none, and an object of the caller's own may raise anything.
    """
    try:
        return repr(value)[:longest]
    except Exception:  # noqa: BLE001  (the error that is to be raised says more)
        return f"<{type(value).__name__}>"


def short_repr(value: object) -> str:
    """Return a value's type and short representation, for errors."""
    return f"{type(value).__name__} {repr_of(value)}"


def is_utf8(text: str) -> bool:
    """Return whether UTF-8 can encode a text: it has no lone surrogate."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def require(holds: bool, name: str, what: str, value: object, hint: str, error: type[MemlayerError]) -> None:
    """Raise an error of a type, unless an argument is what it must be.

    Args:
        holds: Whether it is.
        name: The argument's name.
        what: What it must be, such as `"a list"`.
        value: What was given.
        hint: What to do about it.
        error: The type.
    """
    if not holds:
        raise error(f"`{name}` must be {what}, got {short_repr(value)}", hint=hint)


def require_list(name: str, value: Any, what: str, hint: str, error: type[MemlayerError]) -> list[Any]:
    """Return what an iterable has; a text or a mapping is not a list.

    Raises:
        MemlayerError: Of the type `error`: it is not a list.
    """
    is_list = isinstance(value, Iterable) and not isinstance(value, str | bytes | Mapping)
    require(is_list, name, what, value, hint, error)
    return list(value)


def require_text(
    name: str,
    value: object,
    error: type[MemlayerError],
    *,
    may_be_blank: bool = False,
    may_be_empty: bool = False,
) -> str:
    """Return a text that every database can store.

    Raises:
        MemlayerError: Of the type `error`: it is not such a text.
    """
    if (
        not isinstance(value, str)
        or "\0" in value
        or not (may_be_empty or (value if may_be_blank else value.strip()))
    ):
        raise error(
            f"`{name}` must be a {'' if may_be_empty else 'non-empty '}string without NUL characters, got "
            f"{short_repr(value)}",
            hint=f"Pass a plain string with a visible character as `{name}`, or leave it out if it is optional.",
        )
    if not is_utf8(value):
        raise error(
            f"`{name}` holds a lone surrogate, which no database can store: {short_repr(value)}",
            hint=f"Decode `{name}` with the right codec, or replace its broken characters.",
        )
    return value


@contextmanager
def errors_as(error: type[MemlayerError], place: str = "") -> Iterator[None]:
    """Raise an `InputError` of the block as an error of another type, with the same hint.

    Args:
        error: The type.
        place: What stands in front of the error's text, such as `"message 3: "`.
    """
    try:
        yield
    except InputError as problem:
        raise error(f"{place}{problem}", hint=problem.hint) from None


@contextmanager
def os_errors_as(error: type[MemlayerError], problem: str, hint: str) -> Iterator[None]:
    """Raise an `OSError` of the block as an error of another type, with the reason that the system gives.

    Args:
        error: The type.
        problem: What cannot be done, such as `"the file 'x.json' cannot be read"`.
        hint: What to do about it.
    """
    try:
        yield
    except OSError as raised:
        raise error(f"{problem}: {raised.strerror or raised}", hint=hint) from raised


@contextmanager
def foreign_errors_as(error: type[MemlayerError], who: str) -> Iterator[None]:
    """Raise an error of a user's model or store in the block as one of our error types. Our own errors pass.

    The text of another library's error may quote a message or a key, so only the cause has it.

    Args:
        error: The type.
        who: Who raises it, such as `"the embedder langchain:small"`.
    """
    try:
        yield
    except MemlayerError:
        raise
    except Exception as problem:
        raise error(
            f"{who} raised {type(problem).__name__}",
            hint="Look at the error that it was raised from: often its credentials, its network or its settings.",
        ) from problem


def in_short(problem: BaseException) -> str:
    """Return a text about an error that may be logged and stored, since it quotes no message.

    An error of another library, or an `InputError`, may quote a message: for these it is the type's name.
    """
    ours = isinstance(problem, MemlayerError) and not isinstance(problem, InputError)
    return str(problem) if ours else type(problem).__name__
