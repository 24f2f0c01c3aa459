"""Export formats: the exported module, image preprocessing in its graph, files and the script."""

from __future__ import annotations

import io
import logging
import math
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from math import floor
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, TypeAlias

import torch
from packaging.version import Version
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram
from torch.nn.attention import SDPBackend, sdpa_kernel
from typing_extensions import override

from hydractl.data.decoding import FORMATS
from hydractl.data.preprocess import MODES
from hydractl.data.reference import MAX_ITEM
from hydractl.errors import UnsupportedModelError, reason_of
from hydractl.families.tower import Model
from hydractl.manifest.header import Header, Preprocess
from hydractl.manifest.tokenizers import is_python_tokenizer, parts_of
from hydractl.metrics.ood_scores import MSP, entropy, mutual_information
from hydractl.metrics.per_sample import of_inputs, opinions
from hydractl.model_inputs import PIXELS, Inputs
from hydractl.prediction.feature_ood import WithDefaultScore
from hydractl.version import __version__

IMAGES = "images"
"""Input name of uint8 pixels (B, height, width, channels). Preprocessed images have the name
`pixel_values`."""
OUTPUTS = ("probabilities", "logits", "member_logits", "entropy", "mutual_information", "ood_score")


class ExportModule(nn.Module):
    """The module to export: a model with named inputs and outputs."""

    def __init__(self, with_score: WithDefaultScore, pixels: nn.Module | None = None) -> None:
        """Wrap a model.

        Args:
            with_score: The model with its default OOD score, in evaluation mode. A zero-shot model must have
                its classes.
            pixels: Preprocessing of uint8 pixels; None if inputs are preprocessed.
        """
        super().__init__()
        self.model, self.with_score, self.pixels = with_score.model, with_score, pixels
        self.eval()

    def forward(self, inputs: dict[str, torch.Tensor], exact: bool = False) -> dict[str, torch.Tensor]:
        """Return the outputs named by `OUTPUTS`.

        Args:
            inputs: Inputs by name.
            exact: Whether to compute the OOD score in float64, as `predict` does.

        Returns:
            Probabilities (B, C), logits (B, C), member logits (M, B, C), and entropy, mutual information
            (both in nats) and OOD score (B,). Logits of a single model are unchanged. For several labels: (B,
            Q), (B, Q) and (M, B, Q, 2) instead. For classification of tokens: an axis T follows B, with
            padding and special tokens.
        """
        if self.pixels is not None:
            inputs = {PIXELS: self.pixels(inputs[IMAGES])}
        model_inputs = inputs[PIXELS] if inputs.keys() == {PIXELS} else inputs
        member_logits, ood_score = self.with_score(model_inputs, exact=exact)
        member_opinions = log_probs, mean = opinions(member_logits)
        several = self.model.answer.multi_label
        logits = member_opinions.logits(multi_label=several)
        if isinstance(self.model, Model):
            logits = member_logits[0, ..., 1] if several else member_logits[0]
        outputs_in_order = (
            mean.exp()[..., 1] if several else mean.exp(),
            logits,
            member_logits,
            of_inputs(entropy(log_probs), multi_label=several),
            of_inputs(mutual_information(log_probs), multi_label=several),
            ood_score,
        )
        return dict(zip(OUTPUTS, outputs_in_order, strict=True))

    def answer(self, inputs: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Return the outputs without gradients, with the OOD score in float64 as in `predict`."""
        with torch.inference_mode():
            outputs: dict[str, torch.Tensor] = self(dict(inputs), exact=True)
        return outputs


BITS = 1 << 22
"""Pillow rounds filter weights to multiples of 1 / BITS."""
LARGEST_INT16 = (1 << 15) - 0.5
"""Upper bound of a weight in torchvision, before rounding to 16 bits."""


def _bicubic(x: Tensor) -> Tensor:
    x = x.abs()
    near, far = (1.5 * x - 2.5) * x * x + 1, (((x - 5) * x + 8) * x - 4) * -0.5
    return torch.where(x < 1, near, torch.where(x < 2, far, 0.0))


def _sinc(x: Tensor) -> Tensor:
    turned = torch.where(x == 0, 1.0, math.pi * x)
    return torch.where(x == 0, 1.0, torch.sin(turned) / turned)


class Filter(NamedTuple):
    """A resampling filter of Pillow: a weight function of the distance in pixels, zero beyond `support`."""

    weigh: Callable[[Tensor], Tensor]
    support: float


FILTERS: Mapping[str, Filter] = MappingProxyType(
    {
        "box": Filter(lambda x: ((x > -0.5) & (x <= 0.5)).to(x.dtype), 0.5),
        "bilinear": Filter(lambda x: (1 - x.abs()).clamp(min=0), 1.0),
        "hamming": Filter(
            lambda x: torch.where(x.abs() < 1, _sinc(x) * (0.54 + 0.46 * torch.cos(math.pi * x)), 0.0), 1.0
        ),
        "bicubic": Filter(_bicubic, 2.0),
        "lanczos": Filter(lambda x: torch.where((x >= -3) & (x < 3), _sinc(x) * _sinc(x / 3), 0.0), 3.0),
    }
)
"""Interpolations that are weighted sums. `nearest` is missing, because its pixel depends on rounding inside
Pillow's loop."""


class Pixels(nn.Module):
    """Preprocessing as a module: resize, crop and normalize images of any size.

    Inputs are (B, H, W, C) uint8, outputs (B, C, h, w) float32.
    """

    mean: Tensor
    std: Tensor
    fill: Tensor

    def __init__(self, preprocess: Preprocess) -> None:
        """Store the preprocessing. The interpolation must be in `FILTERS`."""
        super().__init__()
        self.preprocess = preprocess
        self.kept = preprocess.input_size[1:]
        self.scaled = tuple(math.floor(side / preprocess.crop_pct) for side in self.kept)
        shape = (len(preprocess.mean), 1, 1)
        self.register_buffer("mean", torch.tensor(preprocess.mean).view(shape))
        self.register_buffer("std", torch.tensor(preprocess.std).view(shape))
        fill = [round(255 * v) if preprocess.crop_mode == "border" else 0 for v in preprocess.mean]
        self.register_buffer("fill", torch.tensor(fill, dtype=torch.float64).view(shape))

    @override
    def forward(self, images: Tensor) -> Tensor:
        x = images.movedim(-1, 1).double()
        # Sizes as tensors, so that a traced graph computes with the sizes of its own input.
        height, width = (torch.ones_like(x[0, 0, 0, :] if along else x[0, 0, :, 0]).sum() for along in (0, 1))
        resized = self._resized(height, width)
        rows, columns = (
            self._weights(x.shape[axis], side, self.kept[axis - 2], resized[axis - 2])
            for axis, side in ((2, height), (3, width))
        )
        x = _resampled(x, columns[0])
        x = _resampled(x.transpose(2, 3), rows[0]).transpose(2, 3)
        x = torch.where(rows[1][:, None] & columns[1], x, self.fill)
        return (x.float() / 255 - self.mean) / self.std

    def _resized(self, height: Tensor, width: Tensor) -> tuple[Tensor, Tensor]:
        """Return height and width after resizing, rounded as in timm and torchvision."""
        to_height, to_width = self.scaled
        if self.preprocess.crop_mode == "squash":
            return torch.full_like(height, to_height), torch.full_like(width, to_width)
        if self.preprocess.crop_mode == "center" and to_height == to_width:
            short = torch.minimum(height, width)
            return (to_height * height / short).floor(), (to_width * width / short).floor()
        down, across = height / to_height, width / to_width
        pick = torch.maximum if self.preprocess.crop_mode == "border" else torch.minimum
        ratio = pick(down, across)
        return (height / ratio).round(), (width / ratio).round()

    def _weights(self, count: int, side: Tensor, crop_size: int, resized: Tensor) -> tuple[Tensor, Tensor]:
        """Return the weights of the input pixels for each output pixel along one axis.

        Args:
            count: Number of input pixels.
            side: `count` in a tensor.
            crop_size: Number of output pixels, after the crop.
            resized: Number of pixels between resize and crop.

        Returns:
            Weights (crop_size, count), rounded as in Pillow or torchvision, and whether each output pixel is
            inside the image (crop_size,).
        """
        places = torch.arange(crop_size, dtype=torch.float64) + self._begin(resized, crop_size)
        inside = (places >= 0) & (places < resized)
        taps = torch.arange(count, dtype=torch.float64)
        scale = side / resized
        centers = ((places + 0.5) * scale)[:, None]
        weigh, support = FILTERS[self.preprocess.interpolation]
        stretch = scale.clamp(min=1)
        reach = support * stretch
        first = (centers - reach + 0.5).floor().clamp(min=0)
        last = torch.minimum((centers + reach + 0.5).floor(), side)
        weights = torch.where(
            (taps >= first) & (taps < last), weigh((taps - centers + 0.5) * (1 / stretch)), 0.0
        )
        total = weights.sum(1, keepdim=True)
        weights = weights / torch.where(total == 0, 1.0, total)
        scale = torch.tensor(BITS, dtype=torch.float64)
        if self.preprocess.resizes_tensors:
            scale = torch.exp2((LARGEST_INT16 / weights.max()).log2().ceil() - 1).clamp(max=BITS)
        return ((weights * scale).abs() + 0.5).floor() * weights.sign() / scale, inside

    def _begin(self, resized: Tensor, crop_size: int) -> Tensor:
        """Return the position of the first cropped pixel, negative if the image is smaller than the crop."""
        margin = resized - crop_size
        if self.preprocess.crop_offset == "before" and self.preprocess.crop_mode != "border":
            return (margin / 2).floor()
        return torch.where(margin < 0, -(-margin / 2).floor(), (margin / 2).round())


def _resampled(x: Tensor, weights: Tensor) -> Tensor:
    """Resize x (..., n) along its last axis by weights (m, n), and round to integers in [0, 255]."""
    return (torch.matmul(x, weights.t()) + 0.5).floor().clamp(0, 255)


Named: TypeAlias = "Mapping[str, torch.Tensor]"
"""Inputs or outputs by name."""
Program: TypeAlias = "Callable[[Named], dict[str, torch.Tensor]]"
"""Function from inputs by name to outputs by name."""


def named(inputs: Inputs) -> Named:
    """Return inputs by name. A tensor has the name `images` if it is uint8, else `pixel_values`."""
    return (
        {IMAGES if inputs.dtype == torch.uint8 else PIXELS: inputs}
        if isinstance(inputs, torch.Tensor)
        else inputs
    )


OPSET = 20
"""The first opset in which GELU is one operator. In opset 18, the oldest that PyTorch writes, GELU is five
operators, which onnxruntime does not fuse."""
TRACES = "2.8"
"""The first release of torch that traces these models for any batch size."""
LIBRARIES = ("onnx", "onnxruntime", "onnxscript")
MOST_BYTES = 2**31 - 1
"""Size limit of a protocol buffers file, in bytes."""


class Source(NamedTuple):
    """A module to export, with an example of its inputs.

    Attributes:
        module: The module.
        example: Inputs by name, with two samples.
        axes: Names of the leading axes of each input, which have dynamic length, for example ("batch",
            "length").
        most: Largest length of the axis `length`; None if unlimited.
    """

    module: ExportModule
    example: Named
    axes: tuple[str, ...]
    most: int | None


def require_torch() -> None:
    """Raise for releases of torch before `TRACES`.

    Raises:
        UnsupportedModelError: If torch is too old.
    """
    if Version(torch.__version__) < Version(TRACES):
        raise UnsupportedModelError(
            f"export needs torch {TRACES} or later, but {torch.__version__} is installed",
            hint=f"pip install --upgrade 'torch>={TRACES}' torchvision",
        )


def onnx_libraries() -> tuple[Any, Any]:
    """Return the untyped modules onnx and onnxruntime.

    Raises:
        UnsupportedModelError: If a library for ONNX cannot be imported.
    """
    try:
        import onnx  # noqa: PLC0415 - an extra
        import onnxruntime  # noqa: PLC0415 - as above
        import onnxscript  # noqa: F401, PLC0415 - torch needs it to write ONNX
    except ImportError as error:
        raise UnsupportedModelError(
            f"ONNX export needs {', '.join(LIBRARIES)}, which cannot be imported: {error}",
            hint="`pip install 'hydractl[onnx]'`, or write a `.pt2`",
        ) from error
    return onnx, onnxruntime


def traced(source: Source, *, place: str) -> ExportedProgram:
    """Trace a module with torch.export; `place` names the model in messages.

    Raises:
        UnsupportedModelError: If torch cannot trace the module for any number of samples and tokens.
    """
    dims = {i: Dim(name, max=source.most if name == "length" else None) for i, name in enumerate(source.axes)}
    try:
        with quiet(), torch.no_grad():
            program = torch.export.export(
                source.module,
                (dict(source.example),),
                dynamic_shapes={"inputs": dict.fromkeys(source.example, dims)},
            )
    except Exception as error:  # torch does not document the exception classes.
        raise UnsupportedModelError(f"{place}: torch.export cannot trace it: {_first(error)}") from error
    for module in program.graph_module.modules():
        if isinstance(module, torch.fx.GraphModule):
            for node in module.graph.nodes:  # The trace contains paths of this machine.
                node.meta.pop("stack_trace", None)
    return program


def pt2(program: ExportedProgram, metadata: Mapping[str, str]) -> bytes:
    """Return the bytes of a `.pt2`. `torch.export.load(file, extra_files=...)` reads the metadata."""
    file = io.BytesIO()
    with quiet():
        torch.export.save(program, file, extra_files=dict(metadata))
    return file.getvalue()


def run_pt2(content: bytes) -> Program:
    """Load a `.pt2` as a function."""
    with quiet():
        module = torch.export.load(io.BytesIO(content)).module()

    def run(inputs: Named) -> dict[str, torch.Tensor]:
        with torch.no_grad():
            tensors: dict[str, torch.Tensor] = module(dict(inputs))
        return tensors

    return run


def onnx(program: ExportedProgram, source: Source, *, place: str) -> Any:  # noqa: ANN401 - untyped
    """Convert a traced module to an ONNX model; `place` names the model in messages.

    Raises:
        UnsupportedModelError: If torch cannot convert the module.
    """
    names = list(source.example)
    try:
        # ONNX has the math implementation of attention. The other implementations return other strides, and
        # the strides decide how later flattening is written.
        with quiet(), sdpa_kernel(SDPBackend.MATH):
            written = torch.onnx.export(
                program,
                input_names=names,
                output_names=list(OUTPUTS),
                dynamic_shapes={"inputs": {name: dict(enumerate(source.axes)) for name in names}},
                opset_version=OPSET,
                dynamo=True,
                verbose=False,
            )
    except Exception as error:  # torch does not document the exception classes.
        raise UnsupportedModelError(f"{place}: torch.onnx cannot write it: {_first(error)}") from error
    if written is None:
        raise UnsupportedModelError(f"{place}: torch.onnx wrote nothing")
    return written.model_proto


def quantized(document: Any) -> Any:  # noqa: ANN401 - as above
    """Return an ONNX model with int8 weights in matrix products. Activations are quantized dynamically.

    Weights have a scale per column and use 7 of 8 bits: processors without int8 instructions add two products
    in 16 bits, which overflows with 8 bits. Stacked weights (products with a 3-dimensional weight) stay in
    floating point, because onnxruntime has no scales for them.
    """
    from onnxruntime.quantization import QuantType, quantize_dynamic  # noqa: PLC0415 - an extra

    loaded, _ = onnx_libraries()
    axes = {tensor.name: len(tensor.dims) for tensor in document.graph.initializer}
    products = [node for node in document.graph.node if node.op_type == "MatMul"]
    del document.graph.value_info[
        :
    ]  # Shapes inferred by torch become wrong when quantization splits products.
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
            },  # The type of tensors for which shape inference fails.
        )
        return loaded.load(path)


