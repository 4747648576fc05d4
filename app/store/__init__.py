"""Conversations in SQLite: the only code that knows SQL. Knows no widget and no engine thread."""

from app.store.search import SearchHit
from app.store.store import ConversationInfo, Store

__all__ = ["ConversationInfo", "SearchHit", "Store"]
