"""The files that a job's prompts section names, found and opened as its sources."""

from collections.abc import Mapping

from tasks.errors import JobError
from tasks.job.spec import PromptsSpec, StoreSpec
from tasks.prompts.files import Finder
from tasks.prompts.record import IDS, SHAPES, SourceFile
from tasks.prompts.sources import Sources


def open_sources(
    prompts: PromptsSpec,
    store: StoreSpec | None = None,
    credentials: Mapping[str, str] | None = None,
) -> Sources:
    """Find the prompt files that `prompts.sources` and `prompts.exclude` name.

    Args:
        prompts: the job's section.
        store: `s3://` sources are read from the endpoint of the job's store; None leaves it to the AWS chain.
        credentials: of that endpoint, as in `open_store`.

    Raises:
        SourceError: a source names no file, or a file of an unknown kind.
        JobError: `prompts.fields` has a name that is none of ours.
    """
    known = (*SHAPES, "tools", *IDS)
    for ours in prompts.fields:
        if ours not in known:
            raise JobError(f"prompts.fields: expected our names ({', '.join(known)}), got {ours!r}")
    finder = Finder(store, credentials)
    files: dict[str, SourceFile] = {}
    parts: dict[str, int] = {}
    for index, part in enumerate(prompts.parts):
        for uri, file in finder.find(part.uri, f"prompts.sources[{index}]"):
            files.setdefault(uri, file)
            parts.setdefault(uri, index)
    exclude = {
        uri: file
        for index, address in enumerate(prompts.exclude)
        for uri, file in finder.find(address, f"prompts.exclude[{index}]")
    }
    return Sources(prompts, files, parts, exclude)
