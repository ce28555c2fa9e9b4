"""The samples as tables: all counts for bench/crash/RESULTS.md, and in short for docs/guarantees.md."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from bench.crash.account import Account, Trial, account_of, middle
from bench.crash.faults import FAULTS, FROZEN_SECONDS, LEAST_SECONDS, MOST_SECONDS, TASKS, Fault
from bench.crash.kit import CULPRIT
from bench.crash.systems import System
from everbeat.report.text import counted

BEGIN = "<!-- made by python -m bench.crash: begin -->"
END = "<!-- made by python -m bench.crash: end -->"
NOT_TRIED = "—"


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """The samples of one system."""

    system: System
    versions: dict[str, str]
    trials: list[Trial]

    def trial(self, variant: str, fault: str) -> Trial | None:
        return next((one for one in self.trials if (one.variant, one.fault) == (variant, fault)), None)


def summary(kept: Sequence[Kept]) -> str:
    """A row for each system and setting, a column for each fault."""
    titles = [fault.title for fault in FAULTS]
    lines = [_row("", "", *titles), _row(*["---"] * (len(titles) + 2))]
    for one in kept:
        for variant in one.system.variants:
            trials = [one.trial(variant, fault.name) for fault in FAULTS]
            if any(trials):
                cells = [NOT_TRIED if trial is None else in_short(trial) for trial in trials]
                lines.append(_row(one.system.name, variant, *cells))
    return "\n".join(lines)


def in_short(trial: Trial) -> str:
    """ "24/24" and whatever else there is to tell."""
    account = account_of(trial, without=_culprits(trial))
    return "; ".join([f"{account.completed}/{account.accepted}", *_remarks(trial, account)])


def render(kept: Sequence[Kept]) -> str:
    """RESULTS.md: every count."""
    parts = [HEAD]
    for fault in FAULTS:
        rows = list(_rows(kept, fault))
        if rows:
            titles = ["", "", "accepted", "ran never", "once", "more than once", "completed", "failed", "stuck", "lost",
                      "forgotten", "interrupted", "begun again, p50 / max", ""]  # fmt: skip
            table = "\n".join([_row(*titles), _row(*["---"] * len(titles)), *rows])
            parts.append(f"## {fault.title[0].upper()}{fault.title[1:]}\n\n{_sentence(fault.explained)}\n\n{table}")
    parts.append("## Settings\n\n" + "\n".join(_settings(kept)))
    return "\n\n".join(parts) + "\n"


def put_into(page: str, table: str) -> str:
    """The page with this table between its marks."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{table}\n{END}{after}"


def _rows(kept: Sequence[Kept], fault: Fault) -> Iterator[str]:
    for one in kept:
        for variant in one.system.variants:
            trial = one.trial(variant, fault.name)
            if trial is None:
                continue
            found = account_of(trial, without=_culprits(trial))
            counts = [found.accepted, found.never, found.once, found.more, found.completed, found.failed, found.stuck,
                      found.lost, found.forgotten, found.interrupted]  # fmt: skip
            yield _row(
                one.system.name, variant, *map(str, counts), _again(trial, found), "; ".join(_notes(trial, found))
            )


def _remarks(trial: Trial, account: Account) -> Iterator[str]:
    for count, word in (
        (account.failed, "failed"), (account.stuck, "stuck"), (account.lost, "**lost**"),
        (account.forgotten, "forgotten"), (account.more, "ran again"),
    ):  # fmt: skip
        if count:
            yield f"{count} {word}"
    if again := _again(trial, account):
        yield again
    yield from _notes(trial, account)


def _notes(trial: Trial, account: Account) -> Iterator[str]:
    if trial.fault == "poison":
        starts = sum(run.number == CULPRIT for run in trial.runs)
        yield f"the culprit ran {counted(starts, 'time')}, {_fate(trial.states.get(CULPRIT, 'gone'))}"
    if trial.frozen:
        torn = set(trial.frozen)
        replaced = {run.number for run in trial.runs if run.number in torn and run.began >= 0}
        if replaced:
            yield f"the old run was believed in {len(trial.believed)} of {len(replaced)}"
        else:
            yield f"nobody took over for {FROZEN_SECONDS:.0f} s"
    if account.needless and trial.fault != "poison":
        yield f"{account.needless} ran again needlessly"
    if account.denied:
        yield f"{account.denied} of those not completed had run to the end"
    if trial.restarts and trial.fault != "poison":
        yield f"{counted(trial.restarts, 'time')} a worker ended by itself"


def _again(trial: Trial, account: Account) -> str:
    limit = FROZEN_SECONDS if trial.fault == "freeze" else MOST_SECONDS
    parts = [f"after {middle(account.again):.1f} / {max(account.again):.1f} s"] if account.again else []
    if account.left:
        parts.append(f"{account.left} not within {min(limit, trial.watched):.0f} s")
    return ", ".join(parts)


def _fate(state: str) -> str:
    return {"failed": "then failed", "gone": "then was gone", "done": "then was done"}.get(state, "no end")


def _culprits(trial: Trial) -> frozenset[int]:
    return frozenset({CULPRIT}) if trial.fault == "poison" else frozenset()


def _settings(kept: Sequence[Kept]) -> Iterator[str]:
    for one in kept:
        versions = ", ".join(f"{name} {version}" for name, version in one.versions.items())
        yield f"* **{one.system.name}** ({versions}). Notices a dead worker by itself: {one.system.notices}."
        for variant, words in one.system.variants.items():
            yield f"  * {variant}: {words}"


def _sentence(words: str) -> str:
    return f"{words[0].upper()}{words[1:]}."


def _row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


HEAD = f"""# What becomes of tasks when something dies

Made by `make bench-crash` from the samples in bench/crash/samples, which have every run of every task. Each system runs
two workers with four tasks at once, started again by a supervisor a second after they end; {TASKS} tasks of three
seconds ({TASKS // 3} of twelve for SIGSTOP) note their begin and their end in a file. After the fault the store is
asked again and again until everything has ended, at least {LEAST_SECONDS:.0f} s and at most {MOST_SECONDS:.0f} s; what
comes later is not seen. *default* is what one gets without choosing; *safe* are settings that its documentation names
for recovery, with the shortest times that it allows or that make sense for these tasks. Each row is one trial on one
machine: what kind of outcome it is counts, not the tenths of seconds. The other worker is busy, so what is noticed at
once begins again when a slot is free, after up to three seconds.

*completed*, *failed*, *stuck* (still waiting or running), *lost* (unknown, and never ran to the end) and *forgotten*
(unknown, though it ran to the end) are what the store says at the end; they sum up to *accepted*. *interrupted* are
tasks that ran when the fault came and did not end; one that ran again *needlessly* had not been interrupted."""
