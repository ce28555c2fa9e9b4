"""Loops, processes and the clock: everything that happens while a worker is up."""
