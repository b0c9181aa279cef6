"""One BLAS thread for this process, whatever it was started with."""

import ctypes
from pathlib import Path

import numpy as np


def use_one_thread() -> None:
    """Keep numpy's own OpenBLAS from sharing a product among threads: slower here, and its bits would vary.

    Another BLAS obeys the environment variables that __main__.py sets before numpy is imported.
    """
    for path in (Path(np.__file__).parent.parent / "numpy.libs").glob("libscipy_openblas*"):
        library = ctypes.CDLL(str(path))
        for name in ("scipy_openblas_set_num_threads64_", "scipy_openblas_set_num_threads"):
            if hasattr(library, name):
                getattr(library, name)(1)
