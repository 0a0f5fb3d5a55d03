"""An ONNX graph in torch: the operations that text recognisers need, with gradients down to the pixels.

`onnxruntime` gives no gradient, and the converters that were tried refuse these graphs. What stands here follows the
operators' definitions (https://onnx.ai/onnx/operators/) for opset 11; any other operation or option is an error when
the graph is loaded, not a wrong number later.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..errors import UserError

Attributes = dict[str, Any]
Operation = Callable[..., Tensor]
"""Takes the tensors of the inputs and the node's attributes."""


def _same_padding(x: Tensor, kernel: list[int], strides: list[int], value: float) -> Tensor:
    """SAME_UPPER: as many places as the stride says, the odd pixel at the end."""
    pads: list[int] = []
    for size, width, stride in reversed(list(zip(x.shape[2:], kernel, strides, strict=True))):
        total = max((-(-size // stride) - 1) * stride + width - size, 0)
        pads += [total // 2, total - total // 2]
    return F.pad(x, pads, value=value)


def _symmetric(attributes: Attributes) -> list[int]:
    """The pads of both sides, which must be equal: torch knows no others."""
    pads = attributes.get("pads", [0, 0, 0, 0])
    assert pads[:2] == pads[2:], f"unequal pads {pads}"
    return list(pads[:2])


def _conv(x: Tensor, weight: Tensor, bias: Tensor | None = None, **a: Any) -> Tensor:
    strides, dilations = a.get("strides", [1, 1]), a.get("dilations", [1, 1])
    if a.get("auto_pad") == b"SAME_UPPER":
        assert dilations == [1, 1], f"SAME_UPPER with dilations {dilations}"
        return F.conv2d(_same_padding(x, a["kernel_shape"], strides, 0.0), weight, bias, strides, 0, 1, a["group"])
    return F.conv2d(x, weight, bias, strides, _symmetric(a), dilations, a.get("group", 1))


def _max_pool(x: Tensor, **a: Any) -> Tensor:
    strides = a.get("strides", [1, 1])
    if a.get("auto_pad") == b"SAME_UPPER":
        return F.max_pool2d(_same_padding(x, a["kernel_shape"], strides, -torch.inf), a["kernel_shape"], strides)
    return F.max_pool2d(x, a["kernel_shape"], strides, _symmetric(a))


def _average_pool(x: Tensor, **a: Any) -> Tensor:
    assert _symmetric(a) == [0, 0], "an average over pads"
    return F.avg_pool2d(x, a["kernel_shape"], a.get("strides", [1, 1]))


def _batch_norm(x: Tensor, scale: Tensor, shift: Tensor, mean: Tensor, variance: Tensor, **a: Any) -> Tensor:
    return F.batch_norm(x, mean, variance, scale, shift, eps=a["epsilon"])


def _slice(x: Tensor, starts: Tensor, ends: Tensor, axes: Tensor | None = None, steps: Tensor | None = None) -> Tensor:
    places = range(len(starts)) if axes is None else axes.tolist()
    strides = [1] * len(starts) if steps is None else steps.tolist()
    index = [slice(None)] * x.ndim
    for axis, start, end, step in zip(places, starts.tolist(), ends.tolist(), strides, strict=True):
        index[axis] = slice(start, end, step)
    return x[tuple(index)]


def _reshape(x: Tensor, shape: Tensor) -> Tensor:
    # A 0 keeps the size that was there.
    return x.reshape([x.shape[axis] if size == 0 else size for axis, size in enumerate(shape.tolist())])


def _softmax(x: Tensor, axis: int = 1) -> Tensor:
    assert axis in (-1, x.ndim - 1), "before opset 13 a softmax over another axis than the last is one over several"
    return x.softmax(-1)


def _unsqueeze(x: Tensor, axes: list[int]) -> Tensor:
    for axis in sorted(axes):
        x = x.unsqueeze(axis)
    return x


OPERATIONS: dict[str, Operation] = {
    "Add": torch.add,
    "AveragePool": _average_pool,
    "BatchNormalization": _batch_norm,
    "Concat": lambda *parts, axis: torch.cat(parts, dim=axis),
    "Conv": _conv,
    "Div": torch.div,
    "Erf": torch.erf,
    "HardSigmoid": lambda x, alpha=0.2, beta=0.5: (alpha * x + beta).clamp(0, 1),
    "Identity": lambda x: x,
    "MatMul": torch.matmul,
    "MaxPool": _max_pool,
    "Mul": torch.mul,
    "Pow": torch.pow,
    "ReduceMean": lambda x, axes, keepdims=1: x.mean(dim=axes, keepdim=bool(keepdims)),
    "Relu": torch.relu,
    "Reshape": _reshape,
    "Shape": lambda x: torch.tensor(x.shape),
    "Sigmoid": torch.sigmoid,
    "Slice": _slice,
    "Softmax": _softmax,
    "Sqrt": torch.sqrt,
    "Squeeze": lambda x, axes: x.squeeze(axes),
    "Sub": torch.sub,
    "Transpose": lambda x, perm: x.permute(perm),
    "Unsqueeze": _unsqueeze,
}
_OPSET = 11


class OnnxGraph(nn.Module):
    """A graph with one input and one output, its weights frozen.

    Attributes:
        metadata: the file's own key-value pairs.
    """

    def __init__(self, file: Path, *, logits: bool = False) -> None:
        """Read a file.

        Args:
            file: the graph.
            logits: leave out the softmax at its end.

        Raises:
            UserError: the package ``onnx`` is missing, or the graph needs an operation or an opset that is not here.
        """
        super().__init__()
        try:
            import onnx
        except ModuleNotFoundError as error:
            raise UserError(f"{file.name}: needs onnx, not installed: pip install 'flowrl[ocr]'.") from error
        model = onnx.load(file)
        self.metadata = {entry.key: entry.value for entry in model.metadata_props}
        opset = max(entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx"))
        unknown = sorted({node.op_type for node in model.graph.node} - set(OPERATIONS))
        if opset != _OPSET or unknown:
            raise UserError(
                f"{file.name}: wanted ONNX opset {_OPSET} and the operations {', '.join(OPERATIONS)}; got opset "
                f"{opset} and {', '.join(unknown) or 'no other operation'}."
            )
        weights = {entry.name: onnx.numpy_helper.to_array(entry) for entry in model.graph.initializer}
        self._names = {name: f"weight_{number}" for number, name in enumerate(weights)}
        for name, buffer in self._names.items():
            self.register_buffer(buffer, torch.from_numpy(weights[name].copy()), persistent=False)
        self._nodes = [
            (node.op_type, list(node.input), node.output[0], _attributes(onnx, node)) for node in model.graph.node
        ]
        (self._input,) = (entry.name for entry in model.graph.input if entry.name not in weights)
        (self._output,) = (entry.name for entry in model.graph.output)
        if logits:
            while self._nodes[-1][0] == "Identity":
                self._output = self._nodes.pop()[1][0]
            kind, inputs, _, _ = self._nodes.pop()
            assert kind == "Softmax", f"{file.name}: the last operation is {kind}, wanted Softmax"
            (self._output,) = inputs

    def forward(self, x: Tensor) -> Tensor:
        """The output for an input."""
        values: dict[str, Tensor | None] = {name: getattr(self, buffer) for name, buffer in self._names.items()}
        values |= {self._input: x, "": None}  # an empty name is an option that was left out
        for kind, inputs, output, attributes in self._nodes:
            values[output] = OPERATIONS[kind](*(values[name] for name in inputs), **attributes)
        result = values[self._output]
        assert result is not None
        return result


def _attributes(onnx: Any, node: Any) -> Attributes:
    values = {entry.name: onnx.helper.get_attribute_value(entry) for entry in node.attribute}
    return {
        name: list(value) if not isinstance(value, (int, float, bytes)) else value for name, value in values.items()
    }
