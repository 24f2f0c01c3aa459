"""Compare the size, the names and the prose of the project with the figures in `house.toml`.

    python .ci/house.py            # exit 1 if a count is above its figure, or a figure above its lowest value
    python .ci/house.py --lower    # write the counts that have fallen into house.toml

In the package, it counts statements (imports, docstrings and comments do not count), files, imports as a share of the
lines of code, vague names, generic names, the lines of the longest file and the modules of the fullest folder. In the
docstrings and comments of the package and of its tests, and in the pages, it counts three kinds of words that make
sentences hard to read: stand-ins (pronouns and similar words), `what`, and odd words.

A figure only falls: each one is compared with its lowest value in the git history of `house.toml` since `SINCE`. An
issue that raises a figure moves that time.
"""

from __future__ import annotations

import ast
import io
import re
import subprocess
import sys
import tokenize
import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FIGURES = Path(__file__).with_name("house.toml")
HEADER = "# The highest counts accepted by `.ci/house.py`. The docstring of this script explains them.\n"
SINCE = "2026-11-28T16:55:00+00:00"
"""Earlier commits do not count. Each figure may only fall after this time, unless an issue names a higher one."""
LIMITS = "largest"
"""The table of limits. `--lower` does not change them."""
TOP = 5
"""Number of names or files in a message."""

# Pronouns, participles and adverbs.
VAGUE = frozenset(
    """found own said told made given asked seen kept shown known taken held wanted left got put done typed spelled meant needed
    begun passed filed looked drawn thinned judged lessened gone read_ written_ one other another each rest all_ both some any_
    none_ more less what it them these those they their his aside apart alone alike abreast nobody anybody everybody here there
    now then_ still yet also once again as_is whole same such so ever never else_ whose which where_ when_ who whom thing things
    stuff fit_ tells says holds asks looks knows takes makes gives shows wants keeps lays begins ends_ stays hears speaks lies
    owes""".split()  # noqa: SIM905 - words are read more easily so
)
GENERIC = frozenset(
    """result results value values data datum item items out outs output obj object objects tmp temp res ret info entry entries
    elem element stuff content contents thing var val vals""".split()  # noqa: SIM905 - as above
)

WORDS = {
    "stand-ins": (
        100,
        "it they them what which that those none one ones some others its their there so such as else who whose where",
    ),
    "what": (1000, "what"),
    "odd words": (
        1000,
        (
            "befalls? befell hangs?_on hears? heard told tells? said says asked asks likewise hardly meanwhile anew alike "
            "apart aside takes?_up puts?_back made_of becomes?_of lies? lay stands?_for beside wants? goes_by the_like "
            "as_well_as"
        ),
    ),
}
"""Kinds of hard words: the number of words to which the count refers, and regular expressions (`_` is a space)."""
TREES = {
    "package": ("hydractl/**/*.py",),
    "tests and benchmarks": ("tests/**/*.py", "benchmarks/**/*.py"),
    "pages": ("*.md", "docs/**/*.md", "benchmarks/**/*.md"),
}
SHORTEST = 4
"""Words of the shortest sentence that counts. Shorter ones are headings and entries of lists."""
DIRECTIVES = ("# noqa", "# type", "#!")
HEADING = re.compile(r"^\s*(Args|Attributes|Returns|Raises|Examples?|Yields|Notes?):\s*$", re.MULTILINE)

LAYOUT = {
    tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER,
}  # fmt: skip

Counts = dict[str, dict[str, float]]


def main() -> int:
    """Compare counts with figures, and figures with their history. Return the exit code."""
    counts, places = measure(ROOT / "hydractl")
    counts["prose"], hardest = hard_words(ROOT)
    places |= hardest
    figures = tomllib.loads(FIGURES.read_text(encoding="utf-8"))
    if "--lower" in sys.argv[1:]:
        FIGURES.write_text(to_toml(lowered(counts, figures)), encoding="utf-8")
        return 0
    problems = [
        f"{table}: `{name}` {change}; look at {places[name]}. Make it smaller."
        for table, name, change in grown(counts, figures)
    ]
    history = figures_since(SINCE)
    if history is None:
        print(f"not compared with earlier figures: git has no history of {FIGURES.name}", file=sys.stderr)
    for earlier in history or ():
        problems += [
            f"{FIGURES.name}: {table}: `{name}` {change} of an earlier commit. Only an issue raises a figure."
            for table, name, change in grown(figures, earlier)
            if name in earlier.get(table, {})
        ]
    if problems:
        print(*dict.fromkeys(problems), sep="\n", file=sys.stderr)
    return bool(problems)


