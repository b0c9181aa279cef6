"""Which code is running: the package's version, and its commit where that can be known."""

import json
import subprocess
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Final

import attrs

ROOT: Final = Path(__file__).resolve().parents[2]
_GIT_SECONDS: Final = 10.0


@attrs.frozen(slots=True)
class CodeVersion:
    """What is known of the code; None is unknown.

    Args:
        version: of the package.
        commit: hex, of a checkout with `-dirty` behind it when files differ from it.
    """

    version: str | None
    commit: str | None


def code_version(root: Path = ROOT, package: str = "rawseq") -> CodeVersion:
    """Return the running code's version: of a checkout by git, else as pip noted it (PEP 610)."""
    try:
        installed = distribution(package)
    except PackageNotFoundError:
        return CodeVersion(None, _of_checkout(root))
    return CodeVersion(
        installed.version, _of_checkout(root) or _noted(installed.read_text("direct_url.json"))
    )


def _of_checkout(root: Path) -> str | None:
    if not (root / ".git").exists():  # a folder, or a file in a worktree
        return None
    command = ["git", "-C", str(root), "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_GIT_SECONDS, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() or None


def _noted(direct_url: str | None) -> str | None:
    commit = json.loads(direct_url or "{}").get("vcs_info", {}).get("commit_id")
    return str(commit) if commit else None
