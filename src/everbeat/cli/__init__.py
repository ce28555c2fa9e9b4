"""The command line: one file per group of commands. Reads import no user code and never create a store."""