def onnx_bytes(document: Any, metadata: Mapping[str, str], *, place: str) -> bytes:  # noqa: ANN401 - as above
    """Return the bytes of an `.onnx` with the metadata, and without paths of this machine.

    Raises:
        UnsupportedModelError: If the model is too large for one file.
    """
    for graph in (document.graph, *document.functions):
        del graph.metadata_props[:]
        for entry in (*graph.node, *graph.value_info):
            del entry.metadata_props[:]  # The metadata contain paths and code lines of this machine.
            entry.doc_string = ""
    del document.metadata_props[:]
    for key, value in metadata.items():
        document.metadata_props.add(key=key, value=value)
    document.producer_name, document.producer_version = "hydractl", __version__
    if document.ByteSize() > MOST_BYTES:
        raise UnsupportedModelError(
            f"{place}: takes {document.ByteSize() / 2**30:.1f} GiB, but an .onnx file is limited to 2 GiB",
            hint="write a `.pt2`, or prune more heads",
        )
    content: bytes = document.SerializeToString(deterministic=True)
    return content


def run_onnx(content: bytes) -> Program:
    """Load an `.onnx` as a function. The function uses the number of threads of torch.

    Raises:
        UnsupportedModelError: If onnxruntime rejects the model.
    """
    _, runtime = onnx_libraries()
    options = runtime.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = torch.get_num_threads()
    try:
        session = runtime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # The exception classes of onnxruntime are private.
        raise UnsupportedModelError(f"onnxruntime rejects the model: {reason_of(error)}") from error

    def run(inputs: Named) -> dict[str, torch.Tensor]:
        arrays = session.run(list(OUTPUTS), {name: x.numpy() for name, x in inputs.items()})
        return {name: torch.from_numpy(x) for name, x in zip(OUTPUTS, arrays, strict=True)}

    return run


