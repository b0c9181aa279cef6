"""What a message says of an address that is none."""

import pytest

from tasks.errors import JobError
from tasks.store.contract import parse_s3_uri


@pytest.mark.parametrize(
    "uri",
    [
        pytest.param("s3://bucket/x?X-Amz-Signature=hunter2", id="query"),
        pytest.param("s3://bucket/x#hunter2", id="fragment"),
        pytest.param("s3://ak:hun/ter2/hunter2@bucket/x", id="user"),
        pytest.param("s3://ak:k@bucket/x?a=hunter2\nhunter2", id="both, over two lines"),
    ],
)
def test_a_secret_in_an_s3_address_is_not_shown(uri: str) -> None:
    """A signed address or credentials are refused without being repeated."""
    with pytest.raises(JobError, match=r"expected s3://bucket/prefix") as caught:
        parse_s3_uri(uri)
    assert "hunter2" not in str(caught.value)
    assert "***" in str(caught.value)
