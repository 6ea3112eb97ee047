"""An NVIDIA driver made of tables: cards, slices and refusals by the names that pynvml gives them."""

from __future__ import annotations

from typing import Any

GIB = 2**30


class NVMLError(Exception):
    """Base of all refusals, as in pynvml."""


NotSupported = type("NVMLError_NotSupported", (NVMLError,), {})
NoPermission = type("NVMLError_NoPermission", (NVMLError,), {})
NotFound = type("NVMLError_NotFound", (NVMLError,), {})
Unknown = type("NVMLError_Unknown", (NVMLError,), {})
GpuIsLost = type("NVMLError_GpuIsLost", (NVMLError,), {})
LibraryNotFound = type("NVMLError_LibraryNotFound", (NVMLError,), {})
DriverNotLoaded = type("NVMLError_DriverNotLoaded", (NVMLError,), {})
FunctionNotFound = type("NVMLError_FunctionNotFound", (NVMLError,), {})


class Answer:
    """A C structure of NVML: whatever fields the test gives it."""

    def __init__(self, **fields: object) -> None:
        self.__dict__.update(fields)


class FakeNvml:
    """The pynvml module with `cards` (function name to answer; an exception is raised) in place of a driver."""

    def __init__(self, *cards: dict[str, Any] | Exception, init: Exception | None = None, lacks: tuple[str, ...] = ()) -> None:
        self.cards, self.init, self.lacks = cards, init, lacks
        self.asked: list[str] = []

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("nvml") or name in self.lacks:
            raise AttributeError(name)
        return lambda *arguments: self.answer(name, *arguments)

    def answer(self, name: str, *arguments: Any) -> Any:
        self.asked.append(name)
        match name:
            case "nvmlInit":
                return _give(self.init)
            case "nvmlShutdown":
                return None
            case "nvmlDeviceGetCount":
                return len(self.cards)
            case "nvmlDeviceGetHandleByIndex":
                return _give(self.cards[arguments[0]])
            case "nvmlSystemGetDriverVersion":
                return "570.86.15"
            case "nvmlSystemGetCudaDriverVersion":
                return 12080
            case "nvmlDeviceGetMigDeviceHandleByIndex":
                slices = arguments[0].get("slices", ())
                return slices[arguments[1]] if arguments[1] < len(slices) else _give(NotFound())
            case _:
                return _give(arguments[0].get(name, NotSupported()))


def _give(answer: Any) -> Any:
    if isinstance(answer, Exception):
        raise answer
    return answer


def memory(total_gib: float, free_gib: float) -> Answer:
    """nvmlMemory_t."""
    total, free = int(total_gib * GIB), int(free_gib * GIB)
    return Answer(total=total, free=free, used=total - free)


def make_card(
    name: str = "NVIDIA GeForce RTX 4090", uuid: str = "GPU-aaaa1111", bus: int = 1, **answers: Any
) -> dict[str, Any]:
    """A healthy desktop card of 24 GiB, 20 of them free; `answers` replace its own by function name."""
    return {
        "nvmlDeviceGetName": name,
        "nvmlDeviceGetUUID": uuid,
        "nvmlDeviceGetPciInfo": Answer(busId=f"00000000:{bus:02X}:00.0"),
        "nvmlDeviceGetMemoryInfo": memory(24, 20),
        "nvmlDeviceGetCudaComputeCapability": (8, 9),
        "nvmlDeviceGetCurrPcieLinkGeneration": 1,
        "nvmlDeviceGetMaxPcieLinkGeneration": 4,
        "nvmlDeviceGetCurrPcieLinkWidth": 8,
        "nvmlDeviceGetMaxPcieLinkWidth": 16,
        "nvmlDeviceGetMemoryBusWidth": 384,
        "nvmlDeviceGetMaxClockInfo": 10501,
        "nvmlDeviceGetPowerManagementLimit": 300_000,
        "nvmlDeviceGetPowerManagementDefaultLimit": 450_000,
        "nvmlDeviceGetTemperature": 41,
        "nvmlDeviceGetUtilizationRates": Answer(gpu=7, memory=3),
        "nvmlDeviceGetCurrentClocksThrottleReasons": 0x4 | 0x40 | 0x1,
        "nvmlDeviceGetMigMode": (0, 0),
        "nvmlDeviceGetMaxMigDeviceCount": 0,
        "nvmlDeviceGetComputeRunningProcesses": [],
        "nvmlDeviceGetGraphicsRunningProcesses": [],
        **answers,
    }


def make_slice(uuid: str, total_gib: float, free_gib: float, profile: str = "1g.10gb") -> dict[str, Any]:
    """A slice of a cut card: it tells its name, UUID and memory, and hardly more."""
    return {
        "nvmlDeviceGetName": f"NVIDIA A100 MIG {profile}",
        "nvmlDeviceGetUUID": uuid,
        "nvmlDeviceGetMemoryInfo": memory(total_gib, free_gib),
        "nvmlDeviceGetComputeRunningProcesses": [],
    }
