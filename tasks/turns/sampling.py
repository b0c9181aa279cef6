"""How tokens are drawn, resolved field by field, and how many may be drawn for one row."""

import hashlib
from typing import Any

import attrs

from tasks.errors import JobError, RowError
from tasks.grammar.grammar import Grammar
from tasks.job.spec import SamplingSpec
from tasks.rows.lengths import LengthLimits
from tasks.rows.verdicts import Code
from tasks.tokenizer.vocabulary import Vocabulary

THINKING_CAP = 32_768
ANSWER_CAP = 4_096
"""Default max_new_tokens with and without reasoning (decisions 4)."""


@attrs.frozen(slots=True)
class ResolvedSampling:
    """Every sampling field that is sent; `/generate` applies no defaults of the model (SGLang 0.5.23).

    Args:
        temperature: 0 is greedy.
        top_p: nucleus share, in (0, 1].
        top_k: most likely ids kept; -1 keeps all.
        min_p: least share of the best id's probability.
        repetition_penalty: 1 is none.
        max_new_tokens: cap of a row; `row_cap` clamps it to the context.
        seed: the job's; a row's own is `row_seed`.
    """

    temperature: float
    top_p: float
    top_k: int
    min_p: float
    repetition_penalty: float
    max_new_tokens: int
    seed: int

    def payload(self) -> dict[str, Any]:
        """Return the job-wide part of `sampling_params`; a row's cap and seed ride on its request."""
        return {
            "temperature": self.temperature,
            "top_p": self.top_p,
            "top_k": self.top_k,
            "min_p": self.min_p,
            "repetition_penalty": self.repetition_penalty,
            "max_new_tokens": self.max_new_tokens,
            "frequency_penalty": 0.0,
            "presence_penalty": 0.0,
        }


def resolve_sampling(spec: SamplingSpec, vocabulary: Vocabulary, grammar: Grammar) -> ResolvedSampling:
    """Fill what the job leaves out from generation_config.json, then from SGLang's neutral values.

    A model whose generation_config says `do_sample: false` is greedy unless the job names a temperature.

    Raises:
        JobError: when a resolved value is outside what a server accepts.
    """
    defaults = vocabulary.generation_defaults
    greedy = defaults.get("do_sample") is False

    def resolved(name: str, neutral: float) -> float:
        given = getattr(spec, name)
        if given is None:
            given = None if greedy else defaults.get(name)
        return float(neutral if given is None else given)

    top_k = int(resolved("top_k", -1))
    sampling = ResolvedSampling(
        temperature=resolved("temperature", 0.0 if greedy else 1.0),
        top_p=resolved("top_p", 1.0),
        top_k=-1 if top_k == 0 else top_k,  # transformers writes "all" as 0, SGLang as -1
        min_p=resolved("min_p", 0.0),
        repetition_penalty=resolved("repetition_penalty", 1.0),
        max_new_tokens=spec.max_new_tokens or (THINKING_CAP if grammar.thinking else ANSWER_CAP),
        seed=spec.seed,
    )
    if not 0 < sampling.top_p <= 1 or sampling.temperature < 0 or sampling.top_k < -1:
        raise JobError(f"sampling: generation_config.json resolves to what no server accepts: {sampling}")
    return sampling


def row_seed(job_seed: int, row_id: str) -> int:
    """Return the seed of a row, in [0, 2**63): the first 8 bytes of sha256 over both, big-endian.

    A stable hash of the job's seed and the row id, never of an attempt: a retried row draws the same noise.
    """
    digest = hashlib.sha256(f"{job_seed}:{row_id}".encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


def keeps_logprobs(job_seed: int, row_id: str, share: float) -> bool:
    """Whether a row is among the share whose log probabilities are kept: by hash, whatever the order."""
    digest = hashlib.sha256(f"logprobs:{job_seed}:{row_id}".encode()).digest()
    return int.from_bytes(digest[:8], "big") < share * 2**64


def row_cap(limits: LengthLimits, cap: int, prompt_length: int) -> int:
    """Return max_new_tokens of a row: `cap`, or what the context leaves (SGLang cuts silently past it).

    Raises:
        RowError: `prompt_too_long` when the prompt leaves no room, or no server would take it.
    """
    longest = limits.longest_prompt
    if longest is not None and prompt_length > longest:
        raise RowError(
            Code.PROMPT_TOO_LONG, f"expected a prompt of at most {longest} ids, got {prompt_length}", longest
        )
    return limits.cap(cap, prompt_length)
