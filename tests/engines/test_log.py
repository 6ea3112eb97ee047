"""What is read from llama.cpp's log, on lines as llama.cpp prints them."""

from __future__ import annotations

import pytest

from tuner.engines.llama_cpp_python.log import NativeLog

MIB = 2**20


def read(*lines: tuple[int, str]) -> tuple[NativeLog, list[str]]:
    written: list[str] = []
    log = NativeLog(written.append)
    for level, text in lines:
        log.take(level, text)
    return log, written


@pytest.mark.parametrize(
    ("line", "key", "size"),
    [
        ("load_tensors:   CPU_Mapped model buffer size =    92.10 MiB\n", "weights CPU_Mapped", round(92.10 * MIB)),
        ("llama_kv_cache:        CPU KV buffer size =    22.50 MiB\n", "kv CPU", round(22.5 * MIB)),
        ("llama_kv_cache: RPC0[127.0.0.1:5] KV buffer size =  1.00 MiB\n", "kv RPC0[127.0.0.1:5]", MIB),
        ("llama_memory_recurrent:        CPU RS buffer size =     2.00 MiB\n", "state CPU", 2 * MIB),
        ("sched_reserve:        CPU compute buffer size =    14.00 MiB\n", "compute CPU", 14 * MIB),
        ("llama_context:        CPU  output buffer size =     0.50 MiB\n", "output CPU", MIB // 2),
    ],
)
def test_buffers_are_told_by_cause_and_device(line: str, key: str, size: int) -> None:
    """llama.cpp prints two decimals of a MiB."""
    log, _ = read((2, line))
    assert log.buffers == {key: size}


def test_two_caches_on_one_device_add_up_but_a_buffer_reserved_anew_does_not() -> None:
    """A window model has two KV caches; compute buffers are told again whenever they are reserved again."""
    log, _ = read(
        (2, "llama_kv_cache: CPU KV buffer size = 3.00 MiB\n"),
        (2, "llama_kv_cache: CPU KV buffer size = 15.00 MiB\n"),
        (2, "sched_reserve: CPU compute buffer size = 14.00 MiB\n"),
        (2, "sched_reserve: CPU compute buffer size = 16.00 MiB\n"),
    )
    assert log.buffers == {"kv CPU": 18 * MIB, "compute CPU": 16 * MIB}


@pytest.mark.parametrize(
    ("lines", "outcome"),
    [
        (("llama_context: flash_attn            = auto\n", "resolve_fused_ops: Flash Attention enabled\n"), "on"),
        (("llama_context: flash_attn            = auto\n", "x: Flash Attention not supported, set to disabled\n"), "off"),
        (("llama_context: flash_attn            = enabled\n",), "on"),
        (("llama_context: flash_attn            = disabled\n",), "off"),
        (("llama_context: flash_attn            = auto\n",), None),
    ],
)
def test_flash_attention_is_what_was_settled_not_what_was_asked(lines: tuple[str, ...], outcome: str | None) -> None:
    """auto becomes on or off; where nothing is said, nothing is claimed."""
    log, _ = read(*((2, line) for line in lines))
    assert log.flash_attn == outcome


def test_a_line_in_pieces_is_one_line_and_debug_is_dropped() -> None:
    """Pieces continue the level of the piece before."""
    _, written = read((2, "load: a"), (5, "b\n"), (1, "noise"), (5, "more noise\n"), (5, "\n"), (3, "careful\n"))
    assert written == ["load: ab\n", "careful\n"]


def test_a_new_context_forgets_the_old_ones_buffers_but_not_the_weights() -> None:
    """Weights stay loaded across contexts."""
    log, _ = read(
        (2, "load_tensors: CPU model buffer size = 1.00 MiB\n"), (2, "llama_kv_cache: CPU KV buffer size = 1.00 MiB\n")
    )
    log.start_context()
    assert log.buffers == {"weights CPU": MIB}
    log.start_model()
    assert log.buffers == {}


def test_a_complaint_is_in_llama_cpps_words_and_memory_is_recognised() -> None:
    """The function's name is dropped; what is about memory is told apart."""
    log, _ = read((4, "llama_init_from_model: quantized V cache requires flash_attn to be enabled\n"))
    assert (log.complaint, log.says_out_of_memory) == ("quantized V cache requires flash_attn to be enabled", False)
    log, _ = read((4, "ggml_backend_cpu_buffer_type_alloc_buffer: failed to allocate buffer of size 99\n"))
    assert log.says_out_of_memory
