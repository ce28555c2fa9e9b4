"""`everbeat bench`: what this machine can do with this store."""

from pathlib import Path
from typing import Annotated

from everbeat.bench.scale import Scale
from everbeat.cli import which
from everbeat.cli.grammar import Option


def bench(
    db: Annotated[
        str | None,
        Option(
            "--db",
            metavar="URL",
            help="Measure beside this store: on the same disk, in the same database. Default: a temporary SQLite file.",
        ),
    ] = None,
    only: Annotated[
        list[str] | None,
        Option(metavar="WORD", help="Only these measures, such as drain or latency.pickup; may be repeated."),
    ] = None,
    scale: Annotated[Scale, Option(help="How much work; millions of rows only with full.")] = Scale.NORMAL,
    processes: Annotated[
        int | None, Option(min=1, max=1024, help="Of each worker. Default: the processors it may use.")
    ] = None,
    compare: Annotated[
        Path | None, Option(metavar="FILE", help="Set the figures of an earlier run (its --json) beside these.")
    ] = None,
    show_list: Annotated[bool, Option("--list", help="Only say what can be measured.")] = False,
    as_json: which.AsJson = False,
) -> None:
    """Measure Everbeat on this machine.

    Sending, working, latency, recovery, growth, idling. Every measure works on a store of its own, which is removed
    afterwards; a store that holds work is refused. With --json every sample is printed, for a later --compare.
    """
    from everbeat.cli import benching  # lazily: no other command needs what runs workers

    measures = benching.chosen(only)
    if show_list:
        benching.show_list(measures, as_json=as_json)
    else:
        benching.measure(measures, scale, db=db, processes=processes, compare=compare, as_json=as_json)
