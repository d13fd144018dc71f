from __future__ import annotations

import subprocess
import sys

import pytest

CODE = """
import resource, sys
import numpy as np
from tamis.trainer.memory import keep_freed_memory

if sys.argv[1] == "keep":
    keep_freed_memory()
for step in range(6):
    if step == 3:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    arrays = [np.ones(250_000) for _ in range(40)]  # 80 MB
    del arrays
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(what: str) -> int:
    done = subprocess.run([sys.executable, "-c", CODE, what], capture_output=True, text=True, check=True)
    return int(done.stdout)


def test_freed_memory_is_used_again_without_page_faults() -> None:
    if faults("leave") < 20_000:
        pytest.skip("this C library keeps freed memory anyway")
    assert faults("keep") < 500
