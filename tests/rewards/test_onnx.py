"""rewards/_onnx.py: operations by hand, and the recogniser's graph against onnxruntime."""

import importlib.util

import pytest
import torch

from flowrl.errors import UserError
from flowrl.rewards import _onnx, ocr_ctc

needs_onnx = pytest.mark.skipif(
    any(importlib.util.find_spec(package) is None for package in ("rapidocr", "onnxruntime", "onnx")),
    reason="the packaged recogniser is not installed: pip install 'flowrl[ocr]'",
)


def test_same_upper_puts_the_odd_pixel_at_the_end():
    """The greatest of each pixel and its right neighbour: (1, 3, 2) becomes (3, 3, 2), the last next to a pad."""
    x = torch.tensor([[[[1.0, 3.0, 2.0]]]])
    found = _onnx.OPERATIONS["MaxPool"](x, kernel_shape=[1, 2], strides=[1, 1], auto_pad=b"SAME_UPPER")
    assert found.tolist() == [[[[3.0, 3.0, 2.0]]]]
    # A stride of 2 over 3 pixels has 2 places; (2 - 1) * 2 + 2 - 3 = 1 pad, at the end: 1 + 3, 2 + 0.
    kernel = torch.ones(1, 1, 1, 2)
    same = _onnx.OPERATIONS["Conv"](x, kernel, kernel_shape=[1, 2], strides=[1, 2], auto_pad=b"SAME_UPPER", group=1)
    assert same.tolist() == [[[[4.0, 2.0]]]]


def test_slice_and_reshape_by_hand():
    """A slice names its axes; a 0 in a shape keeps the size, a -1 takes the rest."""
    x = torch.arange(12.0).view(2, 6)
    starts, ends, axes = torch.tensor([1]), torch.tensor([2**62]), torch.tensor([1])
    assert _onnx.OPERATIONS["Slice"](x, starts, ends, axes).tolist() == x[:, 1:].tolist()
    assert _onnx.OPERATIONS["Reshape"](x, torch.tensor([0, 3, -1])).shape == (2, 3, 2)


def test_what_is_not_known_is_refused():
    """Options that torch would answer with another number are errors."""
    x = torch.rand(1, 1, 4, 4)
    with pytest.raises(AssertionError, match="unequal pads"):
        _onnx.OPERATIONS["MaxPool"](x, kernel_shape=[2, 2], pads=[0, 0, 1, 1])
    with pytest.raises(AssertionError, match="before opset 13"):
        _onnx.OPERATIONS["Softmax"](x, axis=1)


def _saved(path, kind: str, opset: int):
    import onnx

    value = [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [1]) for name in "xy"]
    graph = onnx.helper.make_graph([onnx.helper.make_node(kind, ["x"], ["y"])], "g", value[:1], value[1:])
    onnx.save(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", opset)]), path)
    return path


@needs_onnx
def test_unknown_operations_and_opsets_are_named(tmp_path):
    """The message lists what is known."""
    with pytest.raises(UserError, match=r"wanted ONNX opset 11 and the operations Add, .* and Tan\."):
        _onnx.OnnxGraph(_saved(tmp_path / "a.onnx", "Tan", 11))
    with pytest.raises(UserError, match="got opset 13 and no other operation"):
        _onnx.OnnxGraph(_saved(tmp_path / "b.onnx", "Relu", 13))
    graph = _onnx.OnnxGraph(_saved(tmp_path / "c.onnx", "Relu", 11))
    assert graph(torch.tensor([-1.0, 2.0])).tolist() == [0.0, 2.0]


@needs_onnx
@pytest.mark.parametrize("width", [48, 100])
def test_recogniser_is_onnxruntimes(width):
    """The same probabilities to 1e-5, from the logits too."""
    import onnxruntime

    file = ocr_ctc._file("ocr_ctc")
    x = torch.randn(2, 3, 48, width, generator=torch.Generator().manual_seed(0))
    (wanted,) = onnxruntime.InferenceSession(str(file)).run(None, {"x": x.numpy()})
    with torch.no_grad():
        torch.testing.assert_close(_onnx.OnnxGraph(file)(x), torch.from_numpy(wanted), atol=1e-5, rtol=0)
        logits = _onnx.OnnxGraph(file, logits=True)(x)
    torch.testing.assert_close(logits.softmax(-1), torch.from_numpy(wanted), atol=1e-5, rtol=0)
