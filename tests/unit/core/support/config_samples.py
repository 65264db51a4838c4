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
    "seed": ("7", 7),
    "output_dir": ("OUT", "OUT"),
    "resume": ("never", "never"),
    "keep_checkpoints": ("5", 5),
    "checkpoint_interval": ("10", 10),
    "log_interval": ("4", 4),
    "progress": ("lines", "lines"),
    "stall_timeout": ("60", 60.0),
    "dry_run": ("True", True),
    "debug": ("True", True),
}
"""For each key a value as SageMaker would pass it, and what it means."""
