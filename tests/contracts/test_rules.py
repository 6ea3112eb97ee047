"""What every rule of the checklist keeps, found by existing: a new one is tested without a line here."""

from __future__ import annotations

import inspect
import pkgutil
import re
import sys
from pathlib import Path

import msgspec
import pytest

from tests.rules.builders import GIB, make_blank, make_case, make_gpu, make_host, make_model
from tests.rules.pretended import Pretended
from tuner.cli import commands
from tuner.cli.main import run
from tuner.model import ModelSpec
from tuner.rules.base import Finding, Rule, Situation
from tuner.rules.catalogue import find_rule, list_rules, read_manual
from tuner.rules.checking import check_situation
from tuner.rules.points import change_point, find_obstacle
from tuner.runconfig import RunConfig
from tuner.workload import PRESETS, Workload

RULES = list_rules()
DEEP = Workload(name="deep", prompt_tokens=512, output_tokens=256, depth_tokens=24_000)
LONG = Workload(name="long", prompt_tokens=16_000, output_tokens=256)
SYMPTOMS = ("slow-start", "slow-output", "out-of-memory", "many-users", "long-chat", "machine")
SLOW = Pretended(core_flops=2e9, bandwidth=2e9, core_bandwidth=1e9, flash_decode_cost=3.0, most_ubatch=64, op_s=4e-11)
EIGHT = make_model(parameters=8_000_000_000, n_layer=32, heads=32, kv_heads=8, head=128)
Q8: ModelSpec = make_model(quant="Q8_0", bits=8.5)
SMALL = make_host(available_bytes=2 * GIB)


def _spoiled() -> dict[str, Situation]:
    """Situations in which something is wrong, so that rules have something to say."""
    busy = make_host(
        environment={
            "load_1m": 12.0,
            "cpu_pressure": 40.0,
            "power_source": "battery",
            "power_profile": "low-power",
            "wsl": True,
        },
        memory={"swap_used_bytes": 4 * GIB},
        cpu={"governor": "powersave"},
    )
    return {
        "slow machine": make_case(speed=SLOW, workload=DEEP, model=EIGHT),
        "long prompt": make_case(speed=SLOW, workload=LONG, promise_ttft_ms=2000.0),
        "too many threads": make_case(config={"threads": 16, "threads_batch": 16}),
        "quota": make_case(machine=make_host(cores=8, usable=4), config={"threads": 8}),
        "one thread": make_case(config={"threads": 1, "threads_batch": 1}),
        "slow format": make_case(model=make_model(quant="Q4_1", bits=5.0), speed=Pretended(format_cost={"Q4_1": 2.4})),
        "smaller file at hand": make_case(model=Q8, siblings=(make_model(),), speed=SLOW),
        "foreign build": make_case(machine=make_host(build={"missing_simd": ("AVX512", "AVX512_VNNI")})),
        "half on a device": make_case(
            machine=make_host(devices=(make_gpu(),)), config={"n_gpu_layers": 5}, speed=Pretended(link_s=0.05), model=EIGHT
        ),
        "does not fit": make_case(model=EIGHT, machine=SMALL, workload=DEEP, config={"ctx_size": 131_072}),
        "does not fit the device": make_case(
            model=EIGHT, machine=make_host(devices=(make_gpu(free_bytes=3 * GIB),)), workload=DEEP
        ),
        "many users": make_case(workload=PRESETS["batch"], speed=SLOW, config={"parallel": 8}),
        "small pieces": make_case(config={"ubatch_size": 32, "cache_type_k": "q8_0"}, workload=LONG),
        "tired machine": make_case(machine=busy, speed=None),
    }  # fmt: skip


CASES = {f"{name}, {symptom or 'no symptom'}": (name, symptom) for name in _spoiled() for symptom in (None, *SYMPTOMS)}


def _case(label: str) -> Situation:
    name, symptom = CASES[label]
    return msgspec.structs.replace(_spoiled()[name], symptom=symptom)


