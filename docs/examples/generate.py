"""Generate with prompt lookup, print the text as it comes, then the report.

usage: python generate.py MODEL
"""

import sys

from bmoe_core import LlamaModel, LlamaTarget, Tally, generate, open_source, report_lines

PROMPT = "one, two, three, four, five. one, two, three, four, five. one, two,"


def main(path: str) -> None:
    """Run the model at ``path``."""
    source = open_source("ngram", {"min_match": 2})
    with LlamaModel(path) as model, LlamaTarget(model, n_ctx=512, max_draft=3) as target:
        source.open(target)
        tally = Tally()
        generation = generate(target, target.tokenize(PROMPT), source=source, n_predict=64, width=3)
        for step in generation:
            tally.add(step)
            print(target.detokenize(step.tokens).decode(errors="replace"), end="", flush=True)
        source.close()
    print(f"\n[{generation.finish_reason.value}]")
    print(*report_lines(source.name, tally.summary), sep="\n")


if __name__ == "__main__":
    main(sys.argv[1])
