"""The families of kernels: a .cu file each."""

KERNELS = [
    "attention",
    "attention_backward",
    "attention_bf16",
    "captured_graph",
    "cross_entropy",
    "device_memory",
    "elementwise",
    "index_faults",
    "indices",
    "matmul",
    "norms",
    "random",
    "reduce",
    "rotary",
    "runtime",
    "softmax",
    "sparse",
    "stream",
    "tables",
    "training",
]
