"""What an object store honours, asked once at start: a few small objects under `_probe/`, removed again.

Its findings choose how puts are made: checksums, conditional or not, read back or not.
"""

import threading
from collections.abc import Mapping
from typing import Final

from tasks.errors import RawseqError, SurroundingsError
from tasks.job.spec import StoreSpec
from tasks.store.contract import ObjectStore
from tasks.store.findings import ProbeCheck, StoreProbe
from tasks.store.opening import open_store
from tasks.store.s3 import S3Store
from tasks.store.s3_client import Modes
from tasks.store.s3_probe import BODY, Asker, probe_key

_WRITERS: Final = 8


def prepare_store(
    spec: StoreSpec,
    prefix: str = "",
    credentials: Mapping[str, str] | None = None,
    *,
    ca_bundle: str | None = None,
) -> tuple[ObjectStore, StoreProbe]:
    """Open a store, ask what it honours, and set it to the modes that follow; see `open_store`.

    Raises:
        SurroundingsError: it cannot be reached or refuses (bucket, credentials), or does not keep what it is
            given.
    """
    store = open_store(spec, prefix, credentials, ca_bundle=ca_bundle)
    try:
        if isinstance(store, S3Store):
            return _prepare_s3(store, spec, prefix, credentials, ca_bundle)
        checks = (_round_trip(store), *_exclusive(store))
    except BaseException:
        store.close()
        raise
    return store, _checked(StoreProbe(store.uri, checks, Modes(conditional=True)))


def _prepare_s3(
    store: S3Store,
    spec: StoreSpec,
    prefix: str,
    credentials: Mapping[str, str] | None,
    ca_bundle: str | None,
) -> tuple[ObjectStore, StoreProbe]:
    checks = [_round_trip(store)]
    asker = Asker(spec, store, prefix, credentials, ca_bundle)
    checksums, digest, secret = asker.default_checksums(), asker.wrong_digest(), asker.unknown_keys()
    exclusive = _exclusive(store)
    checks += [checksums, digest, *exclusive, secret]
    auto = "when_supported" if checksums.passed else "when_required"
    modes = Modes(
        checksums=auto if spec.checksums == "auto" else spec.checksums,
        conditional=store.modes.conditional and all(check.passed for check in exclusive),
        read_back=not digest.passed,
    )
    probe = _checked(StoreProbe(store.uri, tuple(checks), modes))
    if modes.checksums != "when_required" and spec.checksums == "auto":
        store.close()
        chosen = spec.model_copy(update={"checksums": modes.checksums})
        store = S3Store.open(chosen, prefix, credentials, ca_bundle)
    store.modes = modes
    return store, probe


def _checked(probe: StoreProbe) -> StoreProbe:
    for check in probe.checks:
        if check.needed and not check.passed:
            raise SurroundingsError(
                f"{probe.store}: {check.name}: expected {check.expected}, got {check.got}: not usable"
            )
    return probe


def _round_trip(store: ObjectStore) -> ProbeCheck:
    key = probe_key()
    store.put(key, BODY)
    try:
        back = store.get(key)
        listed = [info.key for info in store.list(key)]
    finally:
        store.delete(key)
    good = back == BODY and listed == [key] and store.head(key) is None
    got = "the same" if good else f"{len(back)} bytes, {len(listed)} listed, gone: {store.head(key) is None}"
    return ProbeCheck("round trip", good, True, "bytes read back, listed, then deleted", got)


def _exclusive(store: ObjectStore) -> tuple[ProbeCheck, ProbeCheck]:
    """Create one key twice in a row, then by eight writers at once.

    A put whose answer was lost is made again and finds its own bytes: what stands tells whose it was.
    """
    key, race = probe_key(), probe_key()
    try:
        first = store.put(key, b"first", create_only=True) or store.get(key) == b"first"
        second = store.put(key, b"second", create_only=True)
        kept = store.get(key)
        winners = _race(store, race)
        stands = store.get(race)
    finally:
        for name in (key, race):
            store.delete(name)
    conditional = not isinstance(store, S3Store) or store.modes.conditional
    twice = conditional and (first, second, kept) == (True, False, b"first")
    got = f"{first}, {second}, {kept!r}" if conditional else "not implemented (501)"
    return (
        ProbeCheck("create only if absent", twice, False, "True, False, b'first'", got),
        ProbeCheck(
            "one of eight writers wins",
            {*winners, stands} == {stands} and len(winners) <= 1,
            False,
            "one winner",
            f"{len(winners)} winners",
        ),
    )


def _race(store: ObjectStore, key: str) -> list[bytes]:
    won: list[bytes] = []
    failed: list[RawseqError] = []

    def create(data: bytes) -> None:
        try:
            if store.put(key, data, create_only=True):
                won.append(data)
        except RawseqError as error:
            failed.append(error)

    threads = [threading.Thread(target=create, args=(b"writer %d" % number,)) for number in range(_WRITERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return won
