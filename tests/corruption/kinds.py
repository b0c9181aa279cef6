"""How token data gets corrupted: each kind takes one correct row and returns it as it would then arrive.

A kind that cannot happen to a row (no opener to strip) returns None.
"""

import random
from collections.abc import Callable, Sequence

import attrs
import numpy as np

from tasks.grammar.check import check_row
from tasks.grammar.grammar import Grammar
from tasks.grammar.states import Symbol
from tasks.rows.records import Completion, Ids, as_ids
from tasks.tokenizer.plain import encode_plain
from tasks.tokenizer.vocabulary import Vocabulary


@attrs.frozen(eq=False)
class Row:
    """A correct row, and what its corruptions need to know.

    Args:
        vocabulary: of its family.
        grammar: of its family.
        prompt: int32[n].
        output: int32[m], correct.
        other: int32[k]: another correct output to the same prompt.
        dice: the seeded source of positions.
    """

    vocabulary: Vocabulary
    grammar: Grammar
    prompt: Ids
    output: Ids
    other: Ids
    dice: random.Random

    def at(self, *symbols: Symbol) -> list[int]:
        """Return where the output holds ids of these meanings."""
        marks = self.grammar.symbols[self.output]
        return [int(i) for i in np.flatnonzero(np.isin(marks, [int(s) for s in symbols]))]

    def controls(self) -> list[int]:
        """Return where the output holds control ids."""
        plain = [int(Symbol.TEXT), int(Symbol.SPELLED)]
        return [int(i) for i in np.flatnonzero(~np.isin(self.grammar.symbols[self.output], plain))]

    def closer(self) -> slice | None:
        """Return where the output closes reasoning, None where it does not."""
        at = self.at(Symbol.CLOSE, Symbol.BLOCK_END)
        if at:
            return slice(at[0], at[0] + 1)
        verdict = check_row(self.grammar, self.arrived(self.output))
        start = self.prompt.size
        spelled = [s for s in verdict.segments if s.kind == "closer"]
        return slice(spelled[0].start - start, spelled[0].stop - start) if spelled else None

    def texts(self) -> list[int]:
        """Return where the output holds ordinary ids that are not white space."""
        ids = self.output
        return [int(i) for i in np.flatnonzero((self.grammar.symbols[ids] == 0) & ~self.grammar.blank[ids])]

    def arrived(
        self,
        output: Ids | Sequence[int],
        prompt: Ids | Sequence[int] | None = None,
        finish: str = "stop",
        counted: tuple[int, int] | None = None,
    ) -> Completion:
        """Return the row as it arrives: the server counted what it made, ours is what came of it."""
        prompt = self.prompt if prompt is None else as_ids(np.asarray(prompt))
        made = (self.prompt.size, self.output.size) if counted is None else counted
        facts = {"prompt_tokens": made[0], "completion_tokens": made[1], "finish_reason": {"type": finish}}
        if finish == "stop":
            facts["finish_reason"]["matched"] = int(self.output[-1])
        return Completion(
            "r",
            prompt,
            np.asarray(output, np.int32),
            finish,
            int(self.output[-1]) if finish == "stop" else None,
            facts=facts,
        )


Kind = Callable[[Row], Completion | None]


def _without(ids: Ids, at: int) -> list[int]:
    return [*ids[:at].tolist(), *ids[at + 1 :].tolist()]


def _with(ids: Ids, at: int, *added: int) -> list[int]:
    return [*ids[:at].tolist(), *added, *ids[at:].tolist()]


def _replaced(ids: Ids, at: int, id: int) -> list[int]:
    return [*ids[:at].tolist(), id, *ids[at + 1 :].tolist()]


def drop_closer(row: Row) -> Completion | None:
    """The closer is filtered out of the stream."""
    closer = row.closer()
    return row.arrived(np.delete(row.output, closer)) if closer else None


def drop_control(row: Row) -> Completion | None:
    """One control id anywhere is lost."""
    at = row.controls()
    return row.arrived(_without(row.output, row.dice.choice(at))) if at else None


