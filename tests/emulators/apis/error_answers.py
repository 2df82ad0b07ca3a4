"""The errors that clouds answer with, in the words of S3; each API writes them in its own form.

The codes and texts are those of the references of S3 and of the XML API of Google Cloud Storage.
"""

from __future__ import annotations

import msgspec


class ErrorAnswer(msgspec.Struct, frozen=True):
    """One error: HTTP status, code and text, and what goes along in headers and in further elements."""

    status: int
    code: str
    message: str
    headers: dict[str, str] = {}
    elements: dict[str, str] = {}


class RefusedRequestError(Exception):
    """A request that is answered with an error."""

    def __init__(self, answer: ErrorAnswer) -> None:
        super().__init__(answer.code)
        self.answer = answer


NO_SUCH_BUCKET = ErrorAnswer(404, "NoSuchBucket", "The specified bucket does not exist")
NO_SUCH_KEY = ErrorAnswer(404, "NoSuchKey", "The specified key does not exist.")
NO_SUCH_UPLOAD = ErrorAnswer(
    404, "NoSuchUpload",
    "The specified upload does not exist. The upload ID may be invalid, or the upload may have been aborted or completed.",
)  # fmt: skip
BUCKET_EXISTS = ErrorAnswer(409, "BucketAlreadyOwnedByYou", "The bucket exists, and you own it.")
PRECONDITION_FAILED = ErrorAnswer(
    412, "PreconditionFailed", "At least one of the pre-conditions you specified did not hold"
)
NOT_MODIFIED = ErrorAnswer(304, "NotModified", "Not Modified")
INVALID_RANGE = ErrorAnswer(416, "InvalidRange", "The requested range is not satisfiable")
BAD_DIGEST = ErrorAnswer(
    400, "BadDigest", "The {} you specified did not match the calculated checksum."
)
ENTITY_TOO_SMALL = ErrorAnswer(
    400, "EntityTooSmall", "Your proposed upload is smaller than the minimum allowed size"
)
INVALID_PART = ErrorAnswer(
    400, "InvalidPart",
    "One or more of the specified parts could not be found. The part may not have been uploaded, or the specified "
    "entity tag may not match the part's entity tag.",
)  # fmt: skip
INVALID_PART_ORDER = ErrorAnswer(
    400, "InvalidPartOrder", "The list of parts was not in ascending order."
)
MALFORMED_XML = ErrorAnswer(
    400, "MalformedXML", "The XML you provided was not well-formed or did not validate"
)
PARSE_ERROR = ErrorAnswer(400, "ParseError", "Parse Error")
"""A body that the JSON API of GCS cannot read."""
NOT_IMPLEMENTED = ErrorAnswer(
    501, "NotImplemented", "A header you provided implies functionality that is not implemented"
)

# What only faults answer.
ACCESS_DENIED = ErrorAnswer(403, "AccessDenied", "Access Denied")
EXPIRED_TOKEN = ErrorAnswer(400, "ExpiredToken", "The provided token has expired.")
UNAUTHENTICATED = ErrorAnswer(401, "AuthenticationRequired", "Authentication required.")
INVALID_ACCESS_KEY = ErrorAnswer(
    403,
    "InvalidAccessKeyId",
    "The AWS Access Key Id you provided does not exist in our records.",
)
SIGNATURE_DOES_NOT_MATCH = ErrorAnswer(
    403, "SignatureDoesNotMatch",
    "The request signature we calculated does not match the signature you provided. Check your key and signing method.",
)  # fmt: skip
CLOCK_SKEWED = ErrorAnswer(
    403, "RequestTimeTooSkewed",
    "The difference between the request time and the current time is too large.",
)  # fmt: skip
OTHER_REGION = ErrorAnswer(
    301, "PermanentRedirect",
    "The bucket you are attempting to access must be addressed using the specified endpoint. Please send all future "
    "requests to this endpoint.",
    {"x-amz-bucket-region": "eu-west-3"}, {"Region": "eu-west-3", "Endpoint": "s3.eu-west-3.amazonaws.com"},
)  # fmt: skip
SIGNED_FOR_OTHER_REGION = ErrorAnswer(
    400, "AuthorizationHeaderMalformed",
    "The authorization header is malformed; the region 'us-east-1' is wrong; expecting 'eu-west-3'",
    {"x-amz-bucket-region": "eu-west-3"}, {"Region": "eu-west-3"},
)  # fmt: skip
LOCKED = ErrorAnswer(403, "AccessDenied", "Access Denied because object protected by object lock.")
RETAINED = ErrorAnswer(
    403, "RetentionPolicyNotMet",
    "Object is subject to bucket's retention policy or object retention and cannot be deleted or overwritten until "
    "2027-01-01T00:00:00Z",
)  # fmt: skip
CUSTOMER_KEY_NEEDED = ErrorAnswer(
    400, "InvalidRequest",
    "The object was stored using a form of Server Side Encryption. The correct parameters must be provided to retrieve "
    "the object.",
)  # fmt: skip
CUSTOMER_KEY_NEEDED_GCS = ErrorAnswer(
    400, "ResourceIsEncryptedWithCustomerEncryptionKey",
    "The resource is encrypted with a customer encryption key.",
)  # fmt: skip
SLOW_DOWN = ErrorAnswer(503, "SlowDown", "Please reduce your request rate.")
INTERNAL_ERROR = ErrorAnswer(
    500, "InternalError", "We encountered an internal error. Please try again."
)
TOO_MANY_REQUESTS = ErrorAnswer(429, "TooManyRequests", "Too Many Requests")
"""What GCS answers above its limits."""
COMPLETED_WITH_ERROR = ErrorAnswer(
    200, "InternalError", "We encountered an internal error. Please try again."
)
"""What completing an upload may answer: 200, with an error in the body."""
