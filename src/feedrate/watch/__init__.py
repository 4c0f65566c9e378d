# SPDX-License-Identifier: Apache-2.0
"""A running job, seen from outside: what it uses, what it waits for, and what that means."""
