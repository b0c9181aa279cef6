"""The local stack's folder: which password it keeps. The stack itself: tests/browser/test_up.py."""

from pathlib import Path

from deployments.local.folder import StackHome


def test_a_password_is_made_up_once(tmp_path: Path) -> None:
    """The environment's counts; else one is made up when wanted, and kept for this user alone."""
    home = StackHome(tmp_path)
    assert home.auth_string({}, wanted=False) is None
    given = {"PREFECT_SERVER_API_AUTH_STRING": "me:mine"}
    assert home.auth_string(given, wanted=False) == home.auth_string(given, wanted=True) == "me:mine"
    assert not home.auth_file.exists()
    made = home.auth_string({}, wanted=True)
    assert made is not None
    assert made.startswith("rawseq:")
    assert len(made) > 24
    assert home.auth_file.stat().st_mode & 0o777 == 0o600
    assert StackHome(tmp_path).auth_string({}, wanted=True) == made