WRONG_ADVICE = {
    r"first (\w+ )?layers?\b[^.]{0,20}\b(on|to|onto|in)\b[^.]{0,12}\b(gpu|device|card|vram)|(gpu|device) (takes|gets|holds) the first": (
        "-ngl N puts the FIRST N layers on the GPU.",
        "The first 20 layers go to the GPU.",
    ),
    r"cache grows? (as|while|when|with) [^.]*(fill|written|tokens)|(fail|out of memory)[^.]{0,30} tokens later": (
        "The KV cache grows as the context fills, so a load that fits can fail 3000 tokens later.",
    ),
    r"file size (/|divided by|over) (the )?(number of )?(layers|blocks)|MB per layer": (
        "file size / layers = MB per layer",
        "Take the file size divided by the number of layers.",
    ),
    r"threads[-_]batch[^.;,]{0,30}\b(is|for|counts in) (decode|decoding|generation|writing)": (
        "Use --threads-batch for generation.",
        "threads_batch is for decode with many cores.",
    ),
    r"((?<![-\w])-t|(?<![-_])\bthreads(?![-_]batch))`?[^.;,]{0,20}\b(is|for) (the )?(prompt|prefill)": (
        "-t is for prompt, --threads-batch for generation.",
        "`threads` is for the prompt.",
    ),
    r"PARAMETER n_gpu_layers": ("PARAMETER n_gpu_layers 20",),
}
"""Claims of public advice that are wrong, each with how people put it: which layers go to a device, when the cache is allocated,
bytes of a layer, which thread setting moves which phase, Ollama's name for the layers."""

JARGON = r"\b(prefill|decode[sd]?|decoding|TTFT|TPOT|GEMM|roofline|kernels?|quantis\w+|bandwidth|offload\w*|KV pool)\b"
"""Words of the trade that a finding and a manual say in plain English."""
ROOT = Path(__file__).parents[2]
TEXTS = tuple(
    each
    for pattern in ("tuner/**/*.py", "tuner/**/*.yaml", "tui/**/*.py", "search_spaces/*.yaml", "results/*.md", "README.md")
    for each in sorted(ROOT.glob(pattern))
)
"""Everything with words in it that a user may read."""


EXPLAINED = {
    r"KV cache": (r"notes on the text", r"keys \(K\)"),
    r"[Mm]icro-batch": (r"pieces",),
    r"\bslots?\b": (r"conversation", r"users?", r"mainboard|machine|card"),
    r"NUMA": (r"memory in several parts", r"part of the memory"),
    r"\b[Qq]uotas?\b": (r"processor time",),
}
"""Terms that stay, each with words one of which explains it in the same manual."""


def find_wrong_advice(text: str) -> list[str]:
    """The claims that a text repeats."""
    return [claim for claim in WRONG_ADVICE if re.search(claim, text, re.IGNORECASE)]


def test_there_are_rules_in_every_area() -> None:
    areas = {type(rule).__module__.split(".")[2] for rule in RULES}
    assert areas == {"slow_start", "slow_output", "out_of_memory", "many_users", "long_chat", "machine"}


@pytest.mark.parametrize(("claim", "said"), [(claim, said) for claim, all_said in WRONG_ADVICE.items() for said in all_said])
def test_wrong_advice_is_known_when_seen(claim: str, said: str) -> None:
    """Or the tests that look for it could not fail."""
    assert claim in find_wrong_advice(said)


def test_no_shipped_text_repeats_wrong_advice() -> None:
    """Code with its manuals, settings, data sheets, the README."""
    assert len(TEXTS) > 100
    texts = {str(path.relative_to(ROOT)): " ".join(path.read_text(encoding="utf-8").split()) for path in TEXTS}
    assert {path: found for path, text in texts.items() if (found := find_wrong_advice(text))} == {}


def test_codes_are_unique() -> None:
    codes = [rule.code for rule in RULES]
    assert len(set(codes)) == len(codes)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.code)
