"""The journal's frames: bytes ⇄ headers and ids. Layout in the schema page."""

import os
import struct
import zlib
from collections.abc import Iterator
from typing import Any, BinaryIO, Final

import attrs
import numpy as np
import orjson

from tasks.rows.records import Completion, Ids

MAGIC: Final = b"RAWSEQJ1"
_PREFIX: Final = struct.Struct("<II")  # body length, crc32 of the body
_HEADER: Final = struct.Struct("<I")  # header length
LARGEST_BODY_BYTES: Final = 2**30
"""A longer frame is a torn or foreign length field: 128 million ids do not come in one row."""

_PIECE_BYTES: Final = 5 * 1024
"""Above it zlib lets go of the GIL: for a row's few microseconds of work that hands it back and forth between
threads, which costs ten times what the checksum does (`tests/bench/profiles.md`).
"""


@attrs.frozen(slots=True)
class Frame:
    """Where a good frame lies: its header, and the byte range of its body in the file."""

    header: dict[str, Any]
    start: int
    stop: int


@attrs.frozen(slots=True)
class Entry:
    """Where a row lies: which part, and the byte range of its frame's body."""

    part: int
    start: int
    stop: int


def checksum(data: bytes | memoryview, before: int = 0) -> int:
    """Return the crc32 of bytes that follow others whose crc32 is `before`."""
    for start in range(0, len(data), _PIECE_BYTES):
        before = zlib.crc32(data[start : start + _PIECE_BYTES], before)
    return before


def encode_frame(header: dict[str, Any], *ids: Ids) -> bytes:
    """Return one frame; ids, the prompt's before the output's, are stored little-endian."""
    text = orjson.dumps(header, option=orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_NON_STR_KEYS)
    stored = [np.ascontiguousarray(part, "<i4").data for part in ids]
    body = b"".join((_HEADER.pack(len(text)), text, *stored))
    return _PREFIX.pack(len(body), checksum(body)) + body


def completion_frame(completion: Completion) -> bytes:
    """Return the frame of a finished row: `completion`, or `unsent` when no server made it."""
    header = {
        "kind": "completion",
        "row_id": completion.row_id,
        "n_in": completion.input_ids.size,
        "n_out": completion.output_ids.size,
        "facts": completion.facts,
    }
    if completion.sent:
        header |= {"finish_reason": completion.finish_reason, "matched_stop": completion.matched_stop}
    else:
        header |= {
            "kind": "unsent",
            "code": completion.code,
            "code_offset": completion.code_offset,
            "detail": completion.detail,
        }
    return encode_frame(header, completion.input_ids, completion.output_ids)


def decode_body(body: bytes | memoryview) -> tuple[dict[str, Any], memoryview]:
    """Split a body into its header and the bytes of its ids.

    Raises:
        ValueError: not a body.
    """
    (length,) = _HEADER.unpack_from(body) if len(body) >= _HEADER.size else (len(body),)
    if length > len(body) - _HEADER.size:
        raise ValueError("the header is longer than the frame")
    view = memoryview(body)  # slices of it copy nothing
    header = orjson.loads(view[_HEADER.size : _HEADER.size + length])
    ids = view[_HEADER.size + length :]
    if not isinstance(header, dict) or len(ids) != 4 * (header.get("n_in", 0) + header.get("n_out", 0)):
        raise ValueError("header and ids disagree")
    return header, ids


def decode_completion(body: bytes | memoryview) -> Completion:
    """Return the row of a `completion` or `unsent` body; its ids are read-only views of it."""
    header, data = decode_body(body)
    ids = np.frombuffer(data, "<i4").astype(np.int32, copy=False)
    n_in = header["n_in"]
    return Completion(
        row_id=header["row_id"],
        input_ids=ids[:n_in],
        output_ids=ids[n_in:],
        finish_reason=header.get("finish_reason", "unsent"),
        matched_stop=header.get("matched_stop"),
        code=header.get("code", ""),
        code_offset=header.get("code_offset", -1),
        detail=header.get("detail", ""),
        facts=header["facts"],
    )


def decode_frame(frame: memoryview) -> Completion:
    """Return the row of a frame without its length: checksum and body. Its ids are read-only views of it.

    Raises:
        ValueError: its bytes are not what was written.
    """
    if checksum(frame[4:]).to_bytes(4, "little") != frame[:4]:
        raise ValueError("the checksum is another")
    return decode_completion(frame[4:])


def read_whole(descriptor: int) -> memoryview:
    """Return a file's bytes, read only."""
    view = np.empty(os.fstat(descriptor).st_size, np.uint8).data
    done = 0
    while done < len(view) and (more := os.preadv(descriptor, [view[done:]], done)):
        done += more
    return view[:done].toreadonly()


def read_frames(file: BinaryIO) -> Iterator[Frame]:
    """Yield the good frames of a file from its start; a torn or corrupt frame ends it.

    Every checksum is verified; one frame is in memory at a time.
    """
    if file.read(len(MAGIC)) != MAGIC:
        return
    place = len(MAGIC)
    while len(prefix := file.read(_PREFIX.size)) == _PREFIX.size:
        length, crc = _PREFIX.unpack(prefix)
        if length > LARGEST_BODY_BYTES:
            return
        body = file.read(length)
        if len(body) != length or checksum(body) != crc:
            return
        try:
            header, _ = decode_body(body)
        except ValueError:
            return
        place += _PREFIX.size
        yield Frame(header, place, place + length)
        place += length
