"""Conversations as other programs export them: ChatGPT, ShareGPT, llama.cpp's web interface.

Knows their formats, read as loosely as they are written: what is not said by a person or a model (tool calls,
hidden context, pictures) is left out, a missing time is that of the conversation. Stores nothing.
"""

from __future__ import annotations

from typing import Any, Final

from app.conversation import Attachment, Conversation, Turn, now_ms, title_of
from app.store.trees import Draft, Fields, planted

_SHAREGPT_ROLES: Final = {
    "human": "user",
    "user": "user",
    "gpt": "assistant",
    "assistant": "assistant",
    "chatgpt": "assistant",
    "bing": "assistant",
    "bard": "assistant",
    "model": "assistant",
    "system": "system",
    "tool": "tool",
    "function_call": "tool",
    "function": "tool",
    "observation": "tool",
}
_SPOKEN: Final = ("user", "assistant")


def chatgpt(item: Fields) -> Conversation:
    """Read one conversation of ChatGPT's conversations.json: a `mapping` of nodes and a `current_node`."""
    begun = item.seconds("create_time", now_ms())
    conversation = Conversation(
        item.optional("title", str) or "", updated_at=item.seconds("update_time", begun)
    )
    nodes = item.object("mapping")
    assert nodes is not None
    drafts = []
    for key in nodes.values:
        node = nodes.object(key)
        assert node is not None
        message = node.object("message", required=False)
        turn, kept = (
            _chatgpt_turn(message, begun) if message is not None else (Turn(0, "", created_at=begun), False)
        )
        drafts.append(Draft(key, node.optional("parent", str), turn, kept))
    planted(conversation, drafts, item.optional("current_node", str), item)
    return _titled(conversation)


def _chatgpt_turn(message: Fields, begun: int) -> tuple[Turn, bool]:
    author = message.object("author")
    assert author is not None
    content = message.object("content", required=False)
    facts = message.object("metadata", required=False) or Fields({}, message.place)
    role = author.text("role")
    hidden = facts.values.get("is_visually_hidden_from_conversation") is True
    to_a_tool = message.values.get("recipient", "all") != "all"
    text = _chatgpt_text(content) if content is not None else ""
    model = (facts.optional("model_slug", str) or "") if role == "assistant" else ""
    turn = Turn(0, role, text, model=model, created_at=message.seconds("create_time", begun))
    return turn, role in _SPOKEN and bool(text) and not hidden and not to_a_tool


def _chatgpt_text(content: Fields) -> str:
    if content.values.get("content_type") in ("thoughts", "reasoning_recap", "user_editable_context"):
        return ""
    parts: list[Any] = content.optional("parts", list) or []
    return "\n".join(part for part in parts if isinstance(part, str)) or content.optional("text", str) or ""


def sharegpt(item: Fields) -> Conversation:
    """Read one conversation of ShareGPT's format, or of the like with `messages` of `role` and `content`."""
    begun = item.milliseconds("updated_at", now_ms())
    conversation = Conversation(
        item.optional("title", str) or "", updated_at=begun, system=item.optional("system", str)
    )
    key = "conversations" if "conversations" in item.values else "messages"
    drafts: list[Draft] = []
    for message in item.objects(key):
        speaker = message.optional("from", str) or message.text("role")
        text = message.optional("value", str)
        text = text if text is not None else message.text("content")
        role = _SHAREGPT_ROLES.get(speaker)
        if role is None:
            raise message.fault(f"is said by {speaker!r}, whom this program does not know")
        if role == "system" and not drafts:
            conversation.system = text
            continue
        parent = drafts[-1].key if drafts else None
        turn = Turn(0, role, text, created_at=begun)
        drafts.append(Draft(str(len(drafts)), parent, turn, role in _SPOKEN))
    planted(conversation, drafts, None, item)
    return _titled(conversation)


def llama_web(item: Fields) -> Conversation:
    """Read one conversation of llama.cpp's web interface: `conv` with `currNode`, and `messages`."""
    about = item.object("conv")
    assert about is not None
    begun = about.milliseconds("lastModified", now_ms())
    conversation = Conversation(about.optional("name", str) or "", updated_at=begun)
    drafts = []
    messages = item.objects("messages")
    keys = {_key(message, "id") for message in messages}
    for message in messages:
        parent = _key(message, "parent")
        if parent in ("", "-1") and parent not in keys:  # how its first version says that there is none
            parent = None
        role, text = message.text("role"), message.optional("content", str) or ""
        if role == "system" and text and conversation.system is None:
            conversation.system = text
        turn = Turn(
            0,
            role,
            text,
            model=message.optional("model", str) or "" if role == "assistant" else "",
            attachments=tuple(_llama_web_files(message)),
            created_at=message.milliseconds("timestamp", begun),
        )
        spoken = role in _SPOKEN and message.values.get("type") != "root" and bool(turn.told)
        key = _key(message, "id")
        if key is None:
            raise message.fault("has no `id`")
        drafts.append(Draft(key, parent, turn, spoken))
    planted(conversation, drafts, _key(about, "currNode"), item)
    return _titled(conversation)


def _llama_web_files(message: Fields) -> list[Attachment]:
    if message.values.get("extra") is None:
        return []
    files = []
    for extra in message.objects("extra"):
        # Pictures and sound have no text that could be told to a model.
        if isinstance(content := extra.values.get("content"), str):
            files.append(Attachment("file", f"@{extra.text('name')}", content))
    return files


def _key(fields: Fields, name: str) -> str | None:
    """Return an id, which one version wrote as text and another as a number."""
    value = fields.values.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (str, int)):
        raise fields.fault(f"has a `{name}` that is neither text nor a number")
    return str(value)


def _titled(conversation: Conversation) -> Conversation:
    if not conversation.title:
        first = next((turn.text for turn in conversation.turns if turn.text), "")
        conversation.title = title_of(first) or "imported"
    return conversation
