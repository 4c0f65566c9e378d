# SPDX-License-Identifier: Apache-2.0
"""Many small files -> a pack, and back; packs that grow. The functions return results and print nothing."""
