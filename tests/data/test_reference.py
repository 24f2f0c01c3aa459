from __future__ import annotations

import subprocess
import sys

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hydractl.data.reference import (
    BUILT_IN_IMAGES,
    BUILT_IN_TEXTS,
    KEYS,
    ORDERS,
    DataRef,
    SourceKind,
    normal,
    split_keys,
)
from hydractl.errors import UsageError

WORDS = st.text(st.characters(codec="utf-8", exclude_characters=",+:"), min_size=1, max_size=8)
CLASS_NAMES = st.text(st.characters(codec="utf-8"), min_size=1, max_size=8).map(normal).filter(bool)
NATURALS = st.integers(0, 10**12)
VALUES = {
    "classes": st.lists(WORDS, min_size=1, max_size=4, unique=True).map(tuple),
    "limit": NATURALS.map(lambda number: number + 1),
    "size": NATURALS.map(lambda number: number + 1),
    "max-item": NATURALS.map(lambda number: number + 1),
    "seed": NATURALS,
    "classes-by": st.sampled_from(ORDERS),
    "map": st.dictionaries(CLASS_NAMES, CLASS_NAMES, min_size=1, max_size=3).map(
        lambda names: tuple(names.items())
    ),
    "decode": st.just("fast"),
    "exif": st.just("ignore"),
    "part": st.tuples(st.integers(1, 9), st.integers(9, 20)).map(lambda pair: f"{pair[0]}/{pair[1]}"),
}
SOURCES = {kind: st.just(kind.value.strip("`")) for kind in (*BUILT_IN_IMAGES, *BUILT_IN_TEXTS)} | {
    SourceKind.FOLDER: WORDS.map(lambda word: f"some/{word}/"),
    SourceKind.FILE: st.sampled_from(["a.csv", "b/c.jsonl", "D.PARQUET", "s-{00..12}.tar"]),
    SourceKind.HUB: st.sampled_from(["hf:org/name", "hf:a.b/c-d@refs/pr/1"]),
}


@st.composite
def refs(draw):
    kind = draw(st.sampled_from(SourceKind))
    keys = draw(st.sets(st.sampled_from(sorted(KEYS[kind]))))
    values = {key.replace("-", "_"): draw(VALUES.get(key, WORDS)) for key in keys}
    return DataRef(source=draw(SOURCES[kind]), **values)


@pytest.mark.more
@settings(
    deadline=None, suppress_health_check=[HealthCheck.too_slow]
)  # hypothesis builds a table of Unicode for the first example
@given(refs())
def test_text_round_trips(ref):
    assert DataRef.parse(str(ref)) == ref


@settings(
    deadline=None, suppress_health_check=[HealthCheck.too_slow]
)  # hypothesis builds a table of Unicode for the first example
@given(refs())
def test_text_is_canonical(ref):
    keys = [part.partition("=")[0] for part in split_keys(str(ref).partition("::")[2])]

    assert keys == sorted(keys)
    assert str(DataRef.parse(str(ref))) == str(ref)


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("digits", SourceKind.DIGITS),
        ("./digits", SourceKind.FOLDER),
        ("photos", SourceKind.PHOTOS),
        ("noise", SourceKind.NOISE),
        ("intents", SourceKind.INTENTS),
        ("a/b", SourceKind.FOLDER),
        ("a/b.CSV", SourceKind.FILE),
        ("b.jsonl", SourceKind.FILE),
        ("b.parquet", SourceKind.FILE),
        ("hf:org/name", SourceKind.HUB),
    ],
)
def test_kind(text, kind):
    assert DataRef.parse(text).kind == kind


