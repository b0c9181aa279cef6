"""The prompts of a job exactly as they would be sent, and what would be refused: no server, no store."""

from collections.abc import Iterator, Mapping
from itertools import islice

import attrs

from tasks.grammar.grammar import Grammar, discover_grammar
from tasks.job.spec import JobSpec
from tasks.ledger.plan import Plan
from tasks.prompts.opening import open_sources
from tasks.prompts.plan_batches import new_batches
from tasks.prompts.record import Record
from tasks.rows.lengths import LengthLimits
from tasks.rows.records import Completion, Request
from tasks.tokenizer.vocabulary import Vocabulary, load_vocabulary
from tasks.turns.conversations import plan_conversations
from tasks.turns.mix import Mix, read_mix
from tasks.turns.next_turn import TurnRules, Work, next_step
from tasks.turns.sampling import resolve_sampling

RECORDS_AT_ONCE = 64


@attrs.frozen(slots=True, eq=False)
class Preview:
    """First rows of a job: requests as they would be sent, and rows that never would be.

    Args:
        vocabulary: the job's.
        grammar: the job's.
        rows: in plan order; a `Completion` here is a refused row with its code.
    """

    vocabulary: Vocabulary
    grammar: Grammar
    rows: Iterator[Request | Completion]


def preview(spec: JobSpec, count: int, credentials: Mapping[str, str] | None = None) -> Preview:
    """Render the first prompts of a job, planned as a first run would: same order, same refusals.

    Later turns, whose prompts hang on answers, are not among them.

    Args:
        spec: the job.
        count: source records to look at.
        credentials: of `s3://` prompts, as in `open_store`.

    Raises:
        SourceError: a prompt file is missing, empty or malformed, as a run would say it.
        TokenizerError: the tokenizer cannot be loaded or is provably the wrong one.
    """
    vocabulary = load_vocabulary(spec.model)
    mixes = read_mix(spec.sampling.mix)
    grammar = discover_grammar(vocabulary, [mix.template_args for mix in mixes])
    records = islice(_records(spec, count, credentials), count)
    return Preview(vocabulary, grammar, _rows(spec, vocabulary, grammar, mixes, records))


def _records(spec: JobSpec, count: int, credentials: Mapping[str, str] | None) -> Iterator[Record]:
    """Yield the records of the first batches as planned: in order, with `error` where nothing is sent."""
    sources = open_sources(spec.prompts, spec.store, credentials)
    whole_batches = -(-count // spec.batch.rows) * spec.batch.rows  # a batch is mixed as a whole
    limit = min(whole_batches, spec.prompts.limit or whole_batches)
    first = spec.model_copy(update={"prompts": spec.prompts.model_copy(update={"limit": limit})})
    for batch in new_batches(sources, first, Plan(spec.job_id), resolved_sha256=""):
        yield from sources.read(batch)


def _rows(
    spec: JobSpec,
    vocabulary: Vocabulary,
    grammar: Grammar,
    mixes: tuple[Mix, ...],
    records: Iterator[Record],
) -> Iterator[Request | Completion]:
    sampling = resolve_sampling(spec.sampling, vocabulary, grammar)
    rules = TurnRules(sampling, LengthLimits(), spec.model.control_tokens, spec.tools.match, mixes)
    while part := list(islice(records, RECORDS_AT_ONCE)):
        conversations = plan_conversations(part, spec.prompts.turns, spec.sampling.samples)
        for conversation in conversations:
            step = next_step(vocabulary, grammar, rules, Work(conversation))
            yield from step.unsent if step.request is None else (step.request,)
