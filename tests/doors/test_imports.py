"""What an import loads, and what it says where a framework is missing."""

import subprocess
import sys

import pytest

LOADED = "print(sorted({name.partition('.')[0] for name in sys.modules} & {'chromadb', %s}))"
MISSES = "try:\n    from %s import %s\nexcept ImportError as problem:\n    print(type(problem).__name__, problem.hint)"
LANGCHAIN = "'langchain', 'langchain_classic', 'langgraph'"


def without(gone: str, extra: str, name: str) -> tuple[str, str]:
    """Return a program that asks for a name where a framework is missing, and what it says."""
    asks = f"sys.modules[{gone!r}] = None\n" + MISSES % (f"{extra}_memlayer", name)
    return asks, f"MissingExtraError pip install 'memlayer-core[{extra}]'"


SAYS = {
    "langchain_memlayer loads no other framework": (
        "from langchain_memlayer import MemlayerChatMessageHistory\n"
        + LOADED % f"'llama_index', {LANGCHAIN}",
        "[]",
    ),
    "langchain_memlayer alone loads no messages yet": (
        "import langchain_memlayer; print('langchain_core.messages' in sys.modules)",
        "False",
    ),
    "LangChain's history works without LlamaIndex": (
        (
            "sys.modules['llama_index'] = None\n"
            "from langchain_memlayer import MemlayerChatMessageHistory\n"
            "from memlayer_core import Memory\n"
            "with Memory.in_memory() as memory:\n"
            "    history = MemlayerChatMessageHistory(memory, session_id='s1', user_id='ada')\n"
            "    history.add_user_message('hi')\n"
            "    print(history.context()[0].text)"
        ),
        "hi",
    ),
    "LlamaIndex's memory works without LangChain": (
        (
            f"sys.modules.update(dict.fromkeys(['langchain_core', {LANGCHAIN}]))\n"
            "from llamaindex_memlayer import MemlayerMemory\n"
            "from llama_index.core.llms import ChatMessage\n"
            "memory = MemlayerMemory.from_defaults()\n"
            "memory.put(ChatMessage('hi'))\n"
            "print(memory.get()[0].content)"
        ),
        "hi",
    ),
    "the middleware without langchain": without("langchain", "langchain", "MemlayerMiddleware"),
    "the tools without langchain": without("langchain", "langchain", "create_memory_tools"),
    "LangChain's history without langchain_core": without(
        "langchain_core", "langchain", "MemlayerChatMessageHistory"
    ),
    "LlamaIndex's memory without llama_index": without("llama_index", "llamaindex", "MemlayerMemory"),
    "all names that do not need langchain_classic": (
        "sys.modules['langchain_classic'] = None\nimport pydoc\nimport langchain_memlayer\nfrom langchain_memlayer import *\n"
        "told = pydoc.plain(pydoc.render_doc(langchain_memlayer))\n"
        "assert MemlayerMiddleware.__doc__.splitlines()[0] in told\n"
        + MISSES
        % ("langchain_memlayer", "MemlayerConversationMemory"),
        "MissingExtraError pip install 'memlayer-core[classic]'",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize(("program", "says"), SAYS.values(), ids=SAYS)
def test_an_import_loads_no_other_framework_and_says_what_to_install(program, says) -> None:
    command = [sys.executable, "-W", "error", "-c", f"import sys\n{program}"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.stdout.strip() == says, done.stderr
