"""The ready-to-edit scripts in launch/scripts/: what the renderers print for the jobs here.

`python -m hvdtrain.launch.example_scripts` writes them again; a test compares. Hosts, interface, image, times are
yours to edit, in the scripts or by the flags of `hvdtrain launch`.
"""

from __future__ import annotations

from pathlib import Path

from hvdtrain.launch import horovodrun, kubernetes, mpirun, slurm
from hvdtrain.launch.hosts.host import Host
from hvdtrain.launch.job import JobSpec
from hvdtrain.launch.sagemaker import Input, TrainingInput, TrainingSpec
from hvdtrain.launch.sagemaker.script import script

FOLDER = Path(__file__).parent / "scripts"
COMMAND = ("train", "--output-dir", "runs/digits")
HOSTS = (Host("node1", 4), Host("node2", 4))
SHARED_FOLDER = "/shared/digits"


def example_scripts() -> dict[str, str]:
    """File name → text, each for eight workers with a GPU each, four to a host."""
    by_slurm = slurm.render(_job(slots_per_host=4, max_restarts=3, time_limit=12 * 3600, grace=120.0))
    in_pods = JobSpec(
        command=("train", "--output-dir", "/data/runs/digits"),
        np=8,
        name="digits",
        slots_per_host=4,
        gpus_per_host=4,
        cores_per_host=32,
        image="registry.example.com/hvdtrain:latest",
        max_restarts=3,
        time_limit=12 * 3600,
    )
    by_operator = kubernetes.render(in_pods, kubernetes.KubernetesOptions(memory="128Gi", claim="digits"))
    return {
        "horovodrun_hosts.sh": horovodrun.render(_job(hosts=HOSTS, nics=("eth0",))).describe(),
        "mpirun_hosts.sh": mpirun.render(_job(hosts=HOSTS, nics=("eth0",), env=("PATH",)), "openmpi5").describe(),
        "slurm.sbatch": by_slurm.files["digits.sbatch"],
        "mpijob.yaml": by_operator.files["digits.yaml"],
        "sagemaker_estimator.py": _on_sagemaker("sagemaker_estimator.py"),
    }


def _on_sagemaker(file: str) -> str:
    job = TrainingSpec(
        task="my_task:MyTask",
        source_dir="src",
        instance_count=2,
        instance_type="ml.p3.8xlarge",
        processes_per_host=4,
        input_mode="Pipe",
        hyperparameters={"epochs": 90, "global-batch-size": 1024},
        image="111122223333.dkr.ecr.us-east-1.amazonaws.com/hvdtrain:latest",
        role="arn:aws:iam::111122223333:role/sagemaker-training",
        max_run_s=12 * 3600,
        checkpoint_s3_uri="s3://my-bucket/checkpoints/my-task",
        output_path="s3://my-bucket/jobs",
        base_job_name="my-task",
    )
    inputs: dict[str, Input] = {
        "train": TrainingInput("s3://my-bucket/data/train/", shuffle_seed=42),
        "validation": "s3://my-bucket/data/validation/",
    }
    return script(job, inputs, "Train on SageMaker: two machines with four GPUs each, data by pipes.", file)


def _job(
    hosts: tuple[Host, ...] = (),
    nics: tuple[str, ...] = (),
    env: tuple[str, ...] = (),
    slots_per_host: int | None = None,
    max_restarts: int = 0,
    time_limit: int | None = None,
    grace: float = 30.0,
) -> JobSpec:
    return JobSpec(
        command=COMMAND,
        np=8,
        name="digits",
        hosts=hosts,
        nics=nics,
        env=env,
        slots_per_host=slots_per_host,
        max_restarts=max_restarts,
        time_limit=time_limit,
        grace=grace,
        gpus_per_host=4,
        cores_per_host=32,
        working_dir=SHARED_FOLDER,
    )


def main() -> None:
    """Write all scripts."""
    FOLDER.mkdir(exist_ok=True)
    for name, text in example_scripts().items():
        (FOLDER / name).write_text(text)


if __name__ == "__main__":
    main()
