"""Rows as conversations for trainers of text: the stored ids decoded, the prompt's messages from its source.

The lesser form: a trainer that tokenizes text again may get other ids than the model made, and may write
other things around them. Kept for trainers that read nothing else.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import attrs
import orjson

from tasks.dataset.shard import ShardRows
from tasks.dataset.shard_reader import decode_rejected, decode_shard
from tasks.errors import DataError, IdentityError
from tasks.export.files import ExportRow
from tasks.export.pinned import PinnedBatch
from tasks.export.told import Answered, conversation_line, told_messages
from tasks.grammar.grammar import Grammar, discover_grammar
from tasks.job.jobfile import build_job
from tasks.job.spec import JobSpec
from tasks.ledger.ledger import Ledger
from tasks.ledger.plan import Plan
from tasks.prompts.opening import open_sources
from tasks.prompts.planned import name_sources
from tasks.prompts.sources import Sources
from tasks.rows.records import Verdict
from tasks.store.contract import ObjectStore, canonical, sha256_hex
from tasks.tokenizer.vocabulary import Vocabulary, load_vocabulary
from tasks.turns.conversations import Conversation, plan_conversations
from tasks.turns.mix import read_mix


@attrs.frozen(slots=True, eq=False)
class _Told:
    """What is needed of one store."""

    store: ObjectStore
    spec: JobSpec
    vocabulary: Vocabulary
    grammar: Grammar
    plan: Plan
    sources: Sources

    @classmethod
    def open(cls, store: ObjectStore, credentials: Mapping[str, str] | None) -> "_Told":
        job = Ledger(store, "").job()
        spec = build_job(job["spec"], f"{store.uri}/job.json")
        vocabulary = load_vocabulary(spec.model)
        here, made = vocabulary.describe(), job["resolved"]["tokenizer"]
        for key in ("size", "files", "template_sha256"):
            if here[key] != made[key]:
                raise IdentityError(f"{store.uri}: tokenizer {key}: made with {made[key]}, here {here[key]}")
        variants = [mix.template_args for mix in read_mix(spec.sampling.mix)]
        plan = Ledger(store, str(job["job_id"])).plan()
        sources = open_sources(spec.prompts, spec.store, credentials)
        sources.seal = (plan.job_id, sha256_hex(canonical(job["resolved"])))
        name_sources(sources, plan)
        return cls(store, spec, vocabulary, discover_grammar(vocabulary, variants), plan, sources)


class Conversations:
    """Makes rows into lines of `specforge-conversations`; see `Teller`.

    Args:
        stores: jobs' own prefixes, with their prompt files still where the job names them.
        credentials: of each store.

    Raises:
        SourceError: a prompt file is gone.
        IdentityError: the tokenizer that loads here is not the one that made the rows.
    """

    def __init__(
        self, stores: Sequence[ObjectStore], credentials: Sequence[Mapping[str, str] | None]
    ) -> None:
        self._stores = [_Told.open(store, keys) for store, keys in zip(stores, credentials, strict=True)]
        self._at: tuple[int, int] | None = None
        self._now = self._stores[0]
        self._places: dict[str, tuple[Conversation, int]] = {}
        self._rows: Answered = {}

    def enter(self, store: int, batch: PinnedBatch) -> None:
        """Read a batch's records and answers: an answer's history lies in other rows."""
        told = self._now = self._stores[store]
        records = told.sources.read(told.plan.batches[batch.batch])
        spec = told.spec
        found = plan_conversations(records, spec.prompts.turns, spec.sampling.samples)
        self._places = {name: (each, turn) for each in found for turn, name in enumerate(each.row_ids)}
        rows: dict[str, Any] = {}
        for entry, decode in ((batch.shard, decode_shard), (batch.rejected, decode_rejected)):
            if entry is not None:
                rows |= _answered(decode(told.store.get(entry.key), entry.key))
        self._rows = rows

    def line(self, row: ExportRow) -> bytes:
        """Return a row's conversation up to its answer as one line of JSON."""
        name, told = row.example.row_id, self._now
        place = self._places.get(name)
        if place is None:
            raise DataError(f"{told.store.uri}: expected {name} among its batch's records, got none")
        conversation, turn = place
        match = told.spec.tools.match
        messages = told_messages(told.vocabulary, told.grammar, conversation, turn, self._rows, match)
        return orjson.dumps(conversation_line(name, messages, conversation.tools)) + b"\n"


def _answered(rows: ShardRows) -> dict[str, Any]:
    return {
        name: (rows.completion(index), Verdict(rows.verdicts[index], -1, rows.segments[index]))
        for index, name in enumerate(rows.row_ids)
    }
