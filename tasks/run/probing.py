"""The probe's question in the job's own ids: where `tokens` hands `serving` what it must not know itself."""

import numpy as np

from tasks.fleet.ensure import wait_ready
from tasks.grammar.grammar import Grammar, discover_grammar
from tasks.job.spec import ModelSpec, SamplingSpec, ServersSpec
from tasks.sglang.client import Access, ServerClient
from tasks.sglang.fingerprint import TEXT, asked_ids
from tasks.sglang.judge import QUESTION, ProbePlan
from tasks.sglang.probe import ProbeReport, probe_server
from tasks.sglang.settings import api_key_of
from tasks.tokenizer.template import render
from tasks.tokenizer.vocabulary import Vocabulary, load_vocabulary
from tasks.turns.sampling import ResolvedSampling, resolve_sampling


def probe_plan(
    vocabulary: Vocabulary, grammar: Grammar, sampling: ResolvedSampling, tokenizer: str
) -> ProbePlan:
    """Return the first user's own question ("What is 2+2?") as every server is asked it before any row."""
    question = render(vocabulary, [{"role": "user", "content": QUESTION}])
    return ProbePlan(
        input_ids=question,
        closer_ids=grammar.closer_ids,
        end_ids=tuple(sorted(grammar.end_ids)),
        vocab_size=vocabulary.size,
        sampling=sampling.payload(),
        name_of=vocabulary.name_of,
        decode=vocabulary.decode,
        tokenizer=tokenizer,
        fingerprint_ids=asked_ids(
            question,
            np.array(vocabulary.dialect.encode(TEXT), np.int32),
            vocabulary.size,
            frozenset(vocabulary.control_ids.values()),
        ),
    )


async def probe_one(model: ModelSpec, servers: ServersSpec) -> ProbeReport:
    """Probe the one server of `servers` with the tokenizer of `model`; changes nothing there.

    Raises:
        TokenizerError: the tokenizer cannot be loaded.
        SurroundingsError: the server did not answer within `servers.ready_timeout_seconds`.
    """
    vocabulary = load_vocabulary(model)
    grammar = discover_grammar(vocabulary)
    sampling = resolve_sampling(SamplingSpec(), vocabulary, grammar)
    access = Access(api_key_of(servers), servers.connect_timeout_seconds, servers.info_timeout_seconds)
    async with ServerClient(servers.urls[0], access) as client:
        await wait_ready(client, servers.ready_timeout_seconds)
        plan = probe_plan(vocabulary, grammar, sampling, model.tokenizer)
        return await probe_server(client, plan, await client.info())
