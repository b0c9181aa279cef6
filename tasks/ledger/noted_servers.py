"""What servers said of themselves when they passed their probe, and which model made the dataset."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final

import orjson

from tasks.errors import JobError
from tasks.store.contract import MissingError, ObjectStore, canonical, sha256_hex

FIRST: Final = "fingerprints/first.json"
"""Of the model that the first run began with; others lie beside it by their names."""


def note_server(store: ObjectStore, url: str, described: Mapping[str, Any]) -> None:
    """Keep what a server said of itself; the same again is the same object.

    Args:
        store: the job's own prefix.
        url: the server.
        described: of `ServerInfo.describe`, which holds no secrets, and what its fingerprint was found to be.
    """
    data = canonical({"url": url, **described})
    store.put(f"servers/{sha256_hex(data)}.json", data, create_only=True)


def noted_servers(store: ObjectStore) -> list[dict[str, Any]]:
    """Return every state in which a server of the job passed its probe, by address and version."""
    found = [orjson.loads(store.get(info.key)) for info in store.list("servers/")]
    return sorted(found, key=lambda server: (server["url"], server["version"]))


def models_of(store: ObjectStore) -> list[dict[str, Any]]:
    """Return the fingerprints of the models that made a dataset: its first, and those let in by name."""
    names = {server["fingerprint"]["name"] for server in noted_servers(store) if "fingerprint" in server}
    keys = [FIRST, *(f"fingerprints/{name}.json" for name in sorted(names))]
    return [orjson.loads(store.get(key)) for key in keys if store.head(key) is not None]


class ServedModels:
    """What a dataset keeps of the models that its servers have: `DatasetModels` of the fleet.

    Args:
        store: the job's own prefix.
        in_thread: runs a blocking call beside the event loop.
        allowed: names of further models that the job lets in.
    """

    def __init__(
        self, store: ObjectStore, in_thread: Callable[..., Awaitable[Any]], allowed: Sequence[str]
    ) -> None:
        self._store, self._in_thread, self._allowed = store, in_thread, tuple(allowed)

    async def first(self) -> dict[str, Any] | None:
        """Return the fingerprint of the dataset's model, None where it has none yet."""
        found: dict[str, Any] | None = await self._in_thread(self._first)
        return found

    async def begin(self, mine: dict[str, Any]) -> bool:
        """Make a model the dataset's; return False when it has one: another run was quicker."""
        begun: bool = await self._in_thread(self._store.put, FIRST, canonical(mine), create_only=True)
        return begun

    async def refused(self, other: dict[str, Any]) -> None:
        """Keep the fingerprint of a model that was refused, so that a person can name it."""
        await self._in_thread(self._store.put, f"fingerprints/{other['name']}.json", canonical(other))

    async def allowed(self) -> list[dict[str, Any]]:
        """Return the fingerprints that the job lets in by name.

        Raises:
            JobError: no model of such a name was refused here.
        """
        return [await self._in_thread(self._named, name) for name in self._allowed]

    async def admitted(self, url: str, described: dict[str, Any]) -> None:
        """Note a server that is let in."""
        await self._in_thread(note_server, self._store, url, described)

    def _first(self) -> dict[str, Any] | None:
        try:
            found: dict[str, Any] = orjson.loads(self._store.get(FIRST))
        except MissingError:
            return None
        return found

    def _named(self, name: str) -> dict[str, Any]:
        try:
            found: dict[str, Any] = orjson.loads(self._store.get(f"fingerprints/{name}.json"))
        except MissingError:
            raise JobError(
                f"servers.allow_models: expected names that a refusal gave, got {name}: no such model was "
                "refused for this dataset"
            ) from None
        return found
