"""The GPU's state as its driver tells it: clocks, throttling, power, temperature. Looks, never sets."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pynvml

_REASONS = {
    "power cap": "nvmlClocksEventReasonSwPowerCap",
    "hardware slowdown": "nvmlClocksThrottleReasonHwSlowdown",
    "thermal (software)": "nvmlClocksEventReasonSwThermalSlowdown",
    "thermal (hardware)": "nvmlClocksThrottleReasonHwThermalSlowdown",
    "power brake": "nvmlClocksThrottleReasonHwPowerBrakeSlowdown",
}


def read(uuid: str) -> dict[str, Any]:
    """Clocks in Hz, power in W, temperature in degrees Celsius, and what holds the clocks down.

    Fails: pynvml.NVMLError when the driver does not answer.
    """
    pynvml.nvmlInit()
    try:
        handle = pynvml.nvmlDeviceGetHandleByUUID(uuid)
        active = pynvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle)
        return {
            "sm_clock_hz": pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_SM) * 1e6,
            "sm_clock_max_hz": pynvml.nvmlDeviceGetMaxClockInfo(handle, pynvml.NVML_CLOCK_SM) * 1e6,
            "memory_clock_hz": pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_MEM) * 1e6,
            "power_w": pynvml.nvmlDeviceGetPowerUsage(handle) / 1e3,
            "temperature_c": pynvml.nvmlDeviceGetTemperature(handle, pynvml.NVML_TEMPERATURE_GPU),
            "throttle_reasons": [name for name, flag in _REASONS.items() if active & getattr(pynvml, flag)],
        }
    finally:
        pynvml.nvmlShutdown()


def counters_permitted() -> tuple[bool, str]:
    """Whether hardware counters may be read by this user, as the driver's parameters say."""
    parameters = Path("/proc/driver/nvidia/params")
    try:
        text = parameters.read_text(encoding="utf-8")
    except OSError as error:
        return False, f"unknown: {parameters} cannot be read ({error.strerror})"
    if "RmProfilingAdminOnly: 0" in text:
        return True, "every user may read hardware counters"

    if os.geteuid() == 0:
        return True, "hardware counters are for the administrator, which you are"
    return False, "hardware counters are for the administrator only"
