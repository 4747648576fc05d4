"""Which of several settings holds for a model."""

from __future__ import annotations

from pathlib import Path

from app import locations
from app.model_settings import ModelSettings
from app.models.options import Chosen, decoding_options, draft_model_of, keep_decoding, load_options
from app.settings import Settings
from engine import Budget, DecodingOptions, DraftKind, ExecutorChoice, KVType, PlaceRule, parse_skip

PATH = Path("/m/a.gguf")


def test_what_is_chosen_for_one_model_goes_before_what_is_chosen_for_all() -> None:
    settings = Settings(
        context=100, ram_budget=Budget(1), threads=3, models={str(PATH): ModelSettings(context=7)}
    )
    own, other = load_options(settings, PATH), load_options(settings, Path("/m/b.gguf"))
    assert (own.context, own.ram_budget, own.threads) == (7, Budget(1), 3)
    assert (other.context, other.ram_budget) == (100, Budget(1))


def test_what_the_command_line_says_goes_before_every_setting() -> None:
    settings = Settings(ram_budget=Budget(1), models={str(PATH): ModelSettings(ram_budget=Budget(2))})
    assert load_options(settings, PATH).ram_budget == Budget(2)
    assert load_options(settings, PATH, Chosen(ram_budget=Budget(3))).ram_budget == Budget(3)


def test_what_computes_and_its_memory_follow_the_same_order() -> None:
    own = ModelSettings(device="cuda:1", vram_budget=Budget(4), kv_type=KVType.Q8_0)
    settings = Settings(device="cpu", vram_budget=Budget(5), models={str(PATH): own})
    general, single = load_options(settings, Path("/m/b.gguf")), load_options(settings, PATH)
    assert (general.device, general.vram_budget, general.kv_type) == ("cpu", Budget(5), KVType.F16)
    assert (single.device, single.vram_budget, single.kv_type) == ("cuda:1", Budget(4), KVType.Q8_0)
    said = Chosen(device="auto", vram_budget=Budget(6), kv_type=KVType.F16)
    options = load_options(settings, PATH, said)
    assert (options.device, options.vram_budget, options.kv_type) == (None, Budget(6), KVType.F16)


def test_a_placement_by_hand_is_that_of_the_command_line() -> None:
    rules = (PlaceRule("head", tier="ram"),)
    said = Chosen(gpu_layers=3, place=rules, executor=ExecutorChoice.CPU, prefetch=2, link_limit=6.5e9)
    options = load_options(Settings(), PATH, said)
    assert (options.gpu_layers, options.place, options.executor) == (3, rules, ExecutorChoice.CPU)
    assert (options.prefetch, options.link_limit) == (2, 6.5e9)


def test_nothing_said_leaves_the_device_to_the_engine(home: Path) -> None:
    options = load_options(Settings(), PATH)
    assert (options.device, options.vram_budget, options.kv_type) == (None, None, KVType.F16)
    assert options.cache_dir == locations.cache_dir() == home / "tiercel" / "cache"


SMALL = Path("/m/small.gguf")
REMEMBERED = DecodingOptions(parse_skip("kl=0.05"), DraftKind.MODEL, 4)


def test_how_a_model_computes_is_remembered_for_it_alone() -> None:
    settings = Settings(models=keep_decoding(Settings(greedy=True), PATH, REMEMBERED, SMALL))
    assert decoding_options(settings, PATH) == REMEMBERED
    assert load_options(settings, PATH).draft_model == SMALL
    other = Path("/m/b.gguf")
    assert decoding_options(settings, other) == DecodingOptions()
    assert load_options(settings, other).draft_model is None
    off = Settings(models=keep_decoding(settings, PATH, DecodingOptions(), SMALL))
    assert decoding_options(off, PATH) == DecodingOptions()
    assert load_options(off, PATH).draft_model is None, "one that does not draft takes no memory"
    assert draft_model_of(off, PATH) == SMALL, "but is remembered"


def test_what_the_command_line_says_of_computing_goes_before_what_is_remembered() -> None:
    settings = Settings(models=keep_decoding(Settings(), PATH, REMEMBERED, SMALL))
    said = Chosen(decoding={"skip": None, "draft": DraftKind.NGRAM})
    assert decoding_options(settings, PATH, said) == DecodingOptions(None, DraftKind.NGRAM, 4)
    assert load_options(settings, PATH, said).draft_model is None
    larger = Chosen(decoding={"draft": DraftKind.MODEL}, draft_model=Path("/m/l.gguf"))
    assert load_options(settings, PATH, larger).draft_model == Path("/m/l.gguf")
    assert decoding_options(settings, PATH, said.without_decoding()) == REMEMBERED
    assert draft_model_of(settings, PATH, larger.without_decoding()) == SMALL


def test_what_is_kept_of_a_model_besides_stays() -> None:
    own = ModelSettings(context=7, draft=DraftKind.SELF)
    kept = keep_decoding(Settings(models={str(PATH): own}), PATH, DecodingOptions(), None)
    assert kept == {str(PATH): ModelSettings(context=7)}
