"""Rows over a scripted server on a real socket: each ends once, whatever the server does."""

import asyncio
import json
from collections import Counter

import attrs
import numpy as np
import pytest
from aiohttp import web

from tasks.errors import SurroundingsError, UnfaithfulError
from tasks.fleet.dispatch import Dispatch
from tasks.fleet.fleet import Fleet
from tasks.rows.records import Completion, Request
from tests.support.scripted import (
    PLAN,
    QUICK,
    VOCAB,
    ListLane,
    Scripted,
    assert_right,
    requests,
    scripted_server,
    settings,
)


async def _run(lane: ListLane, *servers: Scripted, max_attempts: int = 5, **options: object) -> Dispatch:
    async with Fleet(settings(*(s.url for s in servers), **options)) as fleet:  # type: ignore[arg-type]
        await fleet.ensure()
        async with Dispatch(fleet, PLAN.sampling, VOCAB, max_attempts) as dispatch:
            async with asyncio.timeout(120):
                await dispatch.run(lane)
        return dispatch


async def test_every_row_comes_back_once() -> None:
    """Fifty rows through a window of four that no look changes: right ids, unique rids, never more."""
    async with scripted_server() as server:
        four = asyncio.Event()

        async def gather(body: dict, before: int) -> None:
            if server.running == 4:
                four.set()
            await four.wait()

        server.hook = gather
        lane = ListLane(requests(50))
        dispatch = await _run(lane, server, patience=attrs.evolve(QUICK, poll_seconds=120.0))
        assert_right(lane)
        assert len({body["rid"] for body in server.rows}) == 50
        assert dispatch.stats().finished == 50
        assert server.most_running == 4


async def test_two_lanes_share_one_window() -> None:
    """A lane that waits for its slowest row does not keep another from being served."""
    async with scripted_server() as server:
        gate = asyncio.Event()

        async def hold(body: dict, before: int) -> None:
            if body["input_ids"][2] == 0:
                await gate.wait()

        server.hook = hold
        slow, quick = ListLane(requests(3)), ListLane(requests(30, first=3))
        async with Fleet(settings(server.url)) as fleet:
            await fleet.ensure()
            async with Dispatch(fleet, PLAN.sampling, VOCAB, 5) as dispatch:
                first = asyncio.ensure_future(dispatch.run(slow))
                async with asyncio.timeout(60):
                    await dispatch.run(quick)
                assert not first.done()
                gate.set()
                await first
        assert_right(slow)
        assert_right(quick)


async def test_follow_up_rows_are_sent() -> None:
    """A lane whose next turn becomes ready only when the last one finished is served to its end."""

    class Turns(ListLane):
        def __init__(self) -> None:
            super().__init__([])
            self.planned = {f"s:0#t{turn}~s0" for turn in range(4)}
            self.requests = [self.turn(0)]

        def turn(self, number: int) -> Request:
            return Request(f"s:0#t{number}~s0", np.array([1, number], np.int32), 8, seed=0, turn=number)

        def finished(self, completion: Completion) -> None:
            super().finished(completion)
            if len(self.completions) < 4:
                self.requests.append(self.turn(len(self.completions)))

    async with scripted_server() as server:
        lane = Turns()
        await _run(lane, server)
        assert_right(lane)


async def test_hungry_waits_for_room() -> None:
    """`hungry` returns while less than one window of rows is ready, and not before."""
    async with scripted_server() as server:
        gate = asyncio.Event()

        async def hold(body: dict, before: int) -> None:
            await gate.wait()

        server.hook = hold
        async with Fleet(settings(server.url)) as fleet:
            await fleet.ensure()
            async with Dispatch(fleet, PLAN.sampling, VOCAB, 5) as dispatch:
                await dispatch.hungry()
                lane = ListLane(requests(40))
                running = asyncio.ensure_future(dispatch.run(lane))
                waiting = asyncio.ensure_future(dispatch.hungry())
                await asyncio.wait([waiting], timeout=0.1)
                assert not waiting.done()
                gate.set()
                await waiting
                await running
        assert_right(lane)


