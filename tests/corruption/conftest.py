"""The families of tests/tasks/tokens."""

from tests.support.families import load, model_folder

__all__ = ["load", "model_folder"]
