"""The local stack of `rawseq up`: Prefect, its UI, a worker, the deployments, the embedded server."""
