"""Prompts are rendered beside the event loop, on a thread or in processes that come and go cleanly."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import attrs
import psutil
import pytest

from tasks.errors import IdentityError, LaterError
from tasks.grammar.grammar import Grammar, discover_grammar
from tasks.job.spec import ModelSpec, SamplingSpec
from tasks.rows.lengths import LengthLimits
from tasks.run import processes as processes_module
from tasks.run import rendering
from tasks.run.processes import Knowledge
from tasks.run.rendering import Renderers
from tasks.tokenizer.vocabulary import Vocabulary, load_vocabulary
from tasks.turns.conversations import plan_conversations
from tasks.turns.next_turn import Step, TurnRules, Work, next_step
from tasks.turns.sampling import resolve_sampling
from tests.bench.render import measure
from tests.support.answers import answer
from tests.support.model_folders import tiny_kimi_folder
from tests.tasks.turns.test_turns import Record, reply, said, user

ROOT = Path(__file__).resolve().parents[3]
SECONDS = 60.0

ENCODER = '''
"""A prompt that says which process rendered it; the last message may ask it to wait, or to die."""
import os, time
from pathlib import Path

HERE = Path(__file__).resolve().parent

def encode_messages(messages, thinking_mode="chat"):
    last = messages[-1]["content"]
    while last == "wait" and not (HERE / "go").exists():
        time.sleep(0.005)
    if last.startswith("die"):
        deaths = HERE / "deaths"
        deaths.write_text(deaths.read_text() + "x" if deaths.exists() else "x")
        if last != "die once" or deaths.read_text() == "x":
            os._exit(9)
    turns = "".join(f"<|im_user|>{m['role']}<|im_middle|>{m['content']}<|im_end|>" for m in messages)
    return f"{os.getpid()}: {turns}<|im_assistant|>assistant<|im_middle|><think>"
'''


@attrs.frozen(eq=False)
class Job:
    """A model whose prompts name their process.

    Args:
        folder: of its encoder, where it finds what it waits for.
        vocabulary: of a Kimi-shaped tokenizer.
        grammar: its grammar.
        rules: of its rows.
        knowledge: how a process gets them.
    """

    folder: Path
    vocabulary: Vocabulary
    grammar: Grammar
    rules: TurnRules
    knowledge: Knowledge

    def renderers(self, processes: int | None) -> Renderers:
        """Return renderers for this job."""
        return Renderers(self.vocabulary, self.grammar, self.knowledge, processes)

    def steps(self, *works: Work) -> list[Step]:
        """Return where works lead, without renderers."""
        return [next_step(self.vocabulary, self.grammar, self.rules, work) for work in works]

    def prompt(self, step: Step) -> str:
        """Return a step's prompt as text, without the process that made it."""
        assert step.request is not None
        return self.vocabulary.decode(step.request.input_ids.tolist()).partition(": ")[2]

    def maker(self, step: Step) -> int:
        """Return which process made it."""
        assert step.request is not None
        return int(self.vocabulary.decode(step.request.input_ids.tolist()).partition(":")[0])


def job_in(root: Path) -> Job:
    """Lay a model out below `root` and load it."""
    folder = tiny_kimi_folder(root)
    (folder / "chat_template.jinja").unlink()
    (folder / "encoding").mkdir()
    (folder / "encoding" / "encoding_who.py").write_text(ENCODER)
    model = ModelSpec(tokenizer=str(folder), trust_remote_code=True)
    vocabulary = load_vocabulary(model)
    grammar = discover_grammar(vocabulary)
    rules = TurnRules(resolve_sampling(SamplingSpec(), vocabulary, grammar), LengthLimits())
    return Job(folder / "encoding", vocabulary, grammar, rules, Knowledge(model, (), vocabulary.describe()))


