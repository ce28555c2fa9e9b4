"""What Everbeat and its peers do with tasks when something dies: the same faults, through their public APIs.

`python -m bench.crash` injects, counts and keeps samples; the table in docs/guarantees.md is generated from them.
"""
