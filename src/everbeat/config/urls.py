"""URLs and paths of stores: what is wrong with one, and how it is shown. A password is masked before it is shown."""

import os
from pathlib import Path
from urllib.parse import urlsplit

from everbeat.secrecy import masked

SQLITE = "sqlite:///"
POSTGRES = ("postgresql://", "postgres://")


def problem(url: str) -> str | None:
    """sqlite:///relative, sqlite:////absolute or postgresql://..."""
    if url.startswith(POSTGRES):
        return postgres_problem(url)
    if not url.startswith(SQLITE):
        return (
            f"{masked(url)!r} is not a store; use sqlite:///relative/path.db, sqlite:////absolute/path.db "
            "or postgresql://..."
        )
    if "?" in url:
        return "options can not be given in a sqlite URL; use SQLiteConfig(path, ...) or the settings of [broker]"
    return path_problem(url.removeprefix(SQLITE))


def postgres_problem(url: object) -> str | None:
    if not isinstance(url, str) or not url.startswith(POSTGRES):
        shown = masked(url) if isinstance(url, str) else url
        return f"database_url must start with postgresql://, not {shown!r}"
    try:
        _ = urlsplit(url).port
    except ValueError as error:
        return f"database_url {masked(url)!r} can not be read: {error}"
    return None


def path_problem(path: object) -> str | None:
    if not isinstance(path, str | os.PathLike):
        return f"path must be a path, not {path!r}"
    text = os.fspath(path)
    if not isinstance(text, str) or not text or "\0" in text:
        return f"path {path!r} does not name a file"
    if ":memory:" in text or text.startswith("file:"):
        return "a database in memory is private to one connection and lost with it; give the path of a file"
    if text.endswith("/") or text.startswith(("sqlite:", *POSTGRES)):
        return f"path {text!r} does not name a file; a URL goes to Everbeat(url)"
    try:
        absolute(path)
    except FileNotFoundError:
        return f"path {text!r} can not be found from here: the working directory was removed"
    except RuntimeError as error:  # of ~somebody
        return f"path {text!r} does not name a file: {error}"
    return None


def absolute(path: str | os.PathLike[str]) -> Path:
    return Path(os.path.abspath(Path(path).expanduser()))
