"""Sampling resolved field by field, lengths that no server cuts or refuses, mixtures by hash."""

from collections import Counter
from typing import Any

import attrs
import pytest

from tasks.errors import JobError, RowError
from tasks.grammar.check import check_row
from tasks.grammar.grammar import discover_grammar
from tasks.job.spec import SamplingSpec
from tasks.rows.lengths import LengthLimits
from tasks.turns.conversations import plan_conversations
from tasks.turns.mix import choose_mix, read_mix
from tasks.turns.sampling import resolve_sampling, row_cap, row_seed
from tests.support.answers import answer
from tests.support.families import Load
from tests.support.talk import Talk
from tests.tasks.turns.test_turns import Record, reply, user


@pytest.mark.parametrize(
    ("given", "defaults", "expected"),
    [
        pytest.param({}, {}, {"temperature": 1.0, "top_p": 1.0, "top_k": -1, "min_p": 0.0}, id="neutral"),
        pytest.param({}, {"temperature": 0.6, "top_k": 20}, {"temperature": 0.6, "top_k": 20}, id="models"),
        pytest.param({"temperature": 0.2}, {"temperature": 0.6}, {"temperature": 0.2}, id="jobs-first"),
        pytest.param({"temperature": 0.0}, {"temperature": 0.6}, {"temperature": 0.0}, id="greedy-asked"),
        pytest.param(
            {}, {"do_sample": False, "temperature": 0.6}, {"temperature": 0.0}, id="model-is-greedy"
        ),
        pytest.param({}, {"top_k": 0}, {"top_k": -1}, id="all-as-zero"),
        pytest.param({}, {"repetition_penalty": 1.05}, {"repetition_penalty": 1.05}, id="penalty"),
    ],
)
def test_what_the_job_leaves_out_is_the_models(
    given: dict[str, Any], defaults: dict[str, Any], expected: dict[str, Any], load: Load
) -> None:
    """Job, then generation_config.json, then neutral; every field is sent."""
    vocabulary, grammar = load("stand-in", True)
    vocabulary = attrs.evolve(vocabulary, generation_defaults=defaults)
    payload = resolve_sampling(SamplingSpec(**given), vocabulary, grammar).payload()
    assert expected.items() <= payload.items()
    assert {
        "temperature",
        "top_p",
        "top_k",
        "min_p",
        "repetition_penalty",
        "max_new_tokens",
    } <= payload.keys()


def test_what_no_server_accepts_is_refused(load: Load) -> None:
    """A generation_config.json with nonsense stops the job before anything is sent."""
    vocabulary, grammar = load("stand-in", True)
    vocabulary = attrs.evolve(vocabulary, generation_defaults={"top_p": 0.0})
    with pytest.raises(JobError, match="no server accepts"):
        resolve_sampling(SamplingSpec(), vocabulary, grammar)


def test_the_cap_follows_the_mode(load: Load) -> None:
    """Reasoning gets more room than an answer."""
    caps = [
        resolve_sampling(SamplingSpec(), *load("qwen3", thinking)).max_new_tokens
        for thinking in (True, False)
    ]
    assert caps == [32_768, 4_096]


@pytest.mark.parametrize(
    ("limits", "cap", "prompt", "expected"),
    [
        pytest.param(LengthLimits(4096, 4090, None), 96, 4000, 94, id="sglang-would-cut-to-94"),
        pytest.param(LengthLimits(4096, 4090, None), 50, 4000, 50, id="fits"),
        pytest.param(LengthLimits(4096, 4090, 3000), 4000, 100, 2898, id="kv-pool-is-less"),
        pytest.param(LengthLimits(4096, 4090, None), 50, 4089, 5, id="longest-prompt"),
        pytest.param(LengthLimits(4096, 4090, None), 50, 4090, None, id="one-too-long"),
        pytest.param(LengthLimits(), 50, 10**6, 50, id="nothing-known"),
        pytest.param(LengthLimits(100, None, None), 50, 93, 5, id="input-limit-derived"),
        pytest.param(LengthLimits(100, None, None), 50, 94, None, id="input-limit-derived-too-long"),
    ],
)
def test_row_cap(limits: LengthLimits, cap: int, prompt: int, expected: int | None) -> None:
    """What is asked is what a server gives (SGLang 0.5.23's length arithmetic), or the row is not sent."""
    if expected is None:
        with pytest.raises(RowError, match=f"got {prompt}") as caught:
            row_cap(limits, cap, prompt)
        assert caught.value.code == "prompt_too_long"
    else:
        assert row_cap(limits, cap, prompt) == expected