def _first(error: BaseException) -> str:
    """Return the message of the root cause. torch wraps errors in advice to its own developers."""
    while error.__cause__ is not None:
        error = error.__cause__
    return reason_of(error)


@contextmanager
def quiet() -> Iterator[None]:
    """Suppress warnings and log messages of libraries in a block."""
    before = logging.root.manager.disable
    logging.disable(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


TEMPLATE = Path(__file__).with_name("script.py.jinja")


def script(
    header: Header,
    *,
    name: str,
    onnx: bool,
    with_preprocess: bool = False,
    score: str = MSP,
) -> bytes:
    """Return the source of a Python script that runs the exported model, as UTF-8 bytes.

    Args:
        header: Header of the model; for a zero-shot model with its classes.
        name: Name of the exported file.
        onnx: Whether the file is ONNX.
        with_preprocess: Whether the exported model contains the preprocessing.
        score: OOD score of the exported model.
    """
    from jinja2 import Environment, StrictUndefined  # noqa: PLC0415 - `--help` does without

    environment = Environment(  # noqa: S701 - no HTML; the filter `literal` quotes all text of users and files
        trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True, undefined=StrictUndefined
    )
    environment.filters["literal"] = repr
    preprocess = header.preprocess
    template = environment.from_string(TEMPLATE.read_text(encoding="utf-8"))
    return template.render(
        preprocess=preprocess,
        labelled=bool(header.labels),
        multi_label=header.architecture.task.by_label,
        by_word=header.architecture.task.by_word,
        name=name,
        onnx=onnx,
        pixels=with_preprocess,
        threshold=header.threshold,
        known_test=header.known_test,
        score=score,
        sets=header.prediction_sets,
        **(
            _of_images(preprocess)
            if isinstance(preprocess, Preprocess)
            else _of_texts(preprocess.tokenizer or "")
        ),
    ).encode()


def _of_images(preprocess: Preprocess) -> dict[str, object]:
    """Return the template's values for images.

    Sizes are (width, height): `size` after the crop, `scaled` before it. `fill` is the mean color in 0..255;
    mean and std themselves are not among the values.
    """
    channels, height, width = preprocess.input_size
    return {
        "images": True,
        "packages": "pillow",
        "mode": MODES[channels],
        "size": (width, height),
        "scaled": (floor(width / preprocess.crop_pct), floor(height / preprocess.crop_pct)),
        "fill": tuple(round(255 * mean) for mean in preprocess.mean),
        "on_arrays": preprocess.resizes_tensors,
        "formats": FORMATS,
        "max_item": MAX_ITEM,
        "python_tokenizer": None,
    }


def _of_texts(tokenizer: str) -> dict[str, object]:
    name = parts_of(tokenizer)[0] if is_python_tokenizer(tokenizer) else None
    return {
        "images": False,
        "packages": "transformers" if name else "tokenizers" if tokenizer else "",
        "python_tokenizer": name,
    }
