"""How a conversation begins: led by the persona that the settings name, if they name one that is there.

Knows conversations, settings and personas; which model is loaded is left to the person.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from app.conversation import Conversation
from app.settings import Settings
from engine import SamplingParams

if TYPE_CHECKING:
    from app.personas import Persona


def new_conversation(settings: Settings) -> Conversation:
    """Return an empty conversation. Without a persona no file is read: this comes before the first frame."""
    conversation = Conversation()
    if settings.persona:
        from app.personas import find_persona, load_personas, personas_dir

        persona = find_persona(load_personas(personas_dir())[0], settings.persona)
        if persona is not None:
            lead(conversation, persona, settings.sampling)
    return conversation


def lead(conversation: Conversation, persona: Persona, sampling: SamplingParams) -> None:
    """Lead `conversation` as `persona` says, `sampling` where it says nothing."""
    conversation.persona, conversation.system = persona.name, persona.system or None
    conversation.sampling = persona.drawn(sampling)
