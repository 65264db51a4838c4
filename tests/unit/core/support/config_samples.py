"""A value for every key of the config."""

from __future__ import annotations

from typing import Any

from hvdtrain.config import TrainConfig
from hvdtrain.config_parser import parse_train_config


def parse(*argv: str) -> TrainConfig:
    return parse_train_config(argv)


SAMPLES: dict[str, tuple[str, Any]] = {
    "task": ("mine:Task", "mine:Task"),
    "model": ("resnet50", "resnet50"),
    "task_args": ('{"width": 16}', {"width": 16}),
    "framework": ("tensorflow", "tensorflow"),
    "data.dir": ("/data", "/data"),
    "data.download": ("True", True),
    "data.check_crc": ("False", False),
    "data.on_corrupt": ("quarantine", "quarantine"),
    "data.max_corrupt": ("0.5", 0.5),
    "data.shuffle": ("block", "block"),
    "data.balance": ("bytes", "bytes"),
    "data.threads": ("3", 3),
    "data.processes": ("2", 2),
    "data.mode": ("pipe", "pipe"),
    "data.pipe_dir": ("/pipes", "/pipes"),
    "data.pipe_plan": ("plan.json", "plan.json"),
    "data.pipe_steps": ("12", 12),
    "data.verify_bytes": ("1000", 1000),
    "data.prefetch": ("9", 9),
    "data.timeout": ("12.5", 12.5),
    "epochs": ("3", 3),
    "max_steps": ("17", 17),
    "max_time": ("0-03:30:00", "0-03:30:00"),
    "batch_size": ("8", 8),
    "global_batch_size": ("64", 64),
    "lr": ("1e-3", 0.001),
    "lr_scaling": ("none", "none"),
    "reference_batch_size": ("256", 256),
    "warmup_epochs": ("0.5", 0.5),
    "lr_schedule": ("constant", "constant"),
    "lr_power": ("0.9", 0.9),
    "lr_min": ("1e-5", 1e-5),
    "lr_milestones": ("30,60.5", [30.0, 60.5]),
    "lr_gamma": ("0.2", 0.2),
    "seed": ("7", 7),
    "output_dir": ("OUT", "OUT"),
    "resume": ("never", "never"),
    "init_weights": ("old.pt", "old.pt"),
    "best_metric": ("accuracy", "accuracy"),
    "best_mode": ("auto", "auto"),
    "early_stopping_patience": ("3", 3),
    "early_stopping_min_delta": ("0.0", 0.0),
    "keep_checkpoints": ("5", 5),
    "checkpoint_interval": ("10", 10),
    "log_interval": ("4", 4),
    "progress": ("lines", "lines"),
    "stall_timeout": ("60", 60.0),
    "dry_run": ("True", True),
    "debug": ("True", True),
    "optimizer": ("lamb", "lamb"),
    "momentum": ("0.8", 0.8),
    "nesterov": ("True", True),
    "beta1": ("0.8", 0.8),
    "beta2": ("0.95", 0.95),
    "eps": ("1e-7", 1e-7),
    "weight_decay": ("1e-4", 1e-4),
    "decay_norm_and_bias": ("True", True),
    "trust_coefficient": ("0.02", 0.02),
    "max_grad_norm": ("1.5", 1.5),
    "ema_decay": ("0.999", 0.999),
    "precision": ("bf16", "bf16"),
    "accumulate_steps": ("4", 4),
    "activation_checkpointing": ("True", True),
    "sync_batch_norm": ("True", True),
    "compile": ("True", True),
    "channels_last": ("True", True),
    "deterministic": ("True", True),
    "data_parallel": ("True", True),
    "compression": ("fp16", "fp16"),
    "powersgd_rank": ("2", 2),
    "reduce_op": ("adasum", "adasum"),
    "sync_every": ("8", 8),
    "process_sets": ("node", "node"),
    "sparse_gradients": ("allgather", "allgather"),
}
"""For each key a value as SageMaker would pass it, and what it means."""

COMPANIONS: dict[str, tuple[str, ...]] = {
    "lr_power": ("--lr-schedule", "polynomial"),
    "lr_milestones": ("--lr-schedule", "step"),
    "lr_gamma": ("--lr-schedule", "step", "--lr-milestones", "3"),
    "momentum": ("--optimizer", "lars"),
    "nesterov": ("--optimizer", "sgd"),
    "beta1": ("--optimizer", "adam"),
    "beta2": ("--optimizer", "adam"),
    "eps": ("--optimizer", "adam"),
    "weight_decay": ("--optimizer", "sgd"),
    "decay_norm_and_bias": ("--optimizer", "sgd"),
    "trust_coefficient": ("--optimizer", "lars"),
    "powersgd_rank": ("--compression", "powersgd"),
    "process_sets": ("--sync-every", "8"),
}
"""Flags without which a key's sample would be refused."""
