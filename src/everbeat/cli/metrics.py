"""`everbeat metrics`: what the store knows, in the text format of Prometheus."""

from everbeat.cli import out, which


def metrics(db: which.Db = None, app: which.App = None, as_json: which.AsJson = False) -> None:
    """Print metrics of the store in Prometheus text format.

    What only a worker knows of itself is served by `worker start --http`.
    """
    from everbeat.report import metrics  # lazily: no other command needs it

    with which.existing_store(db, app) as store:
        found = store.measure()
    if as_json:
        out.data(metrics.plain(found))
    else:
        out.say(metrics.text(found, None, is_up=True).decode().rstrip("\n"))
