"""Words that are common in everybody's talk: they say little of what a message is about, in however few texts they stand."""

from __future__ import annotations

from enum import Enum, auto
from functools import lru_cache

from memlayer_core.storage.terms import index_terms

__all__ = ["COMMON", "Use", "is_character", "use_of"]

_FIRST_CJK = "\u2e80"

_ENGLISH = """
able actually ago already alright also always amazing anybody anyone anything anyway anywhere apparently around ask asked
away awesome awful back bad basically beautiful become began begin believe best better big bit bring bunch busy buy bye call
called came cannot care case certainly chance change cheers clear clearly come coming congrats congratulations cool correct
couple day days course crazy cute dear definitely different difficult done doubt early easy either else end enjoy enough especially
even evening ever every everybody everyone everything exactly example excellent excited exciting explain fact fair fantastic
far fast favorite favourite feel feeling felt figure find fine first forget forgot found full fun funny gave general get
getting give given giving glad go god goes going gone gonna good goodbye got gotta great guess guy guys haha half hand happen
happened happening happy hard hardly hear heard hello help helpful hey hi high hold honestly hope hour huge idea imagine
important incredible indeed instead interested interesting joke keep kept kind knew know known large last late lately later
laugh learn least leave left less let life like liked likely list little live lol long look looked looking lot lots love
loved lovely low luck lucky made main make making many matter may maybe mean means meant mention mind minute mistake moment
month morning mostly move much must name near nearly need needed never new next nice night nobody none nope normal normally
nothing number obviously often oh ok okay old one open opinion option part past people perfect perhaps person pick piece
place plan play pleased plenty point possible possibly practice pretty probably problem put question quick quickly quite rather
read ready real realize really reason recently repeat rest right robot round run sad safe said saw say saying second see seem
seems seen sense sentence set several share short show side simple simply since small somebody someone something sometimes
somewhat somewhere soon sorry sort sound sounds spend start started still stop story stuff stupid sudden super suppose sure
surely surprise sweet take taken talk talking test thank thanks thing things think thinking thought three time times tired
today together tomorrow tonight took top total totally touch tough tried true truly try trying turn two type understand
unfortunately up use used useful usual usually various wait wanna want wanted wants watch way week weekend welcome well went
whatever whether whole wish wonder wonderful word words work working world worry worse worst worth wow write written wrong yeah
year yep yes yesterday yet
monday tuesday wednesday thursday friday saturday sunday
"""
_CHINESE = """
谢谢 多谢 感谢 你好 您好 再见 好的 好吧 可以 没有 没事 没关系 不用 不是 不对 不错 不行 不能 不会 不要 不知 知道 明白 明天 今天 昨天 现在
时间 东西 事情 问题 意思 真的 真是 太好 好了 好像 好啊 很好 非常 有点 一点 一样 一起 一直 一些 一次 两个 已经 可能 可是 但是 然后 还有 还是
就是 就好 就这 这样 那样 这么 那么 这里 那里 觉得 感觉 喜欢 想要 需要 应该 继续 等一 稍等 开始 结束 完美 厉害 哈哈 早上 晚上 晚安 早安 下午 上午
祝你 愉快 大家 别人 有人 人们 出来 起来 上去 下来 过来 回来 说得 说说 试试 再试 测试 解释 什么 怎么 为什 因为 所以 如果 只是 只有 当然 其实
请继 不客 客气 会做 还行 上好 好的 真好 还好 特别 比较 最近 以后 以前 之前 之后 每天 每个 很多 多少 有什 做什 的时 时候 自己 我们 你们 他们 对不 不起 没错 没问 的吗 是的 行吧 随便 也许
列出 写一 一个 一首 一条 一下 这个 那个 怎样 如何 哪些 第一 最大 最高 多长 说出 给我 帮我 推荐 介绍 告诉 请问 希望 打算 准备 生活 工作
"""

_CHARACTERS = (
    "一二三四五六七八九十不有人这那个上下来去到说要会可以能就也都还很好大小多少年月日天时分点里中前后外出生过着把被让给"
    "对为于从向又再才没无最更真想看听做用得地所些每样家行吧呀嘛么事情心自己起回开关话今昨明早晚常等"
)

COMMON = frozenset(
    term for word in (_ENGLISH + _CHINESE).split() for term in index_terms(word) if len(term) > 1
).union(_CHARACTERS)
"""Index terms of common words: about five hundred English words, two hundred Chinese pairs of characters and a hundred
single ones, chosen by hand."""

_PAIR = 2


def is_character(term: str) -> bool:
    """Tell whether an index term is a single character of a language that is written without spaces."""
    return len(term) == 1 and term >= _FIRST_CJK


class Use(Enum):
    """How common a word is, whoever speaks."""

    COMMON = auto()
    CHARACTER = auto()
    PARTLY = auto()
    RARE = auto()


@lru_cache(maxsize=10_000)
def use_of(term: str) -> Use:
    """Return how common an index term is; of a Chinese pair, by its characters as well."""
    if term in COMMON:
        return Use.COMMON
    if is_character(term):
        return Use.CHARACTER
    if len(term) == _PAIR and term[0] >= _FIRST_CJK:
        usual = sum(character in _CHARACTERS for character in term)
        return (Use.RARE, Use.PARTLY, Use.COMMON)[usual]
    return Use.RARE
