"""The families of kernels: a .cu file each."""

KERNELS = [
    "device_memory",
    "elementwise",
    "matmul",
    "missing",
    "random",
    "reduce",
    "runtime",
    "stream",
    "tables",
    "training",
]
