from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.run.stage import Stage


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    stage = Stage(tmp_path)
    yield stage
    stage.close()
