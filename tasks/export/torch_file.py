"""What `torch.save` writes, without torch: dictionaries of integers, and of int64 and bool vectors (pure).

The zip form of torch ≥ 1.6: `data.pkl` (pickle protocol 2) refers to raw little-endian storages `data/<n>`.
Equal values give equal bytes. `torch.load(…, weights_only=True)` reads them: see tests/trainers.
"""

import io
import pickle
import zipfile
from collections.abc import Mapping
from typing import Any, Final

from numpy.typing import NDArray

_STORAGES: Final = {"int64": b"LongStorage", "bool": b"BoolStorage"}
_EPOCH: Final = (1980, 1, 1, 0, 0, 0)
_ALIGNMENT: Final = 64
"""torch maps storages at multiples of it; readers do not insist."""


def dump_counts(counts: Mapping[int, int]) -> bytes:
    """Return the file of a dict[int, int]."""
    return _archive(pickle.dumps(dict(counts), protocol=2), [])


def dump_vectors(vectors: Mapping[str, NDArray[Any]]) -> bytes:
    """Return the file of a dict of vectors, int64[n] or bool[n].

    Raises:
        ValueError: another dtype or shape.
    """
    parts = [pickle.PROTO, b"\x02", pickle.EMPTY_DICT, pickle.MARK]
    for number, (name, vector) in enumerate(vectors.items()):
        if vector.ndim != 1 or vector.dtype.name not in _STORAGES:
            raise ValueError(f"{name}: expected int64[n] or bool[n], got {vector.dtype}{list(vector.shape)}")
        parts += [_text(name), *_tensor(number, vector)]
    parts += [pickle.SETITEMS, pickle.STOP]
    return _archive(b"".join(parts), [vector.tobytes() for vector in vectors.values()])


def _tensor(number: int, vector: NDArray[Any]) -> list[bytes]:
    """Return the opcodes of `torch._utils._rebuild_tensor_v2(storage, offset, size, stride, grad, hooks)`."""
    size = _whole(vector.size)
    storage = [
        pickle.MARK,
        _text("storage"),
        pickle.GLOBAL + b"torch\n" + _STORAGES[vector.dtype.name] + b"\n",
        _text(str(number)),
        _text("cpu"),
        size,
        pickle.TUPLE,
        pickle.BINPERSID,
    ]
    hooks = [pickle.GLOBAL + b"collections\nOrderedDict\n", pickle.EMPTY_TUPLE, pickle.REDUCE]
    return [
        pickle.GLOBAL + b"torch._utils\n_rebuild_tensor_v2\n",
        pickle.MARK,
        *storage,
        _whole(0),
        size + pickle.TUPLE1,
        _whole(1) + pickle.TUPLE1,
        pickle.NEWFALSE,
        *hooks,
        pickle.TUPLE,
        pickle.REDUCE,
    ]


def _text(value: str) -> bytes:
    data = value.encode()
    return pickle.BINUNICODE + len(data).to_bytes(4, "little") + data


def _whole(value: int) -> bytes:
    return pickle.BININT + value.to_bytes(4, "little", signed=True)


def _archive(data: bytes, storages: list[bytes]) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_STORED) as archive:
        members = [("data.pkl", data), ("byteorder", b"little"), ("version", b"3\n")]
        members += [(f"data/{number}", raw) for number, raw in enumerate(storages)]
        for name, content in members:
            info = zipfile.ZipInfo(f"archive/{name}", _EPOCH)
            start = out.tell() + 30 + len(info.filename)
            padding = -(start + 4) % _ALIGNMENT
            info.extra = b"FB" + padding.to_bytes(2, "little") + b"Z" * padding
            archive.writestr(info, content)
    return out.getvalue()
