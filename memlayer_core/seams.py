"""What a user may bring: models, a redactor, a window policy, stores, another memory.

`memlayer_core.testing` has suites of claims for most of them.
"""

from collections.abc import Awaitable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

from pydantic import BaseModel

from memlayer_core.message import Message

# Limits of a window: how much of the present session a model sees.


class Portion(NamedTuple):
    """The size of the newest part of a session, which a policy judges.

    Attributes:
        messages: Number of messages, without system messages and hidden ones.
        rounds: Number of rounds. A round is a user's message and everything up to the next one.
        tokens: Tokens of these messages.
    """

    messages: int
    rounds: int
    tokens: int


@runtime_checkable
class Policy(Protocol):
    """A rule that limits a window: `MaxRounds`, `MaxMessages`, or your own class.

    The token limit holds, too. The newest round is always in the window.
    """

    def allows(self, portion: Portion) -> bool:
        """Return whether a window may be so large. If it may, every smaller window must be allowed, too."""


@dataclass(frozen=True, slots=True)
class MaxTokens:
    """At most so many tokens for the whole context. It is not a `Policy`: it replaces `token_limit`.

    Attributes:
        limit: Tokens; 8000 is the common default of layered memories.
    """

    limit: int = 8000


@dataclass(frozen=True, slots=True)
class MaxMessages:
    """At most so many messages of the session, without the system message.

    Attributes:
        limit: Messages; 10 are five exchanges. 8 to 20 messages suit most chats.
    """

    limit: int = 10

    def allows(self, portion: Portion) -> bool:
        """Return whether there are no more messages than the limit."""
        return portion.messages <= self.limit


@dataclass(frozen=True, slots=True)
class MaxRounds:
    """At most so many rounds. A round is a user's message and everything up to the next one.

    Attributes:
        limit: Rounds; 10 is the common default of memories that count rounds.
    """

    limit: int = 10

    def allows(self, portion: Portion) -> bool:
        """Return whether there are no more rounds than the limit."""
        return portion.rounds <= self.limit


@dataclass(frozen=True, slots=True)
class Limits:
    """All limits of a window.

    Attributes:
        tokens: The most tokens that the whole context may cost.
        policies: Policies for the messages of the session. All of them must allow a window.
        reload: Whether the model has the tool that loads what a preview leaves out.
    """

    tokens: int
    policies: tuple[Policy, ...] = ()
    reload: bool = False

    @property
    def slides(self) -> bool:
        """Whether a full window moves with each turn, instead of in large steps."""
        return bool(self.policies)

    def allow(self, portion: Portion) -> bool:
        """Return whether every policy allows a window of this size."""
        return all(policy.allows(portion) for policy in self.policies)


