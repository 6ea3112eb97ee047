"""The whole way of a tune over an engine that only pretends, so that every figure is known beforehand."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from tests.builders.ceilings import make_ceilings
from tuner.errors import BadInputError, InterruptedRunError, NothingFeasibleError
from tuner.hardware import HardwareProfile
from tuner.hardware.record import CpuFacts, LimitFacts, MemoryFacts
from tuner.measure.activity import Activity
from tuner.measure.stop import Stop
from tuner.report import Gain, Report, read_report, write_report
from tuner.session import MeasureRequest, TuneRequest, measure_once, save_report, tune, verify
from tuner.study.events import Note, StageStarted, TrialFinished

MACHINE = HardwareProfile(
    cpu=CpuFacts(physical_cores=2, logical_cpus=2),
    memory=MemoryFacts(total_bytes=8 * 2**30, available_bytes=6 * 2**30),
    limits=LimitFacts(usable_threads=2, usable_physical=2, affinity_count=2, memory_available_bytes=6 * 2**30),
    fingerprint="two-cores",
    summary="2 cores, 8 GiB",
)
QUIET = Activity(wall_s=1.0, others_cores=0.0, steal_cores=0.0, swapped_pages=0, throttled_share=None, throttle_count=0)


def request(folder: Path, **changes: object) -> TuneRequest:
    (folder / "tiny.yaml").write_text("name: tiny\nprompt_tokens: 32\noutput_tokens: 8\n")
    (folder / "space.yaml").write_text("name: two\ndimensions:\n  threads: [1, 2]\n")
    plain = TuneRequest(demo=True, engine="simulated", workload="tiny.yaml", space="space.yaml", budget="30s", trials=3)
    return msgspec.structs.replace(plain, **changes)


def run(asked: TuneRequest, **more) -> Report:
    given = {"emit": lambda _: None, "stop": Stop(), "profile": lambda: MACHINE, "survey": lambda _: QUIET}
    return tune(asked, **(given | more))


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, smollm2: Path) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_tune_ends_in_a_report_that_can_be_read_back(here: Path) -> None:
    asked, events = request(here, objective="latency", limits=("memory<=4GiB",)), []
    report = run(asked, emit=events.append)
    assert report.machine.fingerprint == "two-cores"
    assert report.model.quant == "Q4_1"
    assert report.limits == ("memory<=4GiB",)
    assert report.best.latency_ms is not None
    assert report.best.samples.tpot_ms
    assert report.trials["complete"] >= 2
    assert next(event.stage for event in events if isinstance(event, StageStarted)) == "baseline"
    assert any(isinstance(event, TrialFinished) for event in events)
    assert read_report(save_report(report, asked).path) == report


def test_a_busy_machine_is_told_before_the_search(here: Path) -> None:
    from tuner.session import tuning
    from tuner.session.checking import check_tune

    checked = check_tune(msgspec.structs.replace(request(here), engine="llama-cpp-python"))
    space = tuning.form_space(checked, MACHINE)
    busy = msgspec.structs.replace(QUIET, others_cores=1.5)
    assert any("busy" in note for note in tuning.describe_start(checked, space, MACHINE, lambda _: busy))
    assert not any("busy" in note for note in tuning.describe_start(checked, space, MACHINE, lambda _: QUIET))


def test_a_model_that_does_not_fit_is_refused_with_the_arithmetic(here: Path) -> None:
    small = msgspec.structs.replace(MACHINE, limits=msgspec.structs.replace(MACHINE.limits, memory_available_bytes=50 * 2**20))
    with pytest.raises(NothingFeasibleError, match="KV cache"):
        run(request(here), profile=lambda: small)


def shrink(available: int) -> HardwareProfile:
    return msgspec.structs.replace(MACHINE, limits=msgspec.structs.replace(MACHINE.limits, memory_available_bytes=available))


def test_a_refusal_names_its_ways_round(here: Path) -> None:
    """In the error of a tune, in the stored trial's reason, and in the error of a single measurement."""
    finished: list[TrialFinished] = []
    with pytest.raises(NothingFeasibleError) as caught:
        run(
            request(here),
            profile=lambda: shrink(50 * 2**20),
            emit=lambda event: finished.append(event) if isinstance(event, TrialFinished) else None,
        )
    assert {event.trial.state for event in finished} == {"does_not_fit"}
    for words in (caught.value.message, *(event.trial.reason for event in finished)):
        assert "KV cache" in words
        assert "50 MiB free less a reserve of 2.5 MiB" in words
        assert "--no-memory-check" in words
        assert "--reserve SIZE" in words
    asked = MeasureRequest(demo=True, engine="simulated", workload="tiny.yaml")
    with pytest.raises(NothingFeasibleError, match=r"KV cache.* --no-memory-check .*--reserve SIZE"):
        measure_once(asked, stop=Stop(), profile=lambda: shrink(50 * 2**20))


