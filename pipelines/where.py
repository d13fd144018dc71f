"""Which samples are kept: a condition as a line of Python's syntax, of which a small part is understood.

    points > 1000 and label_share("building") > 0.01

Names: ``points``, how many a sample has; ``width``, ``depth``, ``height``, its extent along x, y and z.
Functions: ``label_share(class)``, the share of its points that are of it, by its name or a code;
``least``, ``mean`` and ``most`` of a field, by its name. Between them: numbers, + - * /, comparisons, which
may be chained, and, or, not, and parentheses. Nothing else is carried out.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import UsageError

_EXTENTS = ("width", "depth", "height")
_NAMES = ("points", *_EXTENTS)
_OF_FIELD: dict[str, Callable[[NDArray[Any]], Any]] = {"least": np.min, "mean": np.mean, "most": np.max}
_ARITHMETIC: dict[type, Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: lambda a, b: a / b if b else float("nan"),
}
_COMPARISONS: dict[type, Callable[[Any, Any], bool]] = {
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
}


@dataclass(frozen=True)
class Where:
    """A condition on samples; ``classes``: name -> codes, as in the data settings."""

    text: str
    tree: ast.expr
    classes: Mapping[str, list[int]]

    def holds(self, xyz: NDArray[Any], columns: Mapping[str, NDArray[Any]]) -> bool:
        """Whether it holds for a sample: ``xyz`` (n, 3) and its other ``columns`` of n rows.

        Of a sample without points, a field's least, mean and most are NaN.
        Raises UsageError for a field that is not there or has several numbers a row.
        """
        return bool(self._value(self.tree, xyz, columns))

    def _value(self, node: ast.expr, xyz: NDArray[Any], columns: Mapping[str, NDArray[Any]]) -> Any:
        match node:
            case ast.BoolOp(op=ast.And()):
                return all(self._value(one, xyz, columns) for one in node.values)
            case ast.BoolOp():
                return any(self._value(one, xyz, columns) for one in node.values)
            case ast.UnaryOp(op=ast.Not()):
                return not self._value(node.operand, xyz, columns)
            case ast.UnaryOp():
                return -self._value(node.operand, xyz, columns)
            case ast.BinOp():
                left, right = (self._value(one, xyz, columns) for one in (node.left, node.right))
                return _ARITHMETIC[type(node.op)](left, right)
            case ast.Compare():
                values = [self._value(one, xyz, columns) for one in (node.left, *node.comparators)]
                pairs = zip(node.ops, values, values[1:], strict=False)
                return all(_COMPARISONS[type(op)](a, b) for op, a, b in pairs)
            case ast.Name():
                return self._named(node.id, xyz)
            case ast.Call(func=ast.Name(id=name), args=[ast.Constant(value=of)]):
                return (
                    self._share(of, columns) if name == "label_share" else self._of_field(name, of, columns)
                )
        assert isinstance(node, ast.Constant)
        return node.value

    def _named(self, name: str, xyz: NDArray[Any]) -> float:
        if name == "points":
            return len(xyz)
        axis = xyz[:, _EXTENTS.index(name)]
        return float(axis.max() - axis.min()) if len(axis) else 0.0

    def _share(self, of: Any, columns: Mapping[str, NDArray[Any]]) -> float:
        label = columns["label"]
        return float(np.mean(label == _class(of, self.classes))) if len(label) else 0.0

    def _of_field(self, name: str, field: Any, columns: Mapping[str, NDArray[Any]]) -> float:
        if field not in columns:
            raise UsageError("data.where", f"field '{field}' is not there", f"choose of {', '.join(columns)}")
        values = columns[field]
        if values.ndim != 1:
            raise UsageError(
                "data.where", f"field '{field}' has {values.shape[1]} numbers a row", "choose another"
            )
        return float(_OF_FIELD[name](values.astype(np.float64))) if len(values) else float("nan")


def condition(text: str, classes: Mapping[str, list[int]]) -> Where:
    """The condition that a text states. Raises UsageError, with the part that is not understood."""
    try:
        tree = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        cause = f"'{text}' cannot be read: {getattr(error, 'msg', error)}"
        raise UsageError("data.where", cause, "write it as in 'points > 1000'") from None
    _check(tree, classes)
    return Where(text, tree, classes)


def _class(of: Any, classes: Mapping[str, list[int]]) -> int:
    for number, (name, codes) in enumerate(classes.items()):
        if of == name or (not isinstance(of, str) and of in codes):
            return number
    raise UsageError("data.where", f"there is no class {of!r}", f"choose of {', '.join(classes) or 'none'}")


def _check(node: ast.expr, classes: Mapping[str, list[int]]) -> None:
    """Refuse what is not understood, before any file is read."""
    match node:
        case ast.BoolOp(values=parts):
            pass
        case ast.UnaryOp(op=ast.Not() | ast.USub(), operand=part):
            parts = [part]
        case ast.BinOp(op=op, left=left, right=right) if type(op) in _ARITHMETIC:
            parts = [left, right]
        case ast.Compare(ops=ops, left=left, comparators=others) if {type(op) for op in ops} <= {
            *_COMPARISONS
        }:
            parts = [left, *others]
        case ast.Name(id=name) if name in _NAMES:
            parts = []
        case ast.Constant(value=int() | float()) if not isinstance(node.value, bool):
            parts = []
        case ast.Call(
            func=ast.Name(id="label_share"), args=[ast.Constant(value=str() | int() as of)], keywords=[]
        ):
            _class(of, classes)
            parts = []
        case ast.Call(func=ast.Name(id=name), args=[ast.Constant(value=str())], keywords=[]) if (
            name in _OF_FIELD
        ):
            parts = []
        case _:
            known = f"{', '.join(_NAMES)}, label_share(class), {', '.join(f'{n}(field)' for n in _OF_FIELD)}"
            cause = f"'{ast.unparse(node)}' is not understood"
            raise UsageError("data.where", cause, f"write numbers, comparisons, and, or, not, and {known}")
    for part in parts:
        _check(part, classes)
