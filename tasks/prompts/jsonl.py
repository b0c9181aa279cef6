"""JSON lines: one record a line, read from any byte offset."""

from collections.abc import Callable, Iterator, Mapping
from typing import BinaryIO

import attrs

from tasks.errors import SourceError
from tasks.prompts.record import Place, Record, read_json_record

LONGEST_LINE_BYTES = 64 * 2**20
"""A longer line is no prompt: most likely the file is not JSON lines."""

_BOM = b"\xef\xbb\xbf"


@attrs.frozen(slots=True)
class JsonlFile:
    """JSON lines behind an opener; blank lines are passed over and counted."""

    uri: str
    open: Callable[[], BinaryIO]
    stamp: Callable[[], str | None] = lambda: None

    def records(self, name: str, place: Place, fields: Mapping[str, str]) -> Iterator[tuple[Record, Place]]:
        """See `SourceFile.records`."""
        try:
            with self.open() as file:
                file.seek(place.offset)
                yield from read_lines(file, self.uri, name, place, fields)
        except OSError as error:
            raise SourceError(f"{self.uri}: expected a readable file, got {error.strerror}") from error


def read_lines(
    file: BinaryIO, shown: str, name: str, place: Place, fields: Mapping[str, str]
) -> Iterator[tuple[Record, Place]]:
    """Yield the records of `file`, which stands at `place`; `shown` is its name for messages."""
    line, offset = place.line, place.offset
    while raw := file.readline(LONGEST_LINE_BYTES + 1):
        if len(raw) > LONGEST_LINE_BYTES:
            raise SourceError(
                f"{shown}:{line}: expected a line of at most {LONGEST_LINE_BYTES} bytes, got more"
            )
        content = raw.removeprefix(_BOM) if offset == 0 else raw
        content = content.strip(b" \t\r\n")
        if content:
            if line == 1 and content.startswith(b"["):
                raise SourceError(
                    f"{shown}:1: expected one JSON object a line, got a JSON array: "
                    "write it as lines first (jq -c '.[]')"
                )
            yield read_json_record(content, name, shown, line, fields), Place(line, offset)
        line += 1
        offset += len(raw)
