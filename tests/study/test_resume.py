"""A study that was killed, stopped or disturbed goes on, and loses nothing that was stored."""

from __future__ import annotations

import gc
import os
import shutil
import signal
import subprocess
import sys

import pytest

from tests.study.fakes import FACTS, FakeMeasurer, FakeSpace, FakeStop, cost_of, interrupt_at, make_request, run
from tuner.errors import BadInputError, InterruptedRunError, StorageError, UsageError
from tuner.runconfig import RunConfig
from tuner.study.record import open_record
from tuner.study.request import KeyFacts
from tuner.study.storage import read_studies
from tuner.workload import Workload

DOMAINS = {"threads": (1, 2, 3, 4, 6, 8, 12), "flash_attn": ("on", "off"), "cache_type_k": ("f16", "q8_0")}


def space():
    return FakeSpace(DOMAINS)


def read_trials(request):
    import optuna

    return optuna.load_study(storage=request.storage, study_name=request.study_name).get_trials()


SCRIPT = """
import sys
from tests.study.test_resume import space
from tests.study.fakes import FakeMeasurer, make_request, run
def wait(count):
    if count == 7:
        print("waiting", flush=True)
        import time; time.sleep(60)
request = make_request(space(), sys.argv[1], study_name=sys.argv[2], **eval(sys.argv[3]))
run(request, FakeMeasurer(on_measure=wait if len(sys.argv) > 4 else None))
"""


