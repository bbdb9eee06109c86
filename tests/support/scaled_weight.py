"""A quantised weight as torchao has it, without torchao: one tensor for Python, in memory two others."""

from __future__ import annotations

import torch


class Scaled(torch.Tensor):
    """A weight that is quantised as torchao's are: numbers and a scale, of which few of torch's operations know."""

    @staticmethod
    def __new__(cls, numbers, scale, how=None):
        return torch.Tensor._make_wrapper_subclass(cls, numbers.shape, dtype=scale.dtype)

    def __init__(self, numbers, scale, how=None):
        self.numbers, self.scale, self.how = numbers, scale, how

    def __tensor_flatten__(self):
        return ["numbers", "scale"], {"how": self.how}

    @staticmethod
    def __tensor_unflatten__(parts, context, size, stride):
        return Scaled(**parts, **context)

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        if func is torch.nn.functional.linear:
            return func(args[0], args[1].numbers * args[1].scale, *args[2:])
        return super().__torch_function__(func, types, args, kwargs)

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        if func is torch.ops.aten.detach.default:
            return cls(args[0].numbers, args[0].scale, args[0].how)
        raise NotImplementedError(f"{func} of Scaled")
