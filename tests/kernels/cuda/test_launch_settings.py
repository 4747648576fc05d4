"""Which settings hold: the nearest that were measured, or a rule that is sensible for every shape."""

from __future__ import annotations

import tomllib
from importlib.resources import files
from pathlib import Path
from typing import NamedTuple

import pytest

from kernels.cuda import launch_settings
from kernels.cuda.launch_settings import Choice, ColumnsSettings, GemvSettings, LaunchSettings
from kernels.quant_types import QuantType, block_size

WIDTHS = (576, 640, 896, 960, 1536, 2048, 3584, 4096, 4864, 5120, 8192, 11008, 13824, 14336, 18944, 28672)
ROWS = (16, 48, 256, 1024, 4096, 14336, 28672, 128256, 262144)


class Card(NamedTuple):
    name: str = "NVIDIA H200"
    compute_capability: int = 90
    n_processors: int = 132


@pytest.mark.parametrize("compute_capability", [86, 90])
def test_every_shape_has_settings_within_the_bounds_of_the_kernels(compute_capability: int) -> None:
    settings = launch_settings.shipped(compute_capability, 132)
    for quant_type in QuantType:
        for n_columns in WIDTHS:
            if block_size(quant_type) == 256 and n_columns % 256:
                continue
            for n_rows in ROWS:
                one = settings.gemv(quant_type, n_columns, n_rows)
                assert min(one) >= 1 and one.warps % one.warps_per_row == 0 and one.warps <= 16
                assert one.rows_per_warp * one.unroll <= 8
                for n_tokens in range(2, 9) if block_size(quant_type) > 1 else ():
                    several = settings.columns(quant_type, n_columns, n_rows, n_tokens)
                    assert min(several) >= 1 and several.warps % several.split == 0 and several.warps <= 24
                    assert several.split <= launch_settings.units(quant_type, n_columns)
                    assert 16 * several.tiles <= n_rows
                    gated = settings.columns(quant_type, n_columns, n_rows, n_tokens, gated=True)
                    assert gated.tiles == 2
                    widest = max(launch_settings.clusters(compute_capability))
                    assert several.cluster <= widest and gated.cluster <= widest
                    shape = quant_type, n_columns, n_tokens
                    assert launch_settings.fits(compute_capability, *shape, several)
                    assert launch_settings.fits(compute_capability, *shape, gated)


def test_small_matrices_get_more_warps_for_each_row_than_large_ones() -> None:
    settings = launch_settings.shipped(89, 128)
    shape = QuantType.Q4_K, 4096
    assert settings.columns(*shape, 1024, 8).split > settings.columns(*shape, 128256, 8).split
    assert settings.gemv(*shape, 1024).rows_per_warp < settings.gemv(*shape, 128256).rows_per_warp


def test_what_was_measured_for_about_as_many_rows_holds() -> None:
    few, many = GemvSettings(7, 1, 7, 2), GemvSettings(1, 4, 4, 1)
    shape = QuantType.Q8_0, 14336
    table = [Choice("gemv", *shape, 4096, 1, few), Choice("gemv", *shape, 128256, 1, many)]
    settings = LaunchSettings(90, 132, [[], table])
    assert settings.gemv(*shape, 4096) == settings.gemv(*shape, 8192) == few
    assert settings.gemv(*shape, 64000) == many
    rule = LaunchSettings(90, 132)
    for n_rows in (512, 1 << 20):
        assert settings.gemv(*shape, n_rows) == rule.gemv(*shape, n_rows)
    assert settings.gemv(QuantType.Q8_0, 4096, 4096) == rule.gemv(QuantType.Q8_0, 4096, 4096)


def test_what_is_shipped_is_read() -> None:
    text = files("kernels.cuda").joinpath("launch_settings.toml").read_text("utf-8")
    for architecture, kernels in tomllib.loads(text).items():
        settings = launch_settings.shipped(int(architecture.removeprefix("sm_")), 132)
        for name, lines in kernels["gemv"].items():
            for n_columns, n_rows, *numbers in lines:
                assert settings.gemv(QuantType[name], n_columns, n_rows) == tuple(numbers)


def test_a_search_on_this_device_comes_before_what_is_shipped(tmp_path: Path) -> None:
    file = tmp_path / "cache" / "launch_settings.toml"
    shape = QuantType.Q4_K, 4096, 14336
    own, other = GemvSettings(1, 2, 4, 2), ColumnsSettings(1, 4, 8, 2, 4, 1, 1)
    launch_settings.save(file, "NVIDIA H200", [Choice("gemv", *shape, 1, own)])
    launch_settings.save(file, "NVIDIA H200", [Choice("columns", *shape, 8, other)])
    launch_settings.save(file, "another", [Choice("gemv", *shape, 1, GemvSettings(1, 1, 1, 1))])
    settings = launch_settings.load(Card(), file)
    assert settings.gemv(*shape) == own
    # One instance serves 5 to 8 tokens, another up to 4.
    assert settings.columns(*shape, 5) == other
    assert settings.columns(*shape, 3) == launch_settings.load(Card()).columns(*shape, 3)
    better = own._replace(unroll=1)
    launch_settings.save(file, "NVIDIA H200", [Choice("gemv", *shape, 1, better)])
    assert launch_settings.load(Card(), file).gemv(*shape) == better
    assert launch_settings.load(Card(), file).columns(*shape, 8) == other


