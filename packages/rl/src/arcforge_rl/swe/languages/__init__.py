"""Languages of ``environment=swe``, as builder, verifier and environment need to know them.

A language is a subclass of `arcforge_rl.swe.languages.base.Language` without state, registered as a component of the
kind ``swe_language``. A plugin of a third party does it in the same way::

    registry.add("swe_language", "perl", "acme.perl:Perl", schema="acme.configs:PerlConfig", summary="Test::More")

Its dataclass inherits `arcforge_rl.configs.environments.SweLanguageConfig` and has only a name.

To write one:

1. *Files*: ``suffixes``, `is_test`, `takes`, and ``settings``, names of files that decide what the test runner does.
2. *Layers*: `tools` names the layers of toolchain and test runner, `site` one with the packages of a repository.
   `declared` reads requirements from the repository's files, `missed` from failures; the builder tries them in this
   order.
3. *Verdicts*: `run` executes test files and returns a `TestRun` with one outcome per test. Tests are named
   ``FILE::NAME``: the builder hides the files of telling tests by that name. A test without a report has failed. The
   code under test must not be able to write results. Either each test is a process whose end `Sandbox.exec` reports and
   which proves by a secret that the test returned (`built_run`, with a planted twin of each test), or the runner
   reports from the process that it shares with the code and signs each line (`signed_run`; an example of the program
   inside is ``python/inside.py``). In both cases tests that must fail are planted beside the real ones (`planted`,
   `without_planted`), so that code which makes every test pass is caught. A run that its time limit ends, its
   build included, is ``late``: whose doing that is, the environment finds out.
4. *Faults*: `bugs` yields changes of one function, such as people make.
5. *Cheats*: `cheats` yields files of solvers who repair nothing; ``arcforge-env validate`` checks that each earns 0.

Tests of a language are in ``tests/rl/swe/languages/NAME/``: small fixtures in the default suite, and two repositories
built from registries in the nightly one.
"""
