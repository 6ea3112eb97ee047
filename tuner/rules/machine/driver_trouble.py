"""MAC13: the NVIDIA driver does not answer as it should."""

from __future__ import annotations

from typing import ClassVar, Final

from tuner.rules.base import Evidence, Finding, Rule, Situation

_REMEDIES: Final = (
    ("driver is not loaded", "Load it with `sudo modprobe nvidia`, or install it for the running kernel, and restart."),
    ("driver is too old", "Update the NVIDIA driver."),
    ("refuses this user", "Add this user to the group that owns `/dev/nvidia*` (often video or render), and log in again."),
    ("have different versions", "Restart the machine: the driver was updated while the old one was running."),
    ("gives no access to it", "Ask for access to the card: `/dev/nvidia*` belongs to another user or container."),
    (
        "set up to be cut into slices (MIG) but has none",
        "Make a slice with `sudo nvidia-smi mig -cgi 0 -C`, or switch MIG off.",
    ),
    ("hides every GPU", "Unset CUDA_VISIBLE_DEVICES, or put the number of a card that exists into it."),
)
"""Words of a note of the hardware probe → what to do. No driver at all is the quiet normal case and not among them."""


class DriverTrouble(Rule):
    """An NVIDIA GPU is used through a driver, and the driver can be half there: installed but not loaded, updated but not
    restarted, loaded but closed to this user, or told by a variable to hide the card. llama.cpp then finds no GPU and works on
    the processor without complaint, at a tenth of the speed.

    The rule passes on what the driver answered when rooftune asked it, with the remedy for each known answer. A machine without
    any NVIDIA driver is not meant: that is normal, and the rule is silent.

    When this is wrong: the answer is that of the moment. Inside a container the driver of the host counts, and there the remedy
    is the container's own switch (`docker run --gpus all`).
    """

    code: ClassVar[str] = "MAC13"
    title: ClassVar[str] = "Trouble with the GPU driver"
    symptoms: ClassVar[frozenset[str]] = frozenset({"machine"})

    def check(self, situation: Situation) -> tuple[Finding, ...]:
        found = [(note, remedy) for note in situation.hardware.notes for words, remedy in _REMEDIES if words in note]
        if not found:
            return ()
        remedies = dict.fromkeys(remedy for _, remedy in found)
        finding = Finding(
            code=self.code,
            title="The NVIDIA driver does not give rooftune or llama.cpp all of the GPU.",
            severity="slows",
            evidence=tuple(Evidence(what="the driver says", value=note, basis="measured") for note, _ in found),
            remedy=" ".join(remedies),
        )
        return (finding,)
