"""The page: whoever has the token sees a memory, nobody changes it by looking, and no user's page shows another's."""

import ast
import html
import re
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import memlayer_server
import pytest
from command_line import line_of, listening
from memlayer_server import ui_app
from starlette.testclient import TestClient

from memlayer_core import Memory, Message, Scope
from memlayer_core.errors import UnknownRecordError
from memlayer_core.facts.model import Relation
from memlayer_core.tools import AGENT_TOOLS

TOKEN = "the token of a test"
ATTACK = "<script>alert(1)</script>\"'><img src=x onerror=alert(2)>"
TURNED = "safe\u202egnp.exe"
PATHS = ["/", "/user?user=ada", "/record?user=ada&record=ada_mem_001", "/session?user=ada&session=spring"]
CHANGES = ["/correct", "/forget"]


def client_of(memory: Memory, *, writes: bool = False, enters: bool = True) -> TestClient:
    """Return a browser of the page, which has the token if it `enters`."""
    app = ui_app(memory, token=TOKEN, port=8766, writes=writes)
    client = TestClient(app, base_url="http://127.0.0.1:8766", raise_server_exceptions=True)
    if enters:
        assert client.get("/", params={"token": TOKEN}).status_code == 200
    return client


def links(page: str) -> list[str]:
    return [html.unescape(one) for one in re.findall(r'<a href="(/[^"]*)"', page)]


def crawl(client: TestClient, start: str, only: str = "") -> dict[str, str]:
    """Return every page that links with `only` in their address lead to, without going up to all users."""
    pages: dict[str, str] = {}
    waiting = [start]
    while waiting:
        path = waiting.pop()
        if path not in pages and path != "/":
            answer = client.get(path)
            assert answer.status_code == 200, path
            pages[path] = answer.text
            waiting += [one for one in links(answer.text) if only in one]
    return pages


def form_of(client: TestClient, path: str, action: str) -> dict[str, str]:
    """Return what a form of a page sends."""
    page = client.get(path).text
    [form] = re.findall(rf'<form action="{action}".*?</form>', page, re.DOTALL)
    fields = re.findall(r'name="(\w+)" value="([^"]*)"', form)
    return {name: html.unescape(value) for name, value in fields}


def home_of(memory: Memory, user_id: str) -> str:
    [home] = [one for one in memory.records(user_id=user_id) if one.key == "home"]
    return home.memory_id


def hiking_of(memory: Memory) -> str:
    [hiking] = [one for one in memory.records(user_id="ada") if one.is_inferred]
    return hiking.memory_id


# --- who may ask


def test_nobody_sees_or_changes_anything_without_the_token(memory: Memory) -> None:
    client = client_of(memory, writes=True, enters=False)
    for cookie in ("", "wrong", TOKEN, TOKEN[:-1]):
        client.cookies.set("memlayer_ui_8766", cookie)
        for path in [*PATHS, "/static/app.css", "/nothing"]:
            answer = client.get(path)
            assert answer.status_code == 401
            assert "ada" not in answer.text
        for path in CHANGES:
            assert client.post(path, data={"user": "ada", "what": "user"}).status_code == 401
    assert client.get("/", params={"token": "wrong"}).status_code == 401
    elsewhere = client.get("/user", params={"user": "ada", "token": TOKEN})
    assert elsewhere.status_code == 401, "it is taken at one place alone"
    assert memory.sessions(user_id="ada")


def test_the_token_goes_into_a_cookie_that_no_script_and_no_other_page_uses(memory: Memory) -> None:
    client = client_of(memory, enters=False)
    answer = client.get("/", params={"token": TOKEN}, follow_redirects=False)
    assert (answer.status_code, answer.headers["location"]) == (303, "/")
    cookie = answer.headers["set-cookie"].lower()
    assert TOKEN not in cookie
    assert "httponly" in cookie
    assert "samesite=strict" in cookie
    assert client.get("/").status_code == 200


