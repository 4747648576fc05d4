"""Text to token ids and back."""

from engine.tokenizer.detokenizer import Detokenizer
from engine.tokenizer.load import load_tokenizer
from engine.tokenizer.tokenizer import Tokenizer

__all__ = ["Detokenizer", "Tokenizer", "load_tokenizer"]
