"""A training job that SageMaker has: wait for its end, follow its log, stop it."""

import sys
import time
from dataclasses import dataclass
from typing import Any

from hvdtrain.errors import HvdtrainError, UsageError
from hvdtrain.launch.sagemaker.aws import Service

ENDED = ("Completed", "Failed", "Stopped")
OUTAGE_SECONDS = 900.0  # how long AWS may not be reached while a job is waited for
LOG_GROUP = "/aws/sagemaker/TrainingJobs"
POLL_SECONDS = 15.0
MAX_PENDING_SECONDS = 3 * 3600
"""How long `wait` waits for machines, besides the job's own limits; the job itself continues."""


@dataclass(frozen=True)
class TrainingJob:
    """A job by its name, which is asked for every `poll_s` seconds."""

    name: str
    service: Service
    poll_s: float = POLL_SECONDS

    def describe(self) -> dict[str, Any]:
        return self.service.describe(self.name)

    def stop(self) -> None:
        self.service.stop(self.name)

    def wait(self, timeout_s: float, logs: bool = False) -> dict[str, Any]:
        """Return what SageMaker says of the job when it has completed; after `timeout_s` seconds it is not ended.

        With `logs`, the workers' logs are printed as they come. Raises HvdtrainError: it failed or was stopped, or is
        still running after `timeout_s`.
        """
        deadline = time.monotonic() + timeout_s
        read_to: dict[str, str] = {}
        seen = ""
        while True:
            answer = self._describe_patiently(deadline)
            logs = logs and self._print_log(read_to)
            state = str(answer.get("SecondaryStatus") or answer["TrainingJobStatus"])
            if state != seen:
                sys.stderr.write(f"{self.name}: {state}\n")
            seen = state
            if answer["TrainingJobStatus"] in ENDED:
                break
            if time.monotonic() + self.poll_s > deadline:
                raise HvdtrainError(
                    f"The training job {self.name} is still {answer['TrainingJobStatus']} after {timeout_s:.0f} s.",
                    "Waiting has a limit; the job has not been ended.",
                    f"`aws sagemaker stop-training-job --training-job-name {self.name}` ends it.",
                )
            time.sleep(self.poll_s)  # the service can only be asked
        if logs:
            self._print_log(read_to)
        _require_completed(self.name, answer)
        return answer

    def _describe_patiently(self, deadline: float) -> dict[str, Any]:
        """As `describe`; a network failure of some minutes must not end the wait for a job that still runs."""
        deadline = min(deadline, time.monotonic() + OUTAGE_SECONDS)
        while True:
            try:
                return self.describe()
            except UsageError:
                raise
            except HvdtrainError as error:
                if time.monotonic() + self.poll_s > deadline:
                    raise
                sys.stderr.write(f"{self.name}: {error.fact} The job goes on; asking again.\n")
            time.sleep(self.poll_s)

    def _print_log(self, read_to: dict[str, str]) -> bool:
        """Print what is new in the logs of all machines after the tokens of their streams; whether they may be read."""
        try:
            for stream in self.service.log_streams(LOG_GROUP, f"{self.name}/"):
                machine = stream.removeprefix(f"{self.name}/").rpartition("-")[0]  # algo-1-1700000000: name and time
                while True:
                    before = read_to.get(stream)
                    lines, read_to[stream] = self.service.log_lines(LOG_GROUP, stream, before)
                    sys.stdout.writelines(f"{machine}: {line}\n" for line in lines)
                    if read_to[stream] == before or not lines:
                        break
        except UsageError as error:  # such as a missing permission: the job continues without it
            sys.stderr.write(f"{self.name}: its log is not shown. {error}\n")
            return False
        except HvdtrainError as error:
            sys.stderr.write(f"{self.name}: {error.fact} Its log comes later.\n")
        sys.stdout.flush()
        return True


def _require_completed(name: str, answer: dict[str, Any]) -> None:
    status = answer["TrainingJobStatus"]
    if status == "Completed":
        return
    reason = " ".join(str(answer.get("FailureReason") or "").split())
    if status == "Stopped":
        raise HvdtrainError(
            f"The training job {name} was stopped ({answer.get('SecondaryStatus', status)}).",
            reason or "It did not train to its end.",
            "with checkpoint_s3_uri, the same job started again continues from its last checkpoint.",
        )
    raise HvdtrainError(
        f"The training job {name} failed.",
        f"SageMaker says: {reason or 'no reason'}",
        f"its whole log is in CloudWatch: `aws logs tail {LOG_GROUP} --log-stream-name-prefix {name}/`.",
    )
