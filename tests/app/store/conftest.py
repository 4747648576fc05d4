"""A store in a folder of its own, and conversations to put into it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from app.store import Store


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    store = Store(tmp_path / "data" / "c.db")
    store.start()
    yield store
    store.close()
