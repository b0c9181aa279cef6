"""One tokenizer, proved to be the one that the job means: size, control ids, end ids, hashes."""

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import attrs

from tasks.errors import JobError, TokenizerError
from tasks.job.redaction import redact
from tasks.job.spec import ModelSpec
from tasks.tokenizer.dialect import Dialect, discover_dialect
from tasks.tokenizer.encoders import find_encoder
from tasks.tokenizer.guard import (
    prove_class,
    prove_control_ids,
    prove_ids,
    prove_one_start,
    prove_template_args,
)

FILES = ("*.json", "*.model", "*.jinja", "*.txt", "*.py", "encoding/*.py", "additional_chat_templates/*")
"""What is fetched of a model repository: everything but weights."""

HASHED = re.compile(
    r"(tokenizer.*|tiktoken\.model|vocab\..*|merges\.txt|added_tokens\.json|special_tokens_map\.json"
    r"|chat_template.*|generation_config\.json|(encoding/)?(tokenization|tool_declaration|encoding)_.*\.py)"
)
"""Files that decide a token; their sha256 go to `job.json`."""


@attrs.frozen(slots=True, eq=False)
class Vocabulary:
    """A tokenizer and what is known of it.

    Args:
        tokenizer: the transformers tokenizer.
        size: ids are valid in [0, size).
        control_ids: every control token's text and id: no such text is ordinary in a message.
        end_ids: ids that end an assistant's turn, as `model.grammar.end` or generation_config.json names them
            (never `eos_token`); empty when neither does: then the grammar takes its family's.
        template_args: keyword arguments of the chat template.
        generation_defaults: content of generation_config.json, {} without one.
        dialect: how to speak to its chat template.
        given: the job's own words on the grammar, `model.grammar`.
        account: JSON-able: class, size, files, template_sha256, transformers.
    """

    tokenizer: Any
    size: int
    control_ids: dict[str, int]
    end_ids: frozenset[int]
    template_args: dict[str, Any]
    generation_defaults: dict[str, Any]
    dialect: Dialect
    given: dict[str, Any]
    account: dict[str, Any]

    def describe(self) -> dict[str, Any]:
        """Return what identifies this tokenizer: equal accounts make equal prompt ids."""
        return dict(self.account)

    def name_of(self, id: int) -> str:
        """Return one id for display: a control token's text, or the repr of what the id decodes to."""
        name = _names(self).get(int(id))
        return name if name is not None else repr(self.decode((id,)))

    def decode(self, ids: Iterable[int]) -> str:
        """Return ids as text with control tokens visible. For display only: never encode it again."""
        known = [int(i) for i in ids if 0 <= int(i) < self.size]
        return str(self.tokenizer.decode(known, skip_special_tokens=False))


@lru_cache(maxsize=2)
def _names(vocabulary: Vocabulary) -> dict[int, str]:
    return {id: text for text, id in vocabulary.control_ids.items()}


def load_vocabulary(model: ModelSpec) -> Vocabulary:
    """Load the tokenizer of `model` and prove that it is the right one.

    Raises:
        TokenizerError: when files are missing, the class is not the model's own, ids differ from
            tokenizer.json, a control token has no id of its own, or a template argument changes nothing.
    """
    folder = _folder(model)
    tokenizer = _open(folder, model)
    prove_class(tokenizer, folder)
    prove_ids(tokenizer, folder)
    return vocabulary_of(tokenizer, folder, model)


def vocabulary_of(tokenizer: Any, folder: Path, model: ModelSpec) -> Vocabulary:
    """Return what is known of an open tokenizer whose files lie in `folder`.

    Raises:
        TokenizerError: as `load_vocabulary`, except for class and parity.
    """
    args = dict(model.template_args)
    encoder = find_encoder(folder, model.trust_remote_code)
    dialect = discover_dialect(tokenizer, args, encoder)
    control = control_ids_of(tokenizer)
    prove_control_ids(dialect, control)
    prove_template_args(dialect, args)
    prove_one_start(dialect, args, control)
    defaults = _json(folder / "generation_config.json")
    return Vocabulary(
        tokenizer=tokenizer,
        size=max(len(tokenizer), *(id + 1 for id in control.values())),
        control_ids=control,
        end_ids=given_ends(model.grammar, control) or _end_ids(defaults),
        template_args=args,
        generation_defaults=defaults,
        dialect=dialect,
        given=dict(model.grammar),
        account=_account(tokenizer, folder, dialect),
    )


