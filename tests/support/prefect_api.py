"""Prefect's API as tests ask it: plain HTTP, so that what they see passes through no client code of ours."""

import base64
import json
import time
import urllib.error
import urllib.request
from typing import Any

PATIENCE_SECONDS = (2, 4, 8, 16, 32)
"""SQLite under Prefect is locked for moments and then answers 503; Prefect's own clients wait as well."""


class RefusedError(Exception):
    """Prefect's API answers with an error: its status and text."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(f"HTTP {status}: {text[:500]}")
        self.status = status
        self.text = text


def ask(api: str, path: str, body: Any = None, *, method: str | None = None, auth: str | None = None) -> Any:
    """GET, or POST a body (or `method`); return the answer's JSON, None when it is empty.

    Args:
        api: base URL that ends in /api.
        path: below it.
        body: JSON-able.
        method: instead of GET or POST.
        auth: `user:password`.

    Raises:
        RefusedError: the answer is an error.
    """
    data = None if body is None else json.dumps(body).encode()
    headers = {"Content-Type": "application/json"}
    if auth is not None:
        headers["Authorization"] = f"Basic {base64.b64encode(auth.encode()).decode()}"
    request = urllib.request.Request(f"{api}/{path}", data, headers, method=method)
    for seconds in PATIENCE_SECONDS:
        try:
            return _answer(request)
        except RefusedError as error:
            if error.status != 503:
                raise
            time.sleep(seconds)
    return _answer(request)


def _answer(request: urllib.request.Request) -> Any:
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            text = answer.read()
    except urllib.error.HTTPError as error:
        with error:  # kept by whoever looks at it, its socket would stay open until a collection
            raise RefusedError(error.code, error.read().decode()) from None
    return json.loads(text) if text else None


def make_block(api: str, kind: str, name: str, data: dict[str, str]) -> None:
    """Make a block document on the Prefect server, whose own list of block types has this kind."""
    kind_id = ask(api, f"block_types/slug/{kind}")["id"]
    schemas = ask(api, "block_schemas/filter", {"block_schemas": {"block_type_id": {"any_": [kind_id]}}})
    body = {"name": name, "data": data, "block_schema_id": schemas[0]["id"], "block_type_id": kind_id}
    ask(api, "block_documents/", body)
