"""Instances of the kernels that are compiled without a GPU: some of every source, or those that models need.

The launchers choose them, on a sketch of each kind of card: what is compiled here is what would be launched
there. `python -m kernels.cuda.instances` (`make nvrtc-all`) compiles those of the models and prints what the
assembler gave each. Knows models by their shapes only; called by the tests.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np

from kernels.cuda import attention, crossing, matrices, norms, products, sampling
from kernels.cuda.attention import HeadNorms, KVLayout, KVType, Rotation
from kernels.cuda.compiler import Compiler, Resources, usable_cores
from kernels.cuda.device import Array, Kernel
from kernels.cuda.matrices import DeviceMatrix
from kernels.cuda.norms import Rounded
from kernels.cuda.pace import PacedLane
from kernels.cuda.sketch import Sketch
from kernels.errors import CompileError
from kernels.quant_types import QuantType, block_size, row_bytes


class Card(NamedTuple):
    """A kind of device."""

    name: str
    compute_capability: int
    n_processors: int


class Shapes(NamedTuple):
    """Of a model."""

    hidden_size: int
    ffn_size: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    rope_dim: int
    activation: str = "silu"
    has_head_norms: bool = False
    neox: bool = False


CARDS = (
    Card("A100", 80, 108),
    Card("RTX 3090", 86, 82),
    Card("RTX 4090", 89, 128),
    Card("H200", 90, 132),
    Card("RTX 5090", 120, 170),
)
"""One of each architecture that is compiled for."""

MODELS = {
    "SmolLM2-135M": Shapes(576, 1536, 9, 3, 64, 64),
    "Gemma-3-270M": Shapes(640, 2048, 4, 1, 256, 256, "gelu", has_head_norms=True, neox=True),
    "Qwen2.5-0.5B": Shapes(896, 4864, 14, 2, 64, 64, neox=True),
    "Llama-3.2-1B": Shapes(2048, 8192, 32, 8, 64, 64),
    "Phi-2": Shapes(2560, 10240, 32, 32, 80, 32, neox=True),
    "Phi-3-mini": Shapes(3072, 8192, 32, 32, 96, 96, neox=True),
    "Qwen2.5-7B": Shapes(3584, 18944, 28, 4, 128, 128, neox=True),
    "Qwen3-8B": Shapes(4096, 12288, 32, 8, 128, 128, has_head_norms=True, neox=True),
    "Llama-2-7B": Shapes(4096, 11008, 32, 32, 128, 128),
    "Llama-3-8B": Shapes(4096, 14336, 32, 8, 128, 128),
    "Llama-2-13B": Shapes(5120, 13824, 40, 40, 128, 128),
    "Llama-3-70B": Shapes(8192, 28672, 64, 8, 128, 128),
}
"""Every row length and head that the models we know have."""

MOST_SPILLED_BYTES: dict[str, int] = {}
"""By source: what a kernel may spill at most. Sources that are not here are only reported."""

_BENCHES = (Kernel.of("read.cu", "read"), Kernel.of("copy.cu", "copy"))
_MODELS_IN_EVERY_TYPE = ("Qwen2.5-0.5B", "Llama-3-8B")
_PROMPT_TOKENS = 512
_VOCAB = 32000
_CONTEXT = 4096


def representative(card: Card) -> list[Kernel]:
    """Instances of every source: those of a large and of a small model, in a few quant types."""
    sketch = Sketch(card)
    large, small = MODELS["Llama-3-8B"], MODELS["Gemma-3-270M"]
    _sampling(sketch)
    _moving(sketch)
    for shapes in (large, small):
        _attention(sketch, shapes, n_step_tokens=[1, 5])
        _elementwise(sketch, shapes)
    for shapes, quant_type in (
        (large, QuantType.Q4_K),
        (large, QuantType.Q6_K),
        (large, QuantType.Q8_0),
        (small, QuantType.Q5_1),
        (small, QuantType.BF16),
    ):
        qkv, output, gate_up, _ = _shapes_of_matrices(shapes)
        for n_rows, n_columns, gated in (
            (qkv, output, gate_up) if quant_type is QuantType.Q4_K else (gate_up,)
        ):
            matrix = matrices.allocate(sketch, quant_type, n_rows, n_columns)
            _whole_matrix(sketch, matrix)
            _products(sketch, matrix, [1, 5], shapes.activation if gated else None)
    _float_products(sketch, matrix, [1, 5], small.activation)
    _beside(sketch, large)
    return list(dict.fromkeys((*sketch.kernels, *_BENCHES)))


def of_models(card: Card) -> list[Kernel]:
    """Those of all models: every shape in two quant types, every type in two models, 1 to 8 tokens."""
    sketch = Sketch(card)
    _sampling(sketch)
    _moving(sketch)
    for name, shapes in MODELS.items():
        _attention(sketch, shapes, n_step_tokens=range(1, 9))
        _elementwise(sketch, shapes)
        for quant_type in QuantType:
            if name in _MODELS_IN_EVERY_TYPE or quant_type in (QuantType.Q4_K, QuantType.Q8_0):
                _model(sketch, shapes, quant_type)
    return list(dict.fromkeys((*sketch.kernels, *_BENCHES)))


def _moving(sketch: Sketch) -> None:
    """What blocks that are not on the GPU need, whatever their shapes."""
    x, host = sketch.empty((1, 32), np.float32), np.empty(0, np.uint8)
    crossing.to_host(sketch, x, sketch.host_address(host))
    crossing.from_host(sketch, sketch.host_address(host), x)
    PacedLane(sketch, 1e9).copy_async(sketch.empty(0, np.uint8), host)


def _sampling(sketch: Sketch) -> None:
    state = sketch.empty(sampling.STATE_SIZE, np.int32)
    logits, scratch = sketch.empty(_VOCAB, np.float32), sampling.sampling_scratch(sketch, _VOCAB)
    nowhere = np.uint64(0)
    sampling.begin_step(sketch, state, 0, [1])
    penalised = sketch.empty((2, sampling.MOST_PENALISED), np.int32)
    sampling.penalize(sketch, logits, penalised, 1, repeat=1.0, presence=0.0, frequency=0.0)
    sampling.argmax(sketch, logits, scratch, state, nowhere)
    sampling.sample(
        sketch, logits, scratch, state, nowhere, top_k=40, top_p=1.0, min_p=0.0, temperature=1.0, uniform=0.0
    )


def _attention(sketch: Sketch, shapes: Shapes, n_step_tokens: Iterable[int]) -> None:
    """New keys and values and attention, for each kind of cache, decode steps and prompts."""
    for kv_type in KVType:
        layout = KVLayout(kv_type, 1, shapes.n_kv_heads, shapes.head_dim, _CONTEXT)
        for n_tokens in (*n_step_tokens, _PROMPT_TOKENS):
            _attend(sketch, shapes, layout, n_tokens)


def _attend(sketch: Sketch, shapes: Shapes, layout: KVLayout, n_tokens: int) -> None:
    kv = attention.kv_memory(sketch, layout)
    state = sketch.empty(sampling.STATE_SIZE, np.int32)
    n_outputs = shapes.n_heads * shapes.head_dim
    qkv = sketch.empty((n_tokens, n_outputs + 2 * shapes.n_kv_heads * shapes.head_dim), np.float32)
    table = sketch.empty((_CONTEXT, shapes.rope_dim // 2), np.float32)
    rotation, weight = Rotation(table, table, shapes.neox), sketch.empty(shapes.head_dim, np.float32)
    head_norms = HeadNorms(weight, weight, 1e-6) if shapes.has_head_norms else None
    floats = sketch.empty((n_tokens, n_outputs), np.float32)
    if layout.kv_type is not KVType.F32 and n_tokens <= attention.MOST_STEP_TOKENS:
        scratch = attention.step_scratch(sketch, layout, shapes.n_heads)
        attention.attend_step(
            sketch, qkv, kv, 0, state, scratch, rotation, 1.0, norms=head_norms, floats=floats
        )
        return
    q = attention.queries(sketch, layout, n_tokens, shapes.n_heads)
    attention.append(sketch, qkv, q, kv, 0, state, rotation, 1.0, norms=head_norms)
    if layout.kv_type is KVType.F32:
        attention.attend_float(sketch, q, kv, 0, state, floats)
    else:
        attention.attend_prompt(sketch, q, kv, 0, state, floats=floats)


def _elementwise(sketch: Sketch, shapes: Shapes) -> None:
    hidden, ffn = shapes.hidden_size, shapes.ffn_size
    x = sketch.empty((1, hidden), np.float32)
    norms.add_norm(sketch, x, sketch.empty(hidden, np.float32), 1e-6, floats=x)
    gate_up = sketch.empty((1, 2 * ffn), np.float32)
    floats, half = sketch.empty((1, ffn), np.float32), norms.half(sketch, 1, ffn)
    norms.gated(sketch, gate_up, shapes.activation, floats=floats, half=half)
    norms.round_rows(sketch, floats, rounded=norms.rounded(sketch, 1, ffn), half=half)


def _model(sketch: Sketch, shapes: Shapes, quant_type: QuantType) -> None:
    """All that is done with the matrices of a layer."""
    for n_rows, n_columns, gated in _shapes_of_matrices(shapes):
        if n_columns % block_size(quant_type):
            continue  # ggml does not store such rows in this type
        matrix = matrices.allocate(sketch, quant_type, n_rows, n_columns)
        activation = shapes.activation if gated else None
        _whole_matrix(sketch, matrix)
        _products(sketch, matrix, range(1, 9), activation)
        _float_products(sketch, matrix, [1, 8], activation)


def _shapes_of_matrices(shapes: Shapes) -> list[tuple[int, int, bool]]:
    """Rows, columns, whether they are gate and up rows: attention's input and output, gate and up, down."""
    hidden, ffn = shapes.hidden_size, shapes.ffn_size
    heads = shapes.n_heads * shapes.head_dim
    qkv_rows = heads + 2 * shapes.n_kv_heads * shapes.head_dim
    return [(qkv_rows, hidden, False), (hidden, heads, False), (2 * ffn, hidden, True), (hidden, ffn, False)]


