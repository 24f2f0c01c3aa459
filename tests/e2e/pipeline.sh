# The five stages, with pipes, on a model small enough to take seconds. Run in an empty folder.
set -euo pipefail

TRAIN=digits::classes=0-6,split=train,limit=140
VAL=digits::classes=0-6,split=val,limit=70
TINY='arch:vit_tiny_patch16_224::img_size=8,patch_size=4,in_chans=1,embed_dim=32,depth=3,num_heads=4,num_classes=7'

hydractl finetune "$TINY" --train $TRAIN --val $VAL --epochs 2 --lr 1e-3 -q -o base.st

# scores go to prune through a pipe, the pruned member to finetune through another
hydractl score base.st --data $VAL --ood digits::classes=9,limit=40 --remove 6 -o - |
  hydractl prune base.st --scores - --remove 4 -o - |
  hydractl finetune - --train $TRAIN --val $VAL --epochs 1 --seed 1 -q -o a.st

hydractl score base.st --method taylor --data $TRAIN --keep-heads 3 -o taylor.json -q
hydractl prune base.st --scores taylor.json --keep-heads 2 --members 2 --pool 9 --seed 5 -q -o 'm-{i}.st'
hydractl finetune m-0.st --train $TRAIN --val $VAL --epochs 1 --seed 2 -q -o b.st
hydractl finetune m-1.st --train $TRAIN --val $VAL --epochs 1 --seed 3 -q -o c.st

hydractl fuse a.st b.st c.st -o - > hydra.st
hydractl eval - --name hydra --data $VAL --near 8=digits::classes=8,limit=40 --compare base=base.st \
  --no-latency --save-predictions predictions.safetensors -o report.json -q < hydra.st
hydractl inspect hydra.st --json > hydra.json
