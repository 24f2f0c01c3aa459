"""The families of timm, a row each: pre- and post-norm vision transformers in which a head's share is a slice of its own."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from hydractl.families.base import Family
from hydractl.families.timm import models
from hydractl.families.timm.folder import RULES, read_config, write_config
from hydractl.manifest.head_mask import TowerKeep
from hydractl.manifest.header import Architecture

if TYPE_CHECKING:
    import torch

    from hydractl.families.tower import Model

# timm fills even meta tensors with random numbers, for most of the time that building takes
SKIP_INIT = MappingProxyType({"weight_init": "skip"})


def _odd_width(library: Any) -> str | None:  # noqa: ANN401 - timm is untyped
    """Return why the library's own forward pass would fail, where its constructor does not notice."""
    from hydractl.families.timm.modules import head_width

    attention = library.blocks[0].attn
    if attention.num_heads * head_width(attention) != library.embed_dim:
        return f"its width {library.embed_dim} is not a multiple of its {attention.num_heads} heads"
    return None


def _refusal_of_eva(library: Any) -> str | None:  # noqa: ANN401 - as above
    from hydractl.families.timm.modules import angles, head_width

    if library.patch_drop is not None:
        return "it drops patches and their rotary angles in training, separately for each sample"
    for attention in (block.attn for block in library.blocks):
        if getattr(attention, "num_kv_heads", attention.num_heads) != attention.num_heads:
            return "grouped-query attention: several query heads share one key and value head"
    if reason := _odd_width(library):
        return reason
    width = head_width(library.blocks[0].attn)
    if library.rope is not None and angles(library).shape[-1] != 2 * width:
        return f"its rotary embedding does not fit heads of width {width}"
    return None


def _family(row: models.TimmRow) -> Family:
    """Return the family."""

    def matches(config: Mapping[str, object]) -> bool:
        # transformers' wrapper around timm has a `model_type`
        is_timm_config = "architecture" in config and "model_type" not in config
        return is_timm_config and row.claims(str(config["architecture"]))

    def build(
        architecture: Architecture, mask: Mapping[str, TowerKeep], state: Mapping[str, torch.Tensor] | None
    ) -> Model:
        from hydractl.families.surgery import cut_heads, fill
        from hydractl.families.timm.modules import wrap

        library = models.covered(row, architecture.name, {**architecture.config, **row.build_options})
        cut_heads(library, {models.TOWER: models.LAYOUT}, architecture, mask)
        fill(library, state)
        model = wrap(library, mask[models.TOWER].keep).eval()
        model.answer.multi_label = architecture.task.by_label
        return model

    return Family(
        name=row.name,
        library=models.LIBRARY,
        covers=row.covers,
        refuses=row.refuses,
        towers={models.TOWER: models.LAYOUT},
        matches=matches,
        matches_encoder=matches,
        claims=row.claims,
        read_config=lambda config, folder: read_config(row, config, folder),
        write_config=write_config,
        describe=lambda name, options: models.describe(row, name, options),
        build=build,
        initialise=models.initialise,
        evaluation_config=lambda architecture: models.evaluation_config(
            row, architecture.name, architecture.config
        ),
        # names that timm's filter does not know are reported as they are
        adopt=(lambda _, architecture, state: models.filtered(architecture, state) or dict(state))
        if row.adopts
        else None,
        rules=RULES,
        on_disk=row.on_disk,
    )


VIT = models.TimmRow(
    name="timm-vit",
    covers="`VisionTransformer`, `VisionTransformerDistilled`: ViT, DeiT, DINOv2, SigLIP, CLIP, AIMv2, hybrids",
    refuses="talking heads; parallel blocks; differential attention; sub-LN (one norm over all heads)",
    module="",
    classes=("VisionTransformer", "VisionTransformerDistilled"),
    blocks=("Block", "ResPostBlock"),
    attentions=("Attention",),
    otherwise="not a plain vision transformer",
    build_options=SKIP_INIT,
)
ROWS = (
    models.TimmRow(
        name="timm-beit",
        covers="`Beit`: BEiT, BEiT v2",
        refuses="",
        module="beit",
        classes=("Beit",),
        blocks=("Block",),
        attentions=("Attention",),
        otherwise="not timm's Beit",
        refusal=_odd_width,
        adopts=True,
    ),
    models.TimmRow(
        name="timm-eva",
        covers="`Eva`: EVA, EVA-02, DINOv3, perception encoder, ViTs with rotary embeddings",
        refuses="sub-LN: one norm over all heads; grouped queries: heads share keys; patches dropped in training",
        module="eva",
        classes=("Eva",),
        blocks=("EvaBlock", "EvaBlockPostNorm"),
        attentions=("EvaAttention", "AttentionRope"),
        otherwise="not timm's Eva",
        refusal=_refusal_of_eva,
        adopts=True,
        on_disk=(  # OpenCLIP's, the perception encoder's and Sapiens' own names
            (r"^visual\.(?:trunk\.)?", ""),
            (r"^transformer\.resblocks\.", "blocks."),
            (r"^ln_post\.", "norm."),
            (r"\.ffn\.", ".mlp."),
        ),
    ),
    models.TimmRow(
        name="timm-relpos",
        covers="`VisionTransformerRelPos`: ViTs with a table or a network of relative positions, one a layer or one for all",
        refuses="",
        module="vision_transformer_relpos",
        classes=("VisionTransformerRelPos",),
        blocks=("RelPosBlock", "ResPostRelPosBlock"),
        attentions=("RelPosAttention",),
        otherwise="not timm's VisionTransformerRelPos",
        build_options=SKIP_INIT,
    ),
    VIT,
)
TIMM_BEIT, TIMM_EVA, TIMM_RELPOS, TIMM_VIT = map(_family, ROWS)


def refusal_of_tower(library: Any) -> str | None:  # noqa: ANN401 - as above
    """Return why heads cannot be cut out of a model of any class, whatever it answers with, or None if they can."""
    row = next((row for row in ROWS if type(library).__name__ in row.classes), VIT)
    return models.refusal_of_trunk(row, library)
