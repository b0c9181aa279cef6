"""Fingerprint of a model: log probabilities of fixed ids, told by prefill; whether two are of one model.

128 ids behind the probe's question: 64 of a text, 64 drawn by hash from the ordinary vocabulary. Text tells a
trained model from another one; drawn ids tell weights apart that agree on text. One model differs from itself
by batch, parallelism, backend and precision, so a mean decides and never one id: each difference counts as
one nat at most. SmolLM2-135M in SGLang 0.5.16 on an H200, mean difference in nats, not cut (text / drawn):

    alone, beside 64 and 512 rows, eight at once   0.000 / 0.000
    weights in 8 bits                              0.060 / 0.066
    noise on the weights of 0.5 %                  0.053 / 0.074
    1 %                                            0.091 / 0.118
    2 %                                            0.188 / 0.245
    5 %                                            0.472 / 0.533
    weights in 4 bits, in groups of 32, of 64      0.784 / 0.877, 0.869 / 1.10
    random weights                                 22    / 16

Not measured: other GPUs, tensor parallelism, mixtures of experts. There a model may differ more from itself,
which is why the limits follow `spread`, what the first server differs from itself.
"""

import hashlib
import math
from collections.abc import Iterator, Mapping
from typing import Any, Final, Literal, Self

import attrs
import numpy as np

from tasks.errors import RowError
from tasks.rows.records import Ids
from tasks.sglang.client import ServerClient
from tasks.sglang.info import ServerInfo
from tasks.sglang.outcomes import AttemptError
from tasks.sglang.scoring import BYTES_PER_ENTRY, read_scores, score_payload

TEXT: Final = (
    "The lighthouse keeper wrote down the weather every morning: wind from the north-west, seven knots, "
    "visibility good. On 14 March 1987 he counted 23 ships, 4 more than the day before. If each ship carries "
    "120 crates and every crate holds 36 bottles, how many bottles passed? He did the sum twice, because the "
    "first answer looked wrong: 99,360."
)
"""Ordinary prose with numbers; its first `IDS` ids are asked for."""

IDS: Final = 64
"""Of the text, and as many drawn ones: a statistic over 128."""

MOST: Final = 1.0
"""Nats that one id's difference counts at most: a few wild ids are not another model."""

SAME_NATS, OTHER_NATS = 0.1, 0.2
SAME_SPREADS, OTHER_SPREADS = 2.5, 5.0
SAME_MOST, OTHER_MOST = 0.25, 0.5
"""Up to max(0.1, 2.5 spreads), at most 0.25: the same model; above max(0.2, 5 spreads), at most 0.5: another.

By the table, on a server that repeats itself: 8 bits are *same*, 1 % noise lies at its limit, 2 % at that of
*other*; 5 % noise and 4 bits are *other*."""

DECIMALS: Final = 4

Outcome = Literal["same", "unclear", "other"]


@attrs.frozen(slots=True)
class Fingerprint:
    """What one server told of the fixed ids.

    Args:
        model: path of the model as the server tells it.
        ids: what was asked: a question, and the 128 ids that count.
        values: natural logarithms of the ids' probabilities, in order.
        spread: mean difference of the server from itself, nats.
    """

    model: str
    ids: tuple[int, ...]
    values: tuple[float, ...]
    spread: float = 0.0

    @property
    def name(self) -> str:
        """Eight hex digits: how a person names it. Asked again, one model may tell another name."""
        return hashlib.sha256(repr((self.model, self.values)).encode()).hexdigest()[:8]

    def __str__(self) -> str:
        return f"{self.model or 'unnamed'} ({self.name})"

    def describe(self) -> dict[str, Any]:
        """Return it as JSON-able data."""
        return {
            "name": self.name,
            "model": self.model,
            "ids": list(self.ids),
            "values": list(self.values),
            "spread": self.spread,
        }

    @classmethod
    def read(cls, described: Mapping[str, Any]) -> Self:
        """Return what `describe` made."""
        ids, values = tuple(described["ids"]), tuple(described["values"])
        return cls(described["model"], ids, values, described["spread"])


def difference(one: Fingerprint, other: Fingerprint) -> float:
    """Return the mean difference in nats, each id's cut at one; infinity where other ids were asked for."""
    if one.ids != other.ids:
        return math.inf
    apart = np.abs(np.array(one.values) - np.array(other.values))
    return float(np.minimum(apart, MOST).mean())


def compare(first: Fingerprint, other: Fingerprint) -> Outcome:
    """Return whether another fingerprint is of the first one's model."""
    nats = difference(first, other)
    if nats <= min(SAME_MOST, max(SAME_NATS, SAME_SPREADS * first.spread)):
        return "same"
    return "other" if nats > min(OTHER_MOST, max(OTHER_NATS, OTHER_SPREADS * first.spread)) else "unclear"


def is_gibberish(told: Fingerprint, vocab_size: int) -> bool:
    """Whether the text's ids are less likely than ids drawn blindly: the model has another vocabulary."""
    return float(np.mean(told.values[:IDS])) < -math.log(vocab_size)


def asked_ids(question: Ids, text: Ids, vocab_size: int, control: frozenset[int]) -> Ids:
    """Return int32[n + 128]: the question of n ids, ids of `TEXT`, ids drawn by hash.

    Args:
        question: int32[n]: as the job's template renders it.
        text: int32[k]: `TEXT` in the job's tokenizer, taken from the start again where k < 64.
        vocab_size: ids are drawn from [0, vocab_size - 1): SGLang tells the last one as 0 in a prompt.
        control: ids that are not drawn.
    """
    plain = np.resize(text if text.size else question, IDS)
    drawn = [token for token, _ in zip(_drawn(vocab_size - 1, control), range(IDS), strict=False)]
    return np.concatenate([question, plain, drawn]).astype(np.int32)


def _drawn(bound: int, control: frozenset[int]) -> Iterator[int]:
    number = 0
    while True:
        digest = hashlib.sha256(f"rawseq fingerprint {number}".encode()).digest()
        token, number = int.from_bytes(digest[:8], "big") % bound, number + 1
        if token not in control or number > 16 * IDS:
            yield token


async def ask_fingerprint(client: ServerClient, ids: Ids, info: ServerInfo) -> Fingerprint | None:
    """Have the last 128 ids scored by prefill; None where the server tells no usable log probabilities.

    It costs one prefill: about 0.03 s on that H200 beside 64 rows, 0.12 s beside 512.

    Raises:
        AttemptError: no whole reply came, or the server is full: ask again.
        SurroundingsError: the key is missing or wrong.
    """
    start = ids.size - 2 * IDS
    if start <= 0 or (info.context_length is not None and ids.size + 2 > info.context_length):
        return None
    body = score_payload(ids, start, 1, "")
    del body["rid"]  # nothing here is aborted
    most = 2 * ids.size * BYTES_PER_ENTRY + (1 << 16)
    try:
        status, raw = await client.call("POST", "/generate", body, timeout_seconds=120.0, most_bytes=most)
        client.check_allowed("/generate", status, raw)
        scores = read_scores("fingerprint", ids, start, status, raw, client.url)
    except RowError:
        return None  # refused: no room for so many ids
    except AttemptError as error:
        if error.outcome in ("busy", "cut", "refused", "transport"):
            raise
        return None  # it answers something else: not every server can
    values = tuple(round(float(value), DECIMALS) for value in scores.values)
    return Fingerprint(info.model_path, tuple(ids.tolist()), values)