@pytest.mark.parametrize(
    "text",
    [
        "not toml",
        '["NVIDIA H200".gemv]\nQ4_K = [[4096, 14336, 3, 4, 8, 1]]',
        '["NVIDIA H200".gemv]\nQ4_K = [[4096, 14336, 2, 4]]',
        '["NVIDIA H200".gemv]\nQ4_K = [[4096, 14336, 0, 4, 8, 1]]',
        '["NVIDIA H200".gemv]\nQ4_K = [[4096, ' + 400 * "9" + ", 1, 1, 1, 1]]",
        '["NVIDIA H200".gemv]\nQ9_X = []',
        '["NVIDIA H200".other]\nQ4_K = [[4096, 28672, 1, 1, 1, 1]]',
        '["NVIDIA H200".columns]\nQ4_K = [[4096, 28672, 8, 1, 1, 4, 0, 1, 1, 1]]',
        '["NVIDIA H200".columns]\nQ4_K = [[4096, 28672, 8, 1, 1, 24, 2, 1, 2, 1]]',
        "a = " + 5000 * "[",
        '["NVIDIA H200".columns]\nQ4_K = [[4096, 14336, 9, 1, 1, 4, 2, 1, 1, 1]]',
        '["NVIDIA H200".columns]\nQ4_K = [[4096, 14336, 8, 4, 1, 4, 2, 1, 1, 1]]',
        '["NVIDIA H200".columns]\nQ4_K = [[4096, 14336, 8, 2, 1, 4, 2, 3, 1, 1]]',
        '["NVIDIA H200".columns]\nQ4_K = [[4096, 14336, 8, 2, 1, 4, 2, 1, 1]]',
        '["NVIDIA H200".columns]\nQ4_K = [[4096, 14336, 8, 2, 1, 4, 2, 1, 1, 0]]',
    ],
)
def test_a_damaged_file_counts_for_nothing(tmp_path: Path, text: str) -> None:
    file = tmp_path / "launch_settings.toml"
    file.write_text(text)
    shape = QuantType.Q4_K, 4096, 28672
    shipped = launch_settings.shipped(90, 132)
    assert launch_settings.load(Card(), file).gemv(*shape) == shipped.gemv(*shape)
    assert launch_settings.load(Card(), tmp_path / "none.toml").gemv(*shape) == shipped.gemv(*shape)


def test_one_damaged_table_leaves_those_of_other_devices(tmp_path: Path) -> None:
    file = tmp_path / "launch_settings.toml"
    shape, chosen = (QuantType.Q4_K, 4096, 28672), GemvSettings(1, 1, 1, 1)
    file.write_text("[damaged.gemv]\nQ4_K = 3\n[other.gemv]\nQ4_K = [[4096, 28672, 1, 1, 1, 1]]")
    assert launch_settings.load(Card("other"), file).gemv(*shape) == chosen
    launch_settings.save(file, "damaged", [Choice("gemv", *shape, 1, chosen)])
    for name in ("damaged", "other"):
        assert launch_settings.load(Card(name), file).gemv(*shape) == chosen


def test_what_this_device_has_no_shared_memory_for_counts_for_nothing(tmp_path: Path) -> None:
    file = tmp_path / "launch_settings.toml"
    shape, chosen = (QuantType.Q4_K, 4096, 28672), ColumnsSettings(2, 1, 16, 4, 1, 1, 1)
    launch_settings.save(file, "NVIDIA H200", [Choice("columns", *shape, 8, chosen)])
    shipped = launch_settings.LaunchSettings(90, 132)
    assert launch_settings.load(Card(), file).columns(*shape, 8) == shipped.columns(*shape, 8)


def test_only_warps_that_share_no_rows_take_several_groups_of_them() -> None:
    shape = 90, QuantType.Q4_K, 4096, 8
    alone = ColumnsSettings(2, 1, 8, 2, 1, 1, 4)
    assert launch_settings.fits(*shape, alone)
    assert not launch_settings.fits(*shape, alone._replace(split=2))
    assert not launch_settings.fits(*shape, alone._replace(cluster=2))
    # Nor where x comes in slices, which all warps of a block wait for.
    assert launch_settings.shared_memory(90, QuantType.Q4_K, 14336, 8, alone._replace(passes=1))[0] > 1
    assert not launch_settings.fits(90, QuantType.Q4_K, 14336, 8, alone)


def test_rows_are_cut_into_whole_units() -> None:
    for quant_type in QuantType:
        whole = block_size(quant_type) == 256
        assert launch_settings.units(quant_type, 4096) == (16 if whole else 32)
    assert launch_settings.units(QuantType.Q4_0, 576) == 5
