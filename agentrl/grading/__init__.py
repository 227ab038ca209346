"""Isolated grading: what an episode left behind is judged where the episode never was.

    episode's session ──collect──► Artefacts ──grade_calls──► Grade
                                    │    ▲         │  a fresh session per test runs the artefacts
                                 store  load       │  and returns data; the host compares
                                                   └──► or judge_with: a checker's own program in
                                                        one more fresh session, artefacts as data

The graded code runs in sessions that hold nothing but the artefacts and one test's input. What is
wanted never enters them, so there is nothing to read, forge, patch or skip: the only thing that
code can do for its grade is to return the right value. docs/grading.md says what was tried.
"""

from agentrl.grading.artefacts import ArtefactFile, ArtefactLimits, ArtefactSet, collect
from agentrl.grading.calls import CallTest, OpenSession, grade_calls
from agentrl.grading.equality import same
from agentrl.grading.grade import GradeReport, TestResult
from agentrl.grading.judge import ArtefactChecker, judge_with

__all__ = [
    "ArtefactChecker",
    "ArtefactFile",
    "ArtefactLimits",
    "ArtefactSet",
    "CallTest",
    "GradeReport",
    "OpenSession",
    "TestResult",
    "collect",
    "grade_calls",
    "judge_with",
    "same",
]