def test_the_tightest_server_counts() -> None:
    """Any row may go to any server, so the least of each limit holds."""
    servers = [LengthLimits(4096, 4090, None), LengthLimits(2048, 2042, 9000)]
    assert LengthLimits.widest(servers) == LengthLimits(4096, 4090, None)
    assert LengthLimits.widest([*servers, LengthLimits()]) == LengthLimits()
    assert LengthLimits.widest([]) == LengthLimits()


def test_row_seeds_are_stable() -> None:
    """A row's seed is a hash that no later version may change: jobs resume across versions."""
    assert row_seed(0, "test:1#t0~s0") == 182874677911899753
    assert len({row_seed(seed, f"r{i}") for seed in range(3) for i in range(1000)}) == 3000
    assert all(0 <= row_seed(7, f"r{i}") < 2**63 for i in range(1000))


def test_a_mixture_is_drawn_by_weight_and_hash() -> None:
    """Shares follow the weights, and a conversation's choice never changes."""
    mixes = read_mix([{"weight": 3, "temperature": 0.6}, {"weight": 1, "temperature": 1.0, "name": "hot"}])
    names = [f"s:{i}~s0" for i in range(4000)]
    chosen = [choose_mix(mixes, 0, name) for name in names]
    assert chosen == [choose_mix(mixes, 0, name) for name in names]
    counts = Counter(mix.name for mix in chosen if mix)
    assert 0.70 < counts["0"] / 4000 < 0.80
    assert choose_mix((), 0, "x") is None


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        pytest.param([{"temprature": 1}], r"sampling\.mix\.0\.temprature: expected", id="unknown"),
        pytest.param(
            [{"weight": 0}], r"sampling\.mix\.0\.weight: expected a number above 0, got 0", id="weight"
        ),
        pytest.param([{"name": "a"}, {"name": "a"}], "names must be unique", id="names"),
    ],
)
def test_wrong_mixtures_are_named(entries: list[dict[str, Any]], message: str) -> None:
    """A mistake in the mixture names entry and field."""
    with pytest.raises(JobError, match=message):
        read_mix(entries)


@pytest.mark.parametrize("family", ["stand-in", "qwen3"])
def test_reasoning_on_and_off_in_one_job(family: str, load: Load) -> None:
    """Rows of both modes are rendered, checked by their own prompt's tail, and say which they are."""
    vocabulary, _ = load(family, True)
    switch = next(iter(vocabulary.template_args))
    mixes = read_mix(
        [
            {"name": "on", "template_args": {switch: True}},
            {"name": "off", "template_args": {switch: False}, "temperature": 0.1, "max_new_tokens": 7},
        ]
    )
    grammar = discover_grammar(vocabulary, [mix.template_args for mix in mixes])
    assert {tail.mode for tail in grammar.tails} >= {"closed", grammar.default.mode}
    resolved = resolve_sampling(SamplingSpec(max_new_tokens=50), vocabulary, grammar)
    records = [Record((user("a"), user("b")), str(i), metadata='{"k": 1}') for i in range(20)]
    turns = Talk(
        plan_conversations(records, "each", 1), vocabulary, grammar, resolved, LengthLimits(), mixes=mixes
    )
    seen = set()
    for request, metadata in zip(turns.open({})[0], turns.metadata[::2], strict=True):
        tail = grammar.tail_of(request.input_ids)
        assert tail is not None
        off = tail.mode == "closed"
        assert metadata == ('{"k":1,"mix":"off"}' if off else '{"k":1,"mix":"on"}')
        assert (request.max_new_tokens, request.sampling) == ((7, {"temperature": 0.1}) if off else (50, {}))
        told = answer(attrs.evolve(grammar, default=tail))
        row = reply(vocabulary, request, told)
        assert check_row(grammar, row).code == "complete"
        following, _ = turns.follow(row)
        assert following is not None
        assert grammar.tail_of(following.input_ids) is tail
        seen.add(off)
    assert seen == {True, False}


@pytest.mark.parametrize(
    ("entry", "expected"),
    [
        pytest.param(
            {"temperature": "hot"}, "sampling.mix.1.temperature: expected a valid number", id="word"
        ),
        pytest.param({"temperature": 99}, "sampling.mix.1.temperature: expected less than", id="too-hot"),
        pytest.param({"top_k": 0}, "sampling.mix.1.top_k: expected -1", id="top-k-zero"),
        pytest.param(
            {"max_new_tokens": "x"}, "sampling.mix.1.max_new_tokens: expected a valid integer", id="cap"
        ),
        pytest.param({"template_args": ["thinking"]}, "sampling.mix.1.template_args", id="args-are-a-list"),
    ],
)
def test_a_mixture_that_servers_would_refuse_is_refused_first(
    entry: dict[str, object], expected: str
) -> None:
    """A wrong value is named before any row is sent: otherwise every row of it would be poison."""
    with pytest.raises(JobError) as caught:
        read_mix([{"temperature": 0}, entry])
    assert expected in str(caught.value)
