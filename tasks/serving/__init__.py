"""The truth about servers: SGLang's protocol, client, probe, processes, fleet, and the dispatch of rows."""
