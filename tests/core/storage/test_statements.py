"""A prepared statement says what SQLAlchemy would say of the same statement, rows and errors alike."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given, strategies as st
from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
    LargeBinary,
    MetaData,
    Table,
    Text,
    bindparam,
    create_engine,
    exc,
    insert,
    select,
)

from memlayer_core.storage.statements import ListStatement, Statement

things = Table(
    "memlayer_test_things",
    MetaData(),
    Column("key", BigInteger, primary_key=True, autoincrement=False),
    Column("said", Text, nullable=False),
    Column("raw", LargeBinary),
)
STORE = Statement(insert(things))
LIKE = (
    select(things.c.key, things.c.said, things.c.raw)
    .where(things.c.said == bindparam("said"))
    .order_by("key")
)
AMONG = ListStatement(lambda keys: select(things.c.key, things.c.said).where(things.c.key.in_(keys)))


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def connection(request: pytest.FixtureRequest) -> Iterator[Connection]:
    url = "sqlite://" if request.param == "sqlite" else request.getfixturevalue("new_postgres_url")
    engine = create_engine(url)
    with engine.connect() as opened, opened.begin():
        things.create(opened)
        yield opened
    engine.dispose()


def test_rows_are_those_of_sqlalchemy(connection: Connection) -> None:
    rows = [{"key": n, "said": ("tea", "sugar 100 %s :x")[n % 2], "raw": bytes([n])} for n in range(10)]
    STORE.run(connection, *rows)
    for said in ("tea", "sugar 100 %s :x", "nothing"):
        found = Statement(LIKE).all(connection, {"said": said})
        assert list(map(tuple, found)) == list(map(tuple, connection.execute(LIKE, {"said": said})))
    assert Statement(LIKE).first(connection, {"said": "nothing"}) is None
    assert Statement(LIKE).first(connection, {"said": "tea"}).key == 0


def test_a_constant_of_the_statement_stands_beside_the_values(connection: Connection) -> None:
    STORE.run(connection, *({"key": n, "said": "x", "raw": None} for n in range(4)))
    bounded = Statement(select(things.c.key).where(things.c.key > 1, things.c.said == bindparam("said")))
    assert {row.key for row in bounded.all(connection, {"said": "x"})} == {2, 3}


@given(st.lists(st.integers(0, 1200), max_size=1100))
def test_a_list_of_any_length_finds_each_of_its_members_and_no_other(listed) -> None:
    engine = create_engine("sqlite://")
    with engine.connect() as connection, connection.begin():
        things.create(connection)
        STORE.run(connection, *({"key": n, "said": "x", "raw": None} for n in range(0, 1200, 3)))
        found = {row.key for row in AMONG.all(connection, listed)}
    engine.dispose()
    assert found == {key for key in listed if key % 3 == 0 and key < 1200}


def test_a_list_of_many_values_costs_a_server_one_parameter(connection: Connection) -> None:
    STORE.run(connection, *({"key": n, "said": "x", "raw": None} for n in range(700)))
    for listed in ([], [3], [3, 3], [5, 900, 4], [*range(650)]):
        found = [row.key for row in AMONG.all(connection, listed)]
        assert sorted(found) == sorted({key for key in listed if key < 700})


def test_an_error_is_one_of_sqlalchemy_and_tells_nobodys_words(connection: Connection) -> None:
    row = {"key": 1, "said": "my secret", "raw": None}
    STORE.run(connection, row)
    with pytest.raises(exc.IntegrityError) as caught:
        STORE.run(connection, row)
    assert "my secret" not in str(caught.value)
