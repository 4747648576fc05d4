"""What a person should know beside a result, such as a fallback: one line each on standard error."""

from __future__ import annotations

import sys
from collections.abc import Iterable

from app.sanitize import sanitize_line
from engine import EngineSnapshot


def print_notices(notices: Iterable[str]) -> None:
    """Print them, cleaned."""
    for notice in notices:
        print(f"tiercel: {sanitize_line(notice)}", file=sys.stderr)


def device_notices(snapshot: EngineSnapshot) -> Iterable[str]:
    """Which GPU has computed, and why; nothing where a processor has."""
    if snapshot.tiers is not None and snapshot.tiers.gpu is not None:
        yield f"{snapshot.backend}: {snapshot.backend_reason or snapshot.tiers.gpu.name}"
