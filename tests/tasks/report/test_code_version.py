"""The code's version is what git or pip know of it, and never an error."""

import subprocess
from pathlib import Path

import pytest

from tasks.report.code_version import ROOT, CodeVersion, code_version

COMMIT = "0123456789abcdef0123456789abcdef01234567"


def git(folder: Path, *arguments: str) -> str:
    """Run git there and return what it says."""
    who = ["-c", "user.name=t", "-c", "user.email=t@example.com"]
    done = subprocess.run(
        ["git", "-C", str(folder), *who, *arguments], capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


@pytest.mark.process
def test_a_checkout_names_its_commit(tmp_path: Path) -> None:
    """The commit of HEAD, whatever tags there are; marked when a file differs from it."""
    git(tmp_path, "init", "-q")
    (tmp_path / "a").write_text("1")
    git(tmp_path, "add", "a")
    git(tmp_path, "commit", "-qm", "first")
    git(tmp_path, "tag", "-am", "v", "v1")
    head = git(tmp_path, "rev-parse", "HEAD")
    assert code_version(tmp_path).commit == head
    (tmp_path / "a").write_text("2")
    assert code_version(tmp_path).commit == f"{head}-dirty"


@pytest.mark.parametrize(
    ("direct_url", "commit"),
    [
        pytest.param(None, None, id="from-a-registry"),
        pytest.param('{"url": "file:///x", "dir_info": {}}', None, id="from-a-folder"),
        pytest.param(
            f'{{"url": "https://h/r", "vcs_info": {{"vcs": "git", "commit_id": "{COMMIT}"}}}}',
            COMMIT,
            id="from-git",
        ),
    ],
)
def test_an_installed_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, direct_url: str | None, commit: str | None
) -> None:
    """Without a checkout pip's own note counts (PEP 610)."""
    noted = tmp_path / "shown-1.2.dist-info"
    noted.mkdir()
    (noted / "METADATA").write_text("Metadata-Version: 2.1\nName: shown\nVersion: 1.2\n")
    if direct_url is not None:
        (noted / "direct_url.json").write_text(direct_url)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert code_version(tmp_path, "shown") == CodeVersion("1.2", commit)


@pytest.mark.process
def test_unknown_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No package, a broken checkout, no git: nothing is known."""
    assert code_version(tmp_path, "no-such-package") == CodeVersion(None, None)
    (tmp_path / ".git").write_text("gitdir: nowhere")
    assert code_version(tmp_path, "no-such-package").commit is None
    monkeypatch.setenv("PATH", str(tmp_path))
    assert code_version(ROOT, "no-such-package").commit is None
