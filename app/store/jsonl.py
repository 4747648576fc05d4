"""Our own format: JSON lines, one for each conversation and one for each of its messages, with every fact.

Written and read here, so that both sides agree: what was exported comes back the same, tree and all.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from typing import Any, Final

from app.conversation import Attachment, Conversation, Turn, TurnStatus
from app.store.decoding_json import decoding_facts, decoding_of, stats_facts, stats_of
from app.store.rows import sampling_of, tree_of
from app.store.trees import Fields, Node, grown
from engine import GenerationStats, Overflow

FORMAT: Final = "tiercel"
_VERSION: Final = 1
_BROKEN_OFF: Final = "interrupted: it was exported while it grew"


def write_lines(conversation: Conversation) -> Iterator[str]:
    """Yield the lines of one conversation."""
    mark = {"format": FORMAT, "version": _VERSION, "type": "conversation"}
    yield _line({**mark, **conversation_facts(conversation)})
    for turn in sorted(tree_of(conversation), key=lambda turn: turn.id):
        yield _line({"type": "message", **message_facts(turn)})


def conversation_facts(conversation: Conversation) -> dict[str, Any]:
    """Return everything about a conversation but its messages, as JSON has it."""
    sampling = conversation.sampling
    return {
        "id": conversation.id,
        "title": conversation.title,
        "updated_at": conversation.updated_at,
        "head_id": conversation.turns[-1].id if conversation.turns else None,
        "persona": conversation.persona,
        "system": conversation.system,
        "sampling": asdict(sampling) if sampling is not None else None,
        "overflow": conversation.overflow,
    }


def message_facts(turn: Turn) -> dict[str, Any]:
    """Return everything about a message, as JSON has it."""
    return {
        "conversation_id": turn.conversation_id,
        "id": turn.id,
        "parent_id": turn.parent_id,
        "role": turn.role,
        "text": turn.text,
        "status": turn.status,
        "note": turn.note,
        "created_at": turn.created_at,
        "model": turn.model,
        "sampling": asdict(turn.sampling) if turn.sampling is not None else None,
        "decoding": decoding_facts(turn.decoding) if turn.decoding is not None else None,
        "stats": stats_facts(turn.stats),
        "made_by": turn.made_by,
        "attachments": [asdict(part) for part in turn.attachments],
    }


def read_lines(lines: Iterable[Fields]) -> list[Conversation]:
    """Return the conversations that `write_lines` wrote. Raises ImportFault."""
    conversations: list[Conversation] = []
    nodes: list[Node] = []
    head: Fields | None = None
    for line in lines:
        kind = line.text("type")
        if kind == "conversation":
            if head is not None:
                grown(conversations[-1], nodes, head.id_or_none("head_id"), head)
            nodes, head = [], line
            conversations.append(_conversation(line))
        elif kind != "message":
            raise line.fault(f"is of type {kind!r}, which this program does not know")
        elif head is None or line.whole("conversation_id") != conversations[-1].id:
            raise line.fault("is a message that belongs to no conversation before it")
        else:
            nodes.append(_node(line))
    if head is not None:
        grown(conversations[-1], nodes, head.id_or_none("head_id"), head)
    return conversations


def _conversation(line: Fields) -> Conversation:
    if line.whole("version") > _VERSION:
        raise line.fault(f"is of version {line.whole('version')}, this program knows up to {_VERSION}")
    sampling, overflow = line.optional("sampling", dict), line.optional("overflow", str)
    with line.checking():
        return Conversation(
            line.text("title"),
            updated_at=line.time("updated_at"),
            id=line.whole("id"),
            persona=line.text("persona"),
            system=line.optional("system", str),
            sampling=sampling_of(sampling) if sampling is not None else None,
            overflow=Overflow(overflow) if overflow is not None else None,
        )


def _node(line: Fields) -> Node:
    with line.checking():
        status, note = TurnStatus(line.text("status")), line.text("note")
        if status is TurnStatus.STREAMING:
            status, note = TurnStatus.CANCELLED, _BROKEN_OFF
        sampling, decoding = line.optional("sampling", dict), line.optional("decoding", dict)
        stats = line.optional("stats", dict)
        role, made_by = line.text("role"), line.optional("made_by", dict) or {}
        json.dumps(made_by)  # what is nested too deeply to be written again fails here and not while storing
        if role not in ("user", "assistant"):
            raise ValueError(f"nobody has the role {role!r}")
        turn = Turn(
            line.whole("conversation_id"),
            role,
            line.text("text"),
            status,
            note,
            line.id_or_none("parent_id"),
            line.text("model"),
            sampling_of(sampling) if sampling is not None else None,
            decoding_of(decoding) if decoding is not None else None,
            stats_of(stats) if stats is not None and role == "assistant" else GenerationStats(),
            made_by,
            tuple(_attachment(part) for part in line.objects("attachments")),
            line.time("created_at"),
            line.whole("id"),
        )
    return Node(turn, line)


def _attachment(part: Fields) -> Attachment:
    return Attachment(part.text("kind"), part.text("name"), part.text("text"))


def _line(facts: dict[str, Any]) -> str:
    return json.dumps(facts, ensure_ascii=False) + "\n"
