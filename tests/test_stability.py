"""What docs/reference/stability.md promises: to change it is a decision, and a new version."""

from __future__ import annotations

import inspect

import attrs

from bmoe_core import Draft, DraftSource, OpenSource, Target, adapters, generate, open_source
from bmoe_core import testing as kit
from bmoe_core.sources import ENTRY_POINT_GROUP


def parameters(function: object) -> list[str]:
    return list(inspect.signature(function).parameters)  # type: ignore[arg-type]


def test_hooks_and_their_arguments() -> None:
    """A hook may gain an argument at its end, and loses none; only draft is required."""
    hooks = {
        name: parameters(hook)[1:]
        for name, hook in vars(DraftSource).items()
        if not name.startswith("_")
    }
    assert hooks == {
        "prepare_model": ["model_params"],
        "prepare_context": ["context_params"],
        "open": ["target"],
        "begin": ["prompt", "n_past"],
        "observe": ["tokens", "n_past"],
        "draft": ["tokens", "n_max"],
        "report": [],
        "close": [],
    }


def test_no_hook_argument_has_a_default() -> None:
    """Or it could not be told from one that is not passed."""
    for name, hook in vars(DraftSource).items():
        if not name.startswith("_"):
            for parameter in inspect.signature(hook).parameters.values():
                assert parameter.default is parameter.empty


def test_what_a_source_is_given_and_gives() -> None:
    """The target's members, a draft's fields, and the entry points' group."""
    assert [name for name in vars(Target) if not name.startswith("_")] == [
        *("model", "ctx", "eval_callback", "n_ctx", "n_vocab", "n_batch", "n_past"),
        *("n_pending", "n_replayed"),
        *("max_rollback", "decode", "roll_back", "clear", "tokenize", "detokenize", "is_eog"),
    ]
    assert [field.name for field in attrs.fields(Draft)] == ["tokens", "evidence", "confidence"]
    assert Draft([1]) == Draft([1], None, None)
    assert ENTRY_POINT_GROUP == "bmoe.draft_sources"


def test_calls() -> None:
    """The arguments of the functions that a program or a suite calls."""
    assert parameters(open_source) == ["source", "options", "name"]
    assert parameters(generate)[:2] == ["target", "prompt"]
    # By keyword, so others may come between them.
    assert {"source", "n_predict", "width", "n_past", "pick", "strict"} < set(parameters(generate))
    assert parameters(adapters.llama_cpp) == ["source", "num_pred_tokens", "options"]
    assert parameters(adapters.LlamaCppSource) == ["draft_model"]
    for name in ("open", "close", "report", "begin", "observe", "draft"):
        assert callable(getattr(OpenSource, name))


def test_the_testing_kit_s_names() -> None:
    """What a plugin's suite imports, and the tests that it inherits and may have to replace."""
    assert sorted(kit.__all__) == [
        "DraftSourceContract",
        "FakeTarget",
        "NearTieTarget",
        "RefusingTarget",
        "ScriptedSource",
        "cyclic",
        "hashed",
        "plain_gaps",
    ]
    tests = [name for name in dir(kit.DraftSourceContract) if name.startswith("test_")]
    assert tests == [
        "test_begin_forgets",
        "test_drafting_leaves_no_trace",
        "test_drafts_fit",
        "test_evidence_has_few_values",
        "test_instances_share_nothing",
        "test_its_hooks_are_known",
        "test_kept_positions",
        "test_lent_tokens_are_neither_written_nor_kept",
        "test_no_argument_has_a_default",
        "test_nothing_is_drafted_after_close",
        "test_options_make_the_round_trip",
        "test_refused_options_are_explained",
        "test_the_answer_is_the_plain_one",
        "test_the_time_of_a_draft_is_reported",
    ]