def insert_control(row: Row) -> Completion | None:
    """A control id slips in between two ids."""
    plain = [int(Symbol.TEXT), int(Symbol.SPELLED)]
    control = row.dice.choice(np.flatnonzero(~np.isin(row.grammar.symbols, plain)).tolist())
    return row.arrived(_with(row.output, row.dice.randrange(row.output.size), control))


def duplicate_control(row: Row) -> Completion | None:
    """A control id arrives twice (a retried chunk of a stream)."""
    at = row.dice.choice(row.controls())
    return row.arrived(_with(row.output, at, int(row.output[at])))


def swap_opener_and_closer(row: Row) -> Completion | None:
    """Opener and closer are taken for each other."""
    opener, closer = row.grammar.opener_ids, row.grammar.closer_ids
    at = row.at(Symbol.CLOSE)
    return row.arrived(_replaced(row.output, at[0], opener[0])) if at and len(closer) == 1 else None


def swap_controls(row: Row) -> Completion | None:
    """Two different control ids change places."""
    at = row.controls()
    pairs = [(a, b) for a in at for b in at if a < b and row.output[a] != row.output[b]]
    if not pairs:
        return None
    first, second = row.dice.choice(pairs)
    ids = row.output.copy()
    ids[[first, second]] = ids[[second, first]]
    return row.arrived(ids)


def strip_opener(row: Row) -> Completion | None:
    """The opener that the model had to emit is gone, or the template's is not in the prompt."""
    at = row.at(Symbol.OPEN)
    if at:
        return row.arrived(_without(row.output, at[0]))
    if row.grammar.default.mode == "open":
        opener = int(np.flatnonzero(row.prompt == row.grammar.opener_ids[0])[-1])
        return row.arrived(row.output, _without(row.prompt, opener))
    return None


def strip_end(row: Row) -> Completion | None:
    """The end id is trimmed off, as text detokenizers do."""
    return row.arrived(row.output[:-1])


def strip_all_controls(row: Row) -> Completion | None:
    """`skip_special_tokens`, then encoded again: no control id is left."""
    return row.arrived(np.delete(row.output, row.controls()))


def retokenize(row: Row) -> Completion | None:
    """Ids to text and back, control tokens kept; text ids split otherwise than the model did."""
    texts = [i for i in row.texts() if len(row.vocabulary.decode([int(row.output[i])])) > 1]
    if not texts:
        return None
    at = row.dice.choice(texts)
    text = row.vocabulary.decode([int(row.output[at])])
    halves = [*encode_plain(row.vocabulary, text[:1]), *encode_plain(row.vocabulary, text[1:])]
    return row.arrived(_with(np.asarray(_without(row.output, at), np.int32), at, *halves))


def retokenize_same_length(row: Row) -> Completion | None:
    """The same, where by chance as many ids come back."""
    at = row.dice.choice(row.texts())
    return row.arrived(_replaced(row.output, at, int(row.output[row.dice.choice(row.texts())])))


def join_two_outputs(row: Row) -> Completion | None:
    """Two rows' outputs run into one another."""
    return row.arrived([*row.output.tolist(), *row.other.tolist()])


def shift_boundary_left(row: Row) -> Completion | None:
    """The last prompt id is counted into the output."""
    return row.arrived([int(row.prompt[-1]), *row.output.tolist()], row.prompt[:-1])


def shift_boundary_right(row: Row) -> Completion | None:
    """The first output id is counted into the prompt."""
    return row.arrived(row.output[1:], [*row.prompt.tolist(), int(row.output[0])])


def echo(count: int) -> Kind:
    """SGLang 0.5.1 to 0.5.4: the last ids of the prompt stand in front of the output."""

    def kind(row: Row) -> Completion | None:
        return row.arrived([*row.prompt[-count:].tolist(), *row.output.tolist()])

    kind.__doc__ = f"The prompt's last {count} ids stand in front of the output."
    return kind


def beyond_vocabulary(row: Row) -> Completion | None:
    """An id past the vocabulary (padding rows of the embedding)."""
    return row.arrived(_replaced(row.output, row.dice.choice(row.texts()), row.grammar.size))


