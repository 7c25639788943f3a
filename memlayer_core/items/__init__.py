"""Values under keys in folders, for LangGraph's store."""
