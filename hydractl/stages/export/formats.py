"""The files that are written, and how each runs: ONNX in onnxruntime, a program of torch.export in torch. All on the CPU."""

from __future__ import annotations

import io
import logging
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import torch
from packaging.version import Version
from torch.export import Dim, ExportedProgram
from torch.nn.attention import SDPBackend, sdpa_kernel

from hydractl.errors import UnsupportedModelError, reason_of
from hydractl.stages.export.export_module import OUTPUTS, ExportModule
from hydractl.version import __version__

Named: TypeAlias = "Mapping[str, torch.Tensor]"
Program: TypeAlias = "Callable[[Named], dict[str, torch.Tensor]]"
"""Maps inputs by name to outputs by name."""
OPSET = 20
"""The first opset in which GELU is one operator. In 18, the first that PyTorch writes, GELU is five
operators, which onnxruntime does not fuse.
"""
TRACES = "2.8"
LIBRARIES = ("onnx", "onnxruntime", "onnxscript")
MOST_BYTES = 2**31 - 1
"""Size limit of a protocol buffers file, in bytes."""


def require_torch() -> None:
    """Refuse releases of torch that trace no model for any number of samples.

    Raises:
        UnsupportedModelError: If it is one.
    """
    if Version(torch.__version__) < Version(TRACES):
        raise UnsupportedModelError(
            f"export needs torch {TRACES} or later, but {torch.__version__} is installed",
            hint=f"pip install --upgrade 'torch>={TRACES}' torchvision",
        )


def onnx_libraries() -> tuple[Any, Any]:
    """Return onnx and onnxruntime, which are untyped.

    Raises:
        UnsupportedModelError: If one of what ONNX needs is not installed.
    """
    try:
        import onnx  # noqa: PLC0415 - an extra
        import onnxruntime  # noqa: PLC0415 - as above
        import onnxscript  # noqa: F401, PLC0415 - what torch writes ONNX with
    except ImportError as error:
        raise UnsupportedModelError(
            f"ONNX export needs {', '.join(LIBRARIES)}, which cannot be imported: {error}",
            hint="`pip install 'hydractl[onnx]'`, or write a `.pt2`",
        ) from error
    return onnx, onnxruntime


class Axes(NamedTuple):
    """What of an input may be of any length: the names of its axes from the first on, and the most that one may hold."""

    names: tuple[str, ...]
    most: Mapping[str, int] = {}

    def dims(self) -> dict[int, Any]:
        """Return them as torch.export is told."""
        return {i: Dim(name, max=self.most.get(name)) for i, name in enumerate(self.names)}


def traced(subject: ExportModule, inputs: Named, axes: Axes, *, where: str) -> ExportedProgram:
    """Return the subject as a program of torch.export.

    Args:
        subject: What answers.
        inputs: An example, of two samples at least.
        axes: Of every input.
        where: What messages call the model.

    Raises:
        UnsupportedModelError: If torch cannot trace it, for any number of samples and tokens.
    """
    try:
        with quiet(), torch.no_grad():
            program = torch.export.export(
                subject, (dict(inputs),), dynamic_shapes={"inputs": {name: axes.dims() for name in inputs}}
            )
    except Exception as error:  # torch promises no kind
        raise UnsupportedModelError(f"{where}: torch.export cannot trace it: {_first(error)}") from error
    for module in program.graph_module.modules():
        if isinstance(module, torch.fx.GraphModule):
            for node in module.graph.nodes:  # where lines of code stood on this machine
                node.meta.pop("stack_trace", None)
    return program


def pt2(program: ExportedProgram, metadata: Mapping[str, str]) -> bytes:
    """Return the bytes of a `.pt2`; `torch.export.load(file, extra_files=...)` reads the metadata."""
    file = io.BytesIO()
    with quiet():
        torch.export.save(program, file, extra_files=dict(metadata))
    return file.getvalue()


def run_pt2(content: bytes) -> Program:
    """Return what a `.pt2` computes."""
    with quiet():
        module = torch.export.load(io.BytesIO(content)).module()

    def run(inputs: Named) -> dict[str, torch.Tensor]:
        with torch.no_grad():
            tensors: dict[str, torch.Tensor] = module(dict(inputs))
        return tensors

    return run


