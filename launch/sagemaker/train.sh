#!/bin/sh
# Becomes `train` in an image for SageMaker without its training toolkit, which starts IMAGE with that word:
#   COPY --chmod=755 launch/sagemaker/train.sh /usr/local/bin/train
# No ENTRYPOINT is needed. The python is the one on the PATH; set PYTHON for another.
exec "${PYTHON:-python}" -m launch.sagemaker.train_entry
