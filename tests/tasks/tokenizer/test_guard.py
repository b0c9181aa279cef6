"""A tokenizer that is not the one that the job means is refused, with what was expected and what came."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import transformers

from tasks.errors import TokenizerError
from tasks.grammar.grammar import discover_grammar
from tasks.job.spec import ModelSpec
from tasks.tokenizer.vocabulary import load_vocabulary
from tests.support.families import Load
from tests.support.model_folders import GENUINE

pytestmark = pytest.mark.family

Folder = Callable[[str], Path]


def spec(folder: Path, trust: bool = True, **args: Any) -> ModelSpec:
    """Return a model section for a local folder."""
    return ModelSpec(tokenizer=str(folder), template_args=args, trust_remote_code=trust)


def copy_of(folder: Path, target: Path, *without: str) -> Path:
    """Copy a model folder, leaving files out."""
    return Path(shutil.copytree(folder, target / "model", ignore=lambda _, names: set(names) & set(without)))


@pytest.mark.parametrize("family", ["stand-in", "kimi-tiny", *GENUINE])
def test_genuine_folders_are_let_in_and_described(family: str, load: Load) -> None:
    """Every family's own files pass the guard, and what identifies them is on record."""
    vocabulary, _ = load(family, True)
    account = vocabulary.describe()
    assert {"class", "size", "files", "template_sha256", "transformers"} == account.keys()
    assert all(len(sha) == 64 for sha in account["files"].values())
    assert "generation_config.json" in account["files"]
    assert json.loads(json.dumps(account)) == account
    assert all(vocabulary.dialect.encode(text) == [id] for text, id in vocabulary.control_ids.items())


@pytest.mark.skipif(
    transformers.__version__.startswith("4."), reason="4.57 loads the right class all the same"
)
def test_a_missing_config_makes_another_class_and_is_refused(model_folder: Folder, tmp_path: Path) -> None:
    """Without config.json transformers loads MiniMax-M2 as GPT-2, which splits text otherwise."""
    folder = copy_of(model_folder("minimax-m2"), tmp_path, "config.json")
    with pytest.raises(TokenizerError, match="gives other ids than the file itself"):
        load_vocabulary(spec(folder))


def test_remote_code_that_was_not_allowed_is_refused(model_folder: Folder) -> None:
    """Kimi without trust_remote_code would be a generic class with other text ids: never loaded."""
    with pytest.raises(TokenizerError, match="trust_remote_code"):
        load_vocabulary(spec(model_folder("kimi-tiny"), trust=False, thinking=True))


def test_an_encoder_that_was_not_allowed_is_refused(model_folder: Folder) -> None:
    """DeepSeek-V4 renders by Python code of its repository, which runs only with leave."""
    with pytest.raises(TokenizerError, match=r"encoding_dsv4\.py.*trust_remote_code"):
        load_vocabulary(spec(model_folder("deepseek-v4"), trust=False, thinking_mode="chat"))


def test_a_bare_tiktoken_file_is_refused(model_folder: Folder, tmp_path: Path) -> None:
    """Ranks without the class that splits text for them prove nothing."""
    folder = copy_of(model_folder("kimi-tiny"), tmp_path)
    config = json.loads((folder / "tokenizer_config.json").read_bytes())
    del config["auto_map"]
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    with pytest.raises(TokenizerError, match=r"tiktoken\.model|cannot load"):
        load_vocabulary(spec(folder, thinking=True))


@pytest.mark.parametrize(
    ("family", "args"),
    [
        pytest.param("qwen3", {"thinking": False}, id="thinking-on-qwen3"),
        pytest.param("stand-in", {"enable_thinking": False}, id="enable_thinking-on-kimi"),
        pytest.param("deepseek-v3.1", {"enable_thinking": True}, id="enable_thinking-on-v3.1"),
        pytest.param("glm-4.7-flash", {"thinking": False}, id="thinking-on-glm"),
        pytest.param("minimax-m2", {"enable_thinking": False}, id="enable_thinking-on-m2"),
        pytest.param("qwen3", {"enable_thinking": "false"}, id="text-for-a-boolean"),
        pytest.param("qwen3", {"enable_thinking": 0}, id="number-for-a-boolean"),
    ],
)
def test_a_template_argument_that_changes_nothing_is_refused(
    family: str, args: dict[str, Any], model_folder: Folder
) -> None:
    """A wrong name or a value that the template ignores is named, not swallowed."""
    name = next(iter(args))
    with pytest.raises(TokenizerError, match=rf"template_args\.{name}: .* changes no prompt"):
        load_vocabulary(spec(model_folder(family), **args))


