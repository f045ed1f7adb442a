"""What TMA requires of tensors."""


def is_aligned(tensors):
    """Whether TMA can read q, k, v and out, the first four: their addresses and strides have to be
    multiples of 16 bytes (CUDA C++ Programming Guide, "Tensor Map")."""
    return all(
        tensor.data_ptr() % 16 == 0
        and all(step * tensor.element_size() % 16 == 0 for step in tensor.stride()[:-1])
        for tensor in tensors[:4]
    )
