"""The one retry layer of object calls: full jitter up to a deadline, then an error that says what to do."""

import random
import time
from collections.abc import Callable
from typing import Any

import attrs
from botocore.exceptions import BotoCoreError, ClientError, HTTPClientError

from tasks.errors import LaterError, SurroundingsError
from tasks.store.s3_failures import meaning_of

_FIRST_WAIT_SECONDS = 0.1
_SLOW_WAIT_SECONDS = 1.0
_LONGEST_WAIT_SECONDS = 10.0
FIRST_ANSWER_SECONDS = 20.0
"""An endpoint that has never answered is given this long, not the whole deadline: it is probably misspelt."""


@attrs.frozen(slots=True)
class Answer:
    """What a call came to: kind `ok` with its value, or `missing`, `exists`, `unsupported`."""

    kind: str
    value: Any = None


class Deadline:
    """Retries the calls of one store. Thread-safe: it remembers only whether the endpoint ever answered."""

    def __init__(self, seconds: float, where: str, renew: Callable[[], bool]) -> None:
        self.seconds = seconds
        self._where = where
        self._answered = False
        self._renew = renew

    def call(self, what: str, call: Callable[[], Any]) -> Answer:
        """Make `call` until it succeeds, is answered with a refusal, or the deadline passes.

        Credentials that have expired are fetched again once (`renew` says whether that could be done).

        Raises:
            SurroundingsError: a person must act: bucket, permission, credentials, clock, region, endpoint.
            LaterError: the store kept failing until the deadline.
        """
        start = time.monotonic()
        attempt = 0
        renewed = False
        while True:
            try:
                value = call()
            except (ClientError, BotoCoreError, HTTPClientError) as error:
                meaning = meaning_of(error)
                self._answered |= isinstance(error, ClientError)
                if meaning.credentials and not renewed and self._renew():
                    renewed = True
                    continue
                if meaning.kind == "operator":
                    raise SurroundingsError(f"{self._where}, {what}: {meaning.text}") from error
                if meaning.kind != "retry":
                    return Answer(meaning.kind)
                attempt += 1
                wait = _wait_seconds(attempt, slow=meaning.slow)
                self._check_time(what, meaning.text, start, wait, attempt, error)
                time.sleep(wait)
            else:
                self._answered = True
                return Answer("ok", value)

    def _check_time(
        self, what: str, text: str, start: float, wait: float, attempt: int, error: Exception
    ) -> None:
        limit = self.seconds if self._answered else min(self.seconds, FIRST_ANSWER_SECONDS)
        passed = time.monotonic() - start
        if passed + wait <= limit:
            return
        message = f"{self._where}, {what}: {text}; {attempt} attempts in {passed:.0f} s, limit {limit:.0f} s"
        if self._answered:
            raise LaterError(message) from error
        raise SurroundingsError(message) from error


def _wait_seconds(attempt: int, *, slow: bool) -> float:
    """Full jitter: uniform up to an exponentially growing bound; a throttled call waits a second at least."""
    bound = min(_LONGEST_WAIT_SECONDS, _FIRST_WAIT_SECONDS * 2.0 ** min(attempt, 16))
    wait = random.uniform(0, bound)
    return max(wait, _SLOW_WAIT_SECONDS) if slow else wait
