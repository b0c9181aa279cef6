"""Prefect's API as tests ask it: plain HTTP, so that what they see passes through no client code of ours."""

import base64
import json
import time
import urllib.error
import urllib.request
from typing import Any

PATIENCE_SECONDS = (2, 4, 8, 16, 32)
"""SQLite under Prefect is locked for moments and then answers 503; Prefect's own clients wait as well."""


def ask(api: str, path: str, body: Any = None, *, method: str | None = None, auth: str | None = None) -> Any:
    """GET, or POST a body (or `method`); return the answer's JSON, None when it is empty.

    Args:
        api: base URL that ends in /api.
        path: below it.
        body: JSON-able.
        method: instead of GET or POST.
        auth: `user:password`.
    """
    data = None if body is None else json.dumps(body).encode()
    headers = {"Content-Type": "application/json"}
    if auth is not None:
        headers["Authorization"] = f"Basic {base64.b64encode(auth.encode()).decode()}"
    request = urllib.request.Request(f"{api}/{path}", data, headers, method=method)
    for seconds in PATIENCE_SECONDS:
        try:
            return _answer(request)
        except urllib.error.HTTPError as error:
            if error.code != 503:
                raise
            time.sleep(seconds)
    return _answer(request)


def _answer(request: urllib.request.Request) -> Any:
    with urllib.request.urlopen(request, timeout=60) as answer:
        text = answer.read()
    return json.loads(text) if text else None


def make_block(api: str, kind: str, name: str, data: dict[str, str]) -> None:
    """Make a block document on the Prefect server, whose own list of block types has this kind."""
    kind_id = ask(api, f"block_types/slug/{kind}")["id"]
    schemas = ask(api, "block_schemas/filter", {"block_schemas": {"block_type_id": {"any_": [kind_id]}}})
    body = {"name": name, "data": data, "block_schema_id": schemas[0]["id"], "block_type_id": kind_id}
    ask(api, "block_documents/", body)