class TestRule:
    def test_it_is_named_and_filed(self, rule: Rule) -> None:
        """A code of three letters and two digits, one area a letter group, a short title, known symptoms, one file each."""
        assert re.fullmatch(r"[A-Z]{3}\d\d", rule.code)
        assert 0 < len(rule.title) <= 60
        assert rule.symptoms
        assert rule.symptoms <= set(SYMPTOMS)
        module = type(rule).__module__
        assert [each.code for each in RULES if type(each).__module__ == module] == [rule.code]
        area = module.rsplit(".", 1)[0]
        assert {each.code[:3] for each in RULES if type(each).__module__.startswith(area + ".")} == {rule.code[:3]}

    def test_it_has_a_manual(self, rule: Rule) -> None:
        """In plain English, and with the cases in which its advice does not hold."""
        manual = read_manual(rule)
        assert len(manual.split()) > 60
        assert len(re.findall(r"^When this is wrong: \S", manual, re.MULTILINE)) == 1

    def test_it_repeats_no_wrong_advice(self, rule: Rule) -> None:
        assert find_wrong_advice(read_manual(rule)) == []

    def test_it_names_commands_that_there_are(self, rule: Rule) -> None:
        """In its manual and in what its findings say."""
        named = set(re.findall(r"`rooftune ([a-z]+)", inspect.getsource(sys.modules[type(rule).__module__])))
        assert named <= {each.name for each in pkgutil.iter_modules(commands.__path__)}

    def test_its_manual_is_in_plain_english(self, rule: Rule) -> None:
        """No word of the trade without need; what cannot be said otherwise is explained where it first comes."""
        manual = " ".join(read_manual(rule).split())
        assert re.findall(JARGON, f"{rule.title} {manual}", re.IGNORECASE) == []
        for word, explanations in EXPLAINED.items():
            at = re.search(word, manual)
            assert at is None or any(re.search(each, manual, re.IGNORECASE) for each in explanations), word

    def test_some_case_makes_it_speak_and_some_keeps_it_silent(self, rule: Rule) -> None:
        """Its area's tests name it both ways, in a table (SPEAKS, SILENT) or by calling it."""
        area = type(rule).__module__.split(".")[2]
        texts = [each.read_text() for each in (ROOT / "tests" / "rules").rglob(f"test_*{area}*.py")]
        texts += [each.read_text() for each in (ROOT / "tests" / "rules" / area).glob("test_*.py")]
        assert sum(text.count(f'"{rule.code}') for text in texts) >= 2

    def test_explain_prints_the_manual(self, rule: Rule, capsys: pytest.CaptureFixture[str]) -> None:
        """In capitals or not."""
        assert run(["explain", rule.code.lower()]) == 0
        heard = capsys.readouterr()
        assert heard.out.startswith(f"{rule.code}: {rule.title}")
        assert "When this is wrong" in heard.out
        assert find_rule(rule.code.lower()) is rule

    def test_it_is_silent_where_all_is_well(self, rule: Rule) -> None:
        assert rule.check(make_case()) == ()

    def test_it_is_silent_where_all_is_well_for_a_chat(self, rule: Rule) -> None:
        assert rule.check(make_case(workload=PRESETS["chat"])) == ()

    @pytest.mark.parametrize("symptom", [None, *SYMPTOMS])
    def test_it_is_silent_where_nothing_is_known(self, rule: Rule, symptom: str | None) -> None:
        assert rule.check(make_blank(symptom=symptom, promise_ttft_ms=1.0)) == ()

    @pytest.mark.parametrize("label", CASES)
    def test_its_findings_are_complete(self, rule: Rule, label: str) -> None:
        """Own code, one plain sentence, evidence with a basis, a remedy, settings that there are, an interval round a ratio."""
        for finding in rule.check(_case(label)):
            assert finding.code == rule.code
            _check_words(finding)
            assert finding.evidence
            assert all(each.basis in ("measured", "predicted", "assumed") and each.what for each in finding.evidence)
            assert all(isinstance(each.value, str) != bool(each.unit) for each in finding.evidence)
            assert set(finding.change) <= set(RunConfig.__struct_fields__)
            assert finding.measured is None
            if finding.expected is not None:
                assert 0 < finding.expected.low <= finding.expected.ratio <= finding.expected.high


@pytest.mark.parametrize("label", CASES)
def test_every_proposed_change_runs_and_fits(label: str) -> None:
    """Alone, and with all others of the answer; nothing is proposed that changes nothing."""
    situation = _case(label)
    findings = check_situation(situation)
    together = {}
    for finding in findings:
        if finding.change:
            point = change_point(situation, finding.change)
            assert point != situation.config
            assert find_obstacle(situation, point) is None
            assert all(together.get(name, value) == value for name, value in finding.change.items())
            together |= finding.change
    assert find_obstacle(situation, change_point(situation, together)) is None or not together


def test_something_is_said_of_every_spoiled_situation() -> None:
    """Or the table above tests nothing."""
    areas = {type(rule).__module__.split(".")[2] for rule in RULES}
    spoiled = {name: case for name, case in _spoiled().items() if name != "tired machine" or "machine" in areas}
    assert [name for name, situation in spoiled.items() if not check_situation(situation)] == []


def test_all_is_well_means_nothing_to_fix() -> None:
    assert check_situation(make_case()) == ()


def _check_words(finding: Finding) -> None:
    assert re.fullmatch(r"[A-Z].{10,160}[^.!?:]\.", finding.title)
    assert len(re.findall(r"[.!?](?=\s[A-Z])", finding.title)) == 0
    assert finding.remedy[:1].isupper() or finding.remedy[0].isdigit()
    assert finding.remedy.rstrip().endswith((".", ")", "`"))
    for text in (finding.title, finding.remedy, finding.costs, *(each.what for each in finding.evidence)):
        assert find_wrong_advice(text) == []
        assert re.findall(JARGON, text, re.IGNORECASE) == []