def test_another_name_and_another_page_are_refused_even_with_the_token(memory: Memory) -> None:
    client = client_of(memory, writes=True)
    for host in ("evil.example", "evil.example:8766", "127.0.0.1:1", "127.0.0.1"):
        assert client.get("/", headers={"Host": host}).status_code == 421, host
    assert client.get("/", headers={"Host": "localhost:8766"}).status_code != 421
    form = form_of(client, "/user?user=ada", "/forget")
    for origin in ("http://evil.example", "null", "http://127.0.0.1:1", ""):
        assert client.post("/forget", data=form, headers={"Origin": origin}).status_code == 403, origin
    assert memory.sessions(user_id="ada")


def test_a_form_of_another_page_changes_nothing(memory: Memory) -> None:
    client = client_of(memory, writes=True)
    before = memory.sessions(user_id="ada"), memory.records(user_id="ada")
    whole = form_of(client, "/user?user=ada", "/forget")
    for stamp in (None, "", "wrong", TOKEN):
        form = {name: value for name, value in whole.items() if name != "stamp"}
        for path in CHANGES:
            answer = client.post(path, data=form if stamp is None else {**form, "stamp": stamp})
            assert answer.status_code == 403, (path, stamp)
    assert client.post("/forget", data={**whole, "what": "x" * 2_000_001}).status_code == 413
    many = {**whole, **{f"more{number}": "" for number in range(51)}}
    assert [client.post(path, data=many).status_code for path in CHANGES] == [400] * len(CHANGES)
    assert (memory.sessions(user_id="ada"), memory.records(user_id="ada")) == before


def test_nothing_is_changed_unless_it_may_write(memory: Memory) -> None:
    looking, writing = client_of(memory), client_of(memory, writes=True)
    for path in PATHS[1:]:
        assert 'method="post"' not in looking.get(path).text
        assert 'method="post"' in writing.get(path).text
    form = form_of(writing, "/user?user=ada", "/forget")  # of the same token: its stamp is right
    for path in CHANGES:
        answer = looking.post(path, data=form)
        assert answer.status_code == 403
        assert "--write" in answer.text
        assert looking.get(path).status_code == 405
    assert memory.sessions(user_id="ada")


def test_every_answer_forbids_what_is_not_of_the_page_itself(memory: Memory) -> None:
    client, stranger = client_of(memory, writes=True), client_of(memory, enters=False)
    answers = [client.get(path) for path in [*PATHS, "/static/app.css", "/nothing", "/user?user=nobody"]]
    answers += [stranger.get("/"), client.get("/", headers={"Host": "evil.example"}), client.post("/forget")]
    for answer in answers:
        policy = answer.headers["content-security-policy"]
        assert policy.startswith("default-src 'self'; script-src 'none';")
        assert ("unsafe" in policy, "frame-ancestors 'none'" in policy) == (False, True)
        assert answer.headers["cache-control"] == "no-store"
        assert answer.headers["referrer-policy"] == "same-origin"
    for path, page in crawl(client, "/user?user=ada").items():
        own = r"<[^>]*\s(style|on\w+)=|<style|<script|(src|href|action)=\"(?!/)"
        assert not re.search(own, page), path


# --- what it shows