async def test_cancelling_keeps_what_finished_and_aborts_the_rest() -> None:
    """Leaving a dispatch stops admitting, aborts what is in flight by rid, and doubles nothing."""
    async with scripted_server() as server:

        async def hold(body: dict, before: int) -> None:
            if before >= 6:
                await asyncio.Event().wait()

        server.hook = hold
        lane = ListLane(requests(20))
        async with Fleet(settings(server.url)) as fleet:
            await fleet.ensure()
            async with Dispatch(fleet, PLAN.sampling, VOCAB, 5) as dispatch:
                running = asyncio.ensure_future(dispatch.run(lane))
                while len(lane.completions) < 6 or server.running < 4:
                    await asyncio.wait([running], timeout=0.02)
                running.cancel()
                await asyncio.gather(running, return_exceptions=True)
        assert len(lane.completions) == 6
        done, held = ({body["rid"] for body in bodies} for bodies in (server.rows[:6], server.rows[6:]))
        assert held <= set(server.aborted)  # and what was on its way there
        assert not done & set(server.aborted)


async def test_ids_outside_the_vocabulary_are_never_sent() -> None:
    """One such id kills a server: the row is rejected here, the others go on."""
    async with scripted_server() as server:
        bad = Request("s:bad#t0~s0", np.array([1, VOCAB], np.int32), 8, seed=0)
        lane = ListLane([bad, *requests(3)])
        await _run(lane, server)
        assert lane.by_row()["s:bad#t0~s0"].code == "bad_record"
        assert all(VOCAB not in body["input_ids"] for body in server.rows)


async def test_a_lane_that_breaks_breaks_only_itself() -> None:
    """An error of the journal reaches whoever runs that lane; other lanes are served."""

    class Full(ListLane):
        def finished(self, completion: Completion) -> None:
            raise OSError(28, "No space left on device")

    async with scripted_server() as server:
        good = ListLane(requests(10))
        async with Fleet(settings(server.url)) as fleet:
            await fleet.ensure()
            async with Dispatch(fleet, PLAN.sampling, VOCAB, 5) as dispatch:
                broken = asyncio.ensure_future(dispatch.run(Full(requests(5, first=20))))
                await dispatch.run(good)
                with pytest.raises(OSError, match="No space"):
                    await broken
        assert_right(good)


async def test_an_outage_costs_no_attempts() -> None:
    """The server dies with rows in flight and comes back: every row once, none counted against."""
    async with scripted_server() as server:
        died = False

        async def die(body: dict, before: int) -> None:
            nonlocal died
            if before == 10 and not died:
                died = True
                server.bounce()
                await asyncio.Event().wait()

        server.hook = die
        lane = ListLane(requests(40))
        dispatch = await _run(lane, server)
        assert_right(lane)
        assert lane.failures == []
        assert dispatch.stats().outcomes["crash"] >= 1


async def test_a_dead_server_hands_its_rows_to_the_other() -> None:
    """Of two servers one dies for good: the other finishes the job."""
    async with scripted_server() as first, scripted_server() as second:

        async def die(body: dict, before: int) -> None:
            if before == 5:
                asyncio.get_running_loop().call_soon(lambda: asyncio.ensure_future(first.stop()))
                await asyncio.Event().wait()

        first.hook = die
        lane = ListLane(requests(60))
        await _run(lane, first, second)
        assert_right(lane)
        assert lane.failures == []


async def test_a_dead_fleet_says_which_and_for_how_long() -> None:
    """No server comes back within the limit: the run ends with the URL and the time."""
    async with scripted_server() as server:

        async def die(body: dict, before: int) -> None:
            asyncio.get_running_loop().call_soon(lambda: asyncio.ensure_future(server.stop()))
            await asyncio.Event().wait()

        server.hook = die
        with pytest.raises(SurroundingsError, match=rf"{server.url} for \d+ s"):
            await _run(ListLane(requests(4)), server, ready_timeout_seconds=1.0)