def figures_since(time: str) -> list[Counts] | None:
    """Return the figures of each commit after a time, or None outside a repository and in a shallow clone."""

    def git(*arguments: str) -> str:
        command = ("git", "-C", str(FIGURES.parent), *arguments)
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout  # noqa: S603 - fixed arguments

    try:
        if git("rev-parse", "--is-shallow-repository").strip() == "true":
            return None
        commits = git("log", f"--since={time}", "--format=%H", "--", FIGURES.name).split()
        return [tomllib.loads(git("show", f"{commit}:./{FIGURES.name}")) for commit in commits]
    except (FileNotFoundError, subprocess.CalledProcessError):
        return None


def measure(package: Path) -> tuple[Counts, dict[str, str]]:
    """Return the counts of a package by table and name, and the places with the largest share of each."""
    statements, lines, modules = Counter[str](), Counter[str](), Counter[str]()
    vague, generic = Counter[str](), Counter[str]()
    imports = code = names = 0
    for path in sorted(package.rglob("*.py")):
        text, file = path.read_text(encoding="utf-8"), path.relative_to(package).as_posix()
        tree = ast.parse(text)
        statements[file] = sum(map(is_statement, ast.walk(tree)))
        imports += sum(len(line_range(node)) for node in ast.walk(tree) if is_import(node))
        code += len(code_lines(text, tree))
        lines[file] = text.count("\n")
        modules[file.rpartition("/")[0] or "."] += path.name != "__init__.py"
        for name in (path.stem, *bound_names(tree)):
            names += 1
            vague[f"`{name}` in {file}"] += snake_case(name) in VAGUE
            generic[f"`{name}` in {file}"] += snake_case(name) in GENERIC
    packages = Counter[str]()
    for file, count in statements.items():
        packages[package_of(file)] += count
    total = packages.total()
    counts: Counts = {
        "statements": {"total": total, "without research": total - packages["research"]},
        "files": {"core": sum(package_of(file) != "research" for file in statements)},
        "percent": {
            "imports": percent(imports, code),
            "vague names": percent(vague.total(), names),
            "generic names": percent(generic.total(), names),
        },
        LIMITS: {"lines of a file": max(lines.values()), "modules of a folder": max(modules.values())},
    }
    places = dict.fromkeys(("total", "without research", "imports"), most(packages))
    places |= {"core": most(Counter(map(package_of, statements)))}
    places |= {"vague names": most(vague), "generic names": most(generic)}
    places |= {"lines of a file": most(lines), "modules of a folder": most(modules)}
    return counts, places


def hard_words(root: Path) -> tuple[dict[str, float], dict[str, str]]:
    """Return the share of each kind of hard words in each tree, and the files with most of them."""
    shares, places = dict[str, float](), dict[str, str]()
    for tree, patterns in TREES.items():
        files = {path for pattern in patterns for path in root.glob(pattern)}
        words, hard = 0, {kind: Counter[str]() for kind in WORDS}
        for file in sorted(files):
            prose = list(sentences(file))
            words += sum(len(re.findall(r"[a-z']+", sentence)) for sentence in prose)
            for kind, (_, expressions) in WORDS.items():
                pattern = rf"\b({'|'.join(expressions.split()).replace('_', ' ')})\b"
                hard[kind][file.relative_to(root).as_posix()] = sum(
                    len(re.findall(pattern, text)) for text in prose
                )
        for kind, (unit, _) in WORDS.items():
            name = f"{kind} per {unit:,} words, {tree}"
            shares[name] = round(unit * hard[kind].total() / max(words, 1), 1)
            places[name] = most(hard[kind])
    return shares, places


