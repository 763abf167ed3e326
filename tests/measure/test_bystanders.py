"""Others' load is seen, one's own is not."""

import multiprocessing
import os
import time

import psutil

from perflab.measure.bystanders import Bystanders


def spin(seconds):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        pass


def other_load(own):
    process = multiprocessing.get_context("spawn").Process(target=spin, args=(2.5,))
    process.start()
    time.sleep(1.0)
    try:
        look = Bystanders([os.getpid(), *([process.pid] if own else [])])
        time.sleep(1.0)
        return look.share()
    finally:
        process.join()


def test_a_spinning_process_is_seen_unless_it_is_ones_own():
    """On a machine that is busy besides, both shares are high; the spinner still tells them apart."""
    others, own = other_load(own=False), other_load(own=True)
    assert others > 0.4 / psutil.cpu_count()
    assert 0 <= own <= 1
