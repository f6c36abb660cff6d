VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
MODEL := models/SmolLM2-135M-Instruct.Q4_1.gguf
MODELS := $(MODEL) models/gemma-3-270m-q4_k_m.gguf
DEMO := bmoe --draft-source ngram -f docs/examples/demo-prompt.txt

.PHONY: help install models demo test test-models check bench clean

help:
	@echo "make demo         set up, then watch prompt lookup draft on a copying prompt"
	@echo "make test         set up, then run every test"
	@echo "make test-models  only the tests that run real language models"
	@echo "make check        linters and type checker"
	@echo "make bench        what drafting gains here, against plain decoding and llama-cpp-python"
	@echo "make install      the set-up alone"
	@echo "make models       the real language models alone"

install: $(INSTALLED)

$(INSTALLED): pyproject.toml $(wildcard plugins/*/pyproject.toml) tools/install.sh
	@tools/install.sh $(VENV)
	@touch $@

models: $(MODELS)

$(MODELS): | $(INSTALLED)
	@tools/fetch_models.sh $(VENV) $@

demo: $(INSTALLED)
	@echo '$$ $(DEMO)'
	@$(BIN)/$(DEMO)

test: $(INSTALLED) $(MODELS)
	$(BIN)/python -m pytest
	for plugin in plugins/* docs/examples/bmoe_*; do (cd $$plugin && $(CURDIR)/$(BIN)/python -m pytest -q) || exit 1; done

test-models: $(INSTALLED) $(MODELS)
	$(BIN)/python -m pytest -m real_model

check: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(INSTALLED) $(MODEL)
	$(BIN)/bmoe bench -m $(MODEL) --sources ngram --oracle --peers

clean:
	rm -rf $(VENV) models .pytest_cache .mypy_cache .ruff_cache .hypothesis
