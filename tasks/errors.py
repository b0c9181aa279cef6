"""One error tree, split by who must act.

    RawseqError
    ├── OperatorError          a person must change something; never retried
    │   ├── JobError             the job file, an argument or a prompt file is wrong        exit 2
    │   │   ├── SourceError        a prompt file (names file:line)
    │   │   └── TokenizerError     the tokenizer is not the one the job means, or is unknown
    │   ├── IdentityError        the job resolves differently from what the store holds     exit 2
    │   ├── UnfaithfulError      a server changes token ids, or its parser is on            exit 1
    │   ├── RangeError           a flow run over a part of the job ended and needs a person  exit 1
    │   └── SurroundingsError    server away, bucket missing, credentials, disk full        exit 5
    ├── ServerError            this server cannot answer this; another one, or later, may   retried
    ├── LaterError             the same call may work in a moment (throttling, reset)       retried
    │   └── TakenError           another living worker has the batch
    ├── StalledError           a process that shows no sign of life keeps the batch's journal
    ├── RowError               nobody can make this row: it is rejected with a code
    └── DataError              stored bytes are not what they claim to be                   exit 1

Every message says where (file:line, field path, URL, batch, row, offset), what was expected, what came.
`retry` says whether the same call may be made again; nothing decides by matching message text.
"""

from typing import ClassVar


class RawseqError(Exception):
    """Root of every error that rawseq raises on purpose."""

    retry: ClassVar[bool] = False
    exit_status: ClassVar[int] = 1


class OperatorError(RawseqError):
    """A person must change something before this can work."""


class JobError(OperatorError):
    """The job file or an argument is wrong: names the field path, what was expected and what came."""

    exit_status = 2


class SourceError(JobError):
    """A prompt file is missing, empty or malformed: names file:line."""


class TokenizerError(JobError):
    """The tokenizer cannot be loaded, or is provably not the one that the job means."""


class IdentityError(OperatorError):
    """The job resolves to other tokens than what its `job.json` or a receipt records: shows both."""

    exit_status = 2


class UnfaithfulError(OperatorError):
    """A server was shown to change token ids, or has a parser on that the job forbids: carries evidence."""


class RangeError(OperatorError):
    """A flow run over a range of batches was cancelled, or met what only a person can mend: says what."""


class SurroundingsError(OperatorError):
    """Something outside is missing or refuses: server, bucket, credentials, disk."""

    exit_status = 5


class ServerError(RawseqError):
    """This server cannot answer this request now; another server, or the same one later, may."""

    retry = True


class LaterError(RawseqError):
    """The same call may work in a moment: throttling, a reset connection, a lost response."""

    retry = True


class TakenError(LaterError):
    """Another living worker has this batch: its receipt will come, or its lease will lapse."""


class StalledError(RawseqError):
    """A process of this machine has this batch's journal open and shows no sign of life: end it."""


class RowError(RawseqError):
    """This row can never be made: it is recorded as rejected.

    Args:
        code: value of `tasks.rows.verdicts.Code`, e.g. `prompt_too_long`.
        message: what was expected and what came.
        offset: where, in ids from the start of the sequence or in characters of a message; -1 if nowhere.
    """

    def __init__(self, code: str, message: str, offset: int = -1) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = message
        self.offset = offset


class DataError(RawseqError):
    """Stored bytes are not what they claim to be: names the object, and the row or offset in it."""