def test_every_part_of_a_memory_is_shown(memory: Memory) -> None:
    client = client_of(memory)
    assert {"/user?tenant=default&user=ada", "/user?tenant=other&user=ada"} < set(links(client.get("/").text))

    def shows(path: str, *words: str) -> list[str]:
        page = client.get(path).text
        text = html.unescape(re.sub(r"<[^>]+>", " ", page))
        assert all(word in text for word in words), text
        return links(page)

    home = home_of(memory, "ada")
    [oslo] = memory.why(home, user_id="ada").predecessors
    shows("/", f"store {memory.store_id}")  # it has no directory
    shows("/user?user=ada", "Ada lives in Bergen.", "an agent's conclusion", "in every context")
    assert "Oslo" not in client.get("/user?user=ada").text
    shows("/user?user=ada&every=1", "Ada lives in Oslo.", f"replaced by {home}")
    found = shows("/user?user=ada&part=sessions", "garden", "spring", "The cello lesson")
    assert "/session?tenant=default&user=ada&agent=gardener&session=garden" in found
    shows("/user?user=ada&part=search&find=cello", "The cello lesson is on Monday.")
    shows("/session?user=ada&session=spring", "Monday it is.", "The cello lesson is on Monday.")
    shows("/session?user=ada&agent=gardener&session=garden", "Water the roses.")
    found = shows(f"/record?user=ada&record={home}", "What it replaced", "Ada lives in Oslo.")
    assert f"/record?tenant=default&user=ada&record={oslo.memory_id}" in found
    assert "/session?tenant=default&user=ada&session=spring" in found


def test_a_record_of_a_session_in_which_nothing_was_said_has_no_link_to_it(memory: Memory) -> None:
    record = memory.chat(user_id="bob", session_id="silent").remember("Bob likes tea.")
    page = client_of(memory).get(f"/record?user=bob&record={record.memory_id}")
    assert "silent" in page.text
    assert not [link for link in links(page.text) if link.startswith("/session")]


def test_a_record_quotes_the_words_that_it_rests_on(memory: Memory) -> None:
    said = {"asserted_by": "user", "quote": "cello lesson is on Monday"}
    fact = {"text": "Ada's lesson is on Monday.", "key": "lesson", "value": "Monday", **said}
    chat = memory.chat(user_id="ada", session_id="spring")
    record, _ = AGENT_TOOLS["record_to_memory"].functions(chat, None, ValueError, None)
    lesson = re.findall(r"ada_mem_\d+", record("It will matter.", [fact]))[0]
    page = client_of(memory).get("/record", params={"user": "ada", "record": lesson}).text
    assert "“cello lesson is on Monday”" in html.unescape(page)


def test_the_user_of_one_page_is_never_seen_on_anothers(memory: Memory) -> None:
    client = client_of(memory, writes=True)
    for start, mine, others in (
        ("/user?user=ada", "Bergen", r"\beve\b|Cairo|oboe|Quito|\bother\b"),
        ("/user?user=eve", "Cairo", r"\bada(_mem|\b)|Bergen|Oslo|hiking|Quito|roses"),
        ("/user?user=ada&tenant=other", "Quito", r"\beve\b|Cairo|Bergen|Oslo|hiking|roses|default"),
        ("/user?user=ada&agent=gardener", "roses", r"\beve\b|Cairo|Bergen|Oslo|hiking|Quito"),
    ):
        agent = "agent=gardener"
        pages = crawl(client, start, agent if agent in start else "")
        found = client.get(f"{start}&part=search&find=lesson+home+cello+oboe+roses+tuba").text
        assert any(mine in page for page in [*pages.values(), found])
        for path, page in pages.items():
            assert not re.search(others, page), (path, others)
        assert not re.search(others, re.sub(r"<input[^>]*>", "", found))


def test_what_belongs_to_another_user_is_not_there(memory: Memory) -> None:
    client = client_of(memory, writes=True)
    cairo = home_of(memory, "eve")
    for path in (
        f"/record?user=ada&record={cairo}",
        f"/record?user=eve&tenant=other&record={cairo}",
        f"/record?user=eve&agent=gardener&record={cairo}",
        "/record?user=ada&record=ada_mem_999",
        "/session?user=eve&session=garden",
        "/session?user=ada&session=garden",  # it is one with an agent
        "/session?user=ada&tenant=third&session=spring",
        "/user?user=nobody",
        "/user?user=ada&tenant=third",
        "/nothing",
    ):
        answer = client.get(path)
        assert answer.status_code == 404, path
        assert "Cairo" not in answer.text
    form = form_of(client, "/user?user=ada", "/forget") | {"record": cairo, "version": "1"}
    for path, more in (("/forget", {"what": "record"}), ("/correct", {"text": "Eve lives in Rome."})):
        assert client.post(path, data={**form, **more}).status_code == 404, path
    assert home_of(memory, "eve") == cairo