def start(storage, name, options="{}", *extra):
    return subprocess.Popen(
        [sys.executable, "-c", SCRIPT, storage, name, options, *extra],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def kill_within_trial(storage, name, options="{}"):
    process = start(storage, name, options, "wait")
    assert process.stdout is not None
    assert process.stdout.readline().strip() == "waiting"
    process.send_signal(signal.SIGKILL)
    process.communicate()


def test_a_killed_tune_goes_on_where_it_was(storage):
    """kill -9 within a trial: the open trial becomes FAIL, numbering goes on, nothing is measured twice."""
    kill_within_trial(storage, "s")
    request = make_request(space(), storage, study_name="s", resume=True)
    before = read_trials(request)
    assert [trial.state.name for trial in before].count("RUNNING") == 1
    measurer = FakeMeasurer()
    result = run(request, measurer)
    after = read_trials(request)
    assert [trial.number for trial in after] == list(range(len(after)))
    assert "RUNNING" not in {trial.state.name for trial in after}
    assert after[len(before) - 1].state.name == "FAIL"
    assert not {trial.user_attrs.get("killed") for trial in before} - {None}
    assert after[len(before) - 1].user_attrs["state"] == "interrupted"
    assert result.gain.significant
    thorough = [config for config, plan in measurer.runs if plan.decode_tokens == 64 and not plan.fresh]
    assert space().effective(space().baseline) not in thorough


def test_a_point_that_kills_the_tuner_twice_is_not_tried_again(storage):
    kill_within_trial(storage, "s")
    kill_within_trial_on_resume(storage)
    request = make_request(space(), storage, study_name="s", resume=True)
    open_record(request).release()
    crashed = [trial for trial in read_trials(request) if trial.user_attrs.get("state") == "crash"]
    assert len(crashed) == 1
    measurer = FakeMeasurer()
    run(request, measurer)
    deadly = RunConfig(**{**crashed[0].user_attrs["config"], "tensor_split": ()})
    assert deadly not in {config for config, _ in measurer.runs}


def kill_within_trial_on_resume(storage):
    script = SCRIPT.replace("count == 7", "count == 1")
    process = subprocess.Popen(
        [sys.executable, "-c", script, storage, "s", "{'resume': True}", "wait"], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline().strip() == "waiting"
    process.kill()
    process.communicate()


def test_the_budget_goes_on_where_it_was(storage):
    """Time that was spent before the interruption is not given again."""
    first = FakeMeasurer(on_measure=interrupt_at(8))
    request = make_request(space(), storage, study_name="s", budget_s=40.0)
    with pytest.raises(InterruptedRunError, match="saved"):
        run(request, first)
    second = FakeMeasurer()
    result = run(make_request(space(), storage, study_name="s", budget_s=40.0, resume=True), second)
    assert first.clock.now * 0.7 <= result.elapsed_s - second.clock.now <= first.clock.now
    assert result.elapsed_s <= 42.0


def test_ctrl_c_saves_what_was_measured_and_resume_gives_the_same_answer(storage):
    request = make_request(space(), storage, study_name="s")
    with pytest.raises(InterruptedRunError) as caught:
        run(request, FakeMeasurer(on_measure=interrupt_at(9)))
    assert "--resume s" in caught.value.hint
    result = run(make_request(space(), storage, study_name="s", resume=True), FakeMeasurer(seed=1))
    assert result.best.config.threads == 6


def test_a_stop_between_trials_ends_the_study(storage):
    stop = FakeStop()
    measurer = FakeMeasurer(on_measure=lambda count: setattr(stop, "requested", count >= 5))
    with pytest.raises(InterruptedRunError):
        run(make_request(space(), storage, study_name="s"), measurer, stop=stop)
    assert len(measurer.runs) == 5
    (study,) = read_studies(storage)
    assert (study.state, study.complete) == ("interrupted", study.trials)


def test_a_second_ctrl_c_leaves_at_once_and_the_study_goes_on_later(storage):
    def interrupt(count):
        if count == 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(make_request(space(), storage, study_name="s"), FakeMeasurer(on_measure=interrupt))
    assert run(make_request(space(), storage, study_name="s", resume=True)).best.config.threads == 6


def test_an_interrupted_confirmation_keeps_its_rounds(storage):
    """The rounds that were run count; only the missing ones are added."""
    fresh = []
    measurer = FakeMeasurer()

    def respond(config, plan):
        fresh.append(plan.fresh)
        if sum(fresh) == 6:
            raise InterruptedRunError("stopped")

    measurer._respond = respond
    with pytest.raises(InterruptedRunError):
        run(make_request(space(), storage, study_name="s"), measurer)
    again = FakeMeasurer(seed=5)
    result = run(make_request(space(), storage, study_name="s", resume=True), again)
    assert all(plan.fresh for _, plan in again.runs)
    assert len(again.runs) < len([trial for trial in result.rounds if trial.stage == "confirm"])


DIFFERENT = [
    (
        {"facts": KeyFacts(models=("model-b",), engine="fake 1", llama_cpp="b1", machine="box")},
        "model was model-a and is model-b",
    ),
    ({"facts": KeyFacts(models=("model-a",), engine="fake 1", llama_cpp="b2", machine="box")}, "llama.cpp was b1 and is b2"),
    ({"facts": KeyFacts(models=("model-a",), engine="fake 1", llama_cpp="b1", machine="pod")}, "machine was box and is pod"),
    (
        {"facts": KeyFacts(models=("model-a",), engine="fake 2", llama_cpp="b1", machine="box")},
        "engine was fake 1 and is fake 2",
    ),
    ({"workload": Workload(name="other", prompt_tokens=65, output_tokens=64)}, "workload was"),
    ({"goals": "ttft"}, "objective was tpot and is ttft"),
    ({"limits": ("tpot<=50ms",)}, "limits was none and is tpot<=50ms"),
    ({"strategy": "random"}, "strategy was physics and is random"),
]


@pytest.mark.parametrize(("changes", "told"), DIFFERENT)
def test_a_resume_that_does_not_match_says_what_differs(storage, changes, told):
    open_record(make_request(space(), storage, study_name="s", facts=FACTS)).release()
    with pytest.raises(BadInputError, match=told):
        open_record(make_request(space(), storage, study_name="s", resume=True, **changes))


def test_a_resume_over_another_space_is_refused(storage):
    open_record(make_request(space(), storage, study_name="s")).release()
    with pytest.raises(BadInputError, match="search space"):
        open_record(make_request(FakeSpace({"threads": (4, 6)}), storage, study_name="s", resume=True))


def test_unknown_and_taken_names_are_told(storage):
    open_record(make_request(space(), storage, study_name="s")).release()
    with pytest.raises(BadInputError, match="no study 'nix'"):
        open_record(make_request(space(), storage, study_name="nix", resume=True))
    with pytest.raises(BadInputError, match="a study s already"):
        open_record(make_request(space(), storage, study_name="s"))


def test_studies_without_a_name_get_different_ones(storage):
    names = [open_record(make_request(space(), storage)).name for _ in range(2)]
    assert names == ["a-tiny-tpot-1", "a-tiny-tpot-2"]


def test_a_study_that_another_process_runs_is_not_taken(storage):
    process = start(storage, "s", "{}", "wait")
    try:
        assert process.stdout is not None
        process.stdout.readline()
        with pytest.raises(BadInputError, match=f"process {process.pid}"):
            open_record(make_request(space(), storage, study_name="s", resume=True))
        assert read_studies(storage)[0].state == "running"
    finally:
        process.kill()
        process.communicate()


def test_two_tunes_share_one_storage(storage):
    """Both start at once on a file that does not exist yet, both finish, and their trials do not mix."""
    pair = [start(storage, name) for name in ("one", "two")]
    for process in pair:
        _, errors = process.communicate(timeout=120)
        assert process.returncode == 0, errors
    studies = {study.name: study for study in read_studies(storage)}
    assert {name: study.state for name, study in studies.items()} == {"one": "finished", "two": "finished"}
    assert studies["one"].trials == studies["two"].trials


@pytest.fixture
def small_disk(tmp_path):
    """A tmpfs of 1 MiB, where this process may mount one."""
    place = tmp_path / "disk"
    place.mkdir()
    if os.geteuid() != 0 or not shutil.which("mount"):
        pytest.skip("mounting a small tmpfs needs root")
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(place)], capture_output=True, check=False)
    if done.returncode:
        pytest.skip("this machine does not allow a tmpfs to be mounted")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)
    gc.collect()


