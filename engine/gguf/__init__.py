"""Reading GGUF files: a hardened, lazy reader over a mapped file.

Knows the file format; does not know models. Written against untrusted input: nothing but GGUFError comes out.
"""

from engine.gguf.metadata import LazyArray, Value, ValueType
from engine.gguf.reader import GGUFFile, open_gguf
from engine.gguf.tensors import TensorInfo

__all__ = ["GGUFFile", "LazyArray", "TensorInfo", "Value", "ValueType", "open_gguf"]