def test_an_address_that_cannot_be_used_is_told_in_words(memory: Memory) -> None:
    client = client_of(memory)
    of_ada = (f"/user?user=ada&{more}" for more in ("offset=-1", "offset=1e9", "part=x"))
    for path in (*of_ada, "/user", "/record?user=ada&record=nonsense", "/session?user=ada"):
        answer = client.get(path)
        assert (answer.status_code, "Traceback" in answer.text) == (400, False), path


def test_every_text_is_escaped(memory: Memory) -> None:
    user, tenant = f"ada {ATTACK}", f"t {ATTACK}"
    chat = memory.chat(user_id=user, session_id=f"s {ATTACK}", tenant_id=tenant, agent_id=f"a {ATTACK}")
    chat.add("user", f"Always say {ATTACK} and {TURNED}", name=ATTACK)
    chat.rename(ATTACK)
    chat.remember(f"Ada says {ATTACK}", key=f"saying {ATTACK}", value=ATTACK, tags=[ATTACK])
    chat.remember(f"{TURNED} {ATTACK}", type="episodic", relations=[Relation(ATTACK, f"{user}_mem_001")])
    memory.flush()
    client = client_of(memory, writes=True)
    [start] = [path for path in links(client.get("/?find=ada+%3C").text) if path.startswith("/user")]
    assert parse_qs(urlsplit(start).query)["user"] == [user]
    pages = {"/": client.get("/").text, **crawl(client, start)}
    pages["found"] = client.get(f"{start}&part=search&find=%3Cscript%3Ealert").text
    assert len(pages) > 6
    for path, page in pages.items():
        assert not re.search(r"<script>|<img|onerror=alert\(2\)>", page), path
        assert "\u202e" not in re.sub(r"(?s)<textarea.*?</textarea>|<input[^>]*>", "", page), path
    assert any("\\u202e" in page for page in pages.values())
    assert sum("&lt;script&gt;alert(1)" in page for page in pages.values()) > 6


def test_lists_come_page_by_page_each_row_once(memory: Memory) -> None:
    chat = memory.chat(user_id="bea", session_id="long")
    records = {chat.remember(f"Bea has the book number {number}.").memory_id for number in range(120)}
    texts = [f"It stands in town {number}." for number in range(120)]
    chat.add_messages([Message("user", text) for text in texts])
    for number in range(60):
        memory.chat(user_id="bea", session_id=f"session {number}").add("user", "Hello.")
        memory.chat(user_id=f"user {number}", session_id="one").add("user", "Hello.")
    client = client_of(memory)

    def rows(path: str, pattern: str) -> list[str]:
        found: list[list[str]] = []
        while path:
            page = client.get(path).text
            found.append(re.findall(pattern, html.unescape(page)))
            further = re.search(r'<a href="([^"]*)" rel="next"', page)
            path = html.unescape(further[1]) if further else ""
        assert all(len(some) == 50 for some in found[:-1])
        every = [row for some in found for row in some]
        assert len(every) == len(set(every))
        return every

    assert set(rows("/user?user=bea", r">(bea_mem_\d+)</a>")) == records
    assert rows("/session?user=bea&session=long", r">(It stands in town \d+\.)<") == texts
    assert len(rows("/user?user=bea&part=sessions", r">((?:session \d+|long))</a>")) == 61
    assert len(rows("/?find=", r"tenant=(\w+&user=[^\"]*)\"")) == 64
    assert rows("/?find=SER%207", r"&user=(user\+\d+)\"") == ["user+7"]
    assert rows("/?find=%25", r"&user=(\w+)\"") == []  # a character like any other


