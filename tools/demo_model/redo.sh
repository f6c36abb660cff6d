#!/bin/sh
# Every step from the sources to the file, in order; each is resumable, so run it again after a stop.
# usage: tools/demo_model/redo.sh DOCS, the folder of the Python documentation's .rst sources
set -eu
cd "$(dirname "$0")/../.."
python -m tools.demo_model.corpus --docs "$1"
python -m tools.demo_model.parity
python -m tools.demo_model.train --compile
python -m tools.demo_model.antiloop --compile
python -m tools.demo_model.train --compile --head-only --from run/antiloop/checkpoint.pt \
    --out run/head --first-step 2000000 --decay-at 60 --decay-steps 140 \
    --muon-lr 0.01 --adam-lr 0.002
python -m tools.demo_model.parity run/head/checkpoint.pt
python -m tools.demo_model.export run/head/checkpoint.pt bmoe_core/models/demo.gguf
python -m tools.demo_model.evaluate bmoe_core/models/demo.gguf
