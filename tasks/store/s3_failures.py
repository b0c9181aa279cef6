"""What an S3 failure means: one table from code to who must act, and what to do (pure).

Codes as AWS documents them and as SeaweedFS 4.48, Ceph RGW 16.2 and botocore 1.44 were seen to give them.
"""

import ssl
from typing import Final, Literal

import attrs
from botocore import exceptions as bx

Kind = Literal["operator", "retry", "missing", "exists", "unsupported"]


@attrs.frozen(slots=True)
class Meaning:
    """Who must act on a failure.

    Args:
        kind: `operator` stops, `retry` goes on to the deadline, `missing` and `exists` are answers,
            `unsupported` says that this server lacks the feature.
        text: for a person: what happened and what to do.
        slow: whether the server asked for less; waits start at one second.
        credentials: whether new credentials may help (they are fetched again once).
    """

    kind: Kind
    text: str
    slow: bool = False
    credentials: bool = False


_OPERATOR: Final = {
    "NoSuchBucket": "the bucket does not exist: create it, or correct store.uri (rawseq never creates one)",
    "AccessDenied": "access denied: these credentials may not do this here; grant s3:GetObject, "
    "s3:PutObject, s3:ListBucket and s3:DeleteObject on the prefix",
    "AllAccessDisabled": "the bucket's owner disabled access to it",
    "InvalidAccessKeyId": "the access key is not known to this endpoint: check the credentials and "
    "store.endpoint_url",
    "SignatureDoesNotMatch": "the secret key does not belong to this access key: check the credentials",
    "RequestTimeTooSkewed": "this machine's clock and the store's are too far apart: set the clock (NTP)",
    "AuthorizationHeaderMalformed": "the request was signed for another region: set store.region",
    "PermanentRedirect": "the bucket is in another region or at another endpoint: set store.region "
    "or store.endpoint_url",
    "TemporaryRedirect": "the bucket answers at another endpoint for now: set store.endpoint_url",
    "IllegalLocationConstraintException": "the bucket is in another region: set store.region",
    "InvalidBucketName": "the endpoint refuses the bucket's name: correct store.uri",
    "QuotaExceeded": "the bucket's quota is used up: raise it or free space, then run again",
    "XMinioStorageFull": "the store's disk is full: free space, then run again",
    "EntityTooLarge": "the object is larger than this store takes: lower batch.rows",
    "MissingContentLength": "this store does not take checksum trailers: set store.checksums: when_required",
}
_STALE: Final = {
    "ExpiredToken": "the session token has expired: renew the credentials (log in again), then run again",
    "ExpiredTokenException": "the session token has expired: renew the credentials, then run again",
    "TokenRefreshRequired": "the session token must be renewed: renew the credentials, then run again",
    "InvalidToken": "the session token is not valid here: renew the credentials, then run again",
}
_RETRY: Final = frozenset(
    {
        "InternalError",
        "ServiceUnavailable",
        "RequestTimeout",
        "RequestTimeoutException",
        "BadDigest",
        "XAmzContentSHA256Mismatch",
        "XAmzContentChecksumMismatch",
        "IncompleteBody",
        "OperationAborted",
        "ConditionalRequestConflict",
        "ClientDisconnected",
    }
)
_SLOW: Final = frozenset(
    {
        "SlowDown",
        "SlowDownRead",
        "SlowDownWrite",
        "Throttling",
        "ThrottlingException",
        "TooManyRequests",
        "RequestLimitExceeded",
        "BandwidthLimitExceeded",
    }
)
_BY_STATUS: Final = {
    301: "PermanentRedirect",
    403: "AccessDenied",
    411: "MissingContentLength",
}


def meaning_of(error: Exception) -> Meaning:
    """Return what a botocore exception means for the call that raised it."""
    if isinstance(error, bx.ClientError):
        code = str(error.response.get("Error", {}).get("Code", ""))
        status = int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
        return _meaning_of_code(code, status)
    if isinstance(error, bx.NoCredentialsError | bx.PartialCredentialsError | bx.ProfileNotFound):
        return Meaning(
            "operator",
            "no credentials: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, an AWS profile, or "
            "store.credentials_block (a typed STORE: --credentials-block)",
        )
    if isinstance(error, bx.CredentialRetrievalError | bx.TokenRetrievalError | bx.SSOError):
        return Meaning(
            "operator", "the AWS chain could not fetch credentials: log in again", credentials=True
        )
    if isinstance(error, bx.SSLError) and not _cut_short(error):
        return Meaning(
            "operator",
            "the endpoint's TLS certificate is not trusted, or it does not speak TLS: set AWS_CA_BUNDLE, "
            "or correct store.endpoint_url",
        )
    if isinstance(error, bx.ParamValidationError | bx.InvalidEndpointDiscoveryConfigurationError):
        return Meaning("operator", "botocore refuses the call's parameters: check store.uri")
    if isinstance(error, bx.ProxyConnectionError):
        return Meaning(
            "retry",
            "the proxy cannot be reached that HTTPS_PROXY or HTTP_PROXY names: correct it, or name the "
            "endpoint in NO_PROXY",
        )
    if isinstance(error, bx.EndpointConnectionError | bx.ConnectTimeoutError):
        return Meaning("retry", "the endpoint cannot be reached: is it up, and is store.endpoint_url right?")
    return Meaning("retry", f"the connection failed ({type(error).__name__})")


def _cut_short(error: bx.SSLError) -> bool:
    """Whether the connection merely ended inside TLS, which another try may cure."""
    causes: list[object] = [error.kwargs.get("error")]
    while causes:
        cause = causes.pop()
        if isinstance(cause, ssl.SSLEOFError | ssl.SSLZeroReturnError):
            return True
        causes.extend(arg for arg in getattr(cause, "args", ()) if isinstance(arg, Exception))
    return False


def _meaning_of_code(code: str, status: int) -> Meaning:
    if status == 412 or code == "PreconditionFailed":
        return Meaning("exists", "the object is already there")
    if code in ("NoSuchKey", "404", "NotFound") or (status == 404 and code not in _OPERATOR):
        return Meaning("missing", "the object is not there")
    if code in _STALE:
        return Meaning("operator", _STALE[code], credentials=True)
    if code in _SLOW or status == 429:
        return Meaning("retry", f"the store asks for fewer requests ({code or status})", slow=True)
    if status == 501 or code == "NotImplemented":
        return Meaning("unsupported", "the store does not implement this call")
    if code in _OPERATOR:
        return Meaning("operator", _OPERATOR[code])
    if code in _RETRY or status >= 500 or status == 409:
        return Meaning("retry", f"the store failed ({code or status})")
    if status in _BY_STATUS:
        return Meaning("operator", _OPERATOR[_BY_STATUS[status]])
    return Meaning("operator", f"the store refuses the call ({code or 'no code'}, HTTP {status})")
