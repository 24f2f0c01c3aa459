"""Sweep all architectures of timm, transformers and open_clip, and check whether support claims are true.

    python benchmarks/architectures.py [--library timm|transformers|openclip] [--match GLOB] [--all]
                                       [--verbose] [--json]

The sweep covers:

* timm: every architecture in a module that defines plain vision transformers or timm's `Eva`; with `--all`
  also all other architectures, which must be refused with a reason,
* transformers: every model type with a text classifier, image classifier or zero-shot image classification,
  and several configurations of supported types,
* openclip: every name in the registry of open_clip.

Each architecture is refused with a reason, or shrunk and checked with random weights, all different from zero
and one:

* the forward pass equals the library's (transformers: also after opening a folder saved by the library),
* a pruned model equals the model with masked heads,
* a hydra of two different pruned members equals its members.

Ends with `supported N refused N failed N` for each library. The exit code is 1 if a check failed.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import re
import sys
import time
import warnings
from collections import Counter
from dataclasses import asdict
from typing import TYPE_CHECKING

import torch
from architectures_check import Case, Finding, examine

if TYPE_CHECKING:
    from collections.abc import Iterable

LIBRARIES = ("timm", "transformers", "openclip")
VERDICTS = ("supported", "refused", "failed")
QUOTED = re.compile(r"`[^`]*`")


def main(argv: list[str] | None = None) -> int:
    """Run the sweep and print the results. Return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "--library", choices=LIBRARIES, action="append", help="library to check; repeatable (default: all)"
    )
    parser.add_argument(
        "--match", default="*", metavar="GLOB", help="only architectures with a matching name"
    )
    parser.add_argument("--all", action="store_true", help="also build all other architectures of timm")
    parser.add_argument(
        "--verbose", action="store_true", help="print a line per architecture on standard error"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    options = parser.parse_args(argv)
    warnings.simplefilter("ignore")
    found: list[Finding] = []
    document = []
    for library in options.library or LIBRARIES:
        began = time.monotonic()
        chosen = [c for c in cases(library, everything=options.all) if fnmatch.fnmatch(c.name, options.match)]
        findings = [_examined(case, verbose=options.verbose) for case in chosen]
        found += findings
        document += [{"of": library} | asdict(finding) for finding in findings]
        if not options.json and findings:
            summarise(library, findings, seconds=time.monotonic() - began)
    if options.json:
        print(json.dumps(document, indent=2, sort_keys=True))
    return 1 if not found or any(f.verdict == "failed" for f in found) else 0


def cases(library: str, *, everything: bool = False) -> list[Case]:
    """Return the cases of a library. `everything` only affects timm."""
    if library == "timm":
        import architectures_timm

        return architectures_timm.cases(everything=everything)
    if library == "transformers":
        import architectures_transformers

        return architectures_transformers.cases()
    import architectures_openclip

    return architectures_openclip.cases()


def _examined(case: Case, *, verbose: bool) -> Finding:
    found = examine(case)
    if verbose or found.verdict == "failed":
        print(f"{found.verdict:10}{numbers([found])}  {found.name} {found.reason}".rstrip(), file=sys.stderr)
    return found


def numbers(findings: Iterable[Finding]) -> str:
    """Format the largest difference of each check; `-` if not measured."""
    found = list(findings)
    cells = []
    for kind in ("library", "masked", "members"):
        values = [value for f in found if (value := getattr(f, kind)) is not None]
        cells.append(f"{max(values):8.1e}" if values else "-".rjust(8))
    return " ".join(cells)


def counts(findings: Iterable[Finding]) -> str:
    """Format the number of findings per verdict."""
    verdicts = Counter(f.verdict for f in findings)
    return " ".join(f"{verdict} {verdicts[verdict]}" for verdict in VERDICTS)


def summarise(library: str, findings: list[Finding], *, seconds: float) -> None:
    """Print one line per group with its largest differences, refusals by reason, failures, and totals."""
    groups: dict[str, list[Finding]] = {}
    for finding in findings:
        groups.setdefault(finding.group, []).append(finding)
    covered = {g: f for g, f in groups.items() if any(x.verdict != "refused" for x in f)}
    width = max((len(name) for name in covered), default=0)
    heading = " ".join(kind.rjust(8) for kind in ("library", "masked", "members"))
    print(f"{library:{width}}  {'supported':>9} {'refused':>7} {'failed':>6}  {heading}")
    for name, members in covered.items():
        verdicts = Counter(f.verdict for f in members)
        row = f"{verdicts['supported']:9} {verdicts['refused']:7} {verdicts['failed']:6}"
        print(f"{name:{width}}  {row}  {numbers(members)}")
    reasons = Counter(QUOTED.sub("`…`", f.reason) for f in findings if f.verdict == "refused")
    for reason, times in sorted(reasons.items(), key=lambda item: (-item[1], item[0])):
        print(f"refused {times:5}  {reason}")
    for found in findings:
        if found.verdict == "failed":
            print(f"failed         {found.name}: {found.reason}")
    print(f"{library}: {counts(findings)} in {seconds:.0f} s")


if __name__ == "__main__":
    torch.set_num_threads(1)  # With more threads, models of this size spend more time waiting than computing.
    sys.exit(main())
