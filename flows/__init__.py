"""One Prefect flow per file: no classes, no IO. Whoever imports one logs no secret from then on."""

import logging

from tasks.job.redaction import RedactedRecord

logging.setLogRecordFactory(RedactedRecord)
