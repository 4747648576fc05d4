"""Which of several settings holds for a model."""

from __future__ import annotations

from pathlib import Path

from app.models.options import load_options
from app.settings import ModelSettings, Settings
from engine import Budget

PATH = Path("/m/a.gguf")


def test_what_is_chosen_for_one_model_goes_before_what_is_chosen_for_all() -> None:
    settings = Settings(
        context=100, ram_budget=Budget(1), threads=3, models={str(PATH): ModelSettings(context=7)}
    )
    own, other = load_options(settings, PATH), load_options(settings, Path("/m/b.gguf"))
    assert (own.context, own.ram_budget, own.threads) == (7, Budget(1), 3)
    assert (other.context, other.ram_budget) == (100, Budget(1))


def test_a_budget_of_the_command_line_goes_before_every_setting() -> None:
    settings = Settings(ram_budget=Budget(1), models={str(PATH): ModelSettings(ram_budget=Budget(2))})
    assert load_options(settings, PATH).ram_budget == Budget(2)
    assert load_options(settings, PATH, Budget(3)).ram_budget == Budget(3)