def negative_id(row: Row) -> Completion | None:
    """A masked id (-100) or an overflow."""
    return row.arrived(_replaced(row.output, row.dice.choice(row.texts()), -100))


def truncated_as_stop(row: Row) -> Completion | None:
    """The row is cut, but still said to have stopped."""
    return row.arrived(row.output[: row.dice.randrange(1, row.output.size - 1)])


def lost_text_id(row: Row) -> Completion | None:
    """One ordinary id is lost."""
    return row.arrived(_without(row.output, row.dice.choice(row.texts())))


def lost_prompt_id(row: Row) -> Completion | None:
    """One ordinary id of the prompt is lost between sending and storing."""
    return row.arrived(row.output, _without(row.prompt, 1))


def swapped_text_ids(row: Row) -> Completion | None:
    """Two ordinary ids change places."""
    first, second = row.dice.sample(row.texts(), 2)
    ids = row.output.copy()
    ids[[first, second]] = ids[[second, first]]
    return row.arrived(ids)


def text_after_end(row: Row) -> Completion | None:
    """Ids follow the end (speculative tokens past the stop, SGLang before 0.5.4)."""
    return row.arrived([*row.output.tolist(), *row.output[:3].tolist()])


def next_turn_started(row: Row) -> Completion | None:
    """The model goes on and writes the user's turn itself."""
    turns = np.flatnonzero(np.isin(row.grammar.symbols, [int(Symbol.TURN), int(Symbol.START)]))
    if turns.size == 0:
        return None
    ids = [*row.output[:-1].tolist(), int(turns[0]), *row.output[:3].tolist(), int(row.output[-1])]
    return row.arrived(ids, counted=(row.prompt.size, len(ids)))


def loop_to_the_cap(row: Row) -> Completion | None:
    """The model repeats itself until the cap."""
    start = row.texts()[0]
    cycle = row.output[start : start + row.dice.randrange(1, 4)]
    ids = [*row.output[: start + 1].tolist(), *np.resize(cycle, 400).tolist()]
    return row.arrived(ids, finish="length", counted=(row.prompt.size, len(ids)))


def nan_sampled(row: Row) -> Completion | None:
    """The sampler saw NaN; the server put an end id over the bad one."""
    completion = row.arrived(row.output)
    completion.facts["finish_reason"]["matched"] = "NaN happened"
    return completion


def aborted(row: Row) -> Completion | None:
    """An aborted request's partial ids come as a reply."""
    return row.arrived(row.output[:3], finish="abort", counted=(row.prompt.size, 3))


def empty(row: Row) -> Completion | None:
    """No id came."""
    return row.arrived([], counted=(row.prompt.size, 0))


def other_rows_output(row: Row) -> Completion | None:
    """The output belongs to another prompt."""
    return row.arrived(row.other, counted=(row.prompt.size, row.other.size))


KINDS: dict[str, Kind] = {
    "drop closer": drop_closer,
    "drop a control id": drop_control,
    "insert a control id": insert_control,
    "duplicate a control id": duplicate_control,
    "opener for closer": swap_opener_and_closer,
    "swap two control ids": swap_controls,
    "strip opener": strip_opener,
    "strip end": strip_end,
    "strip all control ids": strip_all_controls,
    "re-tokenize": retokenize,
    "re-tokenize, same length": retokenize_same_length,
    "join two outputs": join_two_outputs,
    "boundary one left": shift_boundary_left,
    "boundary one right": shift_boundary_right,
    **{f"echo {count} prompt ids": echo(count) for count in range(1, 6)},
    "id past the vocabulary": beyond_vocabulary,
    "negative id": negative_id,
    "cut but said to stop": truncated_as_stop,
    "lose a text id": lost_text_id,
    "lose a prompt id": lost_prompt_id,
    "swap two text ids": swapped_text_ids,
    "ids after the end": text_after_end,
    "next turn inside": next_turn_started,
    "loop to the cap": loop_to_the_cap,
    "NaN": nan_sampled,
    "aborted": aborted,
    "empty": empty,
    "another row's output": other_rows_output,
}