def test_the_check_can_be_overruled(here: Path) -> None:
    """What does not fit by arithmetic is run, and said so beforehand."""
    notes: list[Note] = []
    report = run(
        request(here, no_memory_check=True),
        profile=lambda: shrink(50 * 2**20),
        emit=lambda event: notes.append(event) if isinstance(event, Note) else None,
    )
    assert report.trials["complete"] >= 2
    assert not report.trials.get("does_not_fit")
    assert any("memory is not checked; the default: It needs" in note.text for note in notes)
    asked = MeasureRequest(demo=True, engine="simulated", workload="tiny.yaml", samples=1, no_memory_check=True)
    assert measure_once(asked, stop=Stop(), profile=lambda: shrink(50 * 2**20)).samples


def test_a_reserve_refuses_what_would_fit(here: Path) -> None:
    """The same machine, more of it left to others."""
    with pytest.raises(NothingFeasibleError, match=r"0 B is available \(6 GiB free less a reserve of 6 GiB\)"):
        run(request(here, reserve="6GiB"))
    assert run(request(here, reserve="1GiB")).trials["complete"] >= 2


@pytest.mark.parametrize("anew", [{"no_memory_check": True}, {}])
def test_a_refused_study_goes_on_once_the_refusal_is_lifted(here: Path, anew: dict[str, bool]) -> None:
    """By the flag, or by memory that came free: it stays the same study, and its refusals are not held against it."""
    with pytest.raises(NothingFeasibleError):
        run(request(here, study="mine"), profile=lambda: shrink(50 * 2**20))
    later = shrink(50 * 2**20) if anew else MACHINE
    again = run(TuneRequest(resume="mine", **anew), profile=lambda: later)
    assert (again.study, again.best.config.ctx_size > 0) == ("mine", True)


def test_what_is_not_known_is_not_refused(here: Path) -> None:
    """No memory figures at all: everything runs, check or no check."""
    silent = HardwareProfile(cpu=MACHINE.cpu, limits=LimitFacts(usable_threads=2, usable_physical=2), fingerprint="silent")
    assert run(request(here), profile=lambda: silent).trials["complete"] >= 2


def test_a_stop_says_how_to_go_on_and_the_study_goes_on(here: Path) -> None:
    stop = Stop()

    def stop_soon(event: object) -> None:
        if isinstance(event, TrialFinished):
            stop.request()

    with pytest.raises(InterruptedRunError) as caught:
        run(request(here, study="mine"), emit=stop_soon, stop=stop)
    assert "rooftune tune --demo" in caught.value.hint
    assert "--resume mine" in caught.value.hint
    assert run(request(here, resume="mine")).study == "mine"


