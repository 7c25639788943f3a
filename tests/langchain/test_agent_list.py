"""The agent's own list is obeyed: what is removed or edited between runs, and not what makes room inside one."""

from contextlib import suppress
from typing import Any

import pytest
from hypothesis import example, given, strategies as st
from langchain.agents import create_agent
from langchain.agents.middleware import HumanInTheLoopMiddleware, ModelResponse, SummarizationMiddleware
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, RemoveMessage, ToolMessage
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.graph.message import REMOVE_ALL_MESSAGES
from langgraph.types import Command
from refusals import refused
from tuned import Tuned

from examples import examples
from langchain_memlayer import MemlayerMiddleware
from memlayer_core import MaxRounds, Memory, errors
from tests.conftest import PROMPT, Colour
from tests.langchain.running import in_thread, kinds, texts
from tests.langchain.scripted_model import Edits, Scripted, Wraps, calling, then, weather

AT = in_thread()


def about(shown: list[BaseMessage]) -> str:
    """Answer a question with its last word."""
    return f"about {shown[-1].text.split()[-1] if shown else 'nothing'}"


class Talk:
    """An agent on a thread, blocking or awaiting, whose memory stands in front of other middleware or behind it."""

    def __init__(self, memory: Memory, *, awaits: bool = False) -> None:
        self.memory, self.model, self._call = memory, Scripted(script=about), Colour(awaits=awaits)
        self.saver, self.tools = InMemorySaver(), []

    def do(self, work: str, *args: Any, more: Any = (), first: bool = True, **options: Any) -> Any:
        """Call a method of the agent."""
        own = MemlayerMiddleware(self.memory, user_id="ada", **options)
        every = [own, *more] if first else [*more, own]
        agent = create_agent(self.model, self.tools, middleware=every, checkpointer=self.saver)
        return self._call(agent, work, *args)

    def ask(self, *said: Any, at: Any = AT, **more: Any) -> list[BaseMessage]:
        """Run the agent. Returns what its state has then."""
        given = [HumanMessage(one, id=one.split()[-1]) if isinstance(one, str) else one for one in said]
        return self.do("invoke", {"messages": given}, at, **more)["messages"]

    def change(self, *said: Any, at: Any = AT, **more: Any) -> Any:
        """Change the state between two runs."""
        return self.do("update_state", at, {"messages": list(said)}, **more)

    def stop(self, said: str) -> None:
        """Run the agent, and stop it after the first piece of its answer."""
        own = MemlayerMiddleware(self.memory, user_id="ada")
        agent = create_agent(self.model, middleware=[own], checkpointer=self.saver)
        given = {"messages": [HumanMessage(said, id=said.rsplit(maxsplit=1)[-1])]}
        stream = agent.stream(given, AT, stream_mode="messages")
        next(stream)
        stream.close()

    def fail(self, *said: Any) -> None:
        """Run the agent with a model that is away."""
        answers, self.model.script = self.model.script, then(ConnectionError("away"))
        with pytest.raises(ConnectionError):
            self.ask(*said)
        self.model.script = answers

    def checkpoint(self, node: str | None, length: int) -> Any:
        """Return the newest checkpoint in front of a node (None: at the end of a run) whose list has this length."""
        every, at = self.do("get_state_history", AT), () if node is None else (node,)
        return next(s.config for s in every if s.next == at and len(s.values["messages"]) == length)

    @property
    def chat(self) -> Any:
        return self.memory.chat(user_id="ada", session_id="t")

    @property
    def history(self) -> list[str]:
        return texts(self.chat.history())

    @property
    def every(self) -> list[str]:
        """The history with what left it, which is in brackets."""
        return [f"({m.text})" if m.withdrawn_at else m.text for m in self.chat.history(all_versions=True)]

    def found(self, text: str) -> set[str]:
        self.memory.flush()
        return {hit.text for hit in self.memory.search(text, user_id="ada", limit=50)}


