"""Memory of a pass of one to eight tokens, a row for each, in the forms that products want their input in.

Knows sizes and quant types, of all blocks and the head, wherever they are: which of them are on the GPU may
change while this stays. Does not compute.

Letters: T tokens, D hidden size, F inner size of the feed-forward layer, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from engine.backends.cuda_weights import MatrixSpec, block_specs, head_spec
from engine.config import Precision
from engine.model_config import ModelConfig
from engine.weights import ModelWeights
from kernels.cuda.device import Array, Device
from kernels.cuda.matrices import DeviceMatrix
from kernels.cuda.norms import Rounded, rounded
from kernels.cuda.sampling import MOST_IDS


class Forms(NamedTuple):
    """Which forms of input a projection wants."""

    rounded: bool
    """Some of its matrices are quantised, in the fast precision."""
    floats: bool
    """Some are not."""

    @classmethod
    def of(cls, matrices: Iterable[MatrixSpec | DeviceMatrix], precision: Precision) -> Forms:
        """Those of matrices that share their input."""
        rounds = [precision is Precision.FAST and matrix.is_quantised for matrix in matrices]
        return cls(any(rounds), not all(rounds))


class Input(NamedTuple):
    """Input of products, a row for each token, in the forms that any of their matrices wants."""

    rounded: Rounded | None
    """For quantised matrices in the fast precision."""
    floats: Array | None
    """f32, for all others."""

    def rows(self, n_tokens: int) -> Input:
        """The first rows."""
        return Input(
            None if self.rounded is None else self.rounded.rows(0, n_tokens),
            None if self.floats is None else self.floats[:n_tokens],
        )

    def only(self, forms: Forms) -> Input:
        """Some of the forms."""
        return Input(self.rounded if forms.rounded else None, self.floats if forms.floats else None)


class StepRows(NamedTuple):
    """Memory of a pass, a row for each token; f32 but for `Input`."""

    x: Array
    """Hidden states."""
    update: Array
    """What is normed before it is added to x."""
    qkv: Array
    gate_up: Array
    """Where gate and up are two matrices."""
    inner: Array
    """[T, F], gated, before it is rounded."""
    logits: Array
    normed: Input
    mixed: Input
    """What attention gives."""
    gated: Input

    def first(self, n_tokens: int) -> StepRows:
        """The rows of so many tokens."""
        return StepRows(
            x=self.x[:n_tokens],
            update=self.update[:n_tokens],
            qkv=self.qkv[:n_tokens],
            gate_up=self.gate_up[:n_tokens],
            inner=self.inner[:n_tokens],
            logits=self.logits[:n_tokens],
            normed=self.normed.rows(n_tokens),
            mixed=self.mixed.rows(n_tokens),
            gated=self.gated.rows(n_tokens),
        )


def reserve_rows(
    device: Device, weights: ModelWeights, config: ModelConfig, precision: Precision
) -> StepRows:
    """Memory for eight tokens, whichever blocks they pass. Raises DeviceMemoryError."""
    c = config
    attention = [block_specs(weights, 2 * layer) for layer in range(c.n_layers)]
    feed_forward = [block_specs(weights, 2 * layer + 1) for layer in range(c.n_layers)]
    head = (head_spec(weights, config),)

    def floats(n_columns: int) -> Array:
        return device.empty((MOST_IDS, n_columns), np.float32)

    def room(projections: Sequence[tuple[MatrixSpec, ...]], n_columns: int) -> Input:
        """Memory for input of any of them."""
        wanted = [Forms.of(each, precision) for each in projections]
        return Input(
            rounded(device, MOST_IDS, n_columns) if any(forms.rounded for forms in wanted) else None,
            floats(n_columns) if any(forms.floats for forms in wanted) else None,
        )

    return StepRows(
        x=floats(c.hidden_size),
        update=floats(c.hidden_size),
        qkv=floats((c.n_heads + 2 * c.n_kv_heads) * c.head_dim),
        gate_up=floats(2 * c.ffn_size),
        inner=floats(c.ffn_size),
        logits=floats(c.vocab_size),
        normed=room([*(each.first for each in attention + feed_forward), head], c.hidden_size),
        mixed=room([each.second for each in attention], c.n_heads * c.head_dim),
        gated=room([each.second for each in feed_forward], c.ffn_size),
    )
