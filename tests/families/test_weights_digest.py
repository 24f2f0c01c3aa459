"""The digest of a model's weights: equal for copies with another header, different for other logits."""

from __future__ import annotations

import pytest

from hydractl.checkpoint import Checkpoint, ScratchFolder
from hydractl.families.open_model import digest_weights, open_model
from hydractl.hub.upload import weights_of
from support.builders import base
from support.reports import THRESHOLD
from support.variants import variant

SAMPLE = base(variant("class-token")).pruned((0, 1), (2,), (0, 3))


def digest_of(state=SAMPLE.state, **header):
    changed = SAMPLE.header.model_copy(update=header)
    return digest_weights(Checkpoint.of(state, header=changed), changed)


@pytest.mark.parametrize(
    "header",
    [{"temperature": 2.0}, {"threshold": THRESHOLD}, {"labels": tuple("abcdefg")}, {"base": None}],
    ids=lambda header: next(iter(header)),
)
def test_a_copy_with_another_header_has_the_same_weights(header):
    assert digest_of(**header) == digest_of()


def test_shards_have_the_weights_of_the_file(tmp_path):
    checkpoint = Checkpoint.of(SAMPLE.state, header=SAMPLE.header)
    scratch = ScratchFolder()
    for name, content in weights_of(checkpoint, SAMPLE.header, limit=20_000, scratch=scratch).items():
        (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.read_bytes())
    model_file = open_model(str(tmp_path))

    assert len(model_file.checkpoint.paths) > 1
    assert digest_weights(model_file.checkpoint, model_file.header) == digest_of()


def test_other_logits_are_other_weights():
    """Change a single number, a tensor name, the kept heads at equal shapes, and the crop."""
    header, (first, *_) = SAMPLE.header, sorted(SAMPLE.state)
    bit = SAMPLE.state | {first: SAMPLE.state[first].clone()}
    bit[first].view(-1)[0] += 1
    renamed = {f"{name}x" if name == first else name: x for name, x in SAMPLE.state.items()}
    others = base(variant("class-token")).pruned((0, 2), (2,), (0, 3)).header.masks
    crop = header.preprocess.model_copy(update={"crop_pct": 0.5})

    digests = [
        digest_of(bit),
        digest_of(renamed),
        digest_of(masks=others),
        digest_of(preprocess=crop),
        digest_of(),
    ]
    assert len({*digests}) == 5
