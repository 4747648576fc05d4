"""Where Tiercel keeps its files, by the platform's conventions (platformdirs).

Two environment variables override them: TIERCEL_HOME puts everything below one folder, TIERCEL_MODELS
names the models folder alone. Knows places only: creates nothing and reads nothing. Raises EngineError for an
account without a home folder.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import platformdirs

from engine import EngineError

_NAME = "tiercel"


def data_dir() -> Path:
    """Folder of conversations and, by default, of models."""
    return _place("data", platformdirs.user_data_dir)


def config_dir() -> Path:
    """Folder of settings, key maps, personas and the person's own themes."""
    return _place("config", platformdirs.user_config_dir)


def settings_file() -> Path:
    """The settings, in TOML."""
    return config_dir() / "settings.toml"


def state_dir() -> Path:
    """Folder of what may be lost without harm: logs, drafts of the window."""
    return _place("state", platformdirs.user_state_dir)


def log_dir() -> Path:
    """Folder of log files."""
    return state_dir() / "log"


def cache_dir() -> Path | None:
    """Folder of what is made again where it is gone, such as compiled kernels.

    None for an account without a home folder.
    """
    with suppress(EngineError):
        return _place("cache", platformdirs.user_cache_dir)
    return None


def rates_file() -> Path | None:
    """How fast this machine was measured to be, in JSON; None for an account without a home folder."""
    folder = cache_dir()
    return None if folder is None else folder / "rates.json"


def models_dir() -> Path:
    """Our own models folder: `tiercel pull` writes here and nowhere else."""
    override = os.environ.get("TIERCEL_MODELS")
    return expanded(override) if override else data_dir() / "models"


def expanded(text: str) -> Path:
    """Return the path that a person wrote; a `~` whose folder nobody knows stays as it is."""
    return Path(os.path.expanduser(text))


def _place(name: str, default: Callable[..., str]) -> Path:
    home = os.environ.get("TIERCEL_HOME")
    if home:
        return expanded(home) / name
    try:
        path = default(_NAME, appauthor=False)
    except RuntimeError:
        path = "~"
    if path.startswith("~"):  # how older versions say that there is no home folder
        raise EngineError("this account has no home folder: set TIERCEL_HOME to a folder of your own")
    return Path(path)
