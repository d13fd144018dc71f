from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest

from tamis.processes import peak_bytes

CHILD = """
import mmap
from tamis.processes import peak_bytes
before = peak_bytes()
memory = mmap.mmap(-1, 64 << 20)
for page in range(0, 64 << 20, 4096):
    memory[page] = 1
grown = peak_bytes() - before
memory.close()
assert peak_bytes() - before > grown - (4 << 20), "a peak stays"
print(before, grown)
"""


def test_the_peak_is_the_process_s_own() -> None:
    ours = np.ones(256 << 20, np.uint8)
    assert peak_bytes() > ours.nbytes
    assert peak_bytes(os.getpid()) == peak_bytes()
    told = subprocess.check_output([sys.executable, "-c", CHILD], text=True).split()
    before, grown = map(int, told)
    assert before < ours.nbytes, "the parent's memory is none of it"
    assert 60 << 20 < grown < 80 << 20


def test_a_process_that_has_ended_has_no_memory() -> None:
    child = subprocess.Popen([sys.executable, "-c", ""])
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # a zombie
    with pytest.raises(ProcessLookupError, match=f"process {child.pid} has no memory"):
        peak_bytes(child.pid)
    child.wait()
