"""Send one case to one server, keep what must agree."""

import json
from typing import Any

import aiohttp

from tests.contract.cases import Case, whole

LIMIT = aiohttp.ClientTimeout(total=120)


async def exchange(url: str, case: Case) -> Any:
    """Return the normalised answer of one server to one case."""
    raw = case.body if isinstance(case.body, bytes) else None if case.body is None else json.dumps(case.body)
    method = case.method or ("GET" if raw is None else "POST")
    headers = {"Content-Type": "application/json"}
    async with (
        aiohttp.ClientSession(timeout=LIMIT) as session,
        session.request(method, url + case.path, data=raw, headers=headers) as answer,
    ):
        text = await answer.text()
    try:
        body: Any = json.loads(text)
    except json.JSONDecodeError:
        body = text
    try:
        return (case.keep or whole)(answer.status, body)
    except (KeyError, TypeError, AttributeError, IndexError) as error:
        return {"status": answer.status, "unexpected": f"{error!r} in {text[:500]}"}
