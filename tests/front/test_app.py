"""The application touches nothing until it is used, and works after a fork."""

import json
import os
import subprocess
import sys
import textwrap
import threading
from pathlib import Path
from typing import Any

import pytest

from everbeat import AppConfig, ConfigError, Everbeat, RecoveryConfig, SQLiteConfig, TaskStatus


def run_python(code: str, *arguments: str, cwd: Path) -> str:
    """Run code in a process of its own and return what it printed."""
    done = subprocess.run(
        [sys.executable, *arguments, "-c", textwrap.dedent(code)] if code else [sys.executable, *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        cwd=cwd,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_making_an_app_and_its_tasks_touches_no_file(tmp_path: Path) -> None:
    app = Everbeat(f"sqlite:///{tmp_path}/jobs.db", imports=["shop.tasks"])
    app.task(name="nothing")(lambda: None)
    app.handle("some-id")
    app.get_broker()
    app.worker_facts()
    app.close()

    assert list(tmp_path.iterdir()) == []


def test_importing_everbeat_opens_nothing_and_loads_no_store(tmp_path: Path) -> None:
    loaded = run_python(
        """
        import sys, everbeat
        app = everbeat.Everbeat()
        print([name for name in sys.modules if name in ("sqlite3", "asyncio", "rich", "pydantic", "psycopg")])
        """,
        cwd=tmp_path,
    )

    assert loaded == "[]"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("wrong", [5, ["sqlite:///x.db"], Path("x.db")])
def test_an_app_is_made_of_a_url_or_a_configuration(wrong: Any) -> None:
    with pytest.raises(ConfigError):
        Everbeat(wrong)


def test_imports_of_code_and_configuration_are_joined(tmp_path: Path) -> None:
    config = AppConfig(broker=SQLiteConfig(tmp_path / "jobs.db"), imports=["shop.a"])

    assert Everbeat(config, imports=["shop.b"]).imports == ("shop.a", "shop.b")
    assert Everbeat(config).imports == ("shop.a",)


@pytest.mark.parametrize("given", ["shop.tasks", 5])
def test_imports_are_a_list(given: Any) -> None:
    with pytest.raises(ConfigError, match=r"imports must be a list of module names such as \['shop.tasks'\]"):
        Everbeat("sqlite:///jobs.db", imports=given)


def test_a_closed_app_opens_again_when_used(app: Everbeat) -> None:
    task = app.task(name="nothing")(lambda: None)
    handle = task.enqueue()
    app.close()
    app.close()

    assert handle.status() is TaskStatus.PENDING


def test_threads_share_one_store(app: Everbeat) -> None:
    seen: list[Any] = []
    barrier = threading.Barrier(8)

    def look() -> None:
        barrier.wait()
        seen.append(app.store)

    threads = [threading.Thread(target=look) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(set(map(id, seen))) == 1


def test_a_supervisor_can_rebuild_the_configuration_from_the_facts(tmp_path: Path) -> None:
    config = AppConfig(broker=SQLiteConfig(tmp_path / "jobs.db"), recovery=RecoveryConfig(action="fail"))
    app = Everbeat(config, imports=["shop.tasks"])

    @app.task(name="a", timeout=5)
    async def first() -> None: ...

    facts = json.loads(json.dumps(app.worker_facts()))

    assert AppConfig.from_facts(facts) == app.config
    assert facts["store_url"] == f"sqlite:///{tmp_path}/jobs.db"
    assert facts["tasks"] == [{"name": "a", "is_async": True, "timeout": 5.0, "isolated": False}]


def test_an_id_that_can_not_be_is_refused_at_once(app: Everbeat) -> None:
    with pytest.raises(ValueError, match="id"):
        app.handle("not an id")


SCRIPT = """
from everbeat import Everbeat
app = Everbeat("sqlite:///jobs.db")

class Refused(Exception):
    pass

@app.task
def add(a: int) -> int:
    return a

if __name__ == "__main__":
    from everbeat.ids import full_name
    print(add.name, full_name(Refused))
"""


def test_a_task_of_a_script_is_named_after_its_file(tmp_path: Path) -> None:
    (tmp_path / "shop").mkdir()
    (tmp_path / "shop" / "tasks.py").write_text(SCRIPT)

    assert run_python("", "shop/tasks.py", cwd=tmp_path) == "tasks.add tasks.Refused"
    assert run_python("", "-m", "shop.tasks", cwd=tmp_path) == "shop.tasks.add shop.tasks.Refused"


def test_a_task_of_code_without_a_file_can_be_tried_out(tmp_path: Path) -> None:
    code = """
    from everbeat import Everbeat

    def add(a: int) -> int:
        return a

    print(Everbeat().task(add).name)
    """

    assert run_python(code, cwd=tmp_path) == "__main__.add"


FORKING = """
import os, threading
from everbeat import Everbeat
from everbeat.store.messages import TaskFilter
app = Everbeat("sqlite:///jobs.db")

@app.task(name="add")
def add(a: int) -> int:
    return a

before = add.enqueue(1)
busy = threading.Thread(target=lambda: [add.enqueue(n) for n in range(200)])
busy.start()
children = []
for _ in range(4):
    child = os.fork()
    if child == 0:
        assert before.status() == "PENDING"
        os._exit(0 if add.enqueue(2).created else 1)
    children.append(child)
codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
busy.join()
print(codes, len(app.store.tasks(TaskFilter(limit=1000))), add.enqueue(3).status())
"""


def test_an_app_made_before_a_fork_works_in_parent_and_children(tmp_path: Path) -> None:
    assert run_python(FORKING, cwd=tmp_path) == "[0, 0, 0, 0] 205 PENDING"


LEAVING = """
import os
from everbeat import Everbeat
app = Everbeat("sqlite:///jobs.db")

@app.task(name="add")
def add(a: int) -> int:
    return a

add.enqueue(1)
opened, tell_opened = os.pipe()
left, tell_left = os.pipe()
child = os.fork()
if child == 0:
    add.enqueue(2)
    os.write(tell_opened, b"x")
    os.read(left, 1)
    os._exit(0 if add.enqueue(3).created else 1)
os.read(opened, 1)
app.close()
os.write(tell_left, b"x")
code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
print(code, sum(count.count for count in app.store.counts()))
"""


def test_a_task_sent_by_a_child_is_kept_when_the_parent_has_left_the_store(tmp_path: Path) -> None:
    assert run_python(LEAVING, cwd=tmp_path) == "0 3"


def test_a_process_that_never_closes_its_app_ends_at_once(tmp_path: Path) -> None:
    code = """
    from everbeat import Everbeat
    app = Everbeat("sqlite:///jobs.db")
    task = app.task(name="nothing")(lambda: None)
    print(task.enqueue().status())
    """

    assert run_python(code, cwd=tmp_path) == "PENDING"
