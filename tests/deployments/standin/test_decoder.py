"""The numpy decoder: equal to transformers, and blind to its neighbours."""

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deployments.standin.arguments import MODEL
from deployments.standin.generation import Generation, Stops
from deployments.standin.network import ROWS, Network
from deployments.standin.noise import gumbel
from deployments.standin.sampling import Choice, Row, sample
from deployments.standin.stepper import Stepper
from deployments.standin.weights import load

GREEDY = Path(__file__).parents[2] / "data" / "standin_greedy.json"  # made by train/golden.py, origin inside
VECTORS = json.loads(GREEDY.read_text())["vectors"]
END = 2036  # <|im_end|>


@pytest.fixture(scope="module")
def stepper() -> Stepper:
    """One decoder with two groups of slots."""
    return Stepper(Network(load(MODEL), 2, 1024))


def generation(prompt: list[int], choice: Choice, limit: int = 96) -> Generation:
    """A generation that ends with <|im_end|>."""
    return Generation("rid", prompt, choice, Stops(limit, frozenset({END})))


def advance(stepper: Stepper, held: list[Generation | None]) -> None:
    """One step; finished generations leave their slots."""
    for pick in stepper.step(held):
        pick.generation.output.append(pick.token)
        if pick.token == END or len(pick.generation.output) == pick.generation.stops.limit:
            pick.generation.finish = {"type": "stop"}
            held[pick.slot] = None


def alone(stepper: Stepper, one: Generation, slot: int = 0) -> list[int]:
    """The ids of a generation that has the decoder to itself."""
    held: list[Generation | None] = [None] * stepper.slots
    held[slot] = one
    stepper.clear(slot)
    while one.finish is None:
        advance(stepper, held)
    return one.output


@pytest.mark.parametrize("vector", VECTORS, ids=[f"{len(v['input_ids'])} ids" for v in VECTORS])
def test_greedy_ids_equal_transformers(stepper: Stepper, vector: dict[str, Any]) -> None:
    """Greedy decoding in float32 gives the ids of transformers on the same folder."""
    assert alone(stepper, generation(vector["input_ids"], Choice(temperature=0))) == vector["output_ids"]


@pytest.mark.parametrize("seed", range(2))
def test_ids_do_not_depend_on_neighbours(stepper: Stepper, seed: int) -> None:
    """The same request alone, and among others that come at random times to random slots: the same ids."""
    rng = random.Random(seed)
    requests = [
        (
            rng.choice(VECTORS)["input_ids"],
            Choice(
                temperature=rng.choice((0.0, 0.7, 1.0)),
                top_p=rng.choice((0.9, 1.0)),
                seed=rng.getrandbits(60),
            ),
            rng.randint(5, 30),
        )
        for _ in range(50)
    ]
    crowd = [generation(*request) for request in requests]
    waiting, held = list(crowd), [None] * stepper.slots
    while any(g.finish is None for g in crowd):
        free = [slot for slot, holder in enumerate(held) if holder is None]
        rng.shuffle(free)
        for slot in free[: rng.randint(0, 6)]:
            if waiting:
                held[slot] = waiting.pop()  # type: ignore[call-overload]
                stepper.clear(slot)
        advance(stepper, held)  # type: ignore[arg-type]
    picked = [crowd[i] for i in rng.sample(range(50), 8)]
    for among in picked:
        by_itself = generation(among.prompt, among.choice, among.stops.limit)
        assert alone(stepper, by_itself, slot=rng.randrange(stepper.slots)) == among.output


