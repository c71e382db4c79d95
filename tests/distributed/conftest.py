"""Four ranks over gloo, started once per test session; the tests read what they found."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

RANKS = 4
LIMIT_S = 600
"""Far more than the ranks need; a hang ends the session's ranks here, and the tests fail."""


@pytest.fixture(scope="session")
def found(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """For each rank, the findings of each scenario of the worker."""
    folder = tmp_path_factory.mktemp("ranks")
    root = Path(__file__).parents[2]
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(RANKS)]
    seeded = 'PYTHONHASHSEED=$RANK exec "$0" "$@"'  # each rank has its own hashes of strings, in every run the same
    command += ["--no-python", "sh", "-c", seeded, sys.executable]
    done = subprocess.run(
        [*command, str(Path(__file__).with_name("worker.py")), str(folder)],
        env={**os.environ, "PYTHONPATH": str(root), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(RANKS)]
