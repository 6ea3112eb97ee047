"""How often does a tune report a gain where there is none?

Every point of this space runs alike: the batch is longer than the prompt in all of them, so `batch_size` changes nothing.
Each tune starts from nothing; the table counts those that call a gain significant. Run it on a quiet machine:

    python -m tests.bench.same_against_same --tunes 10 --budget 40s
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from tuner.measure.stop import Stop
from tuner.session.request import TuneRequest
from tuner.session.tuning import tune
from tuner.units import format_interval, format_ratio

SPACE = "name: alike\ndimensions:\n  batch_size: [1024, 1536, 2048]\n"
WORKLOAD = "name: bench\nprompt_tokens: 96\noutput_tokens: 32\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tunes", type=int, default=10)
    parser.add_argument("--budget", default="40s")
    parser.add_argument("--goal", default="latency")
    arguments = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="rooftune-same-"))
    (folder / "space.yaml").write_text(SPACE)
    (folder / "work.yaml").write_text(WORKLOAD)
    false_gains = 0
    for number in range(arguments.tunes):
        request = TuneRequest(
            demo=True,
            objective=arguments.goal,
            workload=str(folder / "work.yaml"),
            space=str(folder / "space.yaml"),
            settings=("ctx_size=4096",),
            budget=arguments.budget,
            seed=number,
            storage=f"sqlite:///{folder / 'studies.db'}",
        )
        report = tune(request, emit=lambda _: None, stop=Stop())
        gain = report.gain
        false_gains += gain.significant
        interval = format_interval(*gain.ci95) if gain.ci95 else "no interval"
        share = report.measured_s / report.elapsed_s
        print(
            f"tune {number}: {format_ratio(gain.ratio)} {interval} over {gain.rounds} rounds, "
            f"{'a significant gain' if gain.significant else 'no gain'}; {report.trials['complete']} trials, {share:.2f} measured",
            flush=True,
        )
    print(f"{false_gains} of {arguments.tunes} tunes report a gain where there is none")
    sys.exit(0 if false_gains <= 1 else 1)


if __name__ == "__main__":
    main()
