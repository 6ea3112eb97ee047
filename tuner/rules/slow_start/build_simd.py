"""PRE05: llama.cpp was built for another processor than this one."""

from __future__ import annotations

from typing import ClassVar

from tuner.hardware.rebuilding import explain_missing_simd
from tuner.rules.base import Evidence, Finding, Rule, Situation


class BuildWithoutSimd(Rule):
    """Processors have vector units: one instruction multiplies 8, 16 or 64 numbers at once. Programs only use them if they were
    compiled to. Ready-made packages are compiled for the oldest processor they want to run on, so on a newer one a good part of
    its arithmetic lies idle. That costs most while a prompt is read, which is pure arithmetic, and little in the answer.

    The rule compares what the processor can do with what the installed llama.cpp says it was compiled for. The remedy is to
    compile it on this machine, which takes some minutes; the command is given. llama.cpp then chooses by itself.

    When this is wrong: a virtual machine may show vector units and run them slowly, and for formats that llama.cpp has no
    special code for the newest units bring nothing. AMX stands apart: with an older GCC (12.2 among them) a build that uses it
    crashes, which is why it may have been left out on purpose.
    """

    code: ClassVar[str] = "PRE05"
    title: ClassVar[str] = "Build without this CPU's vector units"
    symptoms: ClassVar[frozenset[str]] = frozenset({"slow-start"})

    def check(self, situation: Situation) -> tuple[Finding, ...]:
        build = situation.hardware.build
        if build is None or not build.missing_simd or not build.importable:
            return ()
        only_amx = all(name.startswith("AMX") for name in build.missing_simd)
        finding = Finding(
            code=self.code,
            title="The installed llama.cpp leaves vector units of this processor unused.",
            severity="hint" if only_amx else "slows",
            evidence=(
                Evidence(what="vector units left unused", value=", ".join(build.missing_simd), basis="measured"),
                Evidence(what="vector units in use", value=", ".join(build.simd), basis="measured"),
            ),
            remedy=_end(" ".join(explain_missing_simd(build))),
            costs="Compiling takes some minutes and needs a C++ compiler.",
        )
        return (finding,)


def _end(text: str) -> str:
    return text if text.endswith((".", ")", "`")) else text + " ."
