"""Hints of modules that other code builds upon: checkpoints, outputs, processes, the Hub, hydras, reports."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from support.hints.rows.families import edit_header, restore, rewrite
from support.hints.rows.stages_prune import edit
from support.hints.table import Row

AUTO = "python import hydractl; from transformers import AutoModelForImageClassification as A; A.from_pretrained('h'"
LOADED = "python import hydractl; from transformers import AutoModelForImageClassification as A; from safetensors.torch import load_file; m = A.from_pretrained('h'); "
HYDRA = "fuse m-0.st m-1.st -q -o h/"
FUSE, PRUNE = "fuse m-0.st m-1.st", "prune base.st --strategy random --keep-heads 3 -o o.st"
REPORT = "report report.json"
DIGITS = "digits::classes=0-6,limit=14"
EVAL = f"eval base.st --data {DIGITS},split=test --bootstrap 0 --no-latency"
SECOND = f"{EVAL.replace('base.st', 'hydra.st')} --name base -q -o second.json"
TUNE = f"finetune base.st --train {DIGITS} --val {DIGITS},split=val --steps 1 --batch-size 8"
PUSH = "push base.st my-team/my-hydra --dry-run"
RANKS = {"WORLD_SIZE": "2"}


def _overflowing(state: dict[str, Any]) -> dict[str, Any]:
    """Return weights with a bias that is infinite in fp16."""
    return state | {"head.bias": state["head.bias"] + 1e5}


def _other_towers(header: dict[str, Any]) -> None:
    header["architecture"]["towers"] = {"text": header["architecture"]["towers"]["vision"]}
    header["masks"] = [{"text": mask["vision"]} for mask in header["masks"]]


def _drop_fate(header: dict[str, Any]) -> None:
    header["plan"]["fates"].pop("norm.weight")


ROWS = (
    Row(
        "`hydractl finetune --num-classes N` replaces the classifier of a base",
        f"{AUTO}, num_labels=5)",
        f"{TUNE.replace('0-6', '0-4')} --num-classes 5 -o o.st",
        before=(HYDRA,),
    ),
    Row(
        '`hydractl.load(..., classes=["cat", "dog"])` sets other classes',
        test="tests/auto/test_auto.py::test_classes_that_a_zero_shot_model_is_asked_by_are_not_renamed",
    ),
    Row("leave it out", f"{AUTO}, output_attentions=True)", f"{AUTO})", before=(HYDRA,)),
    Row(
        'use one: `device_map="cuda:0"`',
        f"{AUTO}, device_map={{'a': 'cpu', 'b': 'meta'}})",
        f"{AUTO}, device_map='cpu')",
        before=(HYDRA,),
    ),
    Row(
        "use one of {}, or `auto`",
        f"{AUTO}, dtype='int8')",
        f"{AUTO}, dtype='auto')",
        before=(HYDRA,),
    ),
    Row(
        "it belongs to a hydra with other heads",
        f"{LOADED}m.load_state_dict(load_file('other/model.safetensors'))",
        f"{LOADED}m.load_state_dict(load_file('h/model.safetensors'))",
        before=(HYDRA, "fuse m-0.st m-1.st m-2.st -q -o other/"),
    ),
    Row(
        "it must contain every tensor of `model.state_dict()`, gathered from all processes",
        f"{LOADED}m.save_pretrained('s', state_dict={{}})",
        f"{LOADED}m.save_pretrained('s', state_dict=m.state_dict())",
        before=(HYDRA,),
    ),
    Row(
        "set TMPDIR to a folder on a disk with more space",
        test="tests/cli/test_streams.py::test_a_temporary_folder_without_room",
    ),
    Row(
        "the file may have been edited",
        PRUNE,
        PRUNE,
        prepare=partial(edit_header, "base.st", _other_towers),
        mend=partial(restore, "base.st"),
    ),
    Row(
        "{}; fuse the members again",
        "predict hydra.st images",
        "fuse m-0.st m-1.st m-2.st --force -o hydra.st",
        prepare=partial(edit_header, "hydra.st", _drop_fate),
    ),
    Row(
        "find it again with `hydractl eval ... --threshold-for 'risk<=R' --save-model PATH`",
        test="tests/stages/predict/test_feature_scores.py::test_a_threshold_on_a_score_of_an_earlier_definition_is_refused",
    ),
    Row(
        "fit it again with `hydractl eval ... --train TRAIN --val VAL --save-model PATH`",
        test="tests/stages/predict/test_feature_scores.py::test_a_score_of_an_earlier_definition_is_refused",
    ),
    Row(
        "it may be from another version of hydractl",
        test="tests/stages/predict/test_feature_scores.py::test_broken_tensors_are_refused",
    ),
    Row(
        "{}, or use a score that stores no features: `{}`",
        test="tests/fusion/test_feature_ood.py::test_a_file_without_room_is_refused_before_the_data_are_read",
    ),
    Row(
        "use `--dtype fp32`; if that does not help, the weights are damaged",
        "predict base.st images --dtype fp16",
        "predict base.st images --dtype fp32",
        prepare=partial(rewrite, "base.st", _overflowing),
    ),
    Row(
        '`{}=["{}"]`',
        "python import hydractl; hydractl.load('clip', classes='a')",
        "python import hydractl; hydractl.load('clip', classes=['a', 'b'])",
    ),
    Row(
        'give them: `classes=["cat", "dog"]`',
        "python import hydractl; hydractl.load('clip', templates=['a {label}'])",
        "python import hydractl; hydractl.load('clip', templates=['a {label}'], classes=['a', 'mat'])",
    ),
    Row(
        "the members may come from different models; `--trunk 0 --mlp keep` averages nothing",
        test="tests/stages/fuse/test_merge.py::test_whole_numbers_that_differ_have_no_mean",
    ),
    Row(
        "add `--force` to replace it, or choose another name with `-o`",
        f"{FUSE} -o h/",
        f"{FUSE} --force -o h/",
        before=(HYDRA,),
    ),
    Row("for example `v1` or `tuned/2`", f"{PUSH} --revision 'a b'", f"{PUSH} --revision v1"),
    Row(
        "give owner and name, for example `my-team/my-hydra`; give a branch with `--revision BRANCH`",
        "push base.st my-hydra --dry-run",
        PUSH,
    ),
    Row(
        "{}For example `apache-2.0`, `mit`, `cc-by-4.0`; use `other` for a licence without an identifier",
        f"{PUSH} --license zzzz",
        f"{PUSH} --license mit",
    ),
    Row(
        "nothing was pushed; correct the file on the Hub and push again, or push to another repository",
        test="tests/hub/test_readme.py::test_one_that_cannot_be_read_stops_the_push",
    ),
    Row(
        "check whether the pull request exists before you push again",
        test="tests/hub/test_repository.py::test_a_commit_whose_answer_is_lost_is_not_made_twice",
    ),
    Row(
        "log in with `hf auth login`, or set HF_TOKEN to a token with write access",
        test="tests/hub/test_push.py::test_without_a_token_it_is_said_what_to_do",
    ),
    Row(
        "make it private on its settings page, or leave out `--private`",
        test="tests/hub/test_repository.py::test_a_public_repository_is_not_taken_for_a_private_one",
    ),
    Row(
        "`hydractl eval {} --data DATA -o report.json` writes a report of it",
        f"{PUSH} --report other.json",
        f"{EVAL} -o new.json",
    ),
    Row(
        "check whether the network needs a login, and whether HF_ENDPOINT is right; a browser shows the response of that address",
        test="tests/test_hub_client.py::test_an_answer_that_the_client_stumbles_over_is_the_hubs_fault",
    ),
    Row(
        "try again later; the rate limit is higher after `hf auth login`",
        test="tests/hub/test_repository.py::test_what_fails_for_good_is_said_and_changes_nothing",
    ),
    Row(
        "`pip install 'hydractl[sentencepiece]'`",
        test="tests/families/transformers/test_python_tokenizers.py::test_without_sentencepiece_the_package_is_named",
    ),
    *(
        Row(
            hint,
            test="tests/families/transformers/test_python_tokenizers.py::test_what_a_checkpoint_cannot_hold_is_refused_when_it_is_opened",
        )
        for hint in ("`pip install emoji`", "convert it to a `tokenizer.json`, or use one of {}")
    ),
    Row(
        "set `dropout` to null in tokenizer.json; it is only for training",
        test="tests/data/test_tokenize.py::test_a_tokenizer_that_makes_far_more_of_a_text_or_draws_is_refused",
    ),
    Row(
        "set it to false in {}, if the model was trained without it",
        "predict bert texts.jsonl",
        "predict bert texts.jsonl",
        prepare=partial(edit, "bert/tokenizer_config.json", split_special_tokens=True),
        mend=partial(edit, "bert/tokenizer_config.json", split_special_tokens=False),
    ),
    Row(
        "check the connection, unset HF_HUB_OFFLINE, or use a local path",
        test="tests/test_model_source.py::test_no_network_and_no_cache_is_exit_4",
    ),
    Row(
        "check the spelling; a private or gated model needs `hf auth login`",
        test="tests/test_model_source.py::test_what_the_hub_refuses_is_exit_4",
    ),
    Row(
        "give the architecture instead: `--arch NAME`",
        "import timm/model.safetensors --arch images -o o.st",
        "import timm/model.safetensors --arch timm -o o.st",
    ),
    Row(
        "add `--force` to replace it, or choose another name",
        test="tests/output/test_locks.py::test_another_command_does_not_finish_it",
    ),
    Row(
        "choose another name",
        test="tests/output/test_atomic_write.py::test_an_owner_that_cannot_be_kept_is_said_before_the_work",
    ),
    Row(
        "free some space or use another disk",
        test="tests/output/test_atomic_write.py::test_a_full_disk_is_said_in_one_sentence",
    ),
    Row(
        "create it: `mkdir -p {}`",
        f"{FUSE} -o new/o.st",
        f"{FUSE} -o new/o.st",
        mend=lambda: Path("new").mkdir(),
    ),
    Row(
        "{}, or choose another name with `-o`",
        test="tests/output/test_locks.py::test_a_second_command_is_told_who_makes_it",
    ),
    Row(
        "write to a file with `{} FILE`, or to a pipe: `{} - | COMMAND`",
        test="tests/cli/test_process.py::test_a_terminal_gets_no_binary_file_but_a_document",
    ),
    Row(
        "set TMPDIR to a folder on a disk with more space",
        test="tests/stages/finetune/test_head_training.py::test_features_that_lie_in_a_file_give_the_same_bytes",
    ),
    Row(
        "run it without `torchrun`; only `eval`, `finetune`, `fuse --val`, `predict`, `prune --strategy diverse` and `score` "
        "support several processes",
        PRUNE,
        PRUNE,
        environment=RANKS,
    ),
    Row(
        "write it to a file first",
        "score - --method magnitude -o o.json",
        "score base.st --method magnitude -o o.json",
        environment=RANKS,
    ),
    Row(
        "write the others to files first",
        "fuse - - -o o.st",
        f"{FUSE} -o o.st",
    ),
    Row(
        "name one report of each set; those of several seeds are put together without `--over sets`",
        f"{REPORT} second.json --over sets -o r.md",
        f"{REPORT} second.json -o r.md",
        before=(SECOND,),
    ),
    Row(
        "reports are put together that are of one command line but for the models: rows named alike by `--name` and "
        "`--compare NAME=...`, the same data sets, metrics and scores",
        f"{REPORT} other.json -o r.md",
        f"{REPORT} second.json -o r.md",
        before=(SECOND,),
    ),
    Row(
        "unset MPLBACKEND",
        test="tests/reporting/test_matplotlib_figure.py::test_a_backend_that_matplotlib_does_not_know_is_no_traceback",
    ),
    Row(
        "raise the limit before the command: `ulimit -v unlimited`",
        test="tests/cli/test_contract.py::test_libraries_that_do_not_fit_into_the_limit_of_a_process",
    ),
    Row(
        "leave out `--compile`",
        test="tests/training/test_step_modes.py::test_a_step_that_is_no_single_graph_is_refused",
    ),
    Row(
        "try {}",
        test="tests/cli/test_contract.py::test_a_device_without_memory_is_a_sentence_that_names_the_options_of_the_command",
    ),
    Row(
        "use a smaller `--signature-size`, or fewer classes: `--data DATA::classes=0-99`",
        test="tests/scoring/cahp/test_moments.py::test_too_many_classes_are_refused",
    ),
    Row(
        "add `--force` to discard it and start again",
        test="tests/scoring/circuit/test_lazy_greedy.py::test_a_damaged_memory_is_refused",
    ),
    Row(
        "use a larger `--max-memory`, fewer samples, or an OOD score of logits, such as `--ood-score energy`",
        test="tests/scoring/circuit/test_density.py::test_a_limit_with_no_room_for_one_candidate_is_refused",
    ),
    Row(
        "add `--force` to start again",
        test="tests/training/test_resume.py::test_a_state_that_says_something_else_is_refused",
    ),
    Row(
        "run that command again to finish it, add `--force` to discard it and start again, or choose another name with `-o`",
        test="tests/cli/test_contract.py::test_what_an_unfinished_run_of_other_options_left_is_answered_alike",
    ),
    Row(
        "the state is damaged; {}",
        test="tests/training/test_resume.py::test_a_flipped_bit_of_a_tensor_is_found",
    ),
    Row(
        "the state is of another version; {}",
        f"{TUNE} -o o.st",
        f"{TUNE} -o o.st --force",
        files={"o.st.state/state.json": '{"schema": "hydractl.training-state/99"}'},
    ),
    Row(
        "check that {} can write its files, or leave out `--log-to {}`",
        test="tests/stages/test_log_to.py::test_a_tracker_that_fails_ends_the_run_which_can_go_on",
    ),
    Row(
        "choose another `--log-dir`",
        test="tests/stages/test_log_to.py::test_an_unreadable_name_of_a_run_is_refused",
    ),
    Row(
        "the report of the launcher names it; run the same command again",
        test="tests/processes/test_distributed.py::test_a_process_that_ends_is_noticed",
    ),
    *(
        Row(
            hint,
            test="tests/processes/test_distributed.py::test_a_device_that_processes_cannot_share_is_refused",
        )
        for hint in (
            "start `torchrun --nproc-per-node {}`, or use `--device cpu`",
            "use `--device cpu`",
            "use `--device cuda`",
        )
    ),
    Row(
        "use a smaller `--batch-size`",
        test="tests/stages/evaluate/test_evaluate.py::test_a_batch_that_is_too_large_for_the_device_is_said",
    ),
    Row(
        "replace it by a smaller file, or push to another repository",
        "python from types import SimpleNamespace as N; from hydractl.hub.repository import _read; _read(None, 'my-team/m', 'main', N(path='README.md', size=10**9))",
        PUSH,
    ),
    Row(
        "add `--embedding none`",
        test="tests/scoring/cahp/test_embedding.py::test_points_that_are_not_finite_are_refused",
    ),
)
