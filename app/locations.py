"""Where Tiercel keeps its files, by the platform's conventions (platformdirs).

Two environment variables override them: TIERCEL_HOME puts everything below one folder, TIERCEL_MODELS
names the models folder alone. Knows places only: creates nothing and reads nothing.
"""

from __future__ import annotations

import os
from pathlib import Path

import platformdirs

_NAME = "tiercel"


def data_dir() -> Path:
    """Folder of conversations and, by default, of models."""
    return _place("data", platformdirs.user_data_dir(_NAME, appauthor=False))


def config_dir() -> Path:
    """Folder of settings, key maps, personas and the person's own themes."""
    return _place("config", platformdirs.user_config_dir(_NAME, appauthor=False))


def settings_file() -> Path:
    """The settings, in TOML."""
    return config_dir() / "settings.toml"


def state_dir() -> Path:
    """Folder of what may be lost without harm: logs, drafts of the window, measured rates."""
    return _place("state", platformdirs.user_state_dir(_NAME, appauthor=False))


def log_dir() -> Path:
    """Folder of log files."""
    return state_dir() / "log"


def models_dir() -> Path:
    """Our own models folder: `tiercel pull` writes here and nowhere else."""
    override = os.environ.get("TIERCEL_MODELS")
    return Path(override).expanduser() if override else data_dir() / "models"


def _place(name: str, default: str) -> Path:
    home = os.environ.get("TIERCEL_HOME")
    return Path(home).expanduser() / name if home else Path(default)
