"""Reads `job.json` back: the job, and the vocabulary and grammar that a stored dataset was made with."""

from typing import Any

import orjson

from tasks.errors import DataError, IdentityError
from tasks.grammar.grammar import Grammar, discover_grammar
from tasks.job.jobfile import build_job
from tasks.job.spec import JobSpec
from tasks.ledger.plan import check_schema
from tasks.store.contract import ObjectStore
from tasks.tokenizer.vocabulary import Vocabulary, load_vocabulary
from tasks.turns.mix import read_mix


def job_record(store: ObjectStore) -> dict[str, Any]:
    """Return `job.json`.

    Raises:
        DataError: when it is not the JSON object that the schema page describes, or of a higher schema.
    """
    where = f"{store.uri}/job.json"
    try:
        record = orjson.loads(store.get("job.json"))
        check_schema(record, where)
        record["job_id"], record["spec"], record["resolved"]["tokenizer"]
    except (orjson.JSONDecodeError, KeyError, TypeError) as error:
        raise DataError(f"{where}: expected a job record, got {error!r}") from None
    return dict(record)


def job_of(store: ObjectStore) -> JobSpec:
    """Return the `JobSpec` that the store's job was made with."""
    return build_job(job_record(store)["spec"], f"{store.uri}/job.json")


def vocabulary_of(store: ObjectStore) -> Vocabulary:
    """Load the tokenizer that the stored job names.

    Raises:
        IdentityError: when the tokenizer that loads here is not the one that made the dataset: shows both.
    """
    record = job_record(store)
    vocabulary = load_vocabulary(job_of(store).model)
    made, here = record["resolved"]["tokenizer"], vocabulary.describe()
    for key in ("class", "size", "files", "template_sha256"):
        if made.get(key) != here[key]:
            raise IdentityError(f"{store.uri}: tokenizer {key}: made with {made.get(key)}, here {here[key]}")
    return vocabulary


def grammar_of(store: ObjectStore) -> Grammar:
    """Discover the grammar of the stored job's tokenizer, after proving that it is the same one."""
    mixes = read_mix(job_of(store).sampling.mix)
    return discover_grammar(vocabulary_of(store), [mix.template_args for mix in mixes])
