"""The job: what is asked, as a job file or the run form says it."""