def asked(*questions: str) -> list[Work]:
    """Return the work of asking each question in a conversation of its own."""
    records = [Record((user(text), said("x"), user("And?")), str(i)) for i, text in enumerate(questions)]
    return [Work(conversation) for conversation in plan_conversations(records, "each", 1)]


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Job:
    """One model for the module."""
    return job_in(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module", params=[0, 1], ids=["thread", "process"])
def processes(request: pytest.FixtureRequest) -> int:
    """How many processes render."""
    return int(request.param)


@pytest.fixture
async def renderers(job: Job, processes: int) -> AsyncIterator[Renderers]:
    """Renderers that are closed after the test."""
    async with job.renderers(processes) as opened:
        yield opened


@pytest.mark.process
async def test_steps_are_the_same_wherever_they_are_made(
    job: Job, renderers: Renderers, processes: int
) -> None:
    """First prompts and next turns come in order, and are those that this very thread would make."""
    first = asked(*(f"Question {i}" for i in range(3 * rendering.AT_ONCE + 1)))
    made, expected = await renderers.run(job.rules, first), job.steps(*first)
    assert [job.prompt(step) for step in made] == [job.prompt(step) for step in expected]
    assert {job.maker(step) == os.getpid() for step in made} == {processes == 0}
    request = made[0].request
    assert request is not None
    row = reply(job.vocabulary, request, answer(job.grammar, content="Mine."))
    second = Work(first[0].conversation, made[0].answers, (row,))
    (following,) = await renderers.run(job.rules, [second])
    assert job.prompt(following) == job.prompt(*job.steps(second))
    assert "Mine." in job.prompt(following)
    faulty = attrs.evolve(second, finished=(reply(job.vocabulary, request, "hm<|im_end|>"),))
    (ended,) = await renderers.run(job.rules, [faulty])
    assert (ended.request, [row.code for row in ended.unsent]) == (None, ["unreached"])


@pytest.mark.process
async def test_the_loop_runs_while_a_prompt_is_rendered(job: Job, renderers: Renderers) -> None:
    """A prompt that is not done before the event loop has done something is done: the loop was free."""
    rendered = asyncio.ensure_future(renderers.run(job.rules, asked("wait")))
    await asyncio.sleep(0)
    assert not rendered.done()
    (job.folder / "go").touch()  # by the loop's thread, while the prompt waits for it
    async with asyncio.timeout(SECONDS):
        (step,) = await rendered
    (job.folder / "go").unlink()
    assert "wait" in job.prompt(step)


@pytest.mark.process
async def test_a_small_job_has_no_processes_and_a_long_one_gets_them(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unless a number is named, a thread renders until that has cost what a start costs and they are up."""
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    async with job.renderers(None) as renderers:
        await renderers.run(job.rules, asked(*map(str, range(40))))
        assert children() == []
        monkeypatch.setattr(rendering, "START_SECONDS", 0.0)
        makers = set()
        async with asyncio.timeout(SECONDS):
            while len(makers) < 2:
                makers |= {job.maker(step) for step in await renderers.run(job.rules, asked("a", "b"))}
        assert len(children()) == 1
        assert makers == {os.getpid(), *(child.pid for child in children())}
    assert children() == []


@pytest.mark.process
async def test_the_work_of_a_process_that_died_is_done_by_another(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One death costs nothing; work that always kills is a clear error, and other work goes on."""
    monkeypatch.setattr(processes_module, "DEATHS", 2)
    async with job.renderers(1) as renderers:
        steps = await renderers.run(job.rules, asked(*map(str, range(20)), "die once", "last"))
        assert [job.prompt(step).count("<|im_user|>") for step in steps] == [1] * 22
        with pytest.raises(LaterError, match=r"render_processes: .* died 2 times.*0 renders on a thread"):
            await renderers.run(job.rules, asked("die always"))
        assert "fine" in job.prompt(*await renderers.run(job.rules, asked("fine")))
    assert children() == []


@pytest.mark.process
async def test_a_tokenizer_that_changed_meanwhile_is_refused(tmp_path: Path) -> None:
    """A process that would make other ids makes none."""
    job = job_in(tmp_path)
    (job.folder.parent / "generation_config.json").write_text('{"eos_token_id": 258, "temperature": 0.5}')
    async with job.renderers(1) as renderers:
        with pytest.raises(IdentityError, match="have changed since the run began"):
            await renderers.run(job.rules, asked("x"))


def children() -> list[psutil.Process]:
    """Return the living processes of the pools of this process."""
    living = [child for child in psutil.Process().children() if child.status() != psutil.STATUS_ZOMBIE]
    return [child for child in living if "spawn_main" in " ".join(child.cmdline())]


@pytest.mark.process
@pytest.mark.parametrize("how", ["kill", "interrupt"])
def test_nothing_is_left_of_a_run_that_ends(how: str, tmp_path: Path) -> None:
    """After SIGKILL of the run, and after Ctrl-C in its terminal, its processes are gone, without a word."""
    program = [sys.executable, "-m", "tests.tasks.run.render_child", str(tmp_path)]
    with subprocess.Popen(
        program, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as run:
        assert run.stdout is not None
        assert run.stderr is not None
        assert run.stdout.readline() == "rendering\n"
        started = psutil.Process(run.pid).children(recursive=True)
        assert sum("spawn_main" in " ".join(process.cmdline()) for process in started) == 2
        if how == "kill":
            run.kill()
        else:
            os.killpg(run.pid, signal.SIGINT)
        run.wait(SECONDS)
        gone, alive = psutil.wait_procs(started, SECONDS)
        assert (len(gone), alive) == (len(started), [])
        told = run.stderr.read()
        if how == "interrupt":
            assert (run.returncode, told) == (130, "")
        else:
            assert "Traceback" not in told  # multiprocessing's tracker tells of the semaphores that it frees


async def test_the_bench_runs() -> None:
    """`tests/bench/render.py` measures every way that it is asked for."""
    ways = {way["way"]: way for way in await measure(rows=40, words=20, processes=[0], rounds=1)}
    assert list(ways) == ["loop", "0"]
    assert all(float(way["rows_per_second"]) > 0 for way in ways.values())
