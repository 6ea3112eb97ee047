"""What rooftune knows about a machine: frozen facts, each with its unit.

`None` means that the machine would not say; it is never 0. Every field has a default, so that a machine can be written down
by hand (in a test, or to predict for another machine) with only what matters.
"""

from __future__ import annotations

from typing import Literal

import msgspec

DeviceKind = Literal["CPU", "GPU", "IGPU", "ACCEL", "META"]


class CacheFacts(msgspec.Struct, frozen=True, kw_only=True):
    """One kind of CPU cache."""

    level: int
    """1, 2, 3, …"""
    kind: str
    """data, instruction or unified."""
    size_bytes: int
    """Size of one instance, bytes."""
    shared_by: int = 1
    """Logical CPUs that share one instance."""
    instances: int = 1
    """How many of them the machine has."""


class NumaNode(msgspec.Struct, frozen=True, kw_only=True):
    """Memory and the CPUs close to it."""

    index: int
    """Number of the node, as numactl takes it."""
    cpus: tuple[int, ...] = ()
    """Logical CPUs of the node; empty for memory alone."""
    memory_bytes: int | None = None
    """Memory of the node, bytes."""


class CpuFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The processor, whatever part of it rooftune may use (see `LimitFacts`)."""

    model: str | None = None
    """Name the maker gives it."""
    vendor: str | None = None
    """Maker, as the kernel spells it."""
    arch: str | None = None
    """Instruction set, as `uname -m` spells it (x86_64, aarch64, …)."""
    physical_cores: int = 1
    """Cores, at least 1 and at most `logical_cpus`."""
    logical_cpus: int = 1
    """Hardware threads, at least 1."""
    sockets: int | None = None
    """Processor packages."""
    performance_cores: int | None = None
    """Fast cores of a CPU that has two kinds; None where all are alike or the kernel does not tell."""
    efficiency_cores: int | None = None
    """Slow cores of a CPU that has two kinds; None where all are alike or the kernel does not tell."""
    performance_cpus: tuple[int, ...] = ()
    """Logical CPU numbers of the fast cores; empty where all are alike."""
    efficiency_cpus: tuple[int, ...] = ()
    """Logical CPU numbers of the slow cores; empty where all are alike."""
    simd: tuple[str, ...] = ()
    """Vector features by llama.cpp's names (AVX2, AVX512_VNNI, DOTPROD, …); empty when unknown."""
    caches: tuple[CacheFacts, ...] = ()
    """By level; empty when unknown."""
    numa_nodes: tuple[NumaNode, ...] = ()
    """Nodes with their CPUs; empty when unknown, one on most machines."""
    frequency_mhz: float | None = None
    """Fastest core's clock at the time of the probe, MHz."""
    frequency_max_mhz: float | None = None
    """Highest clock that the kernel allows, MHz."""
    governor: str | None = None
    """Frequency governor (performance, powersave, schedutil, …)."""


class MemoryFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Main memory of the machine; cgroup limits are in `LimitFacts`."""

    total_bytes: int | None = None
    """RAM, bytes."""
    available_bytes: int | None = None
    """What new work can have without swapping, reclaimable page cache included, bytes; no cgroup considered."""
    swap_total_bytes: int | None = None
    """Swap space, bytes; 0 when there is none."""
    swap_used_bytes: int | None = None
    """Swap in use, bytes."""
    huge_pages: str | None = None
    """Transparent huge pages: always, madvise or never."""
    channels: int | None = None
    """Memory channels in use; None unless someone says (no unprivileged source tells)."""
    speed_mts: int | None = None
    """Transfers of one channel, MT/s; None unless someone says."""


class LimitFacts(msgspec.Struct, frozen=True, kw_only=True):
    """How much of the machine this process may use."""

    affinity_cpus: tuple[int, ...] = ()
    """Logical CPUs that the scheduler may use for this process; empty when unknown."""
    affinity_count: int = 1
    """How many they are; all logical CPUs when unknown."""
    cpu_quota: float | None = None
    """CPUs' worth of time that the tightest cgroup grants; None when nothing limits it."""
    cpu_quota_source: str | None = None
    """The file that says so."""
    memory_limit_bytes: int | None = None
    """Memory that the tightest cgroup grants, bytes; None when nothing limits it."""
    memory_limit_source: str | None = None
    """The file that says so."""
    memory_available_bytes: int | None = None
    """What new work can have: the machine's available memory or a cgroup's rest, whichever is less, bytes."""
    memlock_bytes: int | None = None
    """Most memory that may be locked (mlock), bytes; None when unlimited or unknown."""
    cgroup: str | None = None
    """v1, v2 or hybrid; None without cgroups."""
    usable_threads: int = 1
    """Threads that can run at once: affinity and quota (rounded down) considered, at least 1."""
    usable_physical: int = 1
    """llama.cpp's default for decode threads within the limits: physical cores that rooftune may use, fast ones only
    where the CPU has two kinds; at least 1."""