@pytest.fixture
def short(memory) -> Talk:
    return Talk(memory)


ZOO = ["zebra", "lion", "okapi", "heron"]
SAID = [line for animal in ZOO for line in (f"tell me of the {animal}", f"about {animal}")]


def tour(talk: Talk, **more: Any) -> list[BaseMessage]:
    """Ask after four animals. Returns the state's messages."""
    for animal in ZOO:
        out = talk.ask(f"tell me of the {animal}", **more)
    return out


# Removed between runs


def obeys(talk: Talk, steps: list[tuple[str, int, bool]]) -> None:
    """Remove, edit and ask, by an update of the state or in the input, and check the memory against a plain list."""
    out = tour(talk)
    every = [[message.text, True] for message in out]
    for number, (step, at, in_input) in enumerate(steps):
        there, changes = [entry for entry in every if entry[1]], []
        place = at % len(out)
        if step == "remove":
            changes, there[place][1] = [RemoveMessage(id=out[place].id)], False
        elif step == "edit":
            changes = [out[place].model_copy(update={"content": f"tell me of the tapir {number}"})]
            there[place][1] = False
            every.insert(every.index(there[place]) + 1, [changes[0].text, True])
        elif step == "all":
            stays = out[len(out) - at % 3 :]
            changes = [RemoveMessage(id=REMOVE_ALL_MESSAGES), *stays]
            for entry in there[: len(out) - at % 3]:
                entry[1] = False
        if not in_input and changes:
            talk.change(*changes)
            changes = []
        out = talk.ask(*changes, f"and the newt n{number}", mode="STATIC")
        every += [[f"and the newt n{number}", True], [f"about n{number}", True]]
        assert talk.history == texts(out) == [text for text, is_there in every if is_there]
        assert talk.every == [text if is_there else f"({text})" for text, is_there in every]
        assert talk.model.shown == texts(out)[:-1]
    gone, left = ({text for text, is_there in every if is_there is kept} for kept in (False, True))
    assert talk.found(" ".join(gone)) <= left
    assert talk.found(" ".join(left)) & left
    assert talk.memory.admin.verify() == []


@pytest.mark.trap("langchain", 25)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["ask", "remove", "remove", "edit", "all"]), st.integers(0, 9), st.booleans()
        ),
        max_size=5,
    ),
    st.booleans(),
)
@example([("remove", 2, False), ("remove", 2, True), ("edit", 0, True), ("all", 2, True)], False)
@example([("edit", 7, False), ("remove", 9, True), ("all", 0, False), ("edit", 1, True)], True)
@examples(15)
def test_what_is_removed_and_edited_between_runs_is_obeyed_and_nothing_else_goes(steps, awaits) -> None:
    with Memory.in_memory(settings=PROMPT, tokenizer="estimate") as memory:
        obeys(Talk(memory, awaits=awaits), steps)


def test_it_is_set_aside_before_the_run_does_anything_else(short) -> None:
    """A model that fails changes nothing of it, nor does the run that follows."""
    tour(short)
    short.fail(RemoveMessage(id="zebra"), "and the newt")
    assert short.every == ["(tell me of the zebra)", *SAID[1:], "and the newt"]
    short.change(RemoveMessage(id="newt"))
    short.ask("and the toad")
    assert short.every[-3:] == ["(and the newt)", "and the toad", "about toad"]
    assert "newt" not in str(short.model.shown)


