"""Numbers as people read them, and a bar made of characters. No widget."""

from __future__ import annotations

from textual.content import Content

from app.sanitize import sanitize_line
from engine import ModelInfo


def bar(fraction: float, width: int) -> Content:
    """Return a bar of `width` cells; heavy against light lines, so that it reads without colour."""
    filled = round(min(max(fraction, 0.0), 1.0) * width)
    style = "$error" if fraction >= 0.95 else "$warning" if fraction >= 0.8 else "$primary"
    return Content.assemble(("━" * filled, style), ("─" * (width - filled), "$rule"))


def size(n_bytes: int) -> str:
    """Return `n_bytes` in MB or GB (1e6 and 1e9 bytes)."""
    return f"{n_bytes / 1e9:.1f} GB" if n_bytes >= 1e9 else f"{n_bytes / 1e6:.0f} MB"


def parameters(count: int) -> str:
    """Return a number of parameters such as 135M or 7.6B."""
    return f"{count / 1e9:.1f}B" if count >= 1e9 else f"{count / 1e6:.0f}M"


def model_line(model: ModelInfo) -> str:
    """Return name and quantisation of a model; the name comes from its file and is cleaned."""
    return f"{sanitize_line(model.name)}  {model.quantisation}"
