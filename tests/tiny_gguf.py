"""Writes tiny GGUF models for tests: random weights, real structure, a byte-level BPE of 300 tokens.

Knows the tensor names and metadata of the architectures we run. Weights have standard deviation
1/sqrt(row length), so that activations stay near 1 through any number of layers; the text is noise.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import cycle
from pathlib import Path

import gguf
import numpy as np
from gguf import GGMLQuantizationType, GGUFWriter
from gguf.constants import TokenType
from numpy.typing import NDArray

from kernels.quant_types import QuantType, block_bytes, block_size, row_bytes

CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content']"
    " + '<|im_end|>' + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
CONTROL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
MERGES = [
    *("Ġ t", "h e", "Ġt he", "i n", "Ġ a", "e r", "o n", "r e", "Ġ s", "l l", "o u", "Ġ w", "a t", "Ġ o"),
    *("e n", "Ġo f", "Ġ b", "i s", "o r", "e s", "Ġ c", "in g", "Ġ f", "a n", "e d", "a l", "Ġa n", "Ġan d"),
    *("l o", "he ll", "hell o", "Ġ i", "i t", "r l", "Ġw or", "Ġwor l", "u s", "a r", "e l", "Ġ p", "Ġ m"),
]

# Where a K block keeps its float16 scales: byte of the scale, byte of the minimum's scale (or None), and the
# ratio between the two that centres uniformly random codes on 0.
_K_SCALES = {
    QuantType.Q2_K: (80, 82, 1.5),
    QuantType.Q3_K: (108, None, 0.0),
    QuantType.Q4_K: (0, 2, 7.5),
    QuantType.Q5_K: (0, 2, 15.5),
    QuantType.Q6_K: (208, None, 0.0),
}


def write_tiny_model(
    path: Path,
    *,
    architecture: str = "llama",
    quant_type: QuantType = QuantType.F32,
    embedding_type: QuantType | None = None,
    mixed_types: Sequence[QuantType] = (),
    seed: int = 0,
    layers: int = 2,
    hidden_size: int = 256,
    heads: int = 4,
    kv_heads: int = 2,
    head_dim: int = 64,
    ffn_size: int = 512,
    vocab_size: int = 320,
    context: int = 512,
    sliding_window: int = 16,
    tied: bool = False,
    rope_freqs: bool = False,
    pre: str = "smollm",
    chat_template: str | None = None,
    split_max_tensors: int = 0,
) -> Path:
    """Write a `llama` or `gemma3` model and return `path`.

    Every matrix has `quant_type`, embedding and head `embedding_type` if given; those of the layers have the
    `mixed_types` in turn where there are any. Row lengths (hidden_size, ffn_size, heads * head_dim) must be
    whole quant blocks. `tied` leaves out output.weight. With
    `split_max_tensors` the files are PATH's stem -00001-of-0000N.gguf and so on, and the first is returned.
    """
    writer = GGUFWriter(path, architecture, split_max_tensors=split_max_tensors)
    _add_hyperparameters(
        writer, architecture, layers, hidden_size, heads, kv_heads, head_dim, ffn_size, context
    )
    if architecture == "gemma3":
        writer.add_sliding_window(sliding_window)
    add_tokenizer(writer, vocab_size, pre)
    if chat_template is not None:
        writer.add_chat_template(chat_template)
    rng = np.random.default_rng(seed)
    table_type = quant_type if embedding_type is None else embedding_type
    _add_matrix(writer, rng, "token_embd.weight", (vocab_size, hidden_size), table_type)
    types = cycle(mixed_types or (quant_type,))
    for layer in range(layers):
        for name, shape in _matrices(hidden_size, heads * head_dim, kv_heads * head_dim, ffn_size).items():
            _add_matrix(writer, rng, f"blk.{layer}.{name}.weight", shape, next(types))
        for name, size in _norms(architecture, hidden_size, head_dim).items():
            _add_norm(writer, rng, f"blk.{layer}.{name}.weight", size)
    _add_norm(writer, rng, "output_norm.weight", hidden_size)
    if not tied:
        _add_matrix(writer, rng, "output.weight", (vocab_size, hidden_size), table_type)
    if rope_freqs:
        writer.add_tensor("rope_freqs.weight", np.linspace(1, 8, head_dim // 2, dtype=np.float32))
    return _finish(writer, path)


def write_tiny_vocabulary(path: Path, *, vocab_size: int = 320, pre: str = "smollm") -> Path:
    """Write a file with a tokenizer and no tensors, and return `path`."""
    writer = GGUFWriter(path, "llama")
    add_tokenizer(writer, vocab_size, pre)
    return _finish(writer, path)


def add_tokenizer(writer: GGUFWriter, vocab_size: int, pre: str) -> None:
    """Add the control tokens (ids 0 to 2), the 256 bytes, the merges and unused tokens up to `vocab_size`."""
    words = [*_byte_alphabet(), *(merge.replace(" ", "") for merge in MERGES)]
    n_unused = vocab_size - len(CONTROL_TOKENS) - len(words)
    if n_unused < 0:
        raise ValueError(f"vocab_size must be at least {vocab_size - n_unused}")
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list([*CONTROL_TOKENS, *words, *(f"[UNUSED{i}]" for i in range(n_unused))])
    types = [TokenType.CONTROL] * len(CONTROL_TOKENS) + [TokenType.NORMAL] * len(words)
    writer.add_token_types(types + [TokenType.UNUSED] * n_unused)
    writer.add_token_merges(MERGES)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_add_bos_token(False)
    writer.add_add_space_prefix(False)


def random_matrix(
    rng: np.random.Generator, shape: tuple[int, int], quant_type: QuantType
) -> NDArray[np.generic]:
    """Draw a matrix as stored rows: uint8 (rows, row bytes) for quantised types, else its own dtype."""
    rows, columns = shape
    deviation = columns**-0.5
    if quant_type in _K_SCALES:
        return _random_k_blocks(rng, rows, columns, quant_type, deviation)
    values = rng.normal(0, deviation, shape).astype(np.float32)
    return np.asarray(gguf.quants.quantize(values, GGMLQuantizationType(quant_type)))


def _random_k_blocks(
    rng: np.random.Generator, rows: int, columns: int, quant_type: QuantType, deviation: float
) -> NDArray[np.uint8]:
    """Draw random codes and scales; the gguf package cannot quantise to K types."""
    n_blocks = rows * row_bytes(quant_type, columns) // block_bytes(quant_type)
    blocks = rng.integers(0, 256, (n_blocks, block_bytes(quant_type)), dtype=np.uint8)
    at, at_minimum, ratio = _K_SCALES[quant_type]
    _put_scales(blocks, at, np.ones(n_blocks))
    if at_minimum is not None:
        _put_scales(blocks, at_minimum, np.full(n_blocks, ratio))
    # Codes and sub-scales are uniform: one division brings the whole to the wanted deviation.
    values = gguf.quants.dequantize(blocks[:64].reshape(1, -1), GGMLQuantizationType(quant_type))
    scales = deviation / float(values.std()) * rng.uniform(0.5, 1.5, n_blocks)
    _put_scales(blocks, at, scales)
    if at_minimum is not None:
        _put_scales(blocks, at_minimum, scales * ratio)
    return blocks.reshape(rows, columns // block_size(quant_type) * block_bytes(quant_type))


def _put_scales(blocks: NDArray[np.uint8], at: int, scales: NDArray[np.float64]) -> None:
    blocks[:, at : at + 2] = scales.astype(np.float16).view(np.uint8).reshape(-1, 2)


def _add_hyperparameters(
    writer: GGUFWriter,
    architecture: str,
    layers: int,
    hidden_size: int,
    heads: int,
    kv_heads: int,
    head_dim: int,
    ffn_size: int,
    context: int,
) -> None:
    writer.add_name(f"tiny {architecture}")
    writer.add_context_length(context)
    writer.add_block_count(layers)
    writer.add_embedding_length(hidden_size)
    writer.add_feed_forward_length(ffn_size)
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)
    writer.add_layer_norm_rms_eps(1e-5)
    if architecture == "gemma3":
        writer.add_rope_freq_base(1_000_000.0)
    else:
        writer.add_rope_freq_base(10_000.0)
        writer.add_rope_dimension_count(head_dim)


def _matrices(hidden: int, q_width: int, kv_width: int, ffn: int) -> dict[str, tuple[int, int]]:
    """Shapes (rows, columns) of one layer's matrices."""
    return {
        "attn_q": (q_width, hidden),
        "attn_k": (kv_width, hidden),
        "attn_v": (kv_width, hidden),
        "attn_output": (hidden, q_width),
        "ffn_gate": (ffn, hidden),
        "ffn_up": (ffn, hidden),
        "ffn_down": (hidden, ffn),
    }