def given_ends(given: Mapping[str, Any], control: Mapping[str, int]) -> frozenset[int]:
    """Return the end ids that a job names itself, by text or id; none when it does not.

    Raises:
        JobError: when the field is no list of them, or a text is no control token.
    """
    ends = given.get("end", ())
    if not isinstance(ends, list | tuple) or ("end" in given and not ends):
        raise JobError(f"model.grammar.end: expected a list of control tokens, got {ends!r}")
    unknown = [end for end in ends if end not in control and end not in control.values()]
    if unknown:
        raise JobError(f"model.grammar.end: expected control tokens of this vocabulary, got {unknown[0]!r}")
    return frozenset(control[end] if isinstance(end, str) else end for end in ends)


def control_ids_of(tokenizer: Any) -> dict[str, int]:
    """Return every added token, special or not, by text; white space that merely has an id is left out.

    Kimi's class lists its reserved tokens in `special_tokens` only, and its `encode` makes ids of them all.
    """
    added = {str(token): int(id) for id, token in tokenizer.added_tokens_decoder.items()}
    own = getattr(tokenizer, "special_tokens", None)
    if isinstance(own, Mapping):
        added |= {str(text): int(id) for text, id in own.items()}
    return {text: id for text, id in sorted(added.items(), key=lambda item: item[1]) if text.strip()}


def _folder(model: ModelSpec) -> Path:
    """Return the folder that holds the tokenizer's files, fetched when it is a repository's name."""
    local = Path(model.tokenizer).expanduser()
    if local.is_dir():
        return local
    if model.tokenizer.startswith((".", "/", "~")):
        raise TokenizerError(f"model.tokenizer: no folder {model.tokenizer}")
    from huggingface_hub import snapshot_download

    try:
        return Path(
            snapshot_download(
                model.tokenizer,
                revision=model.revision,
                allow_patterns=list(FILES),
                ignore_patterns=["*.index.json"],
            )
        )
    except (OSError, ValueError) as error:
        raise TokenizerError(
            f"model.tokenizer: cannot fetch {model.tokenizer!r} at revision {model.revision!r}: "
            f"{type(error).__name__}: {redact(str(error)).splitlines()[0]}"
        ) from error


def _open(folder: Path, model: ModelSpec) -> Any:
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(str(folder), trust_remote_code=model.trust_remote_code)
    except Exception as error:  # its loaders, and a model's own code, raise anything
        raise TokenizerError(
            f"model.tokenizer: cannot load {model.tokenizer!r} with trust_remote_code="
            f"{model.trust_remote_code}: {type(error).__name__}: {redact(str(error))}"
        ) from error


def _end_ids(defaults: Mapping[str, Any]) -> frozenset[int]:
    listed = defaults.get("eos_token_id")
    return frozenset(() if listed is None else [listed] if isinstance(listed, int) else listed)


def _account(tokenizer: Any, folder: Path, dialect: Dialect) -> dict[str, Any]:
    import transformers

    files = sorted(
        str(path.relative_to(folder))
        for path in (*folder.glob("*"), *folder.glob("encoding/*"))
        if path.is_file() and HASHED.fullmatch(str(path.relative_to(folder)))
    )
    return {
        "class": type(tokenizer).__name__,
        "size": len(tokenizer),
        "files": {name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in files},
        "template_sha256": hashlib.sha256(dialect.template.encode()).hexdigest(),
        "transformers": transformers.__version__,
    }


def _json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        content = json.loads(path.read_bytes())
    except ValueError as error:
        raise TokenizerError(f"{path}: expected JSON: {error}") from error
    if not isinstance(content, dict):
        raise TokenizerError(f"{path}: expected an object, got {type(content).__name__}")
    return content
