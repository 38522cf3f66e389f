# SPDX-License-Identifier: Apache-2.0
"""What runs in a bundle of scripts/gpu-session: Python's standard library alone."""
