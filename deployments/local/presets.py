"""Named JobSpecs: starting points whose every number has its reason."""

from pathlib import Path

from tasks.job.spec import (
    BatchSpec,
    JobSpec,
    ModelSpec,
    PolicySpec,
    PromptsSpec,
    SamplingSpec,
    ServersSpec,
    StoreSpec,
)

STANDIN_MODEL = Path(__file__).resolve().parents[1] / "standin" / "model"
DEMO_PROMPTS = Path(__file__).resolve().with_name("prompts.jsonl")

DEMO_BATCH_ROWS = 32
"""Small enough that 192 prompts make six batches: a killed demo has something to resume."""

DEMO_MAX_NEW_TOKENS = 512
"""The tiny model's answers are around a hundred ids long: this cuts none that ends by itself."""


def demo_job(url: str, store: StoreSpec, journals: Path, rows: int | None) -> JobSpec:
    """Return the demo's job.

    Args:
        url: of the embedded server.
        store: where the dataset goes.
        journals: folder of the journals.
        rows: plan at most this many prompts; None: all of them.
    """
    return JobSpec(
        name="demo",
        model=ModelSpec(tokenizer=str(STANDIN_MODEL)),
        prompts=PromptsSpec(sources=[str(DEMO_PROMPTS)], limit=rows),
        servers=ServersSpec(urls=[url], restart="local"),
        sampling=SamplingSpec(max_new_tokens=DEMO_MAX_NEW_TOKENS),
        policy=PolicySpec(accepted_floor=0.9),  # the tiny model is right in form 95 times in 100
        batch=BatchSpec(rows=DEMO_BATCH_ROWS, journal_dir=str(journals)),
        store=store,
    )
