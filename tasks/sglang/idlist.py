"""Read the one long list of a reply without making a Python list of it (pure).

A 32k-id answer as a list of Python integers costs more time and eight times more memory than the array that
is kept. The list is cut out of the body as text and read by numpy; whatever looks unusual is left to the JSON
parser.
"""

from typing import Final

import numpy as np
from numpy.typing import NDArray

_KEY: Final = b'"output_ids":['
_DIGITS: Final = b"0123456789, "


def split_ids(body: bytes) -> tuple[bytes, NDArray[np.int64] | None]:
    """Return a reply's body with its id list emptied, and the ids; or the body as it is, and None.

    A quote inside a JSON string is always escaped, so the key's bytes occur only where a key is. The list is
    cut out only when the key occurs once and nothing but digits and commas lies between the brackets.
    """
    start = body.find(_KEY)
    if start < 0:
        return body, None
    start += len(_KEY)
    stop = body.find(b"]", start)
    text = body[start:stop]
    if stop < 0 or not text or text.translate(None, _DIGITS) or body.find(_KEY, stop) >= 0:
        return body, None
    commas = np.count_nonzero(np.frombuffer(text, np.uint8) == ord(","))  # a sixth of what bytes.count takes
    try:
        ids = np.fromstring(text, np.int64, sep=",")  # numbers beyond int64 come out as its bound
    except (ValueError, DeprecationWarning):
        return body, None
    if ids.size != commas + 1:
        return body, None
    return body[:start] + body[stop:], ids
