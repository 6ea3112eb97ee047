"""MAC02: the machine runs on its battery."""

from __future__ import annotations

from typing import ClassVar

from tuner.rules.base import Evidence, Finding, Rule, Situation


class Battery(Rule):
    """Away from the mains a laptop protects its battery: it holds the clock down, often to half, and lowers the power that
    processor and GPU may take. A language model keeps both fully busy, which is just what such limits are made against. Figures
    measured on battery are therefore low, and they change as the battery empties.

    The rule speaks when the machine says that it runs on battery. The remedy is to plug it in, and to measure again.

    When this is wrong: some laptops give the same power on battery as on mains. A machine with a standby supply (UPS) that
    reports itself as a battery is no laptop.
    """

    code: ClassVar[str] = "MAC02"
    title: ClassVar[str] = "Running on battery"
    symptoms: ClassVar[frozenset[str]] = frozenset({"machine"})

    def check(self, situation: Situation) -> tuple[Finding, ...]:
        environment = situation.hardware.environment
        if environment.power_source != "battery":
            return ()
        charge = environment.battery_percent
        finding = Finding(
            code=self.code,
            title="This machine runs on its battery, which usually halves its speed under load.",
            severity="slows",
            evidence=(
                Evidence(what="power comes from", value="the battery", basis="measured"),
                *(
                    Evidence(what="charge", value=each, unit="percent", basis="measured")
                    for each in (charge,)
                    if each is not None
                ),
            ),
            remedy="Plug it in, and measure again.",
        )
        return (finding,)
