"""The families of tests/tasks/tokens."""

from tests.tasks.tokens.conftest import load, model_folder

__all__ = ["load", "model_folder"]