def test_a_question_is_removed_with_its_tool_calls(short) -> None:
    said = (calling(("weather", {"city": one}), first=at) for at, one in enumerate(("zebra", "lion")))
    answers = [line for call in said for line in (call, "it is well")]
    short.tools, short.model.script = [weather], then(*answers, "yes?", "yes?")
    for animal in ("zebra", "lion"):
        out = short.ask(f"look at the {animal}")
    assert kinds(out) == ["human", "ai", "tool", "ai"] * 2
    short.change(*(RemoveMessage(id=m.id) for m in out[:3]))
    short.ask("thanks, newt")
    assert kinds(short.model.seen[-1]) == ["ai", "human", "ai", "tool", "ai", "human"]
    assert "zebra" not in str(short.model.seen[-1])
    assert short.history[0] == "it is well"

    short.change(RemoveMessage(id=out[5].id))  # the call alone: its result has nothing to answer
    short.ask("and now, toad")
    assert not any(isinstance(m, ToolMessage) for m in short.model.seen[-1])


def test_what_was_removed_comes_back_when_it_is_added_again_and_all_goes_with_what_made_room(short) -> None:
    more = {"policy": MaxRounds(2), "destructive": True}
    out = tour(short, **more)
    short.change(RemoveMessage(id=out[-2].id))
    short.ask("and the newt", **more)
    short.ask(out[-2], **more)
    assert short.history == [*SAID[:6], SAID[7], "and the newt", "about newt", SAID[6], SAID[7]]
    assert SAID[6] in short.found("heron")
    short.change(RemoveMessage(id=REMOVE_ALL_MESSAGES))
    short.ask("and the toad", **more)
    assert short.history == ["and the toad", "about toad"]
    assert {f"({line})" for line in SAID} < {*short.every}


# Deleted, withdrawn or edited in the memory: the state goes on to have the words


CHANGES = ("ask", "ask", "delete_message", "withdraw", "edit", "erase", "clear", "forget")


@given(st.lists(st.tuples(st.sampled_from(CHANGES), st.integers(0, 9)), max_size=9), st.booleans())
@example([("delete_message", 0), ("withdraw", 1), ("edit", 0), ("ask", 0), ("erase", 2)], False)
@example([("clear", 0), ("ask", 0), ("ask", 0), ("forget", 0)], False)
@example([("delete_message", 1), ("edit", 0), ("ask", 0), ("forget", 0)], True)
@examples(40)
def test_what_was_changed_in_the_memory_does_not_come_back_from_the_state(changes, is_kept) -> None:
    """The state has all words. `is_kept`: the application keeps the list of messages, and there is no checkpointer."""
    with Memory.in_memory(settings=Tuned(index_delay=3600.0), tokenizer="estimate") as memory:
        model, left, sent, said = Scripted(script=lambda _: f"answer {len(model.seen)}"), [], [], []
        own, saver = MemlayerMiddleware(memory, user_id="ada"), None if is_kept else InMemorySaver()
        agent = create_agent(model, middleware=[own], checkpointer=saver)
        chat = memory.chat(user_id="ada", session_id="t")
        for number, (change, at) in enumerate([("ask", 0), ("ask", 0), *changes, ("ask", 0)]):
            if change == "ask":
                asked = HumanMessage(f"question {number}")
                sent = agent.invoke({"messages": [*(sent if is_kept else ()), asked]}, AT)["messages"]
                for talk in (left, said):
                    talk += [asked.text, f"answer {len(model.seen)}"]
                assert model.shown == left[:-1]
                assert texts(sent) == said
            elif change in {"clear", "forget"}:
                chat.clear() if change == "clear" else memory.forget("ada")
                left = []
            elif left:
                place, other = at % len(left), [f"edited {number}"]
                named = chat.history()[place].id
                if change in {"edit", "erase"}:
                    chat.edit(named, *other, erase=change == "erase")
                else:
                    chat.delete_message(named) if change == "delete_message" else chat.withdraw([named])
                left[place : place + 1] = other if change in {"edit", "erase"} else []
            assert texts(chat.history()) == left