def _whole_matrix(sketch: Sketch, matrix: DeviceMatrix) -> None:
    n_columns = matrix.n_columns
    native = sketch.empty(row_bytes(matrix.quant_type, n_columns), np.uint8)
    matrices.repack(sketch, native, matrix, 0, 1)
    for dtype in (np.float16, np.float32):
        matrices.dequantize(sketch, matrix, 0, 1, sketch.empty((1, n_columns), dtype))
    out = sketch.empty((1, n_columns), np.float32)
    matrices.embedding(sketch, sketch.empty(1, np.int32), matrix, 1.0, out)


def _products(sketch: Sketch, matrix: DeviceMatrix, n_tokens: Iterable[int], activation: str | None) -> None:
    """Products with rounded activations, where the matrix is quantised."""
    if matrix.is_quantised:
        for each in n_tokens:
            _product(sketch, matrix, norms.rounded(sketch, each, matrix.n_columns), each, activation)


def _beside(sketch: Sketch, shapes: Shapes) -> None:
    """Products of the same activations, as where query and key are of one type and the value of another."""
    x = norms.rounded(sketch, 5, shapes.hidden_size)
    n_rows = shapes.n_kv_heads * shapes.head_dim
    out = sketch.empty((5, n_rows), np.float32)
    products.multiply_each(
        sketch,
        [
            products.Product(matrices.allocate(sketch, each, n_rows, shapes.hidden_size), x, out)
            for each in (QuantType.Q4_K, QuantType.Q6_K)
        ],
    )


