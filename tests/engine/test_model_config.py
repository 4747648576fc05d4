"""What is read from a file's metadata, and what is refused by name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import pytest
from gguf import GGUFWriter

from engine.architectures import Activation, RopePairing
from engine.errors import EngineError, GGUFError, UnsupportedModelError
from engine.gguf import open_gguf
from engine.model_config import ModelConfig, read_model_config
from engine.weights import ModelWeights, expected_shapes
from tests.tiny_gguf import write_tiny_model, write_tiny_vocabulary


def config_of(path: Path) -> ModelConfig:
    with open_gguf(path) as opened:
        return read_model_config(opened)


def write_variant(
    path: Path, architecture: str, change: Callable[[GGUFWriter], None], layers: int = 2
) -> Path:
    """The least metadata of a model, then `change`, and an embedding."""
    writer = GGUFWriter(path, architecture)
    writer.add_context_length(512)
    writer.add_block_count(layers)
    writer.add_embedding_length(64)
    writer.add_feed_forward_length(128)
    writer.add_head_count(4)
    writer.add_layer_norm_rms_eps(1e-5)
    change(writer)
    writer.add_tensor("token_embd.weight", np.zeros((10, 64), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_a_llama_model_has_interleaved_pairs_and_no_windows(tmp_path: Path) -> None:
    config = config_of(write_tiny_model(tmp_path / "m.gguf", kv_heads=2))
    assert (config.n_heads, config.n_kv_heads, config.head_dim) == (4, 2, 64)
    assert config.rope.pairing is RopePairing.INTERLEAVED
    assert config.activation is Activation.SILU
    assert config.windowed == (False, False)
    assert config.embedding_scale == 1.0
    assert config.query_scale == 64**-0.5


def test_a_gemma3_model_has_two_rope_bases_and_every_sixth_layer_sees_everything(tmp_path: Path) -> None:
    config = config_of(write_tiny_model(tmp_path / "m.gguf", architecture="gemma3", layers=12))
    assert config.rope.pairing is RopePairing.NEOX
    assert (config.rope.base, config.local_rope.base) == (1_000_000.0, 10_000.0)
    assert [layer for layer in range(12) if not config.windowed[layer]] == [5, 11]
    assert (config.window(0), config.window(5)) == (16, 0)
    assert (config.layer_rope(0), config.layer_rope(5)) == (config.local_rope, config.rope)
    assert config.qk_norm
    assert config.post_norms
    assert config.embedding_scale == 16.0


def test_kv_heads_and_head_dim_follow_from_the_rest_where_the_file_is_silent(tmp_path: Path) -> None:
    config = config_of(write_variant(tmp_path / "m.gguf", "llama", lambda writer: None))
    assert (config.n_kv_heads, config.head_dim, config.rope.dim) == (4, 16, 16)
    assert config.rope.base == 10_000.0


def test_gemma3_of_62_layers_scales_queries_by_the_width(tmp_path: Path) -> None:
    def change(writer: GGUFWriter) -> None:
        writer.add_key_length(32)
        writer.add_value_length(32)
        writer.add_sliding_window(16)

    config = config_of(write_variant(tmp_path / "m.gguf", "gemma3", change, layers=62))
    assert config.query_scale == (64 / 4) ** -0.5


def test_linear_scaling_slows_the_global_rotation_only(tmp_path: Path) -> None:
    def change(writer: GGUFWriter) -> None:
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(8.0)
        writer.add_sliding_window(16)

    config = config_of(write_variant(tmp_path / "m.gguf", "gemma3", change))
    assert config.rope.frequency_scale == 1 / 8
    assert config.local_rope.frequency_scale == 1.0


def test_llama_3_1_frequency_factors_come_from_their_tensor(tmp_path: Path) -> None:
    config = config_of(write_tiny_model(tmp_path / "m.gguf", rope_freqs=True))
    assert config.rope.factors is not None
    np.testing.assert_allclose(config.rope.factors, np.linspace(1, 8, 32), rtol=1e-6)


@pytest.mark.parametrize(
    ("architecture", "change", "error", "named"),
    [
        ("qwen2", lambda writer: None, UnsupportedModelError, "'qwen2'"),
        (
            "llama",
            lambda writer: writer.add_expert_count(8),
            UnsupportedModelError,
            "llama.expert_count is 8",
        ),
        (
            "gemma3",
            lambda writer: writer.add_final_logit_softcapping(30.0),
            UnsupportedModelError,
            "gemma3.final_logit_softcapping is 30",
        ),
        (
            "llama",
            lambda writer: writer.add_rope_scaling_type(gguf.RopeScalingType.YARN),
            UnsupportedModelError,
            "'yarn'",
        ),
        ("llama", lambda writer: writer.add_value_length(8), UnsupportedModelError, "values of 8"),
        ("llama", lambda writer: writer.add_head_count_kv(3), GGUFError, "3 KV heads"),
        ("llama", lambda writer: writer.add_rope_dimension_count(17), GGUFError, "dimension_count is 17"),
        ("llama", lambda writer: writer.add_rope_freq_base(-1.0), GGUFError, "llama.rope.freq_base is -1"),
        ("gemma3", lambda writer: None, GGUFError, "gemma3.attention.sliding_window"),
    ],
)
def test_what_we_do_not_compute_is_refused_by_name(
    tmp_path: Path,
    architecture: str,
    change: Callable[[GGUFWriter], None],
    error: type[EngineError],
    named: str,
) -> None:
    path = write_variant(tmp_path / "m.gguf", architecture, change)
    with pytest.raises(error, match=named) as caught:
        config_of(path)
    assert "\n" not in str(caught.value)


def test_a_file_with_only_a_vocabulary_is_refused(tmp_path: Path) -> None:
    path = write_tiny_vocabulary(tmp_path / "v.gguf")
    with pytest.raises(EngineError):
        config_of(path)


@pytest.mark.parametrize("architecture", ["llama", "gemma3"])
@pytest.mark.parametrize("tied", [True, False])
def test_the_table_of_shapes_is_exactly_what_a_model_holds(
    tmp_path: Path, architecture: str, tied: bool
) -> None:
    with open_gguf(write_tiny_model(tmp_path / "m.gguf", architecture=architecture, tied=tied)) as opened:
        config = read_model_config(opened)
        weights = ModelWeights(opened, config)
        assert set(weights) == set(opened.tensors)
        assert all(weights[name].shape == opened.tensors[name].shape for name in weights)
        assert config.tied_head is tied


@pytest.mark.parametrize(
    ("tensors", "named"),
    [
        ({"blk.1.ffn_up.weight": None}, "blk.1.ffn_up.weight is missing"),
        (
            {"blk.0.attn_q.weight": np.zeros((32, 64), np.float32)},
            r"blk.0.attn_q.weight has shape \(32, 64\)",
        ),
        ({"blk.0.attn_norm.weight": np.zeros(64, np.float16)}, "blk.0.attn_norm.weight is stored as F16"),
        ({"blk.0.attn_q.bias": np.zeros(64, np.float32)}, "blk.0.attn_q.bias"),
    ],
)
def test_a_tensor_that_is_missing_misshapen_or_strange_is_named(
    tmp_path: Path, tensors: dict[str, np.ndarray | None], named: str
) -> None:
    config = config_of(write_variant(tmp_path / "config.gguf", "llama", lambda writer: None))

    def change(writer: GGUFWriter) -> None:
        arrays = {name: np.zeros(shape, np.float32) for name, shape in expected_shapes(config).items()}
        for name, array in (arrays | tensors).items():
            if array is not None and name != "token_embd.weight":
                writer.add_tensor(name, array)

    with (
        open_gguf(write_variant(tmp_path / "m.gguf", "llama", change)) as opened,
        pytest.raises(UnsupportedModelError, match=named),
    ):
        ModelWeights(opened, read_model_config(opened))