def test_a_session_without_a_user_is_shown_and_forgotten(memory: Memory) -> None:
    memory.chat_of(Scope.alone("guest 1")).add("user", "I want a refund.")
    memory.chat_of(Scope.alone("guest 2")).add("user", "I want a tulip.")
    client = client_of(memory, writes=True)
    page = client.get("/").text
    assert "session guest 1" in page
    [start] = [path for path in links(page) if path.endswith("guest+1")]
    pages = crawl(client, start)
    assert any("refund" in page for page in pages.values())
    assert not any("tulip" in page for page in pages.values())
    client.post("/forget", data=form_of(client, start, "/forget"))
    page = client.get("/").text
    assert "guest 1" not in page
    assert "guest 2" in page


# --- writing


def test_a_record_is_corrected_unless_somebody_changed_it_meanwhile(memory: Memory) -> None:
    client, bergen = client_of(memory, writes=True), home_of(memory, "ada")
    path = f"/record?user=ada&record={bergen}"
    form = form_of(client, path, "/correct")
    assert form["value"] == "Bergen"
    text = 'Ada lives in Tromsø,\r\nup <north> & "far".'
    answer = client.post("/correct", data={**form, "text": text, "value": "Tromsø"})
    assert answer.status_code == 200
    assert "It is corrected" in answer.text
    [now] = memory.records(user_id="ada", record_id=bergen)
    assert (now.raw, now.value, now.version) == (text.replace("\r\n", "\n"), "Tromsø", 2)
    assert "Ada lives in Bergen." in answer.text  # the version before
    unchanged = client.post("/correct", data={**form_of(client, path, "/correct"), "text": text})
    assert "Nothing was changed" in unchanged.text
    answer = client.post("/correct", data={**form, "text": "Ada lives in Rome."})
    assert (answer.status_code, "changed meanwhile" in answer.text) == (409, True)
    assert memory.records(user_id="ada", record_id=bergen)[0].version == 2


def test_a_person_vouches_for_what_they_correct(memory: Memory) -> None:
    client, hiking = client_of(memory, writes=True), hiking_of(memory)
    form = form_of(client, f"/record?user=ada&record={hiking}", "/correct")
    client.post("/correct", data={**form, "text": "Ada likes hiking in the rain."})
    [now] = memory.records(user_id="ada", record_id=hiking)
    assert (now.raw, now.source) == ("Ada likes hiking in the rain.", "corrected_memory")


def test_a_record_a_session_and_a_user_are_forgotten(memory: Memory) -> None:
    client, hiking = client_of(memory, writes=True), hiking_of(memory)
    path = f"/record?user=ada&record={hiking}"
    answer = client.post("/forget", data=form_of(client, path, "/forget"))
    assert "It is forgotten" in answer.text
    with pytest.raises(UnknownRecordError):
        memory.why(hiking, user_id="ada")
    session = "/session?user=ada&agent=gardener&session=garden"
    assert client.post("/forget", data=form_of(client, session, "/forget")).status_code == 200
    assert client.get(session).status_code == 404
    assert [one.scope.session_id for one in memory.sessions(user_id="ada")] == ["spring"]
    form = form_of(client, "/user?user=ada", "/forget")
    assert "There was nothing to forget." in client.post("/forget", data={**form, "user": "adda"}).text
    client.post("/forget", data=form)
    assert client.get("/user?user=ada").status_code == 404
    assert (memory.sessions(user_id="ada"), memory.records(user_id="ada", every=True)) == ([], [])
    assert memory.sessions(user_id="eve")
    assert memory.sessions(user_id="ada", tenant_id="other")


# --- the package and the command


def test_only_public_names_of_memlayer_are_imported() -> None:
    """They are those of the package itself, of its tools for agents, and of its errors."""
    public = {"memlayer_core", "memlayer_core.errors", "memlayer_core.tools"}
    found = set()
    for file in Path(str(memlayer_server.__file__)).parent.glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and str(node.module).startswith("memlayer_core"):
                found.add(node.module)
                assert not [one.name for one in node.names if one.name.startswith("_")]
            elif isinstance(node, ast.Import):
                assert not [one.name for one in node.names if one.name.startswith("memlayer_core")]
            elif isinstance(node, ast.Attribute):
                assert node.attr != "runtime", "it is how memlayer's own adapters reach inside"
    assert found == public


