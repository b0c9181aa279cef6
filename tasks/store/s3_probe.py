"""What an S3 server does with checksums, wrong digests and unknown keys: one call each, by its own client."""

import contextlib
import secrets
from collections.abc import Callable, Mapping
from typing import Any, Final

import attrs
from botocore.exceptions import BotoCoreError, ClientError

from tasks.errors import RawseqError
from tasks.job.spec import StoreSpec
from tasks.store.contract import parse_s3_uri, sha256_hex
from tasks.store.findings import ProbeCheck
from tasks.store.s3 import S3Store
from tasks.store.s3_client import content_md5, make_client, put_arguments
from tasks.store.s3_failures import meaning_of

BODY: Final = bytes(range(256)) * 280
"""About 70 kB: above the size at which botocore streams a body."""


def probe_key() -> str:
    """Return a key that nobody else uses."""
    return f"_probe/{secrets.token_hex(8)}.bin"


@attrs.frozen(slots=True)
class Asker:
    """Asks the server behind `store`; arguments as in `open_store`."""

    spec: StoreSpec
    store: S3Store
    prefix: str
    credentials: Mapping[str, str] | None = attrs.field(repr=False)
    ca_bundle: str | None

    def default_checksums(self) -> ProbeCheck:
        """Put with botocore's default checksums: some servers refuse or keep the trailer."""
        expected = f"{len(BODY)} bytes unchanged, no content encoding"

        def call(client: Any, bucket: str, path: str) -> str:
            arguments = put_arguments(bucket, path, BODY)
            del arguments["ContentMD5"]
            client.put_object(**arguments)
            answer = client.get_object(Bucket=bucket, Key=path)
            with contextlib.closing(answer["Body"]) as body:
                data = body.read()
            encoding = answer.get("ContentEncoding")
            if data == BODY and not encoding:
                return expected
            return f"{len(data)} bytes, content encoding {encoding!r}"

        got = self._try(self.spec.model_copy(update={"checksums": "when_supported"}), call)
        return ProbeCheck("checksums by default", got == expected, False, expected, got)

    def wrong_digest(self) -> ProbeCheck:
        """Put bytes with the digest of others: who takes them takes changed bytes, too."""

        def call(client: Any, bucket: str, path: str) -> str:
            client.put_object(**(put_arguments(bucket, path, BODY) | {"ContentMD5": content_md5(b"other")}))
            return "accepted"

        got = self._try(self.spec, call)
        return ProbeCheck("wrong Content-MD5", got != "accepted", False, "refused", got)

    def unknown_keys(self) -> ProbeCheck:
        """Ask with made-up keys: a store that answers is open to everybody."""
        bucket, _ = parse_s3_uri(self.spec.uri)
        keys = {"aws_access_key_id": "rawseq-probe", "aws_secret_access_key": sha256_hex(b"not a secret")}
        client = make_client(self.spec, keys, self.ca_bundle)
        try:
            client.list_objects_v2(Bucket=bucket, MaxKeys=1)
            got = "answered"
        except (ClientError, BotoCoreError) as error:
            got = f"refused: {meaning_of(error).text.split(':')[0]}"
        finally:
            client.close()
        return ProbeCheck("unknown keys", got != "answered", False, "refused", got)

    def _try(self, spec: StoreSpec, call: Callable[[Any, str, str], str]) -> str:
        bucket, base = parse_s3_uri(spec.uri)
        key = probe_key()
        path = "/".join(part for part in (base, self.prefix, key) if part)
        client = make_client(spec, self.credentials, self.ca_bundle)
        try:
            return call(client, bucket, path)
        except (ClientError, BotoCoreError) as error:
            return f"refused: {meaning_of(error).text}"
        finally:
            client.close()
            with contextlib.suppress(RawseqError):
                self.store.delete(key)
