# SPDX-License-Identifier: Apache-2.0
"""What tests share: small datasets, servers, clusters, runs that were made up."""
