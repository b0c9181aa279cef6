"""The job of a STORE argument, as the verbs that make rows again need it."""

from collections.abc import Sequence

from deployments.cli.arguments import Access, opened_store
from tasks.dataset.stored import grammar_of, job_of, job_record, vocabulary_of
from tasks.errors import JobError
from tasks.job.jobfile import build_job, with_settings
from tasks.job.spec import JobSpec

__all__ = ["grammar_of", "job_of", "job_record", "stored_job", "vocabulary_of"]


def stored_job(argument: str, settings: Sequence[str], access: Access) -> JobSpec:
    """Return the job of a STORE argument, changed by `path=value` settings and what was typed of its store.

    Raises:
        JobError: no job there, its prefix was renamed, or a setting is wrong.
    """
    with opened_store(argument, access) as (store, _):
        job, uri = job_of(store), store.uri
    parent, _, last = uri.rpartition("/")
    if last != job.job_id:
        raise JobError(f"{uri}: expected the job's prefix to be named {job.job_id}, got {last!r}")
    # what job.json says of the store is where the job began; a moved or copied dataset is STORE itself
    section = job.store.model_dump() | {"uri": parent} | access.given()
    data = with_settings(job.model_dump() | {"store": section}, settings)
    return build_job(data, f"{uri}/job.json")
