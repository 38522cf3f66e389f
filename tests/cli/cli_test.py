# SPDX-License-Identifier: Apache-2.0
"""Drives the command line tool: every command, every bad input that it can reach.

usage: cli_test.py VITRINE MODEL [PART/PARTS | unittest arguments]

A failure must give its exit code (2: a user's mistake, 1: a failure, 130: Ctrl-C), exactly one line
on standard error, and leave nothing half-written.
"""

import re
import sys
import unittest

from audit_cases import Audit  # noqa: F401
from audit_export_cases import AuditExport  # noqa: F401
from chat_cases import AnswerParts, Chat, GenerateChat  # noqa: F401
from chat_speculation_cases import ChatSpeculation  # noqa: F401
from chat_session_cases import ChatEvents, ChatSessions, ChatTurns  # noqa: F401
from command_cases import (BenchAudit, BenchGenerate, Inspect, Quantize, Score,  # noqa: F401
                           Tokenize, Tool)
from compression_cases import CompressionEvidence  # noqa: F401
from constraint_cases import Constraint  # noqa: F401
from draft_head_cases import DraftHeads, FederatedDraftHeads  # noqa: F401
from embed_cases import Embed  # noqa: F401
from evidence_cases import Evidence  # noqa: F401
from federated_answer_cases import FederatedAnswers, FederatedFit, FederatedReplay  # noqa: F401
from federation_cases import Federation  # noqa: F401
from forged_cases import Forged  # noqa: F401
from generate_cases import Generate  # noqa: F401
from gguf_cases import Gguf, LargeFile  # noqa: F401
from hidden_cases import Hidden  # noqa: F401
from hidden_states_cases import HiddenStates  # noqa: F401
from hostile_log_cases import HostileLogs  # noqa: F401
from json_log_cases import JsonLogs  # noqa: F401
from ledger_cases import Ledger  # noqa: F401
from lora_cases import Lora  # noqa: F401
from manifest_cases import Manifest  # noqa: F401
from model_signature_cases import ModelSignatures  # noqa: F401
from name_cases import BenchTests, Messages, TakenNames  # noqa: F401
from page_cases import RunPage  # noqa: F401
from prompt_file_cases import Pipes, PromptFiles  # noqa: F401
from privacy_cases import Privacy  # noqa: F401
from refusal_cases import Refusals  # noqa: F401
from replay_cases import Replay  # noqa: F401
from report_cases import Numbers, Reports  # noqa: F401
from resume_cases import ResumedQuantize  # noqa: F401
from sampling_cases import Sampling  # noqa: F401
from selection_cases import Selection  # noqa: F401
from serve_cases import Batch, BenchServe  # noqa: F401
from shift_cases import Compact, ContextShift  # noqa: F401
from speculation_cases import Speculation  # noqa: F401
from stream_cases import Stream  # noqa: F401
from tool_cases import Tools  # noqa: F401


def part_of_the_classes(part, parts):
    """Every parts-th class, from the part-th on: parts run side by side."""
    classes = sorted(name for name, value in globals().items()
                     if isinstance(value, type) and issubclass(value, unittest.TestCase))
    return classes[part - 1::parts]


if __name__ == "__main__":
    arguments = sys.argv[3:]
    if len(arguments) == 1 and re.fullmatch(r"[1-9]/[1-9]", arguments[0]):
        arguments = part_of_the_classes(*map(int, arguments[0].split("/")))
    unittest.main(argv=[sys.argv[0], *arguments], verbosity=2)