def sentences(file: Path) -> Iterator[str]:
    """Yield the sentences of docstrings, comments or a page in lower case, without code, tables and addresses."""
    text = file.read_text(encoding="utf-8")
    if file.suffix == ".py":
        tokens = tokenize.generate_tokens(io.StringIO(text).readline)
        comments = [
            t.string for t in tokens if t.type == tokenize.COMMENT and not t.string.startswith(DIRECTIVES)
        ]
        documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
        nodes = (node for node in ast.walk(ast.parse(text)) if isinstance(node, documented))
        texts = [
            *filter(None, map(ast.get_docstring, nodes)),
            *(comment.lstrip("# ") for comment in comments),
        ]
    else:
        text = re.sub(r"```.*?```|^\|.*?$", "", text, flags=re.DOTALL | re.MULTILINE)
        texts = [re.sub(r"\]\([^)]*\)|<[^>]+>|https?://\S+", " ", text)]
    for text in texts:
        for paragraph in re.split(r"\n\s*\n", re.sub(r"`[^`]*`", "X", HEADING.sub("", text))):
            for sentence in re.split(r"(?<=[.!?;:])\s+", " ".join(paragraph.split()).lower()):
                if len(re.findall(r"[a-z']+", sentence)) >= SHORTEST:
                    yield sentence


def is_statement(node: ast.AST) -> bool:
    """Return whether a node is a statement, but no import and no docstring."""
    return isinstance(node, ast.stmt) and not is_import(node) and not is_docstring(node)


def is_import(node: ast.AST) -> bool:
    """Return whether a node is an import."""
    return isinstance(node, ast.Import | ast.ImportFrom)


def is_docstring(node: ast.AST) -> bool:
    """Return whether a node is a string that is a whole statement."""
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def line_range(node: ast.AST) -> range:
    """Return the lines that a statement spans."""
    return range(node.lineno, node.end_lineno + 1)


def code_lines(text: str, tree: ast.AST) -> set[int]:
    """Return the lines with code, without blank lines, comments and docstrings."""
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    lines = {n for t in tokens if t.type not in LAYOUT for n in range(t.start[0], t.end[0] + 1)}
    return lines.difference(*(line_range(node) for node in ast.walk(tree) if is_docstring(node)))


def bound_names(tree: ast.AST) -> Iterator[str]:
    """Yield the names of a module's variables, parameters, functions and classes."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name


def snake_case(name: str) -> str:
    """Return a name in snake case, without underscores at its ends."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower().strip("_")


def package_of(file: str) -> str:
    """Return the first folder of a path, or `.` for a file in no folder."""
    return file.partition("/")[0] if "/" in file else "."


def percent(part: int, whole: int) -> float:
    """Return a share in percent, to a hundredth."""
    return round(100 * part / whole, 2)


def most(counts: Mapping[str, int]) -> str:
    """Return the largest counts, for a message."""
    return ", ".join(f"{name} ({count})" for name, count in Counter(counts).most_common(TOP) if count)


def grown(counts: Counts, figures: Counts) -> Iterator[tuple[str, str, str]]:
    """Yield the table, the name and the change of each count without a figure or above its figure."""
    for table, rows in counts.items():
        for name, count in rows.items():
            figure = figures.get(table, {}).get(name)
            if figure is None or count > figure:
                yield (
                    table,
                    name,
                    f"is {count:g}, {'without a figure' if figure is None else f'above {figure:g}'}",
                )


def lowered(counts: Counts, figures: Counts) -> Counts:
    """Return each figure or its count, whichever is lower. Limits do not change."""
    return {
        table: {
            name: figures[LIMITS][name]
            if table == LIMITS
            else min(count, figures.get(table, {}).get(name, count))
            for name, count in rows.items()
        }
        for table, rows in counts.items()
    }


def to_toml(figures: Counts) -> str:
    """Return the figures as TOML."""
    tables = (
        f"\n[{table}]\n" + "".join(f'"{name}" = {round(figure, 2)}\n' for name, figure in rows.items())
        for table, rows in figures.items()
    )
    return HEADER + "".join(tables)


if __name__ == "__main__":
    sys.exit(main())
