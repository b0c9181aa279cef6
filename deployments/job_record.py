"""Reads `job.json` back: the vocabulary and grammar that a stored dataset was made with."""

from collections.abc import Sequence
from typing import Any

import orjson

from deployments.store_argument import opened_store
from tasks.errors import DataError, IdentityError, JobError
from tasks.jobfile import build_job, with_settings
from tasks.spec import JobSpec
from tasks.storage.store import ObjectStore
from tasks.tokens.grammar import Grammar, discover_grammar
from tasks.tokens.mixture import read_mix
from tasks.tokens.vocabulary import Vocabulary, load_vocabulary


def job_record(store: ObjectStore) -> dict[str, Any]:
    """Return `job.json`.

    Raises:
        DataError: when it is not the JSON object that the schema page describes.
    """
    try:
        record = orjson.loads(store.get("job.json"))
        record["spec"], record["resolved"]["tokenizer"]
    except (orjson.JSONDecodeError, KeyError, TypeError) as error:
        raise DataError(f"{store.uri}/job.json: expected a job record, got {error!r}") from None
    if not isinstance(record, dict):
        raise DataError(f"{store.uri}/job.json: expected an object, got {type(record).__name__}")
    return record


def job_of(store: ObjectStore) -> JobSpec:
    """Return the `JobSpec` that the store's job was made with."""
    return build_job(job_record(store)["spec"], f"{store.uri}/job.json")


def stored_job(argument: str, settings: Sequence[str]) -> JobSpec:
    """Return the job of a STORE argument, changed by `path=value` settings.

    Raises:
        JobError: no job there, its prefix was renamed, or a setting is wrong.
    """
    with opened_store(argument) as store:
        job, uri = job_of(store), store.uri
    parent, _, last = uri.rpartition("/")
    if last != job.job_id:
        raise JobError(f"{uri}: expected the job's prefix to be named {job.job_id}, got {last!r}")
    # what job.json says of the store is where the job began; a moved or copied dataset is STORE itself
    data = with_settings(job.model_dump() | {"store": job.store.model_dump() | {"uri": parent}}, settings)
    return build_job(data, f"{uri}/job.json")


def vocabulary_of(store: ObjectStore) -> Vocabulary:
    """Load the tokenizer that the stored job names.

    Raises:
        IdentityError: when the tokenizer that loads here is not the one that made the dataset: shows both.
    """
    record = job_record(store)
    vocabulary = load_vocabulary(job_of(store).model)
    made, here = record["resolved"]["tokenizer"], vocabulary.describe()
    for key in ("class", "size", "files", "template_sha256"):
        if made[key] != here[key]:
            raise IdentityError(f"{store.uri}: tokenizer {key}: made with {made[key]}, here {here[key]}")
    return vocabulary


def grammar_of(store: ObjectStore) -> Grammar:
    """Discover the grammar of the stored job's tokenizer, after proving that it is the same one."""
    mixes = read_mix(job_of(store).sampling.mix)
    return discover_grammar(vocabulary_of(store), [mix.template_args for mix in mixes])
