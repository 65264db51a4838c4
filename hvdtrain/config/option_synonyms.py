"""What people who come from other programs write, and which option of ours they mean. Nothing here is accepted."""

import difflib
from collections.abc import Iterable, Mapping
from typing import Final

_WORDS: Final[Mapping[str, str]] = {
    "--task": "dataset",
    "--model": "arch a net network model-name backbone",
    "--data.dir": "data data-dir data-path data-root dataset-path dataset-dir root train-dir",
    "--data.download": "download",
    "--data.threads or --data.processes": "workers num-workers n-workers j dataloader-num-workers loader-workers",
    "--data.prefetch": "prefetch-factor dataloader-prefetch-factor",
    "--data.shuffle": "shuffle-buffer shuffle-files",
    "--framework": "backend",
    "--epochs": "num-epochs max-epochs n-epochs epoch num-train-epochs train-epochs epoch-size",
    "--max-steps": (
        "steps iterations num-steps max-iters iters total-steps train-iters num-iterations train-steps "
        "limit-train-batches"
    ),
    "--max-time": "time-limit max-duration timeout-minutes",
    "--batch-size": (
        "batch b bs batchsize micro-batch-size per-device-train-batch-size train-batch-size device-batch-size "
        "batch-size-per-gpu train-micro-batch-size-per-gpu"
    ),
    "--global-batch-size": "total-batch-size effective-batch-size",
    "--accumulate-steps": (
        "gradient-accumulation-steps accumulate-grad-batches grad-accum grad-accumulation-steps accumulation-steps "
        "batches-per-allreduce gradient-accumulation accum-iter iter-size backward-passes-per-step"
    ),
    "--optimizer": "optim opt",
    "--momentum": "mom",
    "--weight-decay": "wd decay l2",
    "--beta1": "adam-beta1",
    "--beta2": "adam-beta2",
    "--eps": "epsilon adam-epsilon adam-eps",
    "--ema-decay": "ema model-ema model-ema-decay",
    "--lr": "learning-rate base-lr init-lr initial-lr lr-init lr-max peak-lr max-lr alpha",
    "--lr-schedule": "lr-scheduler scheduler sched lr-scheduler-type lr-policy lr-decay-mode learning-rate-schedule",
    "--lr-min": "min-lr lr-end eta-min",
    "--lr-milestones": "milestones lr-steps decay-epochs lr-decay-epochs",
    "--lr-gamma": "gamma lr-decay-rate decay-rate",
    "--lr-scaling": "scale-lr auto-scale-lr",
    "--warmup-epochs": "warmup warmup-steps num-warmup-steps lr-warmup-epochs warmup-ratio",
    "--precision bf16 or --precision fp16": "amp mixed-precision half autocast use-amp",
    "--precision fp16": "fp16 float16 use-fp16",
    "--precision bf16": "bf16 bfloat16 use-bf16",
    "--precision tf32": "tf32 allow-tf32",
    "--precision": "dtype",
    "--activation-checkpointing": (
        "gradient-checkpointing grad-checkpoint grad-checkpointing checkpoint-activations remat"
    ),
    "--sync-batch-norm": "sync-bn syncbn sync-batchnorm",
    "--compile": "torch-compile torchcompile enable-xla xla jit-compile use-xla jit",
    "--channels-last": "nhwc memory-format",
    "--deterministic": "cudnn-deterministic use-deterministic-algorithms deterministic-algorithms",
    "--max-grad-norm": (
        "clip-grad-norm clip-grad gradient-clip-val grad-clip clip max-norm clip-norm gradient-clip-norm clip-gradients"
    ),
    "--compression": "fp16-allreduce gradient-compression",
    "--reduce-op adasum": "use-adasum adasum",
    "--stall-timeout": "ddp-timeout nccl-timeout",
    "--best-metric": "monitor metric-for-best-model eval-metric",
    "--early-stopping-patience": "patience early-stopping early-stop",
    "--output-dir": (
        "logdir log-dir save-dir output out out-dir default-root-dir model-dir checkpoint-dir ckpt-dir save-path "
        "work-dir workdir run-dir save-folder checkpoint-path exp-dir results-dir"
    ),
    "--resume": (
        "resume-from-checkpoint resume-from ckpt-path load-path restore start-epoch continue resume-training "
        "auto-resume"
    ),
    "--init-weights": (
        "pretrained weights finetune pretrained-weights load-weights model-weights checkpoint init-checkpoint "
        "pre-trained ckpt load"
    ),
    "--keep-checkpoints": "save-total-limit keep-checkpoint-max save-top-k max-to-keep num-checkpoints-to-keep",
    "--checkpoint-interval": (
        "save-every save-steps save-interval save-freq checkpoint-every save-frequency checkpoint-freq "
        "save-every-n-steps ckpt-interval checkpointing-steps"
    ),
    "--log-interval": "log-every logging-steps print-freq log-every-n-steps log-freq log-steps p print-every",
    "--progress": "progress-bar enable-progress-bar disable-tqdm verbose quiet log-level",
    "--seed": "random-seed random-state manual-seed rng-seed",
    "--dry-run": "fast-dev-run smoke-test validate-only check",
    "--config": "config-file cfg yaml c conf",
}

