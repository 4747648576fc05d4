"""What a person should know beside a result, such as a fallback: one line each on standard error."""

from __future__ import annotations

import sys
from collections.abc import Iterable

from app.sanitize import sanitize_line


def print_notices(notices: Iterable[str]) -> None:
    """Print them, cleaned."""
    for notice in notices:
        print(f"tiercel: {sanitize_line(notice)}", file=sys.stderr)