def onnx(program: ExportedProgram, axes: Axes, *, names: Sequence[str], where: str) -> Any:  # noqa: ANN401 - untyped
    """Return a program as onnx's own document.

    Args:
        program: What to write.
        axes: Of every input.
        names: Of the inputs.
        where: What messages call the model.

    Raises:
        UnsupportedModelError: If it cannot be written.
    """
    try:
        # the strides that flattening reads are those of the attention that is written: the one in plain operators
        with quiet(), sdpa_kernel(SDPBackend.MATH):
            written = torch.onnx.export(
                program,
                input_names=list(names),
                output_names=list(OUTPUTS),
                dynamic_shapes={"inputs": {name: dict(enumerate(axes.names)) for name in names}},
                opset_version=OPSET,
                dynamo=True,
                verbose=False,
            )
    except Exception as error:  # torch promises no kind
        raise UnsupportedModelError(f"{where}: torch.onnx cannot write it: {_first(error)}") from error
    if written is None:
        raise UnsupportedModelError(f"{where}: torch.onnx wrote nothing")
    return written.model_proto


def quantized(document: Any) -> Any:  # noqa: ANN401 - as above
    """Return an ONNX document whose matrix products by weights are of whole numbers of 8 bits.

    Weights have a scale a column, and 7 of the 8 bits: processors without instructions of their own for it add up two products
    in 16 bits, which 8 overflow. What they are multiplied with is scaled as it comes. Weights that are stacks of matrices, as of heads
    of which few tokens ask, stay as they are: onnxruntime has no such scales for them.
    """
    from onnxruntime.quantization import QuantType, quantize_dynamic  # noqa: PLC0415 - an extra

    loaded, _ = onnx_libraries()
    axes = {tensor.name: len(tensor.dims) for tensor in document.graph.initializer}
    products = [node for node in document.graph.node if node.op_type == "MatMul"]
    del document.graph.value_info[
        :
    ]  # shapes that torch inferred, and that no longer fit once products are taken apart
    with tempfile.TemporaryDirectory() as folder, quiet():
        path = Path(folder) / "model.onnx"
        quantize_dynamic(
            document,
            path,
            op_types_to_quantize=["MatMul", "Gemm"],
            nodes_to_exclude=[node.name for node in products if axes.get(node.input[1], 2) > 2],
            per_channel=True,
            reduce_range=True,
            weight_type=QuantType.QInt8,
            extra_options={
                "DefaultTensorType": loaded.TensorProto.FLOAT
            },  # of what shape inference does not tell
        )
        return loaded.load(path)


def onnx_bytes(document: Any, metadata: Mapping[str, str], *, where: str) -> bytes:  # noqa: ANN401 - as above
    """Return the bytes of a `.onnx`, whose `metadata_props` hold the metadata, and nothing of this machine.

    Raises:
        UnsupportedModelError: If it is too large for one file.
    """
    for graph in (document.graph, *document.functions):
        del graph.metadata_props[:]
        for entry in (*graph.node, *graph.value_info):
            del entry.metadata_props[:]  # where lines of code stood
            entry.doc_string = ""
    del document.metadata_props[:]
    for key, value in metadata.items():
        document.metadata_props.add(key=key, value=value)
    document.producer_name, document.producer_version = "hydractl", __version__
    if document.ByteSize() > MOST_BYTES:
        raise UnsupportedModelError(
            f"{where}: takes {document.ByteSize() / 2**30:.1f} GiB, but an .onnx file is limited to 2 GiB",
            hint="write a `.pt2`, or prune more heads",
        )
    content: bytes = document.SerializeToString(deterministic=True)
    return content


def run_onnx(content: bytes) -> Program:
    """Return what an `.onnx` computes, on as many threads as torch has.

    Raises:
        UnsupportedModelError: If onnxruntime does not take it.
    """
    _, runtime = onnx_libraries()
    options = runtime.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = torch.get_num_threads()
    try:
        session = runtime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # its own kinds are no public names
        raise UnsupportedModelError(f"onnxruntime rejects the model: {reason_of(error)}") from error

    def run(inputs: Named) -> dict[str, torch.Tensor]:
        arrays = session.run(list(OUTPUTS), {name: x.numpy() for name, x in inputs.items()})
        return {name: torch.from_numpy(x) for name, x in zip(OUTPUTS, arrays, strict=True)}

    return run


def _first(error: BaseException) -> str:
    """Return what the first of a chain of errors says: torch wraps it in advice to its own developers."""
    while error.__cause__ is not None:
        error = error.__cause__
    return reason_of(error)


@contextmanager
def quiet() -> Iterator[None]:
    """Keep to themselves what libraries say of their own workings while they trace and write."""
    before = logging.root.manager.disable
    logging.disable(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