class Outside:
    """An agent whose list the application keeps, or a graph around it."""

    def __init__(self, memory: Memory, keeper: str) -> None:
        self.model, self.sent, self.user = Scripted(script=about), [], "ada"
        self.agent = create_agent(self.model, middleware=[MemlayerMiddleware(memory, mode="STATIC")])
        graph = StateGraph(MessagesState).add_node("zoo", self.agent).add_edge(START, "zoo")
        self.graph = graph.compile(checkpointer=InMemorySaver()) if keeper == "a graph" else None
        self.chat = memory.chat(user_id="ada", session_id="t/zoo" if self.graph else "t")

    def ask(self, animal: str) -> None:
        config = in_thread(user_id=self.user)
        asked = HumanMessage(f"tell me of the {animal}", id=animal)
        if self.graph is None:
            self.sent = self.agent.invoke({"messages": [*self.sent, asked]}, config)["messages"]
        else:
            self.graph.invoke({"messages": [asked]}, config)

    def remove(self, animal: str) -> None:
        self.sent = [one for one in self.sent if one.id != animal]
        if self.graph is not None:
            self.graph.update_state(AT, {"messages": [RemoveMessage(id=animal)]})


@pytest.mark.parametrize("keeper", ["the application", "a graph"])
def test_where_others_keep_the_list_nothing_is_removed_and_nothing_comes_back(memory, keeper) -> None:
    outside = Outside(memory, keeper)
    outside.ask("zebra")
    outside.ask("lion")
    outside.chat.delete_message(0)
    outside.remove("zebra")
    outside.ask("okapi")
    assert texts(outside.chat.history(all_versions=True)) == SAID[1:6]
    assert outside.model.shown == SAID[1:5]
    outside.remove("lion")
    outside.ask("newt")
    assert texts(outside.chat.history()) == [*SAID[1:6], "tell me of the newt", "about newt"]
    memory.forget("ada")
    outside.ask("heron")
    assert texts(outside.chat.history()) == SAID[6:]
    outside.user = "bob"
    refused(errors.InvalidScopeError, "'t'", outside.ask, "toad")
    assert not memory.sessions(user_id="bob")


def test_what_a_tool_of_the_run_forgets_is_not_stored_by_the_same_run(short) -> None:
    @tool
    def forget_me() -> str:
        """Forget the user."""
        short.memory.forget("ada")
        return "all is forgotten"

    tour(short, mode="STATIC")
    short.tools, short.model.script = [forget_me], then(calling(("forget_me", {})), "it is done", "yes?")
    short.ask("forget me", mode="STATIC")
    assert "zebra" not in str(short.model.shown)
    short.ask("and the newt", mode="STATIC")
    assert short.history == ["all is forgotten", "it is done", "and the newt", "yes?"]
    assert "forget me" not in short.model.shown


def test_a_summary_in_the_state_does_not_bring_back_what_was_deleted(short) -> None:
    told = Scripted(script=lambda _: "They talked of the zebra.")
    stock = SummarizationMiddleware(told, trigger=("messages", 4), keep=("messages", 2))
    tour(short)
    short.memory.forget("ada")
    for animal in ("newt", "toad"):
        short.ask(f"and the {animal}", mode="STATIC", more=[stock])
    assert "zebra" not in str(short.history) + str(short.model.seen[-2:])


def test_a_copy_of_a_thread_and_another_memory_get_the_whole_state(short) -> None:
    """Nothing was deleted there: what the state says of one session and store holds for no other."""
    tour(short)
    copied = in_thread("copy")
    short.do("update_state", copied, short.do("get_state", AT).values)
    short.ask("and the newt", at=copied)
    copy = short.memory.chat(user_id="ada", session_id="copy").history()
    assert texts(copy) == [*SAID, "and the newt", "about newt"]
    with Memory.in_memory(tokenizer="estimate") as short.memory:
        short.ask("and the toad")
        assert short.history == [*SAID, "and the toad", "about toad"]


# Stopped runs


