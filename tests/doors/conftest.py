"""A door for each test of what the doors promise."""

import pytest

from tests.doors.doors import DOORS, KITS, Door
from tests.langchain.conftest import memory
from tests.llamaindex.conftest import no_loop_is_left_open

__all__ = ["memory", "no_loop_is_left_open"]


@pytest.fixture(scope="session", params=DOORS.values(), ids=DOORS.keys())
def door(request: pytest.FixtureRequest) -> Door:
    return request.param


@pytest.fixture(scope="session", params=KITS.values(), ids=KITS.keys())
def kit(request: pytest.FixtureRequest) -> object:
    """Return the tools and the search of a framework."""
    return request.param