class GpuProcess(msgspec.Struct, frozen=True, kw_only=True):
    """A process that holds memory of a GPU."""

    pid: int
    """Process number, as the driver tells it (of another namespace inside a container)."""
    memory_bytes: int | None = None
    """What it holds, bytes; None when the driver won't say."""


class GpuFacts(msgspec.Struct, frozen=True, kw_only=True):
    """One NVIDIA GPU, or one slice (MIG) of it, as the driver describes it."""

    index: int
    """NVML's number, in order of the PCI bus; for a slice its parent's."""
    name: str | None = None
    """Model name."""
    uuid: str | None = None
    """GPU-… or MIG-…, stable between boots."""
    pci_bus_id: str | None = None
    """Lower-case domain:bus:device.function, as llama.cpp writes it."""
    memory_total_bytes: int | None = None
    """Memory of the card or slice, of the whole machine when `unified`, bytes."""
    memory_free_bytes: int | None = None
    """Free at the time of the probe, what the machine has available when `unified`, bytes."""
    memory_used_bytes: int | None = None
    """In use at the time of the probe, bytes."""
    unified: bool = False
    """It shares the machine's main memory: one budget for both."""
    driver: str | None = None
    """Driver version."""
    cuda: str | None = None
    """Newest CUDA version that the driver serves."""
    compute_capability: str | None = None
    """Such as 9.0."""
    link_generation: int | None = None
    """PCIe generation now (idle cards slow down)."""
    link_generation_max: int | None = None
    """PCIe generation that card and slot can do."""
    link_width: int | None = None
    """PCIe lanes now."""
    link_width_max: int | None = None
    """PCIe lanes that card and slot can do."""
    memory_bus_bits: int | None = None
    """Width of the memory bus, bits."""
    memory_clock_max_mhz: int | None = None
    """Highest memory clock, MHz."""
    power_limit_w: float | None = None
    """Power cap in force, W."""
    power_limit_default_w: float | None = None
    """Power cap from the factory, W."""
    temperature_c: int | None = None
    """Temperature, degrees Celsius."""
    utilization: int | None = None
    """Share of recent time in which the GPU was busy, percent."""
    throttle_reasons: tuple[str, ...] | None = None
    """Why its clocks are held down now; empty when they are not."""
    mig: bool | None = None
    """The card is cut into slices, or this is one."""
    parent_uuid: str | None = None
    """UUID of the card that this slice is cut from; None for a whole card."""
    cuda_ordinal: int | None = None
    """Number under which CUDA programs started from here see it; None when CUDA_VISIBLE_DEVICES hides it."""
    processes: tuple[GpuProcess, ...] | None = None
    """Who holds its memory."""


class DeviceFacts(msgspec.Struct, frozen=True, kw_only=True):
    """One device in llama.cpp's own list."""

    name: str
    """As --device takes it (CUDA0, Vulkan0, CPU, …)."""
    description: str | None = None
    """Model name."""
    kind: DeviceKind = "GPU"
    """llama.cpp's type; GPU and IGPU take layers."""
    backend: str | None = None
    """Registry it belongs to (CUDA, Vulkan, CPU, …)."""
    total_bytes: int | None = None
    """Memory as llama.cpp tells it, bytes."""
    free_bytes: int | None = None
    """Free memory as llama.cpp tells it, bytes; for the CPU it is the total and means nothing."""
    pci_bus_id: str | None = None
    """Lower-case domain:bus:device.function; None for what is not on PCI."""
    unified: bool = False
    """It shares the machine's main memory: one budget for both."""
    gpu_uuid: str | None = None
    """The `GpuFacts` that this is; None when not told."""

    @property
    def takes_layers(self) -> bool:
        """A device that n_gpu_layers puts layers on."""
        return self.kind in ("GPU", "IGPU")


class BuildFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What the installed llama.cpp (through llama-cpp-python) can do."""

    importable: bool = True
    """False when llama_cpp is missing or fails to load; `import_error` says why."""
    import_error: str = ""
    """The import's own words; "" when it worked."""
    package_version: str | None = None
    """Version of llama-cpp-python."""
    llama_cpp_version: str | None = None
    """llama.cpp's own version text."""
    llama_cpp_commit: str | None = None
    """Commit of ggml inside, where it was compiled in."""
    library_digest: str | None = None
    """Short name of the libraries' content; another build of the same version has another one. None: unknown."""
    system_info: str | None = None
    """llama.cpp's one line about its compiled features."""
    simd: tuple[str, ...] = ()
    """Vector features compiled in, by llama.cpp's names; empty when `system_info` is None."""
    missing_simd: tuple[str, ...] = ()
    """What the CPU has and this build does not use."""
    repack: bool | None = None
    """Weights can be laid out anew for the CPU's vector units."""
    openmp: bool | None = None
    """Threads come from OpenMP."""
    supports_gpu_offload: bool | None = None
    """llama.cpp's answer; True with RPC alone, so it does not mean that a GPU is there: see `devices`."""
    supports_rpc: bool | None = None
    """Devices on other machines can be used."""
    supports_mmap: bool | None = None
    """Files can be mapped."""
    supports_mlock: bool | None = None
    """Memory can be locked."""
    backends: tuple[str, ...] = ()
    """Backends registered (CPU, CUDA, RPC, …)."""
    devices: tuple[DeviceFacts, ...] = ()
    """llama.cpp's device list, the CPU included."""
    tools: dict[str, str] = {}
    """llama.cpp's own programs found beside the build, name to path."""


class EnvironmentFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Where the process runs, and how busy and how hot it is there. Changes between probes."""

    system: str | None = None
    """Operating system (Linux, Darwin, Windows)."""
    kernel: str | None = None
    """Kernel release."""
    distribution: str | None = None
    """Name and version of the distribution."""
    python: str | None = None
    """Version of this Python."""
    container: str | None = None
    """docker, podman, kubernetes, lxc, … ; None outside, as far as can be told."""
    wsl: bool = False
    """The Windows Subsystem for Linux: GPU memory may spill into main memory without an error."""
    virtual_machine: str | None = None
    """Hypervisor's name, "yes" when it only shows that there is one; None on bare metal, as far as can be told."""
    load_1m: float | None = None
    """Load average of one minute, running tasks."""
    load_5m: float | None = None
    """Load average of five minutes, running tasks."""
    load_15m: float | None = None
    """Load average of fifteen minutes, running tasks."""
    cpu_pressure: float | None = None
    """Share of the last ten seconds in which a task waited for a CPU, percent."""
    memory_pressure: float | None = None
    """Share of the last ten seconds in which a task waited for memory, percent."""
    io_pressure: float | None = None
    """Share of the last ten seconds in which a task waited for a disk, percent."""
    power_source: Literal["mains", "battery"] | None = None
    """Where the power comes from; None on machines that do not tell (most desktops and servers)."""
    battery_percent: int | None = None
    """Charge of the battery, percent; None without one."""
    power_profile: str | None = None
    """Platform profile of the firmware (performance, balanced, low-power, …)."""
    throttle_count: int | None = None
    """Times that any core was slowed down by heat since boot."""


class HardwareProfile(msgspec.Struct, frozen=True, kw_only=True):
    """One machine as rooftune sees it. Made by `profile_machine`, or written by hand for another machine."""

    cpu: CpuFacts = CpuFacts()
    """The processor."""
    memory: MemoryFacts = MemoryFacts()
    """Main memory."""
    limits: LimitFacts = LimitFacts()
    """How much of both this process may use."""
    gpus: tuple[GpuFacts, ...] = ()
    """NVIDIA GPUs by the driver, hidden ones included; slices in place of a card that is cut."""
    devices: tuple[DeviceFacts, ...] = ()
    """What takes layers (GPU, IGPU) in llama.cpp's list; empty on a CPU-only build or machine."""
    build: BuildFacts | None = None
    """The installed llama.cpp; None when it could not be asked (a note says why)."""
    environment: EnvironmentFacts = EnvironmentFacts()
    """Where the process runs."""
    notes: tuple[str, ...] = ()
    """What could not be learned, and what a reader should know."""
    fingerprint: str = ""
    """Short name of this machine, the same after a reboot; unaffected by load and free memory."""
    summary: str = ""
    """The machine in one line."""

    @property
    def has_device(self) -> bool:
        """llama.cpp can put layers on something other than the CPU."""
        return bool(self.devices)

    @property
    def unified_memory(self) -> bool:
        """A device shares the machine's main memory."""
        return any(device.unified for device in self.devices)
