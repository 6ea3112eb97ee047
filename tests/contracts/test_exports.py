"""Every export there is says the whole configuration, or names what it leaves out."""

from __future__ import annotations

import pytest

from tests.builders.reports import DEFAULT, TUNED, report
from tests.golden.check import check_golden
from tuner.errors import UsageError
from tuner.export.base import Export, find_export, list_exports, read_build_number

EXPORTS = list_exports()
SUFFIXES = {"llama-server": ".sh", "llama-bench": ".sh", "llama-cpp-python": ".py"}
HARD = TUNED.replace(parallel=2, ctx_size=1024, flash_attn="auto", load_mode="dio", swa_full=True, n_cpu_moe=3)


@pytest.mark.parametrize("name", EXPORTS)
def test_the_text_is_what_a_reader_once_approved(name: str) -> None:
    check_golden(name.replace("-", "_") + SUFFIXES.get(name, ".txt"), EXPORTS[name].render(report()))


@pytest.mark.parametrize("export", EXPORTS.values(), ids=lambda each: each.name)
class TestEveryExport:
    def test_has_a_manual(self, export: Export) -> None:
        assert export.title
        assert (type(export).__doc__ or "").strip()

    def test_names_what_it_drops_in_the_text(self, export: Export) -> None:
        hard = report(best=HARD, rpc=("10.0.0.2:50052",))
        text = export.render(hard)
        assert all(sentence in text for sentence in export.dropped(hard))

    def test_an_unusual_model_path_stays_one_argument(self, export: Export) -> None:
        strange = '/models/it\'s $HOME; `rm` "x"\nok.gguf'
        assert EXPORTS[export.name].render(report(model=strange))

    def test_origin_and_depth_are_told(self, export: Export) -> None:
        text = export.render(report())
        assert "@ depth 0" in text
        assert "2.00× [1.90, 2.10]" in text

    def test_the_default_is_not_praised(self, export: Export) -> None:
        assert "No setting was shown to be better" in export.render(report(best=DEFAULT))

    def test_a_hostile_version_text_stays_in_its_comment(self, export: Export) -> None:
        from tuner.engines.base import RuntimeFacts

        runtime = RuntimeFacts(engine="llama-server", version="1", llama_cpp="b1\nimport os\r\nrm -rf x")
        assert not any(line.startswith(("import os", "rm")) for line in export.render(report(runtime=runtime)).splitlines())


def test_an_unknown_export_is_refused_with_the_known_ones() -> None:
    with pytest.raises(UsageError, match="llama-server"):
        find_export("modelfile-of-dreams")


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("b6325", 6325),
        ("version: b9001 (abc)", 9001),
        ("0.5.0-dev (build 1, commit 0c1e570)", None),
        ("build 7000", 7000),
        ("0.5.0-dev", None),
        ("", None),
    ],
)
def test_build_numbers(text: str, number: int | None) -> None:
    """A shallow checkout counts from one, which tells nothing."""
    assert read_build_number(text) == number
