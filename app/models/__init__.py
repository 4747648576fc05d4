"""Model files on this machine: found, resolved from what a person types, and fetched (`starter`)."""

from app.models.discovery import FoundModel, Origin, discover
from app.models.resolve import resolve_model

__all__ = ["FoundModel", "Origin", "discover", "resolve_model"]