@pytest.mark.parametrize("ends", [Talk.stop, Talk.fail])
@pytest.mark.parametrize("how", ["delete_message", "withdraw", "clear", "forget"])
def test_a_stopped_or_failed_question_that_was_deleted_then_stays_deleted(short, how, ends) -> None:
    short.ask("tell me of the zebra")
    ends(short, "my number is 4711")
    assert short.history[:3] == [*SAID[:2], "my number is 4711"]
    for message in short.chat.history()[2:] if how in {"delete_message", "withdraw"} else ():
        short.chat.withdraw([message.id]) if how == "withdraw" else short.chat.delete_message(message.id)
    if how in {"clear", "forget"}:
        short.chat.clear() if how == "clear" else short.memory.forget("ada")
    short.ask("and the newt")
    left = [*(SAID[:2] if how in {"delete_message", "withdraw"} else ()), "and the newt", "about newt"]
    assert (short.model.shown, short.history) == (left[:-1], left)


@pytest.mark.parametrize("way", ["stop", "return"])
def test_what_was_withdrawn_in_the_memory_is_not_taken_for_a_line_that_was_left(short, way) -> None:
    tour(short)
    place = 6 if way == "stop" else 4
    short.chat.withdraw([message.id for message in short.chat.history()[place : place + 2]])
    if way == "stop":
        short.stop("and the newt")
    short.ask("and the toad", at=AT if way == "stop" else short.checkpoint(None, 6))
    others = ["and the newt"] if way == "stop" else []
    left = [*SAID[:place], *others, "and the toad", "about toad"]
    assert (short.model.shown, short.history) == (left[:-1], left)
    assert SAID[place] not in short.found(SAID[place])


def test_what_was_withdrawn_in_a_line_that_came_back_does_not_come_back_again(short) -> None:
    tour(short)
    whole = short.checkpoint(None, 8)
    short.ask("and the newt", at=short.checkpoint(None, 2))
    short.ask("and the toad", at=whole)
    assert short.history == [*SAID, "and the toad", "about toad"]
    short.chat.withdraw([message.id for message in short.chat.history()[6:8]])
    short.stop("and the crow")
    short.ask("and the ibis")
    left = [*SAID[:6], "and the toad", "about toad", "and the crow", "and the ibis", "about ibis"]
    assert (short.model.shown, short.history) == (left[:-1], left)


@pytest.mark.parametrize("before", [0, 1])
@pytest.mark.parametrize("removed", ["zebra", REMOVE_ALL_MESSAGES])
def test_a_stopped_answer_leaves_with_its_question(short, before, removed) -> None:
    for animal in ["lion"][:before]:
        short.ask(f"tell me of the {animal}")
    short.stop("tell me of the zebra")
    assert SAID[1] in short.history
    short.change(RemoveMessage(id=removed))
    short.ask("and the newt")
    left = [*(SAID[2:4] if before and removed == "zebra" else ()), "and the newt", "about newt"]
    assert (short.model.shown, short.history) == (left[:-1], left)


def test_what_was_forgotten_while_the_model_answers_does_not_come_back_with_the_answer(short) -> None:
    tour(short)
    answers = short.model.script
    short.model.script = lambda _: short.memory.forget("ada") and "it is 4711"
    short.ask("what is my number")
    assert short.history == []
    short.model.script = answers
    short.ask("and the newt")
    assert (short.model.shown, short.history) == (["and the newt"], ["and the newt", "about newt"])


# Removed inside a run


def makes_room(kind: str) -> dict[str, Any]:
    if kind == "destructive":
        return {"destructive": True, "policy": MaxRounds(2)}
    if kind == "SummarizationMiddleware":
        summarizer = Scripted(script=lambda _: "They talked.")
        return {"more": [SummarizationMiddleware(summarizer, trigger=("messages", 4), keep=("messages", 3))]}

    def newest(messages: list[BaseMessage]) -> list[BaseMessage]:
        return [RemoveMessage(id=REMOVE_ALL_MESSAGES), *messages[-3:]]

    def answered(request: Any, made: Any) -> ModelResponse:
        gone = [RemoveMessage(id=one.id) for one in request.state["messages"][:-2]]
        return ModelResponse([*gone, *made.result])

    return {"more": [Wraps(response=answered) if kind == "with the answer" else Edits(**{kind: newest})]}


