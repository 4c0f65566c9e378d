# SPDX-License-Identifier: Apache-2.0
"""A small kernel, for tests of what compiles and launches kernels."""

SAXPY = """
extern "C" __global__ void saxpy(float a, const float* x, float* y, long long n)
{
    long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
    if (i < n) y[i] = a * x[i] + y[i];
}
"""