def test_every_part_is_read():
    ref = DataRef.parse(
        "hf:org/name@v1.0::label=y,classes=0-2+5+cat,split=train[:10%],config=c,image=x,limit=3"
    )

    assert ref == DataRef(
        source="hf:org/name@v1.0",
        label="y",
        classes=("0-2", "5", "cat"),
        split="train[:10%]",
        config="c",
        image="x",
        limit=3,
    )
    assert (ref.repo_id, ref.revision) == ("org/name", "v1.0")


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ("", "the data reference has no source", "`digits`"),
        ("::split=a", "the data reference has no source", "`digits`"),
        ("digits::limit=3::split=test", "`: `::` appears twice", "for example"),
        ("a::b", "expected key=value after `::`, found `b`", "end it with `::`: `a::b::`"),
        (
            "digits::splt=test",
            "unknown key `splt`; known keys are classes, classes-by, config, decode, domain, exif, image",
            "did you mean `split`?",
        ),
        ("digits::zzzzz=1", "unknown key `zzzzz`", None),
        ("digits::", "expected key=value after `::`, found ``", "for example"),
        ("digits::split", "expected key=value after `::`, found `split`", "for example"),
        ("digits::split=a,", "found ``", "for example"),
        ("t/::classes=cat,dog", "found `dog`", "`classes=cat+dog`"),
        ("digits::split=a,split=b", "the key `split` appears twice", None),
        ("digits::split=", "`split` has an empty value", "split=VALUE"),
        ("digits::classes=", "`classes` has an empty value", "classes=VALUE"),
        ("digits::classes=1++2", "`classes` has an empty value", "classes=VALUE"),
        ("digits::classes=1+1", "`classes=1+1` repeats a class", None),
        ("digits::limit=0", "`limit=0`: must be at least 1", None),
        ("digits::limit=-3", "`limit=-3`: expected a non-negative integer", None),
        ("digits::part=3/2", "`part=3/2`: expected `K/N`", "part=1/2"),
        ("digits::part=0/2", "`part=0/2`: expected `K/N`", "part=1/2"),
        ("digits::part=half", "`part=half`: expected `K/N`", "part=1/2"),
        (
            "hf:org/name::part=1/2,streaming=true",
            "the key `streaming` was removed",
            "type hf:org/name::part=1/2",
        ),
        (
            "hf:org/name::buffer=9,streaming=true,split=a b",
            "the key `buffer` was removed",
            "type 'hf:org/name::split=a b'",
        ),
        ("t.csv::streaming=true", "the key `streaming` was removed", "type t.csv"),
        ("digits::limit=many", "`limit=many`: expected a non-negative integer", None),
        ("digits::limit=1.5", "`limit=1.5`: expected a non-negative integer", None),
        ("noise::seed=x", "`seed=x`: expected a non-negative integer", None),
        ("noise::size=0", "`size=0`: must be at least 1", None),
        (
            "noise::classes=1",
            "`noise` does not take the key `classes`; `noise` takes limit, seed, size",
            None,
        ),
        (
            "digits::seed=1",
            "does not take the key `seed`; `digits` takes classes, classes-by, limit, map, part, split",
            None,
        ),
        (
            "a.csv::split=test",
            (
                "`a.csv` does not take the key `split`; a file takes classes, classes-by, decode, exif, "
                "image, label, label-separator, limit, map, max-item, part, root, text"
            ),
            None,
        ),
        (
            "a/b::seed=1",
            (
                "`a/b` does not take the key `seed`; a folder takes classes, classes-by, decode, exif, "
                "image, label, label-separator, limit, map, max-item, part, split, text"
            ),
            None,
        ),
        ("digits::map=", "expected OLD:NEW", "in double quotes"),
        ("digits::map=a", "expected OLD:NEW", "in double quotes"),
        ("digits::map=a:", "expected OLD:NEW", "in double quotes"),
        ("digits::map=a:b:c", "expected OLD:NEW", "in double quotes"),
        ('digits::map="a,b:c', "expected OLD:NEW", "in double quotes"),
        ("digits::map= :a", "an empty name", "map=OLD:NEW"),
        ("digits::map=a:b,a:c", "renames the class `a` twice", None),
        ("digits::map=a:b,limit=2,map=c:d", "the key `map` appears twice", None),
        ("digits::classes-by=size", "must be one of `position`, `number`, `alphabet`", None),
        ("hf:name", "`: expected `hf:org/name` or `hf:org/name@revision`", "hf:ylecun/mnist"),
        ("hf:org/name@", "`: expected `hf:org/name` or `hf:org/name@revision`", "hf:ylecun/mnist"),
    ],
)
def test_bad_references(text, message, hint):
    with pytest.raises(UsageError) as caught:
        DataRef.parse(text)

    assert message in caught.value.message
    assert caught.value.hint is None if hint is None else hint in caught.value.hint


@pytest.mark.parametrize("source", ["a::b", "a::", "a:", "::", "a::b=c::d/", "x::y.csv", "label"])
@pytest.mark.parametrize("tail", ["", "limit=3", "classes=a+b,limit=3"])
def test_a_source_may_hold_what_begins_options(source, tail):
    ref = DataRef.parse(f"{source}::{tail}" if tail or "::" in source else source)

    assert ref.source == source
    assert DataRef.parse(str(ref)) == ref


@pytest.mark.parametrize("options", [{"split": "a,b"}, {"classes": ("a+b",)}, {"classes": ()}, {"limit": 0}])
def test_an_instance_is_proof_of_validity(options):
    with pytest.raises(UsageError):
        DataRef(source="digits", **options)


def test_parsing_imports_nothing_heavy():
    code = "import sys, hydractl.data.reference; print(*{'torch', 'numpy', 'PIL', 'datasets'} & set(sys.modules))"

    assert (
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
        == "\n"
    )


@pytest.mark.parametrize(
    ("text", "pairs"),
    [
        ("map=a:b", (("a", "b"),)),
        ("limit=3,map=a:b,c:d,split=x", (("a", "b"), ("c", "d"))),
        ("map=a:b,split=train[:10%]", (("a", "b"),)),
        ('map="a, b":c,d:"12:30"', (("a, b", "c"), ("d", "12:30"))),
        ('map=a:"say ""x=1"""', (("a", 'say "x=1"'),)),
        ("map= Cafe\u0301 : tea ", (("Caf\u00e9", "tea"),)),
    ],
)
def test_renamed_classes(text, pairs):
    assert DataRef.parse(f"hf:org/name::{text}").map == pairs
