"""What a store's probe found: checks, and the modes that follow (frozen, pure)."""

from typing import Any

import attrs

from tasks.store.s3_client import Modes


@attrs.frozen(slots=True)
class ProbeCheck:
    """One thing that was tried: `needed` ones must pass, the others choose a mode."""

    name: str
    passed: bool
    needed: bool
    expected: str
    got: str


@attrs.frozen(slots=True)
class StoreProbe:
    """What was found, and the modes that follow. `as_json` is what `rawseq probe STORE --json` prints."""

    store: str
    checks: tuple[ProbeCheck, ...]
    modes: Modes

    @property
    def usable(self) -> bool:
        """Whether every needed check passed."""
        return all(check.passed or not check.needed for check in self.checks)

    def as_json(self) -> dict[str, Any]:
        """Return the verb's JSON object."""
        return {
            "store": self.store,
            "verdict": "usable" if self.usable else "unusable",
            "checks": [attrs.asdict(check) for check in self.checks],
            "modes": {
                "checksums": self.modes.checksums,
                "commit": "conditional" if self.modes.conditional else "single_writer",
                "read_back": self.modes.read_back,
            },
        }
