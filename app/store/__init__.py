"""Conversations in SQLite: the only code that knows SQL. Knows no widget and no engine thread."""

from app.store.rows import ConversationInfo
from app.store.search import SearchHit, found_at
from app.store.store import Store

__all__ = ["ConversationInfo", "SearchHit", "Store", "found_at"]