async def test_a_row_that_kills_servers_is_parked() -> None:
    """A server dies of one row whenever it comes: it is found, counted only alone, parked."""
    async with scripted_server() as server:

        async def die(body: dict, before: int) -> None:
            if body["input_ids"][2] == 7:
                server.bounce()
                await asyncio.Event().wait()

        server.hook = die
        lane = ListLane(requests(20))
        await _run(lane, server, max_attempts=2)
        rows = lane.by_row()
        assert rows.pop("s:7#t0~s0").code == "poison"
        assert all(c.sent for c in rows.values())
        assert {(row, alone) for row, outcome, alone in lane.failures} == {("s:7#t0~s0", True)}
        assert len(lane.failures) == 2


@pytest.mark.parametrize("killers", [{7}, {7, 8}, {18, 19}], ids=["one", "two neighbours", "the last two"])
async def test_rows_that_kill_servers_are_told_from_the_others(killers: set[int]) -> None:
    """Each is parked after its two crashes, although it also dies when it is the other's witness."""
    async with scripted_server() as server:

        async def die(body: dict, before: int) -> None:
            if body["input_ids"][2] in killers:
                server.bounce()
                await asyncio.Event().wait()

        server.hook = die
        lane = ListLane(requests(20))
        await _run(lane, server, max_attempts=2)
    rows, guilty = lane.by_row(), {f"s:{number}#t0~s0" for number in killers}
    assert {name for name, c in rows.items() if c.code == "poison"} == guilty
    assert Counter(lane.failures) == {(name, "crash", True): 2 for name in guilty}


async def test_a_crash_loop_blames_no_row() -> None:
    """The server dies of every row it is sent, eight times; then it is sound: no row is parked.

    The row before the first that is made may look guilty once.
    """
    async with scripted_server() as server:

        async def die(body: dict, before: int) -> None:
            if server.deaths < 8:
                server.bounce()
                await asyncio.Event().wait()

        server.hook = die
        lane = ListLane(requests(20))
        await _run(lane, server, max_attempts=2)
        assert_right(lane)
        assert server.deaths == 8
        assert len(lane.failures) <= 1


async def test_a_crash_loop_without_end_ends_the_run() -> None:
    """A server that never completes a row was never back: after the limit the run ends, no row is spent."""
    async with scripted_server() as server:

        async def die(body: dict, before: int) -> None:
            server.bounce()
            await asyncio.Event().wait()

        server.hook = die
        lane = ListLane(requests(40))
        with pytest.raises(SurroundingsError, match=rf"{server.url} for \d+ s"):
            await _run(lane, server, max_attempts=2, ready_timeout_seconds=3.0)
        assert (lane.failures, lane.completions) == ([], [])


async def test_changed_weights_end_the_run() -> None:
    """Rows of other weights are not kept: the server is shut out, the run ends with both versions."""
    async with scripted_server() as server:

        async def change(body: dict, before: int) -> web.Response | None:
            if before == 5:
                server.weights = "step-2"
            return None

        server.hook = change
        lane = ListLane(requests(20))
        with pytest.raises(UnfaithfulError, match=r"weights changed.*'default'.*'step-2'"):
            await _run(lane, server)
        assert {c.facts["weight_version"] for c in lane.completions} == {"default"}


async def test_samples_of_a_prompt_prefer_one_server() -> None:
    """Rows of one affinity go to one server while it has room."""
    async with scripted_server() as first, scripted_server() as second:
        for turn in range(6):
            lane = ListLane(requests(3, first=3 * turn, affinity="s:1"))
            await _run(lane, first, second)
        assert min(len(first.rows), len(second.rows)) == 0
        lane = ListLane(requests(40, first=30))
        await _run(lane, first, second)
        assert min(len(first.rows), len(second.rows)) >= 10


def test_payload_is_json_with_every_key() -> None:
    """What is sent is plain JSON with every sampling key explicit."""
    from tasks.sglang.protocol import SAMPLING_DEFAULTS, build_payload

    body = json.loads(build_payload(requests(1)[0], PLAN.sampling, "r" * 32, VOCAB, "0.5.23"))
    assert set(SAMPLING_DEFAULTS) | {"max_new_tokens", "sampling_seed"} == set(body["sampling_params"])


