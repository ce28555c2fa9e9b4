"""Writes docs/states.md from the transition table. `--check` only says whether the file is current."""

import sys
from pathlib import Path

from everbeat.model.state import OWNED, REVOKES, TERMINAL, TRANSITIONS, Change, TaskStatus, sources, target

PAGE = Path(__file__).parent.parent / "docs" / "states.md"

MEANINGS = {
    Change.CLAIM: "a worker owns it; its process is not ready yet",
    Change.START: "its code may run from here on",
    Change.LAUNCH: "claim and start in one write, when a process is waiting for it",
    Change.COMPLETE: "its code returned",
    Change.FAIL: "its code failed and no attempt is left",
    Change.RETRY: "its code failed and the policy allows another run",
    Change.HAND_BACK: "the owner returns it: its code never began",
    Change.RECOVER: "the runner died and the task may run again",
    Change.ABANDON: "the runner died and the task may not run again",
    Change.CANCEL: "somebody asked that it does not run",
    Change.EXPIRE: "its time was over before a worker could start it",
    Change.ADOPT: "a revoked owner's result arrived before anyone claimed the task again",
    Change.REVIVE: "a person asks for another run of a finished task",
    Change.ACCEPT: "a person takes a result that came too late",
    Change.REQUEUE: "a person takes it from its owner, so that it runs again",
    Change.GIVE_UP: "a person fails it, wherever it is; or no worker knows its name",
}


def page() -> str:
    lines = [
        "# The states of a task",
        "",
        "Made from `TRANSITIONS` in `src/everbeat/model/state.py` by `python tools/states.py`; do not edit.",
        "",
        "```mermaid",
        "stateDiagram-v2",
        "    direction LR",
        f"    [*] --> {TaskStatus.PENDING}",
        *(f"    {state} --> {after}: {', '.join(names)}" for (state, after), names in _arrows().items()),
        *(f"    {state} --> [*]" for state in TaskStatus if state in TERMINAL),
        "```",
        "",
        f"A worker owns a task while it is {' or '.join(state for state in TaskStatus if state in OWNED)}. "
        "Code of the user runs in RUNNING only. What has ended stays ended, unless a person asks.",
        "",
        "| change | from | to | new fence | when |",
        "|---|---|---|---|---|",
        *(_row(change) for change in Change),
        "",
        "A new fence means that whoever owned the task before can not write to it any more.",
    ]
    return "\n".join(lines) + "\n"


def _arrows() -> dict[tuple[TaskStatus, TaskStatus], list[str]]:
    arrows: dict[tuple[TaskStatus, TaskStatus], list[str]] = {}
    for (state, change), after in TRANSITIONS.items():
        arrows.setdefault((state, after), []).append(change)
    return arrows


def _row(change: Change) -> str:
    fence = "yes" if change in REVOKES or change in (Change.CLAIM, Change.LAUNCH) else "no"
    return f"| `{change}` | {', '.join(sources(change))} | {target(change)} | {fence} | {MEANINGS[change]} |"


def main() -> int:
    if "--check" not in sys.argv:
        PAGE.write_text(page())
        return 0
    if PAGE.exists() and PAGE.read_text() == page():
        return 0
    print(f"{PAGE} is not current; run: python tools/states.py", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
