"""The load of a bench: prompts, reply lengths, service times, slots; the same for stub and clients."""

import json
import math
import os
import pickle
import statistics
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import attrs

from tasks.grammar.grammar import discover_grammar
from tasks.job.spec import ModelSpec, SamplingSpec
from tasks.rows.lengths import LengthLimits
from tasks.rows.verdicts import Code
from tasks.tokenizer.vocabulary import load_vocabulary
from tasks.turns.conversations import plan_conversations
from tasks.turns.next_turn import Step, Work
from tasks.turns.sampling import resolve_sampling
from tests.support.talk import Talk

KINDS = 256
"""Different replies of a load; a row's prompt picks one."""

MODEL = ModelSpec(
    tokenizer=str(Path(__file__).parents[2] / "deployments" / "standin" / "model"),
    template_args={"thinking": True},
)


@attrs.frozen(slots=True)
class Load:
    """What a server is asked to do.

    Args:
        lengths: ids per reply: `fixed:N` or `lognormal:MEDIAN:SIGMA:CAP`.
        service: seconds per reply, in the same notation; `fixed:0` answers at once.
        slots: rows that are served at once.
        told: slots that the server admits to; 0: it tells neither slots nor loads.
        prompt: ids per prompt.
        seed: of everything drawn.
    """

    lengths: str = "fixed:2048"
    service: str = "fixed:0"
    slots: int = 256
    told: int = 256
    prompt: int = 500
    seed: int = 0

    def as_json(self) -> str:
        """Return its fields as JSON, as the stub's command line takes them."""
        return json.dumps(attrs.asdict(self))


def read_load(text: str) -> Load:
    """Return the load of a JSON object."""
    return Load(**json.loads(text))


def spread(notation: str) -> list[float]:
    """Return `KINDS` values: the middles of as many equal shares of the distribution."""
    name, *numbers = notation.split(":")
    values = [float(number) for number in numbers]
    if name == "fixed":
        return values * KINDS
    median, sigma, cap = values
    normal = statistics.NormalDist()
    return [min(cap, median * math.exp(sigma * normal.inv_cdf((i + 0.5) / KINDS))) for i in range(KINDS)]


@attrs.frozen(slots=True)
class Record:
    """One source record of a bench."""

    record_id: str
    messages: tuple[dict[str, str], ...]
    source: str = "bench"
    tools: None = None
    metadata: str = "{}"
    error: str = ""
    code: Code = Code.BAD_RECORD


def records(load: Load, rows: int, first: int = 0) -> list[Record]:
    """Return records whose prompts have about `load.prompt` ids, each another."""
    words = " ".join(f"item {i % 10}" for i in range(load.prompt // 3))
    return [
        Record(str(i), ({"role": "user", "content": f"Number {i}. {words}"},))
        for i in range(first, first + rows)
    ]


_FOLDER = "RAWSEQ_BENCH_RENDERED"


@contextmanager
def rendered_once() -> Iterator[None]:
    """Let every client of every round send the same rows, rendered once: it costs more than sending them."""
    if _FOLDER in os.environ:
        yield
        return
    with tempfile.TemporaryDirectory(prefix="rawseq-bench-") as folder:
        os.environ[_FOLDER] = folder
        try:
            yield
        finally:
            del os.environ[_FOLDER]


class _RenderedTalk(Talk):
    """A batch's conversations; where they lead is kept in a file inside `rendered_once`."""

    name = ""

    def steps(self, works: Sequence[Work]) -> list[Step]:
        """Return where works lead."""
        folder = os.environ.get(_FOLDER)
        if folder is None:
            return super().steps(works)
        path = Path(folder) / self.name
        if path.exists():
            kept: list[Step] = pickle.loads(path.read_bytes())
            return kept
        steps = super().steps(works)
        path.write_bytes(pickle.dumps(steps))
        return steps


def batch_turns(load: Load, rows: int, first: int = 0) -> Talk:
    """Return the conversations of a batch, as a run makes them."""
    vocabulary = load_vocabulary(MODEL)
    grammar = discover_grammar(vocabulary)
    resolved = resolve_sampling(SamplingSpec(max_new_tokens=1 << 16), vocabulary, grammar)
    conversations = plan_conversations(records(load, rows, first), "each", 1)
    talk = _RenderedTalk(conversations, vocabulary, grammar, resolved, LengthLimits(1 << 20, None, None))
    talk.name = f"{load.prompt}-{first}-{rows}"
    return talk
