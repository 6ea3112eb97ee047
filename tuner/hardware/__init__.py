"""This machine: frozen facts from the operating system, the GPU driver and llama.cpp's own device list."""

from tuner.hardware.memory import device_budget_bytes, host_budget_bytes
from tuner.hardware.profile import fingerprint_machine, profile_machine
from tuner.hardware.record import (
    BuildFacts,
    CacheFacts,
    CpuFacts,
    DeviceFacts,
    EnvironmentFacts,
    GpuFacts,
    GpuProcess,
    HardwareProfile,
    LimitFacts,
    MemoryFacts,
    NumaNode,
)

__all__ = [
    "BuildFacts",
    "CacheFacts",
    "CpuFacts",
    "DeviceFacts",
    "EnvironmentFacts",
    "GpuFacts",
    "GpuProcess",
    "HardwareProfile",
    "LimitFacts",
    "MemoryFacts",
    "NumaNode",
    "device_budget_bytes",
    "fingerprint_machine",
    "host_budget_bytes",
    "profile_machine",
]
