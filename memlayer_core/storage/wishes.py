"""Recognizes wishes of a user, and requests for help to which wishes apply.

"Always answer in two sentences" is a standing instruction: it bears on every later request, whatever its words. "I prefer
trains" is a liking: it bears on requests of its kind. Neither bears on a question about the past: "When did I go to Kyoto?"
asks for a turn. "I've never been to Kyoto" and "he always comes late" are no wishes.
"""

from __future__ import annotations

import re

__all__ = ["asks_for_help", "is_instruction", "is_wish"]

_LIKING = re.compile(
    r"\bi(?!(?:['\u2019]d| would) (?:really )?like to\b)(?:['\u2019]d| would)? (?:really |much |generally |usually |always |strongly )?"
    r"(?:prefer|like|love|hate|dislike|avoid|rather)\b"
    r"|我(?:更|比较|很|最|不|非常|特别|一直)*(?:喜欢|讨厌|偏好|偏爱|爱|习惯)",
    re.IGNORECASE,
)
_BEGINS = r"(?:^|[.!?\n]\s*|\b(?:please|kindly|you must|you should|want you to|need you to|like you to)\s+)"
_NO_ORDER = (
    r"i|he|she|it|we|they|you|mind|ever|again|been|had|was|were|the|an?|my|his|her|happy|glad|good|nice|ready|there|here|up|fun"
    r"|saw|heard|seen|knew|thought|felt|did|got|loved?|liked?|hated?|wanted|enjoyed?|[a-z]+ing|[a-z]*[^s\W]s"
)
"""What stands behind "always" and "never" where they tell of a habit: no verb in its plain form."""
_INSTRUCTION = re.compile(
    rf"{_BEGINS}(?:always|never)\s+(?!(?:{_NO_ORDER})\b)[a-z]+(?<!ed)\b"
    rf"|{_BEGINS}(?:use|keep|make|give|write|format)\b[^.!?\n]*\b(?:your|all|every|each) (?:answers?|repl(?:y|ies)|responses?)\b"
    rf"|{_BEGINS}(?:use|add|give|show|include|start|end|keep)\b[^.!?\n]* when(?:ever)? (?:you|i) (?!can|could|have|get)|{_BEGINS}make sure (?:that )?(?:all|every|your)\b"
    rf"|{_BEGINS}be (?:brief|concise|formal|informal|polite|precise|direct)\b|{_BEGINS}stop (?:us|ask|add|call|repeat|suggest|apologi[sz])ing\b"
    rf"|{_BEGINS}(?:do not|don['\u2019]?t) (?:use|add|include|repeat|suggest|recommend|apologi[sz]e|call me|answer|reply)\b"
    rf"|{_BEGINS}when(?:ever)? you (?:answer|reply|respond|explain|write|show|suggest|recommend|compare|list|translate|summari[sz]e)\b[^.!?\n]*,"
    r"|\b(?:all|every|each|your) (?:answers?|repl(?:y|ies)|responses?) (?:should|must)\b"
    r"|\bfrom now on\b|\bwhenever i (?:ask|say|want|need|write|mention|request)\b|\bdon['\u2019]?t ever\b|\bevery time i ask\b"
    r"|\bplease (?:only |just )?(?:answer|reply|respond|speak|write|talk|address|call)\b[^.!?\n]* (?:in|with|as|like|me|using|without)\b"
    r"|请(?:始终|一直|总是|记住|务必)|请?(?:都|只)?用[^，。！？\n]{1,12}(?:回答|回复|答复|交流|跟我|和我)"
    r"|(?:回答|回复)(?:时|请|要|都)|一律|务必|每次都(?=[^，。！？]*(?:回答|回复|用|给|写|请|要))|以后[^，。！？我]{0,8}(?:都|请|别|不要)|从现在(?:起|开始)|不要再|别再",
    re.IGNORECASE,
)
_HELP = re.compile(
    r"\b(?:can|could|would|will) you\b|\bhow (?:do|should|can|could|would) (?:i|we)\b|\bhelp me\b|\b(?:should i|i should)\b"
    r"|\bany (?:advice|ideas?|suggestions?|tips)\b|\bi need (?:an? idea|advice|help|ideas|suggestions|tips)\b"
    r"|\bwhat(?:['\u2019]s| is| are) (?:an? |the |some )?(?:good|best) ways?\b"
    r"|\b(?:suggest|recommend|advise|explain|(?:show|tell|give|walk) me)\b"
    r"|^\W*(?:please |now )?(?:write|draft|fix|create|make|build|plan|design|prepare|translate|rewrite|generate|sort|convert|list"
    r"|compare|review|describe|outline|invent|compose)\b"
    r"|帮(?:我|忙)|推荐|建议|解释|介绍|如何|怎么(?:做|办|写|学|样才|才能|选)|应该|能不能|给我|^(?:请|写|翻译|列出|设计|起草|改写|生成)",
    re.IGNORECASE,
)
_PAST = re.compile(
    r"\b(?:did|was|were|had|have (?:i|my|we|you)|has my|mentioned|said|told|across|brought up|so far|over time)\b"
    r"|\b(?:throughout|during|in|from) (?:our|my) (?:conversations?|discussions?|chats?|talks?)\b"
    r"|\b(?:summar(?:y|i[sz]e)|recap|overview|order|timeline|history)\b.*\b(?:i|my|our|we)\b.*"
    r"\b(?:ha(?:ve|s)|[a-z]+ed)\b"
    r"|\b(?:order|timeline|history|recap) of (?:my|our)\b|\b(?:list|name|tell me|count)\b[^.!?\n]* (?:i|we)(?:['\u2019]ve| have) [a-z]+\b"
    r"|\b(?:tell|remind) me (?:when|where|who|which|what|how (?:old|many|much|long|often)) (?:is |are )?(?:my|our)\b"
    r"|说过|提到|之前|以前|上次|曾|过(?:什么|哪)|了(?:什么|多少|哪|几)",
    re.IGNORECASE,
)
_READ = 600  # characters of a message's beginning: what somebody wants is said before what they paste


def is_wish(text: str) -> bool:
    """Tell whether a text says how somebody wants things, or what they like."""
    return bool(_LIKING.search(text[:_READ])) or is_instruction(text)


def is_instruction(text: str) -> bool:
    """Tell whether a text says how somebody wants every answer, or every answer of a kind: 请用中文回答."""
    return bool(_INSTRUCTION.search(text[:_READ]))


def asks_for_help(text: str) -> bool:
    """Tell whether a text asks for something to be done or advised, and not for what was said before."""
    return bool(_HELP.search(text)) and not _PAST.search(text)