ROOM = ["destructive", "SummarizationMiddleware", "before", "after", "with the answer"]


@pytest.mark.trap("langchain", 20, 21)
@pytest.mark.parametrize("kind", ROOM)
@pytest.mark.parametrize("first", [True, False], ids=["memory first", "memory last and awaiting"])
def test_what_makes_room_in_a_run_stays_in_the_memory_and_a_removal_is_obeyed(memory, kind, first) -> None:
    """LangChain's own summaries take the place of what they sum up: the words are gone from every checkpoint."""
    talk, more = Talk(memory, awaits=not first), makes_room(kind)
    out = tour(talk, **more, first=first)
    assert len(out) < len(SAID)
    assert talk.history == talk.every == SAID
    assert "tell me of the zebra" in talk.found("zebra")
    assert "They talked." not in str(talk.model.seen), "the memory knows the words themselves"
    if kind != "destructive":
        assert talk.model.shown == SAID[:-1]
    talk.change(RemoveMessage(id=out[-1].id))
    talk.ask("and the newt", **more)
    assert talk.every == [*SAID[:-1], f"({SAID[-1]})", "and the newt", "about newt"]


@pytest.mark.parametrize("kind", ROOM)
def test_a_run_that_made_room_and_failed_removed_nothing(short, kind) -> None:
    more, answers, asked = makes_room(kind), short.model.script, []

    def script(shown: list[BaseMessage]) -> AIMessage:
        if len(short.model.seen) in {3, 5}:
            raise ConnectionError("away")
        return answers(shown)

    short.model.script = script
    for number in range(6):
        asked.append(f"question {number}")
        with suppress(ConnectionError):
            short.ask(asked[-1], **more)
            asked.append(f"about {number}")
    assert short.every == asked
    assert len(asked) == 10


def test_what_is_cut_in_the_state_during_a_run_is_no_edit(short) -> None:
    cuts = Edits(before=lambda messages: [messages[0].model_copy(update={"content": "[cleared]"})])
    tour(short, more=[cuts])
    short.change(RemoveMessage(id="lion"))
    short.ask("and the newt", more=[cuts])
    assert "(tell me of the lion)" in short.every


# Forks, interrupts, other shapes


def test_time_travel_goes_on_beside_removals(short) -> None:
    tour(short)
    earlier = short.checkpoint(None, 4)
    short.ask("and the newt", at=earlier)
    new = ["and the newt", "about newt"]
    assert short.every == [*SAID[:4], *(f"({line})" for line in SAID[4:]), *new]
    forked = short.change(RemoveMessage(id="zebra"), at=earlier)
    short.ask("and the crow", at=forked)
    left = [*SAID[1:4], "and the crow", "about crow"]
    assert (short.history, short.model.shown) == (left, left[:-1])
    crow = short.do("get_state", AT).config
    short.ask(RemoveMessage(id=REMOVE_ALL_MESSAGES), "and the toad")
    for again in ("ibis", "same"):  # back to before everything was removed, and once more with the same words
        short.ask(HumanMessage("and the ibis", id=again), at=crow)
        assert short.history == [*left, "and the ibis", "about ibis"]
    short.change(HumanMessage("and the wren", id="same"))
    short.ask("and you")
    assert short.model.shown == [*left, "and the wren", "about ibis", "and you"]


