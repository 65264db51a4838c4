"""`hvdtrain launch`: start a job on this machine or through a cluster's launcher; one module a launcher."""

from hvdtrain.cli.launch.command import run as run
