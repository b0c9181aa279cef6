"""The command that makes batches again, as a person types it (pure)."""

import shlex
from collections.abc import Sequence

from tasks.job.spec import StoreSpec


def typed_store(uri: str, spec: StoreSpec | None = None) -> str:
    """Return a store as STORE and its options are typed in a shell.

    Args:
        uri: the job's own prefix.
        spec: says at which endpoint and with which Prefect block an S3 store is reached.
    """
    words = [uri]
    if spec is not None and spec.endpoint_url:
        words += ["--endpoint-url", spec.endpoint_url]
    if spec is not None and spec.credentials_block:
        words += ["--credentials-block", spec.credentials_block]
    return shlex.join(words)


def retry_command(store: str, batches: Sequence[int]) -> str:
    """Return the command that makes batches again, e.g. `rawseq retry STORE --batches 3,7-9`.

    Args:
        store: as `ObjectStore.typed`.
        batches: at least one, in any order.
    """
    return f"rawseq retry {store} --batches {number_ranges(sorted(set(batches)))}"


def number_ranges(numbers: Sequence[int]) -> str:
    """Return ascending numbers as `retry --batches` takes them: `3,7-9`."""
    parts: list[tuple[int, int]] = []
    for number in numbers:
        if parts and number == parts[-1][1] + 1:
            parts[-1] = parts[-1][0], number
        else:
            parts.append((number, number))
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in parts)
