#!/bin/sh
# Makes a virtual environment with bmoe, the plugins and what their tests need.
# usage: tools/install.sh VENV
set -eu
venv=$1
log=$venv/install.log
python=${PYTHON:-python3}

if ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null; then
    echo "bmoe needs Python 3.10 or newer, and '$python' is not: set PYTHON to one that is" >&2
    exit 1
fi
"$python" -m venv "$venv"

# The AMX kernels of llama.cpp die of an illegal instruction where GCC 12 compiled them: its
# _tile_loadconfig lets the optimiser drop most of the tile configuration.
if grep -qs amx_int8 /proc/cpuinfo && ${CC:-cc} -mno-amx-int8 -E - </dev/null >/dev/null 2>&1; then
    CMAKE_ARGS="-DCMAKE_C_FLAGS=-mno-amx-int8 -DCMAKE_CXX_FLAGS=-mno-amx-int8 ${CMAKE_ARGS:-}"
    export CMAKE_ARGS
fi

echo "Installing bmoe into $venv; llama.cpp is compiled the first time, which takes minutes."
"$venv/bin/python" -m pip install --disable-pip-version-check \
    -e '.[dev]' -e 'plugins/bmoe_ngram[dev]' -e 'plugins/bmoe_mtp[dev]' >"$log" 2>&1 &
pip=$!
latest() {
    grep -aE '^ *(Collecting|Downloading|Building|Installing)' "$log" | tail -n 1 | cut -d' ' -f 1-5
}
trap 'kill $pip 2>/dev/null; exit 130' INT TERM
seconds=0
while kill -0 $pip 2>/dev/null; do
    sleep 1
    seconds=$((seconds + 1))
    if [ -t 1 ]; then
        printf '\r\033[K%d:%02d  %s' $((seconds / 60)) $((seconds % 60)) "$(latest)"
    elif [ $((seconds % 30)) -eq 0 ]; then
        printf '%d:%02d  %s\n' $((seconds / 60)) $((seconds % 60)) "$(latest)"
    fi
done
if [ -t 1 ]; then printf '\r\033[K'; fi
if ! wait $pip; then
    tail -n 20 "$log" >&2
    echo "The installation failed; the whole log is in $log" >&2
    exit 1
fi
echo "Installed in $seconds s."
