"""One row's control ids through the grammar's states: a pure finite automaton with segments as its trace."""

from copy import copy

from tasks.grammar.grammar import Grammar
from tasks.grammar.scan import LONG_GAP
from tasks.grammar.states import (
    BLANK_ONLY,
    CUT,
    ENDS_SEGMENT,
    FAULT,
    FIRST,
    OWN_SEGMENT,
    SEGMENT,
    STATE_FAULT,
    Mode,
    State,
    Symbol,
)
from tasks.grammar.texts import TEXT_FAULT, Form
from tasks.rows.records import Ids
from tasks.rows.verdicts import Code

_SYMBOLS = tuple(Symbol)
_ENDED = (State.COMPLETE, State.COMPLETE_TOOLS)


class Walk:
    """Reads one output.

    Args:
        grammar: the job's.
        output: int32[m].
        mode: what the prompt's tail says of reasoning.

    `segments` tile [0, m) as (kind, start, stop) once `result` was asked. `shareable` says whether rows with
    equal marks and gaps walk the same way: nothing hung on what other ids say.
    """

    __slots__ = (
        *("_at", "_grammar", "_mode", "_output", "_rules", "_state", "_texts", "_untold"),
        *("fault", "segments", "shareable"),
    )

    def __init__(self, grammar: Grammar, output: Ids, mode: Mode) -> None:
        self._grammar = grammar
        self._rules = grammar.rules
        self._output = output
        self._mode = mode
        self._state = FIRST[mode]
        self._at = 0
        self._texts = grammar.texts
        self._untold: tuple[int, list[Symbol]] | None = None
        self.shareable = not grammar.qualified
        self.fault: tuple[Code, int, str] | None = None
        self.segments: list[tuple[str, int, int]] = []

    def read(self, events: list[int], marks: list[int]) -> None:
        """Follow the control ids at `events` with meanings `marks` until the first fault or the end."""
        for at, mark in zip(events, marks, strict=True):
            self._step(at, _SYMBOLS[mark])
            if self.fault is not None:
                return
        if self._state in _ENDED:
            if self._at < self._output.size:
                self.fail(Code.AFTER_END, self._at, "ids follow the end of the turn")
        else:
            self._end_of_cut()

    def _step(self, at: int, symbol: Symbol) -> None:
        state = self._state
        if state in _ENDED:
            self.fail(Code.AFTER_END, self._at, "ids follow the end of the turn")
            return
        width = 1
        if self._grammar.qualified:
            qualified = self._qualify(at, symbol)
            if qualified is None:  # ordinary text, or the row was cut before its meaning was told
                return
            symbol, width = qualified
        self._follow(at, symbol, width)

    def _follow(self, at: int, symbol: Symbol, width: int) -> None:
        state = self._state
        start, blank = self._at, self._gap(at)
        if self.fault is not None:
            return
        if state is State.MAY_OPEN and symbol is not Symbol.OPEN and (state, symbol) not in STATE_FAULT:
            state = State.CONTENT
        if forms := self._texts.get((state, symbol)):
            state = self._read_text(forms, state, start, at, blank)
            if self.fault is not None:
                return
        following = self._rules.get((state, symbol))
        if following is None or (state is State.MAY_OPEN and not blank):
            if not self._begins(state, self._output[start:at]):
                self._fail_text(state, start)
                return
            code = STATE_FAULT.get((state, symbol)) or FAULT.get(symbol, Code.CONTROL_UNEXPECTED)
            self.fail(code, at, f"{symbol.name.lower()} in {state.name.lower()}: id {int(self._output[at])}")
            return
        if blank and not self._may_be_empty(state, symbol, at):
            return
        if state is State.MAY_OPEN and self.segments:  # white space in front of an opener belongs to it
            self.segments = [("opener", start, at)]
        owner = state if symbol in ENDS_SEGMENT else following
        self._push(OWN_SEGMENT.get(symbol) or self._kind(owner), at, at + width)
        self._state = following
        self._at = at + width

    def _read_text(self, forms: tuple[Form, ...], state: State, start: int, at: int, blank: bool) -> State:
        """Return the state in which the id at `at` is read, by the text in front of it."""
        for form in forms:
            if form.pattern is None:
                if not blank:
                    return state
                continue
            self.shareable = False
            if form.fits(self._grammar.read(self._output[start:at])):
                return state if form.leads is None else form.leads
        self._fail_text(state, start)
        return state

    def _begins(self, state: State, ids: Ids) -> bool:
        """Return whether what may stand in a state can begin so."""
        forms = [form for (owner, _), some in self._texts.items() if owner is state for form in some]
        if not forms or state is State.CONTENT:
            return True
        self.shareable = False
        text = self._grammar.read(ids)
        return any(form.begins(text) for form in forms)

    def _end_of_cut(self) -> None:
        """Take what the cut left behind the last control id whose meaning is told, if it can stand there."""
        start = self._at
        if self._untold is not None and self._texts:
            faults = [self._tried(self._untold[0], meaning) for meaning in self._untold[1]]
            self.fault = faults[0] if None not in faults else None
        elif not self._begins(self._state, self._output[start:]):
            self._fail_text(self._state, start)
        if self.fault is None:
            self._gap(self._output.size)

    def _tried(self, at: int, symbol: Symbol) -> tuple[Code, int, str] | None:
        """Return the fault that a row would have if the id at `at` meant this, and change nothing."""
        trial = copy(self)
        trial.segments = list(self.segments)
        trial._follow(at, symbol, 1)
        return trial.fault

    def _fail_text(self, state: State, start: int) -> None:
        detail = f"this text, or none, cannot stand in {state.name.lower()}"
        self.fail(TEXT_FAULT.get(state, Code.TOOLS_UNBALANCED), start, detail)

    def _may_be_empty(self, state: State, symbol: Symbol, at: int) -> bool:
        if state is State.REASONING and symbol in (Symbol.CLOSE, Symbol.BLOCK_END):
            self.fail(Code.REASONING_EMPTY, at, "reasoning is closed before it says anything")
        elif state in (State.CONTENT, State.MAY_OPEN) and symbol in (Symbol.END, Symbol.TOOL_END):
            self.fail(Code.CONTENT_EMPTY, at, "the turn ends before it says anything")
        elif state in (State.CALL, State.ARGUMENT, State.BARE_CALL) and symbol is not Symbol.INSIDE:
            self.fail(Code.TOOLS_UNBALANCED, at, "a tool call without a name or arguments")
        return self.fault is None

    def _gap(self, until: int) -> bool:
        """Take the ids from here to `until` into the state's segment; return whether all are white space."""
        if until == self._at:
            return True
        gap = self._output[self._at : until]
        blank = until - self._at <= LONG_GAP and bool(self._grammar.blank[gap].all())
        if not blank and self._state in BLANK_ONLY:
            solid = int((~self._grammar.blank[gap]).argmax())
            code = BLANK_ONLY[self._state]
            self.fail(code, self._at + solid, f"text in {self._state.name.lower()}")
            return False
        self._push(self._kind(self._state), self._at, until)
        self._at = until
        return blank

    def _qualify(self, at: int, symbol: Symbol) -> tuple[Symbol, int] | None:
        """Return what an id means in front of those that follow, and how many ids say it.

        None when the row ends before that is told, or when it spells nothing.
        """
        id, size = int(self._output[at]), self._output.size
        untold: list[Symbol] = []
        for first, following, meaning in self._grammar.qualified:
            if first == id:
                came = tuple(self._output[at + 1 : at + 1 + len(following)].tolist())
                if came == following and not untold:
                    return meaning, 1 + len(following) if symbol is Symbol.SPELLED else 1
                if at + 1 + len(came) == size and following[: len(came)] == came:
                    untold.append(meaning)
        if untold and symbol is not Symbol.SPELLED:
            self._untold = at, untold
        return None if untold or symbol is Symbol.SPELLED else (symbol, 1)

    def _kind(self, state: State) -> str:
        return SEGMENT.get(state, "tool_calls")

    def _push(self, kind: str, start: int, stop: int) -> None:
        if self.segments and self.segments[-1][0] == kind:
            start = self.segments.pop()[1]
        self.segments.append((kind, start, stop))

    def fail(self, code: Code, at: int, detail: str) -> None:
        """Note the first fault, at an index into the output."""
        self.fault = (code, at, detail)

    def result(self) -> tuple[Code, int, str]:
        """Return (code, offset into the output or -1, detail), and let the segments tile the output."""
        if (self.segments[-1:] and self.segments[-1][2] < self._output.size) or not self.segments:
            start = self.segments[-1][2] if self.segments else 0
            if start < self._output.size:
                self._push("unknown", start, self._output.size)
        if self.fault is not None:
            return self.fault
        if self._state is State.COMPLETE:
            return Code.COMPLETE, -1, ""
        if self._state is State.COMPLETE_TOOLS:
            return Code.COMPLETE_TOOLS, -1, ""
        code = CUT.get(self._state, Code.CUT_IN_TOOLS)
        return code, self._output.size, "cut by length"
