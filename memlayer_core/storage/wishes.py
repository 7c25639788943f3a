"""Recognizes wishes of a user, and requests for help to which wishes apply.

"Always answer in two sentences" and "I prefer trains" bear on every later request, whatever its words. They do not
bear on a question about the past: "When did I go to Kyoto?" asks for a turn.
"""

from __future__ import annotations

import re

__all__ = ["asks_for_help", "is_wish"]

_WISH = re.compile(
    r"\bi(?!(?:['\u2019]d| would) (?:really )?like to\b)(?:['\u2019]d| would)? (?:really |much |generally |usually |always |strongly )?"
    r"(?:prefer|like|love|hate|dislike|avoid|rather)\b|\b(?:always|never|from now on|whenever i)\b"
    r"|我(?:更|比较|很|最|不|非常|特别|一直)*(?:喜欢|讨厌|偏好|偏爱|爱|习惯)|总是|从不|一律|务必|每次都|以后(?:都|请)|从现在起"
    r"|请(?:始终|一直|记住)|不要再|别再",
    re.IGNORECASE,
)
_HELP = re.compile(
    r"\b(?:can|could|would|will) you\b|\bhow (?:do|should|can|could|would) (?:i|we)\b|\bhelp me\b|\bshould i\b"
    r"|\b(?:suggest|recommend|advise|explain|(?:show|tell|give|walk) me)\b"
    r"|帮(?:我|忙)|推荐|建议|解释|介绍|如何|怎么(?:做|办|写|样才|才能|选)|应该|能不能|给我",
    re.IGNORECASE,
)
_PAST = re.compile(
    r"\b(?:did|was|were|had|have (?:i|my|we)|mentioned|said|told|across)\b|说过|提到|之前|以前|上次|曾|过(?:什么|哪)|了(?:什么|多少|哪|几)",
    re.IGNORECASE,
)
_READ = 600  # characters of a message's beginning: what somebody wants is said before what they paste


def is_wish(text: str) -> bool:
    """Tell whether a text says how somebody wants things, or what they like."""
    return bool(_WISH.search(text[:_READ]))


def asks_for_help(text: str) -> bool:
    """Tell whether a text asks for something to be done or advised, and not for what was said before."""
    return bool(_HELP.search(text)) and not _PAST.search(text)