def test_the_name_alone_goes_on_with_a_study_from_another_folder(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    storage = f"sqlite:///{here / 'all.db'}"
    first = run(request(here, study="mine", storage=storage, seed=7, settings=("ubatch_size=64",)))
    (here / "elsewhere").mkdir()
    monkeypatch.chdir(here / "elsewhere")
    again = run(TuneRequest(resume="mine", storage=storage))
    assert (again.study, again.seed, again.workload) == ("mine", 7, first.workload)
    assert again.best.config.ubatch_size == 64
    assert again.trials == first.trials


def test_a_name_that_no_study_bears_is_bad_input(here: Path) -> None:
    run(request(here, study="mine"))
    with pytest.raises(BadInputError, match="There is no study 'yours'"):
        run(TuneRequest(resume="yours"))


def test_settings_that_cannot_run_are_bad_input(here: Path) -> None:
    with pytest.raises(BadInputError, match="flash attention"):
        run(request(here, settings=("cache_type_v=q8_0", "flash_attn=off")))


def test_several_files_are_compared_and_the_most_precise_stays_the_best(here: Path, smollm2: Path) -> None:
    """Two names of one file stand for two formats of a model."""
    for name in ("a.gguf", "b.gguf"):
        (here / name).symlink_to(smollm2)
    notes = []
    report = run(
        request(here, demo=False, models=("a.gguf", "b.gguf")), emit=lambda e: notes.append(e) if isinstance(e, Note) else None
    )
    assert report.best.config.model == str(here / "a.gguf")
    assert any("most precise" in note.text for note in notes)


def test_verify_tells_a_gain_that_is_gone_and_what_changed(here: Path) -> None:
    report = run(request(here))
    slower = report.baseline.config.replace(threads=1, threads_batch=1)
    claimed = msgspec.structs.replace(
        report,
        best=msgspec.structs.replace(report.best, config=slower),
        gain=Gain(metric="latency", ratio=2.0, ci95=(1.9, 2.1), significant=True, rounds=5),
        machine=msgspec.structs.replace(report.machine, driver="550.1"),
    )
    write_report(claimed, here / "claimed.yaml")
    answer = verify(here / "claimed.yaml", tell=lambda _: None, stop=Stop(), profile=lambda: MACHINE, survey=lambda _: QUIET)
    assert not answer.holds
    assert "The gain is gone" in answer.verdict
    assert answer.changed == ("the GPU driver was 550.1 and is none",)


def test_verify_refuses_with_the_sum_and_its_ways_round(here: Path) -> None:
    """And measures all the same where it is told to."""
    report = run(request(here))
    slower = msgspec.structs.replace(report.best, config=report.baseline.config.replace(threads=1, threads_batch=1))
    write_report(msgspec.structs.replace(report, best=slower), here / "other.yaml")
    given = {"tell": lambda _: None, "stop": Stop(), "profile": lambda: shrink(50 * 2**20), "survey": lambda _: QUIET}
    with pytest.raises(BadInputError, match=r"KV cache.*--no-memory-check"):
        verify(here / "other.yaml", **given)
    assert verify(here / "other.yaml", no_memory_check=True, **given).gain is not None


def test_verify_without_the_model_is_bad_input(here: Path) -> None:
    report = run(request(here))
    gone = msgspec.structs.replace(report, model=msgspec.structs.replace(report.model, path=str(here / "gone.gguf")))
    write_report(gone, here / "gone.yaml")
    with pytest.raises(BadInputError, match=r"gone\.gguf"):
        verify(here / "gone.yaml", tell=lambda _: None, stop=Stop(), profile=lambda: MACHINE, survey=lambda _: QUIET)


def test_measuring_once_gives_full_turns(here: Path) -> None:
    (here / "tiny.yaml").write_text("name: tiny\nprompt_tokens: 32\noutput_tokens: 8\n")
    asked = MeasureRequest(demo=True, engine="simulated", workload="tiny.yaml", settings=("threads=1",), samples=2)
    measurement = measure_once(asked, stop=Stop(), profile=lambda: MACHINE)
    assert measurement.config.threads == 1
    assert measurement.decode_tokens == 8
    assert len(measurement.samples) == 2


def test_a_report_tells_what_the_checklist_says_of_the_default(here: Path) -> None:
    """And what the study measured of a change that it tried, in the file as well."""
    asked = request(here, settings=("threads_batch=16",), limits=())
    report = run(asked)
    found = {finding["code"]: finding for finding in report.findings}
    assert found["DEC04"]["change"] == {"threads_batch": 2}
    assert {"code", "title", "evidence", "change", "expected", "measured"} <= set(found["DEC04"])
    assert read_report(save_report(report, asked).path).findings == report.findings


@pytest.mark.parametrize(
    ("changes", "kept", "told"),
    [
        ({}, None, "calibrate once (75 s) for better predictions: rooftune calibrate"),
        ({"rpc": ("a:1", "b:2")}, None, "calibrate once (75 s) for better predictions: rooftune calibrate --rpc a:1,b:2"),
        ({}, make_ceilings(), ""),
        ({"strategy": "random"}, None, ""),
        ({"engine": "simulated"}, None, ""),
    ],
    ids=["nothing kept", "servers", "kept", "no predictions wanted", "pretended"],
)
def test_a_search_without_predictions_says_once_how_to_have_them(
    changes: dict[str, object], kept: object, told: str, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It never measures the machine by itself: its budget is for the search."""
    import tuner.calibration
    from tuner.session.checking import check_tune
    from tuner.session.tuning import note_missing_calibration

    monkeypatch.setattr(tuner.calibration, "find_ceilings", lambda *_: kept)
    asked = request(here, **({"engine": "llama-cpp-python", "strategy": "physics"} | changes))
    assert note_missing_calibration(check_tune(asked), MACHINE) == told
