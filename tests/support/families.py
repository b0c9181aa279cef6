"""Vocabularies and grammars of real families, loaded once a session."""

from collections.abc import Callable
from functools import lru_cache
from importlib.metadata import version
from pathlib import Path

import pytest

from tasks.grammar.grammar import Grammar, discover_grammar
from tasks.job.spec import ModelSpec
from tasks.tokenizer.vocabulary import Vocabulary, load_vocabulary, vocabulary_of
from tests.support.model_folders import (
    GENUINE,
    STANDIN,
    genuine_folder,
    shared_kimi_folder,
    tiny_kimi_folder,
)
from tests.support.sketches import SKETCHES, sketch_args, sketch_folder

HELD = 3
"""Open at once: a family with reasoning on and off, and one that goes between."""

TOO_NEW = "glm-5"
"""Its configs name a tokenizer class that only transformers 5.x has."""


def loadable(items: list[pytest.Item]) -> list[pytest.Item]:
    """Return the tests but for those of families that transformers 4.57, if it is that, refuses to load."""
    if not version("transformers").startswith("4."):
        return items
    return [item for item in items if TOO_NEW not in item.name]


Load = Callable[[str, bool], tuple[Vocabulary, Grammar]]


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Return a function from a family's name to its laid-out model folder."""
    root = tmp_path_factory.mktemp("models")

    @lru_cache
    def folder(name: str) -> Path:
        if name == "stand-in":
            return STANDIN
        if name == "kimi":
            return shared_kimi_folder(root)
        if name == "kimi-tiny":
            return tiny_kimi_folder(tmp_path_factory.mktemp("tiny"))
        return sketch_folder(name, root) if name in SKETCHES else genuine_folder(name, root)

    return folder


@pytest.fixture(scope="session")
def load(model_folder: Callable[[str], Path]) -> Load:
    """Return a function from (family, thinking) to its vocabulary and grammar."""

    @lru_cache(maxsize=HELD)
    def loaded(name: str, thinking: bool) -> tuple[Vocabulary, Grammar]:
        folder = model_folder(name)
        spec = model_spec(name, folder, thinking)
        if thinking:
            vocabulary = load_vocabulary(spec)
        else:  # the same tokenizer with other template arguments: seconds are saved
            vocabulary = vocabulary_of(loaded(name, True)[0].tokenizer, folder, spec)
        return vocabulary, discover_grammar(vocabulary)

    return loaded


def model_spec(name: str, folder: Path, thinking: bool) -> ModelSpec:
    """Return the job's model section for a family's test folder."""
    if name in GENUINE:
        args = GENUINE[name].thinking if thinking else GENUINE[name].plain
        assert args is not None, f"{name} cannot be switched off"
    elif name in SKETCHES:
        args = sketch_args(name, thinking)
    else:
        args = {"thinking": thinking}
    code = name in ("kimi", "kimi-tiny", "deepseek-v4")
    return ModelSpec(tokenizer=str(folder), template_args=args, trust_remote_code=code)
