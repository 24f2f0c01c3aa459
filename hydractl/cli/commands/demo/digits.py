"""The demo on images: the handwritten digits that scikit-learn ships."""

from __future__ import annotations

from hydractl.cli.commands.demo.plan import DemoTask, Experiment

DIGITS = Experiment(
    architecture="arch:vit_tiny_patch16_224::img_size=8,patch_size=2,in_chans=1,embed_dim=64,depth=6,num_heads=8,num_classes=7",
    train="digits::classes=0-6,split=train",
    val="digits::classes=0-6,split=val",
    test="digits::classes=0-6,split=test",
    ood_val="digits::classes=9",
    near=("7=digits::classes=7", "8=digits::classes=8"),
    far=("photos=photos::limit=300", "noise=noise::limit=300"),
    training=("--optimizer", "adamw", "--lr", "1e-3", "--batch-size", "64", "--augment", "shift"),
    epochs=(80, 180, 20),
    trunk=5,
    fine_tuning=("--optimizer", "adamw", "--lr", "3e-4", "--epochs", "20", "--batch-size", "64", "--augment", "shift"),
    removed=16,
    pool=32,
    kept_per_layer=5,
)  # fmt: skip
TASK = DemoTask(plan=DIGITS.plan)