def quarter_at_most(token_limit: int, tokens: int) -> int:
    """Return the tokens that one part of a context may take: at most a quarter of the limit."""
    return min(tokens, token_limit // 4)


_RECALL_SHARE = 0.4


def recall_budget(token_limit: int, tokens: int) -> int:
    """Return the tokens that the recall may take: never more than two fifths of the limit.

    Args:
        token_limit: Tokens of the whole context.
        tokens: What `Settings.recall_tokens` says.
    """
    return min(int(_RECALL_SHARE * token_limit), tokens)


# Vectors for a vector index, and its answers.

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    FloatVector = NDArray[np.float32]
else:
    FloatVector = Any  # numpy is loaded where vectors are made, not where they are named


OTHER_LANGUAGES = ""
"""The key of the scale for languages that were not measured one by one."""


@dataclass(frozen=True, slots=True)
class SimilarityScale:
    """Which cosines an embedder gives to texts that have nothing to do with each other. Each embedder has its own.

    Attributes:
        mean: The mean of these cosines, -1 to 1. About 0.04 for MiniLM, 0.7 to 0.8 for E5.
        deviation: The unit of similarity, above 0: a little more than the standard deviation of these cosines, and at least a
            fifth of what lies between `mean` and the mean cosine of questions to their answers.
    """

    mean: float = 0.04
    deviation: float = 0.08


@dataclass(frozen=True, slots=True, eq=False)
class IndexEntry:
    """The vectors of a text with everything that a vector index stores about them.

    Attributes:
        key: Key of the message, record or item text.
        buckets: The tokens that it is found by: of its user, its agent and its session (see `Scope`).
        vectors: Of the text, or of the parts of a long one in their order: unit length, float32, shape (dimension,).
        text_hash: Digest of the text that was embedded.
        speaker: Who said it: the first letter of the role, and the name.
        language: The code of its language; empty if that is not known.
        text: The text, where it is to be embedded.
    """

    key: int
    buckets: tuple[str, str, str]
    vectors: tuple[FloatVector, ...]
    text_hash: str
    speaker: str = ""
    language: str = ""
    text: str = ""


class Neighbour(NamedTuple):
    """A message that is similar to a query. A tuple, since an exact search makes a thousand of them.

    Attributes:
        key: Key of the message.
        similarity: Cosine to the query, -1 to 1; of a long text, that of its nearest part.
    """

    key: int
    similarity: float


@dataclass(frozen=True, slots=True)
class Reply:
    """A model's answer.

    Attributes:
        text: The text; empty if the model only calls tools.
        tokens_in: Tokens of the prompt, as the provider counted them; None if it did not say.
        tokens_out: Tokens of the answer, as the provider counted them; None if it did not say.
    """

    text: str
    tokens_in: int | None = None
    tokens_out: int | None = None


class Embedder(Protocol):
    """Turns texts into vectors.

    A model that wants a prefix, such as E5's "query: " and "passage: ", gets it in `embed_query` and in `embed`.

    Attributes:
        identity: Name of the model, the same in every process: `"minilm"`, `"langchain:…"`.
    """

    @property
    def identity(self) -> str:
        """Name of the model, the same in every process."""

    def embed(self, texts: Sequence[str]) -> list[FloatVector]:
        """Return a vector for each text, in the background: unit length, float32, shape (dimension,), the same dimension for all.

        Raises:
            EmbedderError: The model failed, or returned something that is not a vector.
        """

    def embed_query(self, text: str) -> FloatVector:
        """Return the vector of a question. Some models embed questions in another way than texts."""

    async def aembed_query(self, text: str) -> FloatVector:
        """Do the same without blocking the event loop."""


class LanguageModel(Protocol):
    """Answers a prompt with a text. Only background jobs and `Memory.summarize` call it."""

    @property
    def name(self) -> str:
        """The model's name in summaries, errors and `memory.admin.costs`."""

    def ask(self, instructions: str, text: str, schema: type[BaseModel] | None = None) -> Reply:
        """Send a prompt to the model, and wait for the answer.

        Args:
            instructions: What it is to do.
            text: What it is to read.
            schema: The form of the answer, for a model that can be held to one: it then answers with JSON of that form.

        Raises:
            ModelContextError: The prompt is longer than the model can read.
            ModelError: It did not answer.
        """


class TokenCounter(Protocol):
    """Counts tokens.

    Attributes:
        name: Name of the counter. It is stored with each count.
    """

    @property
    def name(self) -> str:
        """Name of the counter. It is stored with each count."""

    def text(self, text: str) -> int:
        """Return the number of tokens of a text."""

    def message(self, message: Message) -> int:
        """Return the number of tokens of a message: text, name, tool calls, media and overhead."""


class Redactor(Protocol):
    """Replaces what should not be remembered: a function from a text to a text.

    It is called for every text that is indexed, learned, becomes a record, or is shown in a recall or a profile. The
    history stays as it was said, and ids, provider fields and the names of arguments are never shown to it. It must be
    quick, must return the same for the same text, and must not change what it returned before. It may be called from
    several threads at once.
    """

    def __call__(self, text: str, /) -> str:
        """Return the text as it may be remembered.

        If it raises, nothing that it should have redacted is written or shown, and `memory.admin.status` names the
        problem.
        """


class LongTermMemory(Protocol):
    """What another service knows of one user beyond a conversation: mem0, Zep, or your own.

    `Memory.open(long_term_memory=…)` takes a function from a `Scope` to one of these. It is called for every call, so
    that no user's memory is read for another one. Both methods may be blocking or async; in the background, an async
    one runs in its own event loop.
    """

    def record(self, messages: Sequence[Message], /) -> Awaitable[None] | None:
        """Record what was said: a round of messages of the user and the model, the question first.

        It is called in the background after the answer is stored, and again if it raises: record a message of the same id
        once.
        """

    def retrieve(self, message: Message, /) -> Awaitable[str] | str:
        """Return what is relevant to a message, one thing a line; empty if nothing is."""


class MessageList(NamedTuple):
    """A session's messages in the user's own store.

    Attributes:
        messages: The messages, in order.
        version: Differs if the messages differ: a number, an ETag, or the stored text itself. Only the store reads it.
            None: the store has no such session.
    """

    messages: Sequence[Message] = ()
    version: str | None = None


class MessageStore(Protocol):
    """Holds the messages of sessions for `WindowMemory`: Redis, a database, files.

    `Message.to_json` and `Message.from_json` write and read one message. A store may also have `aget_messages`,
    `aupdate_messages` and `adelete_messages`; the async verbs of `WindowMemory` await those, and otherwise call the
    blocking ones in a thread. What a store raises becomes a `StoreUnavailableError`.
    """

    def get_messages(self, session_id: str) -> MessageList:
        """Return a session's messages and their version; `MessageList()` if there is no such session."""

    def update_messages(self, session_id: str, messages: Sequence[Message], version: str | None) -> bool:
        """Replace a session's messages in one step, if the session still has this version.

        Args:
            session_id: The session.
            messages: All messages of the session.
            version: What `get_messages` returned with the messages that these replace; None: there must be no such
                session.

        Returns:
            Whether they were replaced; False if the session has another version by now.
        """

    def delete_messages(self, session_id: str) -> None:
        """Delete a session's messages. A missing session is ignored."""
