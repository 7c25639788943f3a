"""Parses a question: what it asks for, and whom it names."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from memlayer_core.recall.rules.frequency import Use, is_character, use_of
from memlayer_core.recall.rules.gate import answers_to
from memlayer_core.recall.rules.times import days_meant_by, without_days
from memlayer_core.storage.languages import (
    first_person,
    language_of,
    omits_possessive,
    omits_subject,
    question_word,
    second_person,
)
from memlayer_core.storage.terms import (
    SPOKEN,
    WISH,
    content_words,
    possible_names,
    question_terms,
    without_question_words,
    words_by_term,
)
from memlayer_core.storage.wishes import asks_for_help

__all__ = ["Question", "asks_what_was_said", "question"]

_FIRST_CJK = "\u2e80"  # from here on, names stand among other words without spaces
_ASKING = re.compile(
    r"[?\uff1f]"
    r"|^\W*(?:(?:and|so|but|ok(?:ay)?|hey|hi|then|please)\W+)*"
    r"(?:(?:about|after|at|before|by|during|for|from|in|of|on|since|to|under|until|with)\W+(?:how|what|which|whom?|whose|when|where)"
    r"|what|which|who|whom|whose|when|where|why|how|do|does|did|is|are"
    r"|was|were|am|can|could|will|would|should|has|have|had|tell me|remind me|do you (?:remember|know))\b"
    r"|什么|哪|谁|多少|几[个次岁只点月号天本人]|怎么|怎样|吗|呢\W*$|为何|是否|多[久大长高]|星期几|记得",
    re.IGNORECASE,
)
"""A question mark, or the words that questions begin with: many people write none."""
_FOR_USER = re.compile(
    r"^\W*(?:(?:now|please|(?:can|could|will|would) you)\W+)*"
    r"(?:(?:give|show|teach|help|find|write|make|explain to|walk) (?:me|us)\b|tell (?:me|us)(?= (?:an?|more|about you(?:rself)?)\b))"
    r"|^\W*(?:请|你|您|麻烦|可以|可不可以|能|能不能)*[给帮教]我们?(?![的妈爸爷奶哥姐弟妹儿女家老])",
    re.IGNORECASE,
)
"""What says for whom the assistant is to do something, and not that it is about the user."""
_OBJECT = re.compile(r"(?<!\babout )(?<!\bof )\b(?:me|us)\W*$|我们?(?=[吗吧呢]?\W*$)", re.IGNORECASE)
"""The user as the object of what the assistant is asked: "do you like me?". It is about the assistant."""
_AT_HOME = re.compile(r"\bat (?:home|work|the office)\b|家里|公司里|单位里", re.IGNORECASE)
"""Where the user lives and works, without a word that says whose home it is."""
_REMEMBERS = re.compile(r"\b(?:remember|recall|know)\b|记得|知道", re.IGNORECASE)
"""What asks the assistant for its memory."""
_YES_OR_NO = re.compile(
    r"^\W*(?:(?:and|so|but|ok(?:ay)?|hey|hi|then|please)\W+)*(?:do|does|did|is|are|was|were|am|can|could|may|shall|will|would|should"
    r"|has|have|had|tell me)\b(?!.*\b(?:what|which|whom?|whose|when|where|why|how)\b)|吗\W*$",
    re.IGNORECASE,
)
"""What no more than "yes" or "no" answers."""
_YOU_SAID = re.compile(
    r"\b(?:did|have|had) you (?:ever |just |already |not )?"
    r"(?:sa(?:y|id)|t(?:ell|old)|g(?:ive|iven)|wr(?:ite|itten)|(?:suggest|recommend|mention|explain|answer|show|list|call|offer)(?:ed)?"
    r"|(?:advise|propose|describe|name)d?)\b"
    r"|\byou(?:['\u2019]ve| have| had)? (?:just |already |once )?"
    r"(?:said|told|gave|given|wrote|showed|suggested|recommended|mentioned|explained|answered|advised|proposed|described|listed)\b"
    r"|\byour (?:[a-z]+ )?(?:advice|suggestions?|recommendations?|answers?|repl(?:y|ies)|explanations?|tips?|words)\b"
    r"|你.*(?:推荐|建议|说|提|给|告诉|讲|写|介绍|回答|解释)(?:过|了|的)|你的(?:建议|推荐|回答|解释)",
    re.IGNORECASE,
)
"""What asks for something that the assistant said."""
_SHORT = 4  # words that say what a question is about
_INSIDE = re.compile(r"(?<=[\w,;:] )[^\W\d_]\w+")  # a word within a sentence: with a capital it is a name
_SPACE = re.compile(r"\s+")
_SAID = re.compile(
    r"\b(?:sa(?:y|id|ying)|t(?:ell|old)|talk(?:s|ed|ing)?|sp(?:eak|oke|oken)|mention(?:s|ed)?|discuss(?:ed)?|chat(?:s|ted)?"
    r"|ask(?:ed)?|wr(?:ite|ote|itten)|conversations?|did|done|happen(?:s|ed)?|went|been|spen[dt]|(?:was|were) (?:i|we)"
    r"|(?:i|we) (?:was|were))\b"
    "|说|讲|聊|谈|提|问|告诉|讨论|对话|话题|发生|[做干去忙](?=.*[了过])",
    re.IGNORECASE,
)
"""What asks for whatever was said or done; "do" does not: "what shall I do today?" wants something else."""
_NO_MORE = re.compile(
    r"\b(?:about|(?:any|every|some)?things?|all|else|remember|recall|recap|summari[sz]e|summary|list|show|give|know|let|us"
    r"|up|do|going|go)\b"
    "|些|事情|事|内容|记得|总结|过|到|起|都|跟|对|给|和|哪|还|在|有|来|呀|呢|里|地方",
    re.IGNORECASE,
)
"""What says no more than that beside it."""


@dataclass(frozen=True, slots=True)
class Question:
    """A parsed question.

    Attributes:
        text: What an embedder is given: the question without the names of those who spoke. A name says who, and
            to an embedder it says that every turn with the name in it is near.
        words: Its index terms.
        names: Who is named of those who spoke, as names are filed.
        about_user: Whether users speak of themselves.
        when: Index terms of the days and months that it refers to.
        only_when: Whether it asks for whatever was said or done then, and for nothing else.
        asks: Whether it asks for anything: most of what people say does not.
        dates: Words of it that say when, or that something was said, and nothing of what is asked.
        helps: Whether it asks for help, to which earlier wishes apply.
        answer: Tells which texts can answer it, if that is known.
        about_assistant: Whether users ask for what the assistant said.
        to_assistant: Whether users ask the assistant about itself, or for something that is not about them: "who are you?",
            "tell me a joke".
        only_confirms: Whether it asks for no more than a yes: "am I right?", but not "do you remember my name?".
        content: Those of its words that say what it is about.
        omits_subject: Whether it may be about the user without a word that says so: its language may leave that out, or it asks
            what is at home.
        omits_possessive: Whether its language may leave out whose things it speaks of.
    """

    text: str
    words: tuple[str, ...]
    names: frozenset[str]
    about_user: bool
    when: tuple[str, ...] = ()
    only_when: bool = False
    asks: bool = False
    dates: frozenset[str] = frozenset()
    helps: bool = False
    answer: Callable[[str], bool] | None = None
    about_assistant: bool = False
    to_assistant: bool = False
    only_confirms: bool = False
    content: tuple[str, ...] = ()
    omits_subject: bool = False
    omits_possessive: bool = False

    @property
    def is_personal(self) -> bool:
        """Whether it asks about the user, about what the assistant said, or about somebody who spoke."""
        return self.asks and (
            bool(self.names) or self.about_assistant or (self.about_self and not self.helps)
        )

    @property
    def about_self(self) -> bool:
        """Whether users ask about themselves, and are not only those for whom something is to be done."""
        return self.about_user and not self.to_assistant

    @property
    def about(self) -> tuple[str, ...]:
        """The words that say what is asked."""
        return tuple(word for word in self.words if word not in self.dates)

    def lost_words(self, occurs: Callable[[str], bool]) -> dict[str, str]:
        """Return words that may be parts of others, or have a slip, by their index terms.

        These are the words of a short question that not everybody uses and that no text has. If texts have another one
        of them, only names count: "status" is no slip of "states".

        Args:
            occurs: Tells whether any text has a term.
        """
        if len(self.content) > _SHORT:
            return {}
        rare = [word for word in self.content if use_of(word) is Use.RARE]
        lost = [word for word in rare if not occurs(word)]
        if not lost:
            return {}
        names = (word for word in _INSIDE.findall(self.text) if word[0].isupper())
        words = words_by_term(self.text if len(lost) == len(rare) else " ".join(names))
        return {word: words[word] for word in lost if word in words}

    def read_as(self, terms: Mapping[str, str]) -> Question:
        """Return the question with other terms in place of some words."""
        return replace(
            self,
            words=tuple(dict.fromkeys(terms.get(word, word) for word in self.words)),
            content=tuple(dict.fromkeys(terms.get(word, word) for word in self.content)),
        )

    @property
    def index_terms(self) -> tuple[str, ...]:
        """All index terms to search for."""
        return (*self.words, *self.when, *((WISH,) if self.helps else ()))


def asks_what_was_said(rest: str) -> bool:
    """Tell whether a question asks for whatever was said or done on its day: nothing but words for that remains of it.

    "What did I say", 我说了什么; not "how are you", which asks for nothing that was said.

    Args:
        rest: The question without the day, and without the names of those who spoke.
    """
    return bool(_SAID.search(rest)) and not content_words(
        without_question_words(_NO_MORE.sub(" ", _SAID.sub(" ", rest)))
    )


def question(text: str, speakers: Collection[str], now: datetime, *, explicit: bool = False) -> Question:
    """Read a question.

    Args:
        text: As it was asked.
        speakers: Which of `named(text)` are names of people who spoke.
        now: What "last week" is counted from.
        explicit: Whether it is a question, whatever its words.
    """
    bare = text
    names = {part: written for part, written in possible_names(text).items() if part in speakers}
    for written in sorted(names.values(), key=len, reverse=True):
        alone = (r"(?<!\w)", r"(?:['\u2019]s)?(?!\w)") if written[0] < _FIRST_CJK else ("", "")
        bare = re.sub(re.escape(written).join(alone), " ", bare)
    bare = _SPACE.sub(" ", bare).strip()
    words = question_terms(bare)
    if names and not content_words(bare):
        bare, words = bare or text, tuple(SPOKEN + name for name in names)
    when = days_meant_by(text, now)
    rest = without_days(bare) if when else bare
    only_when = bool(when) and asks_what_was_said(rest)
    said = () if only_when or not content_words(without_question_words(rest)) else question_terms(rest)
    if only_when:  # whoever said "today" has said no more of it than others
        words = tuple(word for word in words if word.startswith(SPOKEN))
    dates = frozenset(words).difference(said) if when else frozenset[str]()
    said_by_assistant = bool(_YOU_SAID.search(text))
    language = language_of(text)
    begins, own = question_word(language), first_person(language)
    asks = bool(_ASKING.search(text) or (begins is not None and begins.search(text)))
    return Question(
        bare,
        words,
        frozenset(names),
        about_user=bool(own.search(text)) and not said_by_assistant,
        when=when,
        only_when=only_when,
        asks=explicit or only_when or asks,
        dates=dates,
        helps=asks_for_help(text),
        answer=answers_to(text),
        about_assistant=said_by_assistant,
        to_assistant=_is_to_assistant(text, own, second_person(language)),
        only_confirms=bool(_YES_OR_NO.search(text)) and not _REMEMBERS.search(text),
        content=_content(words, bare, dates),
        omits_subject=omits_subject(language) or bool(_AT_HOME.search(text)),
        omits_possessive=omits_possessive(language),
    )


def _is_to_assistant(text: str, own: re.Pattern[str], your: re.Pattern[str] | None) -> bool:
    rest = _FOR_USER.sub(" ", text)
    if your is not None and your.search(text) and not _REMEMBERS.search(text):
        return not own.search(_OBJECT.sub(" ", rest))
    return rest != text and not own.search(rest)


def _content(words: Sequence[str], text: str, dates: Collection[str]) -> tuple[str, ...]:
    """Return the words that say what a question is about: no stop words, no dates, no letters."""
    if not (content_words(without_question_words(text)) or (words[:1] and words[0].startswith(SPOKEN))):
        return ()
    return tuple(word for word in words if word not in dates and (len(word) > 1 or is_character(word)))
