"""Generate with a mixture-of-experts model whose experts are read as they are needed.

python stream.py MODEL CACHE_MIB
"""

import sys

from bmoe_core import LlamaModel, LlamaTarget, Tally, generate, open_source
from bmoe_core.moe.options import StreamOptions
from bmoe_core.moe.stream import ExpertStream
from bmoe_core.routing.tally import RoutingTally
from bmoe_core.routing.tap import RouterTap

path, cache_mib = sys.argv[1], int(sys.argv[2])
source = open_source("ngram")
with (
    ExpertStream.open(path, StreamOptions(cache_mb=cache_mib)) as stream,
    LlamaModel(path, prepare=stream.prepare_model) as model,
):
    stream.attach(model)
    tap = RouterTap(stream)
    with LlamaTarget(model, max_draft=3, tap=tap) as target:
        source.open(target)
        tally, routing = Tally(), RoutingTally(tap.layers, stream.cache_size, is_streamed=True)
        for step in generate(
            target,
            target.tokenize("def area(width, height):"),
            source=source,
            n_predict=32,
            on_prefill=lambda n_done, n_prompt: routing.warm(tap.take()),
        ):
            tally.add(step)
            routing.add(tap.take())
            print(target.detokenize(step.tokens).decode(errors="replace"), end="", flush=True)
        source.close()
print("", *routing.lines(source.name, tally.summary.n_generated), sep="\n")
