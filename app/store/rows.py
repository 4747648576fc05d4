"""Rows of the tables as objects, and the other way round. Knows columns and JSON; runs no SQL."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from app.conversation import Attachment, Conversation, Turn, TurnStatus
from app.store.decoding_json import decoding_facts, decoding_of, stats_facts, stats_of
from engine import GenerationStats, Overflow, SamplingParams


@dataclass(frozen=True, slots=True)
class ConversationInfo:
    """What the list shows of a conversation."""

    id: int
    title: str
    updated_at: int
    """Milliseconds since 1970."""
    persona: str = ""
    """Name of the persona it was begun with; empty for none."""
    model: str = ""
    """Which model replied last; empty before any reply."""


def params_json(conversation: Conversation) -> str | None:
    """Return what the person chose for this conversation alone; None where that is nothing."""
    sampling = conversation.sampling
    chosen = {
        "system": conversation.system,
        "sampling": asdict(sampling) if sampling is not None else None,
        "overflow": conversation.overflow,
    }
    chosen = {name: value for name, value in chosen.items() if value is not None}
    return json.dumps(chosen) if chosen else None


def made_by(turn: Turn) -> tuple[str, str | None, str | None, str | None, str | None]:
    """Return model, sampling_json, decoding_json, stats_json and made_by_json."""
    return (
        turn.model,
        json.dumps(asdict(turn.sampling)) if turn.sampling is not None else None,
        json.dumps(decoding_facts(turn.decoding)) if turn.decoding is not None else None,
        json.dumps(stats_facts(turn.stats)) if turn.role == "assistant" else None,
        json.dumps(turn.made_by) if turn.made_by else None,
    )


def conversation_of(row: Mapping[str, Any]) -> Conversation:
    """Return a conversation without its turns. Raises sqlite3.DataError."""
    try:
        chosen = json.loads(row["params_json"] or "{}")
        sampling, overflow = chosen.get("sampling"), chosen.get("overflow")
        return Conversation(
            row["title"],
            updated_at=row["updated_at"],
            id=row["id"],
            persona=row["persona"],
            system=chosen.get("system"),
            sampling=sampling_of(sampling) if sampling is not None else None,
            overflow=Overflow(overflow) if overflow is not None else None,
        )
    except (AttributeError, TypeError, ValueError) as error:
        raise sqlite3.DataError(f"a conversation makes no sense: {error}") from None


def turn_of(row: Mapping[str, Any], attachments: Iterable[Attachment] = ()) -> Turn:
    """Return a turn. Raises sqlite3.DataError."""
    try:
        sampling, decoding, stats = row["sampling_json"], row["decoding_json"], row["stats_json"]
        return Turn(
            row["conversation_id"],
            row["role"],
            row["text"],
            TurnStatus(row["status"]),
            row["note"],
            row["parent_id"],
            row["model"],
            sampling_of(json.loads(sampling)) if sampling else None,
            decoding_of(json.loads(decoding)) if decoding else None,
            stats_of(json.loads(stats)) if stats else GenerationStats(),
            dict(json.loads(row["made_by_json"] or "{}")),
            tuple(attachments),
            row["created_at"],
            row["id"],
        )
    except (AttributeError, TypeError, ValueError) as error:
        raise sqlite3.DataError(f"a message makes no sense: {error}") from None


def sampling_of(stored: Mapping[str, Any]) -> SamplingParams:
    """Return stored sampling, without fields that only a newer program knows. Raises ValueError,
    TypeError.
    """
    names = {field.name for field in fields(SamplingParams)}
    return SamplingParams(**{name: value for name, value in stored.items() if name in names})


def tree_of(conversation: Conversation) -> list[Turn]:
    """Return every turn of the tree, each after the one before it."""
    turns: list[Turn] = []
    waiting: list[int | None] = [None]
    while waiting:
        place = Turn(conversation.id, "user", parent_id=waiting.pop())
        below = conversation.siblings(place)
        turns += below
        waiting += [turn.id for turn in below]
    return turns
