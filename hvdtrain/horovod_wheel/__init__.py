"""Builds Horovod from its source release, once per machine and combination of versions, and installs it.

    python3 -m hvdtrain.horovod_wheel setup         the whole .venv; what `make setup` calls
    python -m hvdtrain.horovod_wheel install        Horovod into the environment of this Python
    python -m hvdtrain.horovod_wheel recipe         everything that decides the binary, and its key

Horovod 0.28.1 (June 2023) is its last release. It comes as source only and does not build against
today's PyTorch and TensorFlow as it is; `edits` is the full list of what is changed. This package uses the
standard library only, because it runs before anything is installed.

    setup ─ python_version, extras, environment ─ pip install, then
    install ─ recipe (mpi, gpu, compiler) ─ cache: hit ─ pip install the wheel ─ verify
                                                  miss ─ sdist, edits, build (progress, failure) ─ store
"""