def _float_products(
    sketch: Sketch, matrix: DeviceMatrix, n_tokens: Iterable[int], activation: str | None
) -> None:
    for each in n_tokens:
        _product(sketch, matrix, sketch.empty((each, matrix.n_columns), np.float32), each, activation)


def _product(
    sketch: Sketch, matrix: DeviceMatrix, x: Rounded | Array, n_tokens: int, activation: str | None
) -> None:
    if activation:
        out = sketch.empty((n_tokens, matrix.n_rows // 2), np.float32)
        if isinstance(x, Rounded):
            result = norms.rounded(sketch, n_tokens, matrix.n_rows // 2)
            products.multiply_gated_rounded(sketch, matrix, x, out, result, activation)
            return
        products.multiply_gated(sketch, matrix, x, out, activation)
    else:
        out = sketch.empty((n_tokens, matrix.n_rows), np.float32)
        products.multiply(sketch, matrix, x, out)
        products.multiply(sketch, matrix, x, out, accumulate=True)


def _measure(card: Card, kernels: Sequence[Kernel]) -> Iterator[tuple[Kernel, Resources | CompileError]]:
    """Compile each, in a few threads; what became of it, in order."""
    compiler = Compiler(card.compute_capability)

    def resources(kernel: Kernel) -> Resources | CompileError:
        try:
            return compiler.resources(kernel)
        except CompileError as error:
            return error

    with ThreadPoolExecutor(usable_cores(), "nvrtc") as pool:
        yield from zip(kernels, pool.map(resources, kernels), strict=True)


def _line(kernel: Kernel, used: Resources) -> str:
    line = f"{used.registers:9}{used.spilled_bytes:9}{used.stack_bytes:8}{used.shared_bytes:8}  {kernel}"
    return "\n    ".join([line, *used.warnings])


def _complaint(kernel: Kernel, result: Resources | CompileError) -> str:
    """What makes `make nvrtc-all` fail; empty when nothing does."""
    if isinstance(result, CompileError):
        return f"{kernel}: {result}"
    most = MOST_SPILLED_BYTES.get(kernel.source)
    if most is not None and result.spilled_bytes > most:
        return f"{kernel}: {result.spilled_bytes} bytes spilled, {most} allowed"
    return ""


def main(arguments: Sequence[str] | None = None) -> int:
    """Compile and print; 1 if a kernel does not compile or spills more than its source may."""
    parser = argparse.ArgumentParser(prog="python -m kernels.cuda.instances", description=__doc__)
    parser.add_argument(
        "architectures", nargs="*", type=int, help="80 86 89 90 120; all of them if none is named"
    )
    parser.add_argument("--few", action="store_true", help="only those that the tests compile")
    parser.add_argument("--source", help="only those of this file: gemv.cu")
    chosen = parser.parse_args(arguments)
    complaints = []
    for card in CARDS:
        if chosen.architectures and card.compute_capability not in chosen.architectures:
            continue
        kernels = representative(card) if chosen.few else of_models(card)
        wanted = [kernel for kernel in kernels if chosen.source in (None, kernel.source)]
        print(f"sm_{card.compute_capability}: {len(wanted)} kernels, as {card.name} launches them")
        print("registers  spilled   stack  shared  kernel")
        for kernel, result in _measure(card, wanted):
            if isinstance(result, Resources):
                print(_line(kernel, result))
            complaints += [
                f"sm_{card.compute_capability} {text}" for text in [_complaint(kernel, result)] if text
            ]
    print(*complaints, sep="\n", file=sys.stderr)
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main())