_ELSEWHERE: Final[Mapping[str, str]] = {
    "the launcher says how many workers there are: hvdtrain launch local -np 4 -- train": (
        "nproc-per-node nproc np num-gpus gpus ngpus n-gpus num-processes world-size devices num-nodes nnodes "
        "num-proc num-workers-per-host gpus-per-node nproc-per-host hosts n"
    ),
    "the launcher says which worker this is, and there is nothing to give": (
        "rank local-rank node-rank dist-url dist-backend master-addr master-port multiprocessing-distributed "
        "distributed ddp rdzv-endpoint rdzv-backend task-index distribution-strategy run-distribute strategy "
        "init-method ip port"
    ),
    "GPUs are used where there are any; CUDA_VISIBLE_DEVICES= trains on the CPU": (
        "device gpu gpu-id no-cuda cpu cuda use-cpu accelerator use-gpu device-target use-cuda"
    ),
    "each epoch ends with a validation of the task's validation data": (
        "val validate eval evaluate val-every val-interval eval-every eval-steps eval-interval do-eval val-split "
        "val-check-interval check-val-every-n-epoch evaluation-strategy validation-split eval-strategy test "
        "do-train do-test"
    ),
    "validation uses --batch-size's global batch too": (
        "val-batch-size eval-batch-size test-batch-size per-device-eval-batch-size validation-batch-size"
    ),
    "the task finds its validation data in --data.dir": (
        "val-dir val-data val-data-dir validation-data valid-dir eval-data test-dir val-path"
    ),
}

_MEANT: Final[Mapping[str, str]] = {word: flag for flag, words in _WORDS.items() for word in words.split()}
_ANSWERED: Final[Mapping[str, str]] = {word: answer for answer, words in _ELSEWHERE.items() for word in words.split()}


def near_flags(name: str, flags: Iterable[str]) -> str:
    """The end of a HINT for an option that is not there: which of ours is meant, three at most; "" where none is near.

    Args:
        name: as it was written, with or without leading dashes.
        flags: those that there are, as "--data.dir".
    """
    bare = name.lstrip("-").replace("_", "-").lower()
    if bare in _MEANT:
        return f"did you mean {_MEANT[bare]}?"
    if bare in _ANSWERED:
        return f"{_ANSWERED[bare]}."
    known = {flag.lstrip("-"): flag for flag in flags}
    exact = [name for name in (bare, bare.replace("-", "_"), f"data.{bare}") if name in known]  # the group is left out
    near = exact[:1] or difflib.get_close_matches(bare, known, 3, 0.7)
    if not near:  # a synonym with a slip
        words = difflib.get_close_matches(bare, _MEANT, 1, 0.8)
        return f"did you mean {_MEANT[words[0]]}?" if words else ""
    return f"did you mean {_listed([known[one] for one in near])}?"


def _listed(names: list[str]) -> str:
    return " or ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)