@pytest.mark.parametrize("removed", ["zebra", REMOVE_ALL_MESSAGES])
def test_back_in_the_first_run_the_line_that_was_left_is_not_shown(short, removed) -> None:
    short.ask("tell me of the zebra")
    asked, told = short.checkpoint("model", 1), short.checkpoint("MemlayerMiddleware.after_agent", 2)
    short.change(RemoveMessage(id=removed))
    short.ask("and the newt")
    short.do("invoke", None, asked)
    assert (short.model.shown, short.history) == (SAID[:1], SAID[:2])
    short.ask("and the toad", at=told)
    left = [*SAID[:2], "and the toad", "about toad"]
    assert (short.model.shown, short.history) == (left[:-1], left)


@given(st.lists(st.integers(0, 5), min_size=2, max_size=8), st.integers(1, 9))
@example([0, 1, 2, 1, 4, 3, 5], 9)  # an abandoned line is taken up again, and then the one in between
@example([0, 1, 2, 1, 4, 3, 5], 2)
@examples(60)
def test_a_run_from_any_checkpoint_sees_the_line_of_that_checkpoint(parents, vocabulary) -> None:
    with Memory.in_memory(settings=PROMPT, tokenizer="estimate") as memory:
        talk = Talk(memory)
        lines: list[tuple[Any, list[str]]] = [(AT, [])]
        for number, parent in enumerate(parents):
            config, line = lines[parent % len(lines)] if number else lines[0]
            if config is AT and number:  # without a checkpoint, a run goes on where the last one ended
                config, line = lines[-1]
            word = f"q{number % vocabulary}"
            talk.ask(HumanMessage(word, id=f"m{number}"), at=config, mode="STATIC")
            line = [*line, word, f"about {word}"]
            assert (talk.model.shown, talk.history) == (line[:-1], line)
            lines.append((talk.do("get_state", AT).config, line))


def test_removals_after_an_interrupted_run_are_obeyed(short) -> None:
    answers, short.tools = short.model.script, [weather]
    more = {"more": [HumanInTheLoopMiddleware({"weather": True})]}
    short.ask("first a newt", **more)
    short.model.script = then(calling(("weather", {"city": "zebra"})), "done")
    short.ask("feed the zebra", **more)
    out = short.do("invoke", Command(resume={"decisions": [{"type": "approve"}]}), AT, **more)["messages"]
    assert short.history == short.every == texts(out)
    short.change(RemoveMessage(id="newt"))
    short.model.script = answers
    short.ask("and the toad", **more)
    assert short.every[0] == "(first a newt)"


# Several processes


def test_two_workers_with_savers_of_their_own_keep_the_order_of_the_talk(memory) -> None:
    workers = [Talk(memory) for _ in range(2)]
    for number in range(8):
        workers[number % 2].ask(f"question q{number}")
    said = [line for n in range(8) for line in (f"question q{n}", f"about q{n}")]
    assert workers[0].history == workers[0].every == said
    assert workers[1].model.shown == said[:-1]

    workers[0].change(RemoveMessage(id="q2"))
    workers[0].ask("question q8")
    assert [line for line in workers[0].every if line.startswith("(")] == ["(question q2)"]
    assert len(workers[0].history) == 17


def test_what_the_application_adds_stays_and_a_process_may_lose_its_checkpoints(memory) -> None:
    for number in range(3):
        talk = Talk(memory)
        talk.ask(f"question q{number}")
        talk.chat.add("user", f"note {number}")
        talk.ask(f"question p{number}")
    said = ("question q{0}", "about q{0}", "note {0}", "question p{0}", "about p{0}")
    assert talk.history == [line.format(number) for number in range(3) for line in said]


# What it costs


def test_the_mark_in_the_state_is_small_and_plain_and_in_no_answer(short) -> None:
    for number in range(3):
        short.ask("word " * 100 + f"n{number}")
    assert {*short.do("invoke", {"messages": [HumanMessage("and the newt")]}, AT)} == {"messages"}
    mark = short.do("get_state", AT).values["memlayer"]
    assert {type(value) for value in mark.values()} == {str, bool}
    assert len(str(mark)) < 300 + 12 * 8