def test_what_would_open_it_to_others_is_refused_and_no_memory_is_made(place: Path, refusal: Any) -> None:
    assert "MEMLAYER_UI_TOKEN" in refusal("ui", place, "--host", "192.0.2.1")
    assert "--allow-host" in refusal("ui", place, "--host", "0.0.0.0", MEMLAYER_UI_TOKEN="long")
    for options in ([], ["--write"]):
        assert "there is no memory in" in refusal("ui", place.parent / "new", *options)
    assert not (place.parent / "new").exists()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 0)])
@pytest.mark.slow
def test_it_tells_its_address_and_ends_cleanly(place: Path, environment: Any, number: int, code: int) -> None:
    with listening(line_of("ui", place, "--port", "0"), environment, r"http://\S+") as (address, process):
        where, _, token = address.partition("/?token=")
        assert where.startswith("http://127.0.0.1:")
        assert len(token) > 40
        with httpx.Client(base_url=where, follow_redirects=True) as client:
            assert client.get("/").status_code == 401
            assert ">ada</a>" in client.get("/", params={"token": token}).text
            assert client.get("/user?user=ada").status_code == 200
        process.send_signal(number)
        assert process.communicate(timeout=30) == ("", "")
        assert process.returncode == code


# --- a browser


@pytest.fixture
def browser() -> Iterator[Any]:
    """Return Chromium, as Debian packages it."""
    sync_api = pytest.importorskip("playwright.sync_api", reason="no playwright: pip install playwright")
    program = shutil.which("chromium")
    if program is None:
        pytest.skip("no Chromium: apt-get install chromium")
    with sync_api.sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield opened
        opened.close()


@pytest.mark.slow
def test_in_a_browser_one_looks_through_it_and_mends_it(place: Path, browser: Any, environment: Any) -> None:
    with Memory.open(place, embedder="hashing") as memory:
        memory.chat(user_id="ada", session_id="spring").add("user", f"Look: {ATTACK}")
    line = line_of("ui", place, "--write", "--port", "0")
    with listening(line, environment, r"http://\S+") as (address, _):
        page, problems = browser.new_page(), list[str]()
        page.on("console", lambda line: problems.append(line.text) if line.type != "log" else None)
        page.on("pageerror", lambda problem: problems.append(str(problem)))
        page.on("dialog", lambda dialog: problems.append(dialog.message))
        page.on("response", lambda one: problems.append(one.url) if one.status >= 400 else None)
        page.goto(address)
        assert "token" not in page.url
        assert page.evaluate("document.cookie") == ""
        page.get_by_role("row").filter(has_text="default").filter(has_text="ada").get_by_role("link").click()
        page.get_by_role("link", name="sessions").click()
        page.get_by_role("link", name="spring").click()
        assert page.get_by_text("<script>alert(1)").is_visible()
        page.go_back()
        page.get_by_role("link", name="records").click()
        page.get_by_role("row").filter(has_text="Bergen").get_by_role("link").click()
        page.get_by_text("Correct …").click()
        page.get_by_label("What it says").fill("Ada lives in Tromsø.")
        page.get_by_label("Value of").fill("Tromsø")
        page.get_by_role("button", name="Store the correction").click()
        page.get_by_text("It is corrected").wait_for()
        page.get_by_text("Forget record …").click()
        page.get_by_role("button", name="Forget record").click()
        page.get_by_text("It is forgotten").wait_for()
        assert page.get_by_text("Tromsø").count() == 0
        assert problems == []
    with Memory.open(place, embedder="hashing") as memory:
        assert "Tromsø" not in {one.value for one in memory.records(user_id="ada")}
