"""`python -m deployments.standin`: the command line."""

import os
import sys

# One BLAS thread: the products are small, and their bits must not depend on how threads share them.
# Set before numpy is first imported.
for _name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "RAYON_NUM_THREADS"):
    os.environ[_name] = "1"
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")


def main() -> None:
    """Parse the flags and serve."""
    from deployments.standin.app import run
    from deployments.standin.arguments import parse
    from deployments.standin.faults import FAULTS

    arguments = parse(sys.argv[1:])
    if "list" in arguments.faults:
        print("\n".join(f"{name:22} {about}" for name, about in FAULTS.items()))
        return
    run(arguments)


if __name__ == "__main__":
    main()
