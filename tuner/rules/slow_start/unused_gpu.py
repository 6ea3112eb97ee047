"""PRE06: there is a GPU, and it does nothing."""

from __future__ import annotations

from typing import ClassVar, Final

from tuner.hardware import BuildFacts
from tuner.hardware.rebuilding import write_rebuild
from tuner.rules.base import Evidence, Finding, Rule, Situation
from tuner.rules.expectation import expect_gain
from tuner.rules.figures import tell_figure
from tuner.rules.points import is_possible

_CUDA: Final = "CUDA"
_REMOTE: Final = "RPC"


class UnusedGpu(Rule):
    """A GPU has ten to a hundred times the arithmetic of a processor and several times its memory speed. Two things keep it
    from being used. The installed llama.cpp may have been built without support for it: then every wish to put layers on the
    GPU is accepted and silently ignored, and the remedy is to install a build that can, with the command given. Or the build
    can, but no layers were asked for: then `n_gpu_layers` is the setting to change.

    A model is a stack of layers. They are counted from its end, and the output counts as one of them; so to put everything on
    the GPU, ask for one more than the number of layers that the model is described with.

    When this is wrong: a very old or very small GPU can be slower than the processor, and one that is needed for other work may
    be left alone on purpose. A GPU that the system hides from this process (a container without access) is not seen here.
    """

    code: ClassVar[str] = "PRE06"
    title: ClassVar[str] = "A GPU that is not used"
    symptoms: ClassVar[frozenset[str]] = frozenset({"slow-start", "slow-output", "many-users"})

    def check(self, situation: Situation) -> tuple[Finding, ...]:
        machine = situation.hardware
        if any(device.backend != _REMOTE for device in machine.devices):
            return self._propose_layers(situation) if situation.config.n_gpu_layers == 0 else ()
        names = [gpu.name or "a GPU" for gpu in machine.gpus if gpu.cuda_ordinal is not None]
        if not names or machine.build is None or not machine.build.importable:
            return ()
        return (self._blame_build(machine.build, names),)

    def _propose_layers(self, situation: Situation) -> tuple[Finding, ...]:
        full = situation.model.full_offload
        local = [device for device in situation.hardware.devices if device.backend != _REMOTE]
        if full is None or not local or not is_possible(situation, {"n_gpu_layers": full}):
            return ()
        expected = expect_gain(situation, {"n_gpu_layers": full}, "ttft")
        if expected is not None and expected.ratio <= 1:
            return ()
        finding = Finding(
            code=self.code,
            title="The GPU is not used, although the whole model fits into its memory.",
            severity="slows",
            evidence=(
                *tell_figure(situation, "ttft"),
                Evidence(what="layers on the GPU", value=0, unit="layers", basis="measured"),
                Evidence(what="GPU", value=local[0].description or local[0].name, basis="measured"),
            ),
            change={"n_gpu_layers": full},
            remedy=f"Set n_gpu_layers to {full}: all layers and the output.",
            expected=expected,
            costs="Memory of the GPU; main memory is freed.",
        )
        return (finding,)

    def _blame_build(self, build: BuildFacts, names: list[str]) -> Finding:
        has_backend = _CUDA in build.backends
        remedy = (
            "Its CUDA is newer than the driver, or no device file can be reached: update the one, or open the way to the other."
            if has_backend
            else f"Reinstall it with `{write_rebuild(build, '-DGGML_CUDA=on')}`"
        )
        return Finding(
            code=self.code,
            title="This llama.cpp was built for the GPU but cannot find it."
            if has_backend
            else "This llama.cpp build cannot use the GPU.",
            severity="slows",
            evidence=(
                Evidence(what="GPU by the driver", value=", ".join(names), basis="measured"),
                Evidence(what="backends of the build", value=", ".join(build.backends) or "none", basis="measured"),
            ),
            remedy=remedy,
        )
