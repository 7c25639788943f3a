"""Loads Chroma, and translates its errors into memlayer's."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from memlayer_core.errors import IndexCorruptError, IndexUnavailableError, MemlayerError

if TYPE_CHECKING:
    from types import ModuleType

_PASSING = (
    "database is locked",
    "database table is locked",
    "disk is full",
    "disk i/o error",
    "no space left",
    "permission denied",
    "readonly database",
    "too many open files",
    "unable to open database",
)


def load_chromadb() -> ModuleType:
    """Import chromadb, which costs a second and reads foreign settings on the way.

    Raises:
        IndexUnavailableError: The environment or `./.env` holds a variable that Chroma cannot take.
    """
    try:
        import chromadb  # a second that only who needs it pays
    except Exception as problem:
        named = ", ".join(_rejected(problem)) or "a variable"
        raise IndexUnavailableError(
            f"chromadb cannot be imported: {problem}",
            hint=f"Chroma reads unprefixed environment variables and the file .env of the working "
            f"directory: check {named} there, or start the process in another directory.",
        ) from problem
    return chromadb


def _rejected(problem: Exception) -> list[str]:
    """Return the variables that a pydantic error complains about."""
    from pydantic import ValidationError  # only a failure needs it

    if not isinstance(problem, ValidationError):
        return []
    return ["_".join(map(str, error["loc"])).upper() for error in problem.errors()]


def chroma_settings(**values: Any) -> Any:
    """Return Chroma's settings, with those that would break the index out of the environment's reach."""
    load_chromadb()
    from chromadb.config import Settings

    made: Any = Settings
    return made(
        _env_file=None,
        anonymized_telemetry=False,
        migrations="apply",
        migrations_hash_algorithm="md5",
        allow_reset=False,
        **values,
    )


@contextmanager
def translate_errors(action: str) -> Iterator[None]:
    """Raise what Chroma raises as one of memlayer's errors.

    Args:
        action: What was tried, for the error's text: `"Chroma could not <action>"`.

    Raises:
        IndexCorruptError: The collection must be dropped and filled again.
        IndexUnavailableError: It may work later.
    """
    try:
        yield
    except MemlayerError:
        raise
    except Exception as problem:
        raise _translation(problem, action) from problem
    except BaseException as problem:
        if type(problem).__name__ != "PanicException":  # how Rust's panics reach Python
            raise
        raise _corrupt(problem, action) from problem


def _translation(problem: Exception, action: str) -> MemlayerError:
    from chromadb import errors

    said = f"Chroma could not {action}: {type(problem).__name__}: {problem}"
    if any(phrase in str(problem).lower() for phrase in _PASSING):
        hint = "Free the disk, the file or the descriptors that it names; memlayer tries again."
    elif isinstance(problem, errors.ChromaAuthError | errors.AuthorizationError):
        hint = "Check the headers that are sent to the Chroma server."
    elif isinstance(problem, errors.ChromaError):
        return _corrupt(problem, action)
    else:
        hint = "Check that Chroma is running and reachable; recall goes on without it."
    return IndexUnavailableError(said, hint=hint)


def _corrupt(problem: BaseException, action: str) -> IndexCorruptError:
    return IndexCorruptError(
        f"Chroma could not {action}: {type(problem).__name__}: {problem}",
        hint="The index is a copy: memlayer drops the collection and fills it again.",
    )
