"""MAC01: the machine is told to save power."""

from __future__ import annotations

from typing import ClassVar, Final

from tuner.rules.base import Evidence, Finding, Rule, Situation

_SLOW_GOVERNORS: Final = frozenset({"powersave", "conservative"})
_SLOW_PROFILES: Final = frozenset({"low-power", "quiet", "cool"})


class PowerSaver(Rule):
    """Two switches of the system decide how fast the processor may run. The frequency governor decides from moment to moment:
    "performance" keeps the clock high, "powersave" holds it low or raises it late. The power profile of the firmware decides
    how much power the whole machine may take: "low-power" or "quiet" can halve the speed of long work. Both are set for the
    battery's or the ear's sake and forgotten.

    The rule speaks when one of them says to save. The remedy for the governor is `sudo cpupower frequency-set -g performance`,
    for the profile `powerprofilesctl set performance` or the switch in the desktop's settings. Neither is a setting of
    llama.cpp, and the first has to be set again after each restart.

    When this is wrong: with the drivers intel_pstate and amd-pstate "powersave" is the ordinary name of a governor that raises
    the clock when there is work; then changing it brings a few percent at most. Look at the clock while a model runs (`grep MHz
    /proc/cpuinfo`): if it is near the maximum, all is well.
    """

    code: ClassVar[str] = "MAC01"
    title: ClassVar[str] = "Power saving"
    symptoms: ClassVar[frozenset[str]] = frozenset({"machine"})

    def check(self, situation: Situation) -> tuple[Finding, ...]:
        cpu, profile = situation.hardware.cpu, situation.hardware.environment.power_profile
        slow = cpu.governor if cpu.governor in _SLOW_GOVERNORS else None
        saving = profile if profile in _SLOW_PROFILES else None
        if slow is None and saving is None:
            return ()
        commands = (
            *(["`sudo cpupower frequency-set -g performance`"] if slow else []),
            *(["`powerprofilesctl set performance`"] if saving else []),
        )
        told = (("frequency governor", slow), ("power profile", saving))
        finding = Finding(
            code=self.code,
            title="This machine is set to save power.",
            severity="slows" if saving else "hint",
            evidence=(
                *(Evidence(what=what, value=value, basis="measured") for what, value in told if value),
                *_tell_clock(situation),
            ),
            remedy=f"Run {' and '.join(commands)}, then measure again.",
            costs="More power, heat and noise.",
        )
        return (finding,)


def _tell_clock(situation: Situation) -> tuple[Evidence, ...]:
    cpu = situation.hardware.cpu
    told = (("clock at the time of looking", cpu.frequency_mhz), ("highest clock", cpu.frequency_max_mhz))
    return tuple(Evidence(what=what, value=value, unit="MHz", basis="measured") for what, value in told if value is not None)
