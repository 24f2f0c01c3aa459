"""Entries of `hydractl.research` in the core's tables exist, and their paths can be imported."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module

import pytest

from hydractl.cli.app import COMMANDS, function_of
from hydractl.plugins import load, plugins
from hydractl.research.analyses.options import ANALYSES, AnalysisOptions
from hydractl.research.baselines.options import BASELINES
from hydractl.research.bench.config import BenchConfig
from hydractl.research.evaluation import ResearchEval
from hydractl.research.methods.options import METHODS
from hydractl.scoring.methods import METHODS as METHODS_OF_SCORE
from hydractl.settings import declared

TABLES = """
import sys
from hydractl.research.analyses.options import ANALYSES, AnalysisOptions
from hydractl.research.baselines.options import BASELINES
from hydractl.research.methods.options import METHODS
print(len(ANALYSES), len(BASELINES), len(METHODS), "torch" in sys.modules)
"""


def test_tables_have_all_rows_of_research():
    (research,) = plugins()

    assert load(research.rows).kinds == (*BASELINES,)
    assert {*research.one_network_methods} <= {*METHODS}
    assert all(METHODS_OF_SCORE[method.name] == method for method in load(research.scores))
    assert {*research.commands} <= {*COMMANDS}


@pytest.mark.parametrize("kind", BASELINES)
def test_a_baseline_names_a_module_that_checks_and_builds(kind):
    module = import_module(BASELINES[kind].MODULE)

    assert callable(module.check)
    assert callable(module.build)


@pytest.mark.parametrize("kind", METHODS)
def test_a_method_names_its_adapter(kind):
    assert callable(load(METHODS[kind].ADAPTER))


@pytest.mark.parametrize("name", ANALYSES)
def test_an_analysis_names_its_function(name):
    assert callable(load(ANALYSES[name].path))


def test_every_constraint_names_a_setting():
    for config in (BenchConfig, ResearchEval, AnalysisOptions, *BASELINES.values()):
        for name, setting in declared(config).items():
            for relation in ("needs", "only_with", "excludes"):
                for constraint in setting.constraints(relation):
                    assert (constraint.option or constraint.field_name) in declared(config), name


def test_commands_of_research_are_functions():
    assert callable(function_of("bench"))


def test_tables_load_no_torch():
    done = subprocess.run([sys.executable, "-c", TABLES], capture_output=True, text=True, check=True)

    assert done.stdout.split() == ["7", "5", "6", "False"]
