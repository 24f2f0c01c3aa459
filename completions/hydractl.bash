# bash completion for hydractl
# Generated from the command tree by `hydractl completion`; do not edit.
# shellcheck shell=bash

_hydractl_words() {
    local word
    while IFS= read -r word; do
        COMPREPLY+=("$word")
    done < <(compgen -W "$1" -- "$cur")
}

# Offer folders, and files with one of the suffixes in $1 (a|b|c; any file if it is empty).
_hydractl_files() {
    local name pattern="\\.($1)$"
    compopt -o filenames 2>/dev/null
    while IFS= read -r name; do
        if [[ -d ${name/#\~/$HOME} || -z $1 || $name =~ $pattern ]]; then
            COMPREPLY+=("$name")
        fi
    done < <(compgen -f -- "$cur")
}

_hydractl() {
    local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]} command='' i
    COMPREPLY=()
    # --option=value arrives as three words
    if [[ $cur == = ]]; then
        cur=''
    elif [[ $prev == = ]]; then
        prev=${COMP_WORDS[COMP_CWORD-2]}
    fi
    for ((i = 1; i < COMP_CWORD; i++)); do
        if [[ ${COMP_WORDS[i]} != -* ]]; then
            command=${COMP_WORDS[i]}
            break
        fi
    done
    case $command in
    '')
        _hydractl_words 'score prune finetune fuse eval bench report predict export inspect lineage import push data schema doctor completion run demo --version -h --help'
        ;;
    score)
        case $prev in
        -o | --output | --out | --trained)
            _hydractl_files ''
            ;;
        --method)
            _hydractl_words 'circuit taylor michel gnorm hies headmap cahp l0 dsp magnitude random'
            ;;
        --data | --ood)
            _hydractl_words 'digits shapes photos noise reviews intents manual letters'
            _hydractl_files ''
            ;;
        --limit | --max-length | --recheck | --max-memory | --doubt | --swaps | --recompute | --alpha | --samples | --epochs | --gate-lr | --weights-lr | --penalty | --temperature | --cooldown | --degree | --perplexity | --signature-size | --salience-share | --keep | --remove | --keep-fraction | --towers | --classes | --template | --seed | --arch | --batch-size | --num-workers)
            : # any text
            ;;
        --objective)
            _hydractl_words 'acc ood avg'
            ;;
        --ood-score)
            _hydractl_words 'msp entropy mi msp+mi energy max-logit'
            ;;
        --search)
            _hydractl_words 'exact lazy'
            ;;
        --scope)
            _hydractl_words 'layer global'
            ;;
        --variant)
            _hydractl_words 'l1 molchanov'
            ;;
        --form)
            _hydractl_words 'sample batch'
            ;;
        --normalize)
            _hydractl_words 'none layer tower'
            ;;
        --training)
            _hydractl_words 'pipelined joint'
            ;;
        --estimator)
            _hydractl_words 'soft ste'
            ;;
        --representative)
            _hydractl_words 'salience medoid'
            ;;
        --embedding)
            _hydractl_words 'tsne none'
            ;;
        --device)
            _hydractl_words 'auto cpu cuda mps'
            ;;
        --dtype)
            _hydractl_words 'bf16 fp16 fp32'
            ;;
        *)
            if [[ $cur == -* ]]; then
                _hydractl_words '-o --output --out --method --data --limit --max-length --objective --ood --ood-score --search --recheck --max-memory --doubt --swaps --scope --variant --form --recompute --normalize --alpha --samples --training --epochs --gate-lr --weights-lr --penalty --estimator --temperature --cooldown --trained --degree --representative --embedding --perplexity --signature-size --salience-share --keep --remove --keep-fraction --towers --classes --template --seed --arch --batch-size --num-workers --device --dtype --compile --estimate --force --wait --if-changed --json -q --quiet -h --help'
            else
                _hydractl_files 'st|safetensors'
            fi
            ;;
        esac
        ;;
    prune)
        case $prev in
        -o | --output | --out | --provenance)
            _hydractl_files ''
            ;;
        --scores | --mask)
            _hydractl_files 'json'
            ;;
        --keep | --remove | --keep-fraction | --members | --pool | --diverge-from | --candidates | --batch-size | --num-workers | --max-length | --classes | --template | --seed | --arch)
            : # any text
            ;;
        --strategy)
            _hydractl_words 'best sample objectives clusters random diverse'
            ;;
        --data | --ood)
            _hydractl_words 'digits shapes photos noise reviews intents manual letters'
            _hydractl_files ''
            ;;
        --diversity)
            _hydractl_words 'mi disagreement none'
            ;;
        --device)
            _hydractl_words 'auto cpu cuda mps'
            ;;
        --dtype)
            _hydractl_words 'bf16 fp16 fp32'
            ;;
        *)
            if [[ $cur == -* ]]; then
                _hydractl_words '-o --output --out --scores --mask --keep --remove --keep-fraction --per-layer --strategy --members --pool --diverge-from --data --ood --candidates --diversity --batch-size --num-workers --device --max-length --classes --template --seed --arch --dtype --verify --no-verify --force --if-changed --json -q --quiet --provenance -h --help'
            else
                _hydractl_files 'st|safetensors'
            fi
            ;;
        esac
        ;;
    finetune)
        case $prev in
        --data | --val)
            _hydractl_words 'digits shapes photos noise reviews intents manual letters'
            _hydractl_files ''
            ;;
        -o | --output | --out | --provenance)
            _hydractl_files ''
            ;;
        --max-length | --lr | --layer-decay | --weight-decay | --momentum | --min-lr-rate | --warmup | --clip | --ema | --swa | --label-smoothing | --mixup | --cutmix | --dropout | --drop-path | --augment | --steps | --epochs | --batch-size | --accumulate | --train | --last-blocks | --freeze-blocks | --method | --eval-every | --early-stop | --patience-delta | --teacher | --teacher-temperature | --teacher-weight | --save-every | --seed | --order-seed | --dropout-seed | --head-seed | --num-classes | --img-size | --mean | --std | --num-workers | --arch)
            : # any text
            ;;
        --recipe)
            _hydractl_words 'imagenet1k cifar100 sst2 imagenet1k-base cifar100-base sst2-base vit-finetune bert-finetune sentence-finetune'
            ;;
        --optimizer)
            _hydractl_words 'sgd adamw'
            ;;
        --schedule)
            _hydractl_words 'constant cosine linear'
            ;;
        --precision)
            _hydractl_words 'fp32 bf16'
            ;;
        --batches)
            _hydractl_words 'shared own'
            ;;
        --pooling)
            _hydractl_words 'own mean'
            ;;
        --device)
            _hydractl_words 'auto cpu cuda mps'
            ;;
        *)
            if [[ $cur == -* ]]; then
                _hydractl_words '--data --val -o --output --out --max-length --recipe --optimizer --lr --layer-decay --weight-decay --momentum --schedule --min-lr-rate --warmup --clip --ema --swa --label-smoothing --mixup --cutmix --dropout --drop-path --augment --precision --steps --epochs --batch-size --accumulate --train --last-blocks --freeze-blocks --reset-head --keep-head --method --eval-every --early-stop --patience-delta --keep-best --keep-last --batches --teacher --teacher-temperature --teacher-weight --gradient-checkpointing --compile --save-every --seed --order-seed --dropout-seed --head-seed --num-classes --pooling --img-size --mean --std --device --num-workers --skip-bad --arch --force --wait --if-changed --json -q --quiet --provenance -h --help'
            else
                _hydractl_files 'st|safetensors'
            fi
            ;;
        esac
        ;;
    fuse)
        case $prev in
        -o | --output | --out | --provenance)
            _hydractl_files ''
            ;;
        --mlp)
            _hydractl_words 'merge keep'
            ;;
        --merge-trunk | --max-loss | --own-from | --temperature | --max-length | --batch-size | --num-workers | --classes | --template | --seed)
            : # any text
            ;;
        --data)
            _hydractl_words 'digits shapes photos noise reviews intents manual letters'
            _hydractl_files ''
            ;;
        --device)
            _hydractl_words 'auto cpu cuda mps'
            ;;
        *)
            if [[ $cur == -* ]]; then
                _hydractl_words '-o --output --out --mlp --merge-trunk --max-loss --force-merge --own-from --data --temperature --max-length --batch-size --num-workers --device --classes --template --seed --verify --no-verify --force --if-changed --json -q --quiet --provenance -h --help'
            else
                _hydractl_files 'st|safetensors'
            fi
            ;;
        esac
        ;;
    eval)
        case $prev in
        --data | --fit | --val)
            _hydractl_words 'digits shapes photos noise reviews intents manual letters'
            _hydractl_files ''
            ;;
        --near | --far | --compare | --temperature | --ood-val | --name | --metrics | --knn-k | --bootstrap | --fail-if | --threshold-for | --delta | --analyse | --scores | --max-length | --batch-size | --num-workers | --classes | --template | --arch | --seed)
            : # any text
            ;;
        --corrupt)
            _hydractl_words 'all gaussian-noise shot-noise impulse-noise defocus-blur glass-blur motion-blur zoom-blur snow frost fog brightness contrast elastic pixelate jpeg typos drop swap case'
            ;;
        --ood-score)
            _hydractl_words 'msp entropy mi msp+mi energy max-logit mahalanobis relative-mahalanobis knn vim'
            ;;
        --store | -o | --output | --out | --save-predictions)
            _hydractl_files ''
            ;;
        --device)
            _hydractl_words 'auto cpu cuda mps'
            ;;
        --dtype)
            _hydractl_words 'bf16 fp16 fp32'
            ;;
        *)
            if [[ $cur == -* ]]; then
                _hydractl_words '--data --near --far --compare --temperature --corrupt --fit --ood-val --val --name --metrics --ood-score --knn-k --latency --no-latency --bootstrap --fail-if --threshold-for --delta --store -o --output --out --curves --save-predictions --analyse --scores --max-length --batch-size --num-workers --skip-bad --classes --template --device --dtype --arch --seed --force --if-changed --json -q --quiet -h --help'
            else
                _hydractl_files 'st|safetensors'
            fi
            ;;
        esac
        ;;
    bench)
        case $prev in
        --data | --val | --test | --pairs)
            _hydractl_words 'digits shapes photos noise reviews intents manual letters'
            _hydractl_files ''
            ;;
        --near | --far | --rivals | --compare | --members | --start-epochs | --start-lr | --classes | --template | --lr | --layer-decay | --weight-decay | --momentum | --min-lr-rate | --warmup | --clip | --ema | --swa | --label-smoothing | --mixup | --cutmix | --dropout | --drop-path | --augment | --steps | --epochs | --batch-size | --accumulate | --train | --last-blocks | --freeze-blocks | --eval-every | --early-stop | --patience-delta | -o | --output | --out)
            : # any text
            ;;
        --hydra | --start)
            _hydractl_files 'st|safetensors'
            ;;
        --recipe)
            _hydractl_words 'imagenet1k cifar100 sst2 imagenet1k-base cifar100-base sst2-base vit-finetune bert-finetune sentence-finetune'
            ;;
        --optimizer)
            _hydractl_words 'sgd adamw'
            ;;
        --schedule)
            _hydractl_words 'constant cosine linear'
            ;;
        --precision)
            _hydractl_words 'fp32 bf16'
            ;;
        *)
            if [[ $cur == -* ]]; then
                _hydractl_words '--data --val --test --near --far --rivals --hydra --compare --members --start --start-epochs --start-lr --pairs --classes --template --recipe --optimizer --lr --layer-decay --weight-decay --momentum --schedule --min-lr-rate --warmup --clip --ema --swa --label-smoothing --mixup --cutmix --dropout --drop-path --augment --precision --steps --epochs --batch-size --accumulate --train --last-blocks --freeze-blocks --reset-head --keep-head --eval-every --early-stop --patience-delta --keep-best --keep-last -o --output --out --dry-run --force --json -q --quiet -h --help'
            else
                _hydractl_files 'st|safetensors'
            fi
            ;;
        esac
        ;;
    report)
        case $prev in
        --over)
            _hydractl_words 'seeds sets'
            ;;
        -o | --output | --out)
            _hydractl_files ''
            ;;
        --figures)
            : # any text
            ;;
        *)
            if [[ $cur == -* ]]; then
                _hydractl_words '--over -o --output --out --figures --force --if-changed --json -q --quiet -h --help'
            else
                : # any text
            fi
            ;;
        esac
        ;;
    predict)
        case $prev in
        -o | --output | --out)
            _hydractl_files ''
            ;;
        --top-k | --knn-k | --threshold | --max-length | --classes | --template | --arch | --batch-size | --num-workers)
            : # any text
            ;;
        --ood-score)
            _hydractl_words 'msp entropy mi msp+mi energy max-logit mahalanobis relative-mahalanobis knn vim'
            ;;
        --fit)
            _hydractl_words 'digits shapes photos noise reviews intents manual letters'
            _hydractl_files ''
            ;;
        --device)
            _hydractl_words 'auto cpu cuda mps'
            ;;
        --dtype)
            _hydractl_words 'bf16 fp16 fp32'
            ;;
        *)
            if [[ $cur == -* ]]; then
                _hydractl_words '-o --output --out --top-k --ood-score --fit --knn-k --threshold --skip-bad -0 --null --max-length --classes --template --arch --batch-size --num-workers --device --dtype --force --wait --if-changed --json -q --quiet -h --help'
            else
                _hydractl_files 'st|safetensors'
            fi
            ;;
        esac
        ;;
    export)
        case $prev in
        -o | --output | --out | --report)
            _hydractl_files ''
            ;;
        --quantize)
            _hydractl_words 'int8'
            ;;
        --data | --ood)
            _hydractl_words 'digits shapes photos noise reviews intents manual letters'
            _hydractl_files ''
            ;;
        --tolerance | --batch-size | --num-workers | --classes | --template | --arch | --seed)
            : # any text
            ;;
        *)
            if [[ $cur == -* ]]; then
                _hydractl_words '-o --output --out --with-preprocess --quantize --data --ood --tolerance --report --batch-size --num-workers --classes --template --arch --seed --force --if-changed --json -q --quiet -h --help'
            else
                _hydractl_files 'st|safetensors'
            fi
            ;;
        esac
        ;;
    inspect)
        case $prev in
        --keep | --remove | --keep-fraction)
            : # any text
            ;;
        --plot)
            _hydractl_files ''
            ;;
        *)
            if [[ $cur == -* ]]; then
                _hydractl_words '--tensors --keep --remove --keep-fraction --plot --force --json -q --quiet -h --help'
            else
                _hydractl_files 'st|safetensors|json'
            fi
            ;;
        esac
        ;;
    lineage)
        case $prev in
        *)
            if [[ $cur == -* ]]; then
                _hydractl_words '--verify --json -q --quiet -h --help'
            else
                _hydractl_files 'st|safetensors|json'
            fi
            ;;
        esac
        ;;
    import)
        case $prev in
        -o | --output | --out | --labels | --tokenizer | --provenance)
            _hydractl_files ''
            ;;
        --arch | --num-classes | --head-seed | --img-size | --mean | --std | --weights-key | --rename)
            : # any text
            ;;
        --pooling)
            _hydractl_words 'own mean'
            ;;
        *)
            if [[ $cur == -* ]]; then
                _hydractl_words '-o --output --out --arch --num-classes --head-seed --pooling --img-size --mean --std --labels --tokenizer --ema --weights-key --rename --force --if-changed --json -q --quiet --provenance -h --help'
            else
                _hydractl_files 'pth|pt|bin|ckpt|tar|safetensors|json'
            fi
            ;;
        esac
        ;;
    push)
        case $prev in
        --report)
            _hydractl_files 'json'
            ;;
        --base-model | --license | --revision | --commit-message | --max-shard-size | --arch)
            : # any text
            ;;
        *)
            if [[ $cur == -* ]]; then
                _hydractl_words '--report --base-model --license --private --revision --create-pr --commit-message --max-shard-size --dry-run --arch --json -q --quiet -h --help'
            else
                _hydractl_files 'st|safetensors'
            fi
            ;;
        esac
        ;;
    data)
        case $prev in
        *)
            if [[ $cur == -* ]]; then
                _hydractl_words '--json -q --quiet -h --help'
            else
                _hydractl_words 'list show cifar100 cifar10 imagenet-1k food101 sun397 oxford-pets dtd eurosat caltech101 mnist svhn sst2 yelp amazon ag-news 20-newsgroups trec mnli rte wmt16'
            fi
            ;;
        esac
        ;;
    schema)
        case $prev in
        *)
            if [[ $cur == -* ]]; then
                _hydractl_words '--json -h --help'
            else
                _hydractl_words 'scores head-mask report'
            fi
            ;;
        esac
        ;;
    doctor)
        case $prev in
        --timeout)
            : # any text
            ;;
        *)
            _hydractl_words '--timeout --json -q --quiet -h --help'
            ;;
        esac
        ;;
    completion)
        case $prev in
        *)
            if [[ $cur == -* ]]; then
                _hydractl_words '--json -h --help'
            else
                _hydractl_words 'bash zsh fish'
            fi
            ;;
        esac
        ;;
    run)
        case $prev in
        --example)
            _hydractl_words 'vit bert clip'
            ;;
        --set | --only | --from)
            : # any text
            ;;
        *)
            if [[ $cur == -* ]]; then
                _hydractl_words '--example --set --only --from --dry-run --json -q --quiet -h --help'
            else
                _hydractl_files ''
            fi
            ;;
        esac
        ;;
    demo)
        case $prev in
        --task)
            _hydractl_words 'digits text zero-shot pretrained'
            ;;
        -o | --output | --out)
            _hydractl_files ''
            ;;
        --seed)
            : # any text
            ;;
        *)
            _hydractl_words '--task -o --output --out --seed --prepare --force --json -q --quiet -h --help'
            ;;
        esac
        ;;
    esac
}

complete -F _hydractl hydractl
