"""Turns the STORE argument of a verb, and the options beside it, into an open store."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import wraps
from pathlib import Path
from typing import Any, NamedTuple

import attrs
import click

from deployments.local.demo import DemoHome
from tasks.errors import JobError
from tasks.job.jobfile import build_section
from tasks.job.spec import StoreSpec
from tasks.store.contract import ObjectStore
from tasks.store.opening import find_job


@attrs.frozen(slots=True)
class Access:
    """How a typed address is reached; what is None comes from the AWS environment.

    Args:
        endpoint_url: S3 endpoint that is not AWS.
        credentials_block: name of the Prefect block with the keys, as `store.credentials_block`.
    """

    endpoint_url: str | None = None
    credentials_block: str | None = None

    def given(self) -> dict[str, str]:
        """Return what was typed, as fields of a store section."""
        return {name: value for name, value in attrs.asdict(self).items() if value is not None}


class OpenedStore(NamedTuple):
    """A store, and the keys with which it was opened: its `s3://` prompts want the same (None: AWS chain)."""

    store: ObjectStore
    credentials: Mapping[str, str] | None


def store_options(verb: Callable[..., int]) -> Callable[..., int]:
    """Give a verb `--endpoint-url` and `--credentials-block`; it gets them as `access`."""

    @click.option("--endpoint-url", metavar="URL", help="S3 endpoint of STORE, when it is not AWS.")
    @click.option(
        "--credentials-block",
        metavar="NAME",
        help="Prefect block with the S3 keys of STORE: NAME of a Secret, or aws-credentials/NAME.",
    )
    @wraps(verb)
    def with_access(
        *args: Any, endpoint_url: str | None, credentials_block: str | None, **options: Any
    ) -> int:
        return verb(*args, access=Access(endpoint_url, credentials_block), **options)

    return with_access


def store_spec(argument: str, where: str = "STORE", access: Access | None = None) -> StoreSpec:
    """Return the store section of an address that was typed.

    Raises:
        JobError: it is no address of a store; the message begins with `where`.
    """
    given = access.given() if access else {}
    if given and not argument.startswith("s3://"):
        option = next(iter(given)).replace("_", "-")
        raise JobError(f"--{option}: expected beside an s3:// address, got {where} {argument!r}")
    return build_section(StoreSpec, {"uri": argument} | given, where)


@contextmanager
def opened_store(argument: str, access: Access) -> Iterator[OpenedStore]:
    """Open the job at STORE for the length of the body.

    Args:
        argument: a job's own prefix (folder or `s3://…`), a parent with exactly one job, or `demo`: the
            dataset of `rawseq demo` in this folder, whose S3 server is started meanwhile.
        access: the options beside it.

    Raises:
        JobError: no job there, or several; no such block.
        SurroundingsError: the store cannot be reached, or the Prefect server that has the block.
    """
    with ExitStack() as stack:
        keys: Mapping[str, str] | None
        if argument == "demo" and access == Access():
            home = DemoHome(Path.cwd())
            if not home.exists:
                raise JobError(f"demo: expected {home.folder} (made by `rawseq demo`), found none")
            stack.enter_context(home.alone())
            spec, keys = stack.enter_context(home.store()), home.credentials
        else:
            spec = store_spec(argument, access=access)
            keys = keys_of(spec)
        store = find_job(spec, credentials=keys)
        stack.callback(store.close)
        yield OpenedStore(store, keys)


def keys_of(spec: StoreSpec) -> Mapping[str, str] | None:
    """Return the S3 keys of the Prefect block that a store section names; None: the AWS chain has them.

    Raises:
        JobError: no such block, or other data in it.
        SurroundingsError: the Prefect server does not answer.
    """
    if spec.credentials_block is None:
        return None
    from deployments.cli.flow import block_keys  # Prefect takes seconds to load

    return block_keys(spec)