def test_logits_are_equal_bit_for_bit_in_every_slot(stepper: Stepper) -> None:
    """A row's logits have the same bits in every slot and beside any neighbour."""
    network, context = stepper.network, np.array(VECTORS[4]["input_ids"])
    bits = set()
    for slot in (0, 5, ROWS - 1, ROWS, 2 * ROWS - 1):
        start = 0
        while start < len(context):
            start += len(network.prefill(slot, context, start))
        for others in (-1, 3, 700):
            tokens, positions = np.full(ROWS, 9), np.full(ROWS, others)
            tokens[slot % ROWS], positions[slot % ROWS] = 17, len(context)
            logits = network.logits(network.decode(slot // ROWS, tokens, positions))
            bits.add(logits[slot % ROWS].tobytes())
    assert len(bits) == 1


LOGITS = np.array([[0.0, 1.0, 2.0, 3.0]], np.float32)
PROBABILITIES = np.exp(LOGITS[0]) / np.exp(LOGITS[0]).sum()  # 0.03, 0.09, 0.24, 0.64


def draws(
    choice: dict[str, Any], count: int = 4000, output: tuple[int, ...] = (), logits: Any = LOGITS
) -> np.ndarray[Any, np.dtype[np.intp]]:
    """How often each id is drawn over many seeds."""
    rows = [Row(seed, Choice(**choice, seed=seed), [1], output) for seed in range(count)]
    return np.bincount(sample(np.repeat(logits, count, axis=0), rows), minlength=logits.shape[1])


ALLOWED = {
    "greedy": ({"temperature": 0.0}, {3}),
    "top_k 1": ({"top_k": 1}, {3}),
    "top_k 2": ({"top_k": 2}, {2, 3}),
    "top_p 0.5": ({"top_p": 0.5}, {3}),
    "top_p 0.7": ({"top_p": 0.7}, {2, 3}),
    "top_k 3 then top_p 0.9": ({"top_k": 3, "top_p": 0.9}, {2, 3}),
    "min_p 0.3": ({"min_p": 0.3}, {2, 3}),
    "bias": ({"logit_bias": ((0, 1000.0),)}, {0}),
    "ban on an early end": ({"min_new_tokens": 1, "banned_early": (3, 2)}, {0, 1}),
    "cold": ({"temperature": 0.05}, {3}),
}


@pytest.mark.parametrize(("choice", "allowed"), ALLOWED.values(), ids=ALLOWED)
def test_choice_restricts_ids(choice: dict[str, Any], allowed: set[int]) -> None:
    """Each sampling field lets exactly the ids through that its definition names."""
    assert set(np.flatnonzero(draws(choice, 600))) == allowed


def test_draws_follow_the_distribution() -> None:
    """Over many seeds the frequencies are the softmax of the logits."""
    assert np.allclose(draws({}) / 4000, PROBABILITIES, atol=0.025)


def test_penalties_push_used_ids_down() -> None:
    """Presence, frequency and repetition penalties make ids that occurred rarer."""
    for penalty in ({"presence_penalty": 2.0}, {"frequency_penalty": 1.0}, {"repetition_penalty": 1.8}):
        assert draws(penalty, 600, output=(3, 3))[3] < 0.75 * draws({}, 600)[3]


def test_wide_top_p_takes_the_slow_path_to_the_same_end() -> None:
    """A flat distribution, whose nucleus is wider than the first look, is cut where its definition says."""
    flat = np.linspace(0, 1e-3, 1000, dtype=np.float32)[None]
    picked = np.flatnonzero(draws({"top_p": 0.5}, 3000, logits=flat))
    assert picked.min() >= 499
    assert len(picked) > 400


@given(seed=st.integers(0, 2**63 - 1), position=st.integers(0, 10**6), column=st.integers(0, 10**6))
@settings(max_examples=50)
def test_noise_is_a_function_of_its_keys(seed: int, position: int, column: int) -> None:
    """Noise of (seed, position, column) is finite and the same whatever is asked for beside it."""
    keys = [np.array([value], np.uint64) for value in (seed, position, column)]
    pairs = [np.array([1, value], np.uint64) for value in (seed, position, column)]
    assert np.isfinite(gumbel(*keys)).all()
    assert gumbel(*keys)[0] == gumbel(*pairs)[1]
