"""horovodrun, as the script of that name that pip makes, but that the processes which it spawns do not import it again.

They are one for each rank, and what they would import for nothing takes each a fifth of a second.
"""

if __name__ == "__main__":
    import sys

    from horovod.runner.launch import run_commandline

    sys.argv[0] = "horovodrun"
    sys.exit(run_commandline())
