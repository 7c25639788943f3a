"""A page in the browser to look through a memory, and an MCP server for the memory of one user."""

from memlayer_server.agent_tools import http_app, mcp_server
from memlayer_server.page import ui_app

__all__ = ["http_app", "mcp_server", "ui_app"]