def fill_up(path):
    """Write until the disk takes no more."""
    handle = os.open(path, os.O_WRONLY | os.O_CREAT)
    try:
        while True:
            os.write(handle, b"x" * 4096)
    except OSError:
        return
    finally:
        os.close(handle)


def test_a_full_disk_stops_the_study_and_keeps_what_was_stored(small_disk):
    storage = f"sqlite:///{small_disk}/studies.db"
    ballast = small_disk / "ballast"

    def fill(count):
        if count == 8:
            fill_up(ballast)

    with pytest.raises(StorageError) as caught:
        run(make_request(space(), storage, study_name="s"), FakeMeasurer(on_measure=fill))
    assert "full" in caught.value.message
    assert "\n" not in str(caught.value)
    ballast.unlink()
    stored = [trial for trial in read_trials(make_request(space(), storage, study_name="s")) if trial.user_attrs.get("state")]
    assert len(stored) >= 3


def test_a_read_only_folder_is_told_in_one_sentence(small_disk):
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    with pytest.raises(StorageError, match=r"cannot be (written|opened)"):
        open_record(make_request(space(), f"sqlite:///{small_disk}/studies.db"))


BAD_URLS = [
    ("results.db", "no storage URL"),
    ("nosuch://host/db", "no storage URL"),
    ("sqlite:////proc/nowhere/studies.db", "proc/nowhere"),
    ("postgresql://user:secret@localhost:1/db", r"driver|does not answer"),
]


@pytest.mark.parametrize(("url", "told"), BAD_URLS)
def test_bad_storage_urls_get_one_sentence(url, told):
    with pytest.raises((StorageError, UsageError), match=told) as caught:
        open_record(make_request(space(), url))
    assert "\n" not in str(caught.value)
    assert "secret" not in str(caught.value)


def test_a_file_that_is_no_database_is_told(tmp_path):
    path = tmp_path / "notes.db"
    path.write_text("hello " * 500)
    with pytest.raises(StorageError, match="no SQLite database"):
        open_record(make_request(space(), f"sqlite:///{path}"))


def test_reading_studies_makes_no_file(tmp_path):
    assert read_studies(f"sqlite:///{tmp_path}/none.db") == ()
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("count", "least"), [(1, 0), (4, 1), (9, 3)])
def test_an_interrupted_study_tells_as_many_trials_as_the_list_of_studies(storage, count, least):
    """Those whose end is stored; the one in progress is tried again."""
    with pytest.raises(InterruptedRunError) as caught:
        run(make_request(space(), storage, study_name="s"), FakeMeasurer(on_measure=interrupt_at(count)))
    (study,) = read_studies(storage)
    assert study.trials == study.complete >= least
    assert f"{study.trials} trial{'' if study.trials == 1 else 's'} of s saved" in caught.value.message


def test_rounds_that_were_stored_are_not_mixed_with_longer_ones(storage):
    """A short budget had them write a shorter answer; a resume with a longer one goes on with that."""
    chat = Workload(name="chat", prompt_tokens=512, output_tokens=256)

    def slow(config):
        ttft, tpot = cost_of(config)
        return ttft * 12, tpot * 2

    def ask(**changes):
        narrow = FakeSpace({"threads": (2, 4, 6)})
        return make_request(narrow, storage, study_name="s", workload=chat, **changes)

    first = FakeMeasurer(cost=slow)
    first._respond = lambda *_: stop_here() if sum(each.fresh for _, each in first.runs) == 3 else None
    with pytest.raises(InterruptedRunError):
        run(ask(budget_s=60.0), first)
    second = FakeMeasurer(cost=slow, seed=3)
    run(ask(budget_s=900.0, resume=True), second)
    lengths = {plan.decode_tokens for _, plan in (*first.runs, *second.runs) if plan.fresh}
    assert len(lengths) == 1


def stop_here():
    raise InterruptedRunError("stopped")
