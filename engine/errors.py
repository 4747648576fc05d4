"""The exception tree of the engine, drawn once.

    EngineError                  base; its text is one line written for the person at the keyboard
    ├── ModelNotFoundError       no model file is where, or is called what, the person said
    ├── GGUFError                a model file is damaged, hostile or not a GGUF file
    ├── UnsupportedModelError    a sound file whose architecture, tensor type or tokenizer we do not run
    ├── TokenizerError           the vocabulary in the file cannot be used
    ├── TemplateError            the chat template is broken or refuses this conversation
    ├── ContextError             the prompt does not fit the context, or the context does not fit memory
    ├── BudgetError              the memory granted is too little even for weights read from disk
    ├── DeviceError              the device that was asked for is not there or cannot be used
    ├── DecodingError            what is to be left out, or is to draft, this model cannot do; nothing changed
    ├── StreamError              weights could not be read from the disk while the model ran
    ├── KernelError              the native kernels are missing or refused their input
    ├── ReferenceFileError       a reference file for `perplexity` is unusable
    ├── InputFileError           another file that was named cannot be read, or holds something else
    └── CancelledError           the person stopped the work; never shown as a failure

Every message says what failed, with which value, and what to do next. Knows no terminal and no widget.
"""

from __future__ import annotations


class EngineError(Exception):
    """Anything the engine reports to a person: one line, with the next step."""


class ModelNotFoundError(EngineError):
    """What was typed names no model file, or more than one."""


class GGUFError(EngineError):
    """A model file is damaged, hostile or not a GGUF file; names file, key and value."""


class UnsupportedModelError(EngineError):
    """The file is sound but names an architecture, tensor type or tokenizer that we do not run."""


class TokenizerError(EngineError):
    """The vocabulary in the file cannot be turned into a tokenizer."""


class TemplateError(EngineError):
    """The chat template does not compile, runs too long, or refuses this conversation."""


class ContextError(EngineError):
    """A prompt longer than the context, or a context larger than the memory that is free."""


class BudgetError(EngineError):
    """The memory granted is too little even for weights read from disk for every pass, or for a GPU."""


class DeviceError(EngineError):
    """The device that was asked for is not there, cannot be used, or failed; names device, cause and fix."""


class DecodingError(EngineError):
    """What was chosen to be left out, or to draft, cannot be done with this model."""


class StreamError(EngineError):
    """Weights could not be read from the disk while the model ran; names file, position and reason."""


class KernelError(EngineError):
    """The native kernels are missing or refused what they were given."""


class ReferenceFileError(EngineError):
    """A file of reference logits cannot be read or does not belong to this model."""


class InputFileError(EngineError):
    """A file of text, messages or a template cannot be read or does not hold what it should."""


class CancelledError(EngineError):
    """The person stopped the work."""
