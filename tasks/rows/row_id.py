"""Row ids: `<source>:<record id>#t<turn>~s<sample>`, always all parts, with `#~:%` percent-encoded."""

import re

from tasks.errors import DataError

_ROW_ID = re.compile(r"([^#~:]*):([^#~:]*)#t(\d+)~s(\d+)")


def row_id(source: str, record_id: str, turn: int, sample: int) -> str:
    """Return the row id of one turn of one sample of one record."""
    return f"{quote(source)}:{quote(record_id)}#t{turn}~s{sample}"


def split_row_id(row_id: str) -> tuple[str, str, int, int]:
    """Return (source, record id, turn, sample).

    Raises:
        DataError: when `row_id` is not one.
    """
    found = _ROW_ID.fullmatch(row_id)
    if found is None:
        raise DataError(f"expected <source>:<record id>#t<turn>~s<sample>, got {row_id!r}")
    source, record, turn, sample = found.groups()
    return unquote(source), unquote(record), int(turn), int(sample)


def quote(text: str) -> str:
    """Percent-encode what separates the parts of a row id."""
    return re.sub(r"[#~:%]", lambda match: f"%{ord(match.group()):02X}", text)


def unquote(text: str) -> str:
    """Undo `quote`."""
    return re.sub(r"%(23|7E|3A|25)", lambda match: chr(int(match.group(1), 16)), text)