def _norms(architecture: str, hidden: int, head_dim: int) -> dict[str, int]:
    """Lengths of one layer's norm weights."""
    norms = {"attn_norm": hidden, "ffn_norm": hidden}
    if architecture == "gemma3":
        norms |= {"attn_q_norm": head_dim, "attn_k_norm": head_dim}
        norms |= {"post_attention_norm": hidden, "post_ffw_norm": hidden}
    return norms


def _add_matrix(
    writer: GGUFWriter, rng: np.random.Generator, name: str, shape: tuple[int, int], quant_type: QuantType
) -> None:
    matrix = random_matrix(rng, shape, quant_type)
    writer.add_tensor(name, matrix, raw_dtype=GGMLQuantizationType(quant_type))


def _add_norm(writer: GGUFWriter, rng: np.random.Generator, name: str, size: int) -> None:
    writer.add_tensor(name, rng.normal(1, 0.1, size).astype(np.float32))


def _byte_alphabet() -> list[str]:
    """GPT-2's printable stand-ins for the bytes 0 to 255 (openai/gpt-2, encoder.py)."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    return [chr(byte if byte in printable else next(others)) for byte in range(256)]


def _finish(writer: GGUFWriter, path: Path) -> Path:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path if path.exists() else next(path.parent.glob(f"{path.stem}-00001-of-*.gguf"))
