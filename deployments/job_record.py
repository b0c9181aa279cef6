"""The job of a STORE argument, as the verbs that make rows again need it."""

from collections.abc import Sequence

from deployments.store_argument import opened_store
from tasks.errors import JobError
from tasks.jobfile import build_job, with_settings
from tasks.spec import JobSpec
from tasks.stored import grammar_of, job_of, job_record, vocabulary_of

__all__ = ["grammar_of", "job_of", "job_record", "stored_job", "vocabulary_of"]


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
