"""The embedded server: SGLang's protocol over a tiny trained model, for trying, tests and benchmarks.

It is a stand-in and no source of data: its model has about a million parameters.
"""