async def test_a_body_without_end_is_not_read_to_its_end() -> None:
    """A reply of endless bytes is cut at its bound and counts as a failed attempt; the row is made after."""
    async with scripted_server() as server:
        sent = 0

        async def flood(body: dict, before: int) -> web.StreamResponse | None:
            nonlocal sent
            if before != 2:
                return None
            answer = web.StreamResponse()
            await answer.prepare(server.requests[-1])
            while sent < 1 << 28:
                await answer.write(b"9," * 65536)
                sent += 1 << 17
            return answer

        server.hook = flood
        lane = ListLane(requests(8))
        await _run(lane, server)
        assert_right(lane)
        assert [outcome for _, outcome, _ in lane.failures] == ["malformed"]
        assert sent < 1 << 26


async def test_a_reply_that_drips_is_given_up_after_its_deadline() -> None:
    """Bytes that come for ever without an end: given up, aborted by rid, made again."""
    async with scripted_server() as server:

        async def drip(body: dict, before: int) -> web.StreamResponse | None:
            if before != 2:
                await asyncio.sleep(0.02)
                return (
                    web.json_response(server.reply(body) | {"output_ids": [10] * 16}) if before < 2 else None
                )
            answer = web.StreamResponse()
            await answer.prepare(server.requests[-1])
            while True:
                await answer.write(b" ")
                await asyncio.sleep(0.05)

        server.hook = drip
        lane = ListLane(requests(8))
        await _run(lane, server, patience=attrs.evolve(QUICK, deadline_floor_seconds=0.3))
        assert {c.row_id for c in lane.completions} == lane.planned
        assert [outcome for _, outcome, _ in lane.failures] == ["lost"]
        assert len(server.aborted) == 1


async def test_the_window_grows_until_a_row_waits_and_shrinks_on_refusal() -> None:
    """A server that runs twelve but told four: the window finds the twelve; 503s take it down again.

    Rows stay on the server until the window has settled, so that nothing depends on how fast this machine is.
    """
    async with scripted_server() as server:
        server.slots = 12
        grown, fallen = asyncio.Event(), asyncio.Event()

        async def stay(body: dict, before: int) -> web.StreamResponse | None:
            await grown.wait()
            return None

        async def full(body: dict, before: int) -> web.StreamResponse | None:
            if server.running > 6:
                return web.json_response({"message": "The request queue is full."}, status=503)
            await fallen.wait()
            return None

        server.hook = stay
        lane = ListLane(requests(60))
        async with Fleet(settings(server.url)) as fleet:
            await fleet.ensure()
            async with Dispatch(fleet, PLAN.sampling, VOCAB, 5) as dispatch, asyncio.timeout(60):
                running = asyncio.ensure_future(dispatch.run(lane))
                while sum(waiting > 0 for waiting in server.waiting_seen) < 5:
                    await asyncio.wait([running], timeout=0.02)
                limit = fleet.servers[0].window.limit
                server.hook = full
                grown.set()
                while fleet.servers[0].window.limit > 6:
                    await asyncio.wait([running], timeout=0.02)
                fallen.set()
                await running
    assert 12 <= limit <= 12 + 4 + 1  # the rows it runs, the most that should wait, one step
    assert_right(lane)
    assert lane.failures == []


@pytest.mark.parametrize(("earlier", "code"), [(1, ""), (2, "poison"), (3, "poison")])
async def test_attempts_of_earlier_runs_count(earlier: int, code: str) -> None:
    """One more failure parks a row that failed before; one that had spent all is not sent again."""
    async with scripted_server() as server:

        async def fail(body: dict, before: int) -> web.Response | None:
            return web.Response(status=500) if body["input_ids"][2] == 1 and earlier == 2 else None

        server.hook = fail
        lane = ListLane(requests(4), attempts={"s:1#t0~s0": earlier})
        await _run(lane, server, max_attempts=3)
        assert lane.by_row()["s:1#t0~s0"].code == code
        assert sum(body["input_ids"][2] == 1 for body in server.rows) == (0 if earlier == 3 else 1)
        assert len([c for c in lane.completions if c.sent]) == (3 if code else 4)
