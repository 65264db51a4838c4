#!/bin/sh
# Becomes `train` in an image for SageMaker without its training toolkit, which starts IMAGE with that word:
#   COPY --chmod=755 launch/sagemaker/train.sh /usr/local/bin/train
# No ENTRYPOINT is needed. The python is the one on the PATH; set PYTHON for another.
python="${PYTHON:-python}"
if ! command -v "$python" >/dev/null 2>&1; then
    output="${SAGEMAKER_BASE_DIR:-/opt/ml}/output"
    told="There is no $python in this image. It is what runs the training.
HINT: put a python with hvdtrain on the PATH of the image, or name one in the variable PYTHON."
    echo "hvdtrain: $told" >&2
    mkdir -p "$output" && [ ! -e "$output/failure" ] && echo "$told" >"$output/failure"
    exit 2
fi
exec "$python" -m hvdtrain.launch.sagemaker.train_entry