@pytest.mark.parametrize(
    ("family", "args"),
    [
        pytest.param("stand-in", {"thinking": True}, id="kimi-on-is-default"),
        pytest.param("qwen3", {"enable_thinking": True}, id="qwen-on-is-default"),
        pytest.param("deepseek-v3.1", {"thinking": False}, id="v3.1-off-is-default"),
    ],
)
def test_a_template_argument_may_say_what_is_the_default(
    family: str, args: dict[str, Any], model_folder: Folder
) -> None:
    """An argument at its default is kept: its other value would change the prompt."""
    assert load_vocabulary(spec(model_folder(family), **args)).template_args == args


def test_a_template_that_prints_the_date_is_refused(model_folder: Folder, tmp_path: Path) -> None:
    """A prompt that changes at midnight cannot be resumed; an argument that pins the date lets it in."""
    folder = copy_of(model_folder("stand-in"), tmp_path)
    template = (folder / "chat_template.jinja").read_text()
    today = "{{- date_string if date_string is defined else strftime_now('%d %b %Y') -}}"
    (folder / "chat_template.jinja").write_text(today + template)
    with pytest.raises(TokenizerError, match="prints today's date"):
        load_vocabulary(spec(folder))
    assert load_vocabulary(spec(folder, date_string="26 Jul 2024")).template_args


def test_a_template_on_top_of_an_added_start_is_refused(model_folder: Folder, tmp_path: Path) -> None:
    """Two start tokens in front of every prompt are seen."""
    folder = copy_of(model_folder("stand-in"), tmp_path)
    template = (folder / "chat_template.jinja").read_text()
    (folder / "chat_template.jinja").write_text("{{- '[BOS][BOS]' -}}" + template)
    with pytest.raises(TokenizerError, match="start with id 2034 twice"):
        load_vocabulary(spec(folder))


def test_end_ids_are_the_models_own_not_the_tokenizers_eos(model_folder: Folder, load: Load) -> None:
    """Kimi's `eos_token` is `[EOS]`, but its turns end with `<|im_end|>`."""
    vocabulary, _ = load("kimi-tiny", True)
    assert vocabulary.tokenizer.eos_token == "[EOS]"
    assert vocabulary.end_ids == {vocabulary.control_ids["<|im_end|>"]}


def test_without_a_generation_config_the_familys_ends_are_taken(model_folder: Folder, tmp_path: Path) -> None:
    """A folder with a tokenizer only still ends its turns where the family does."""
    folder = copy_of(model_folder("qwen3"), tmp_path, "generation_config.json")
    vocabulary = load_vocabulary(spec(folder))
    assert not vocabulary.end_ids
    assert discover_grammar(vocabulary).end_ids == {151645, 151643}


def test_no_chat_template_is_refused(model_folder: Folder, tmp_path: Path) -> None:
    """A tokenizer that cannot render a conversation is of no use here."""
    folder = copy_of(model_folder("stand-in"), tmp_path, "chat_template.jinja")
    with pytest.raises(TokenizerError, match="no chat template"):
        load_vocabulary(spec(folder))


def test_a_missing_folder_is_named() -> None:
    """A local path that is not there is not looked up on the network."""
    with pytest.raises(TokenizerError, match=r"no folder \./nowhere"):
        load_vocabulary(ModelSpec(tokenizer="./nowhere"))


def test_names_and_decoding_are_total(load: Load) -> None:
    """Any id has a name, and decoding skips what is outside the vocabulary instead of raising."""
    vocabulary, _ = load("kimi-tiny", True)
    assert vocabulary.name_of(vocabulary.control_ids["</think>"]) == "</think>"
    assert vocabulary.name_of(10_000_000) == "''"
    assert vocabulary.decode([104, 105, 10_000_000, -1]) == "hi"


@pytest.mark.skipif(not transformers.__version__.startswith("4."), reason="make test-transformers4")
def test_a_class_that_this_transformers_lacks_is_named(model_folder: Folder) -> None:
    """A model that needs transformers 5.x is refused on 4.57, with what it asked for."""
    with pytest.raises(TokenizerError, match=r"cannot load.*TokenizersBackend"):
        load_vocabulary(spec(model_folder("glm-5")))
