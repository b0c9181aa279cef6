"""What servers said of themselves when they passed their probe, kept beside the data that they made."""

from collections.abc import Mapping
from typing import Any

import orjson

from tasks.store.contract import ObjectStore, canonical, sha256_hex


def note_server(store: ObjectStore, url: str, described: Mapping[str, Any]) -> None:
    """Keep what a server said of itself; the same again is the same object.

    Args:
        store: the job's own prefix.
        url: the server.
        described: of `ServerInfo.describe`, which holds no secrets.
    """
    data = canonical({"url": url, **described})
    store.put(f"servers/{sha256_hex(data)}.json", data, create_only=True)


def noted_servers(store: ObjectStore) -> list[dict[str, Any]]:
    """Return every state in which a server of the job passed its probe, by address and version."""
    found = [orjson.loads(store.get(info.key)) for info in store.list("servers/")]
    return sorted(found, key=lambda server: (server["url"], server["version"]))
