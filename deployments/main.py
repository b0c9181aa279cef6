"""`python -m deployments.main`: the `rawseq` command without an installed script."""

from deployments.cli import main

if __name__ == "__main__":
    main()
