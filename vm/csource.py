"""Where the code of a C file can be made wrong by one small change: conditions, statements and constants of functions.

tree-sitter reads the file as it is, with no preprocessor: so it sees what a patch adds, whatever the configuration.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

import tree_sitter_c
from tree_sitter import Language, Node, Parser

_C = Parser(Language(tree_sitter_c.language()))

# What the compiler has to know the value of, or what is no value at all.
_CONSTANT = ("array_declarator", "enumerator", "bitfield_clause", "sizeof_expression")
_CONSTANT_FIELDS = {"case_statement": "value", "preproc_if": "condition", "preproc_ifdef": "name"}
_AT_COMPILE_TIME = ("BUILD_BUG_ON", "BUILD_BUG_ON_MSG", "static_assert", "__builtin_constant_p")
_NAMED = re.compile(r"_*[A-Z][A-Z0-9_]{2,}")
_BRANCHES = {
    "if_statement": "condition",
    "while_statement": "condition",
    "do_statement": "condition",
    "for_statement": "condition",
    "conditional_expression": "condition",
}
_LEAVES = ("expression_statement", "return_statement", "goto_statement", "break_statement", "continue_statement")


@dataclass(frozen=True)
class Place:
    """One small change. start, end: of what it changes, in bytes; line: of its beginning, from 1.

    kind: "negate" a condition, "drop" a statement, "shift" a constant by one. around: what stands before and after the
    text once the change can be chosen, with @ for the choice. wrong: the text as the change has it.
    """

    kind: str
    function: str
    line: int
    start: int
    end: int
    text: str
    around: tuple[str, str]
    wrong: str


def places(code: bytes, lines: set[int]) -> Iterator[Place]:
    """The places that begin on one of these lines, function by function."""
    for function in _find(_C.parse(code).root_node, "function_definition"):
        body = function.child_by_field_name("body")
        if body is not None and any(first <= n <= last for first, last in [_span(function)] for n in lines):
            yield from (place for place in _in_body(body, _name(function)) if place.line in lines)


def functions(code: bytes, lines: set[int]) -> set[str]:
    """Names of the functions that have one of these lines."""
    return {
        _name(function)
        for function in _find(_C.parse(code).root_node, "function_definition")
        if any(first <= n <= last for first, last in [_span(function)] for n in lines)
    }


def using(code: bytes, names: set[str]) -> set[str]:
    """Names of the functions and macros in whose text one of these words stands."""
    word = re.compile(rf"\b(?:{'|'.join(map(re.escape, sorted(names)))})\b")
    root = _C.parse(code).root_node
    found = {_name(f) for f in _find(root, "function_definition") if word.search(_text(f))}
    for kind in ("preproc_function_def", "preproc_def"):
        for macro in _find(root, kind):
            name, value = macro.child_by_field_name("name"), macro.child_by_field_name("value")
            if name is not None and value is not None and word.search(_text(value)):
                found.add(_text(name))
    return found


def words(code: bytes) -> list[str]:
    """What the compiler reads: the words of the code, without comments and white space."""

    def below(node: Node) -> Iterator[str]:
        if node.type != "comment":
            if not node.child_count:
                yield _text(node)
            for child in node.children:
                yield from below(child)

    return list(below(_C.parse(code).root_node))


def _in_body(body: Node, function: str) -> Iterator[Place]:
    conditions = {condition.id: condition for condition in _conditions(body)}
    for node in _walk(body):
        if node.id in conditions:
            text = _text(node)
            yield _place("negate", function, node, ("(@ != !!(", "))"), f"!({text})")
        # A macro that stands for the head of a loop looks like a statement without its end.
        if node.type in _LEAVES and _text(node).endswith(";") and not _must_stay(node, body):
            yield _place("drop", function, node, ("{ if (!@) ", " }"), ";")
        if _is_constant(node):
            text = _text(node)
            if node.type in ("true", "false"):
                yield _place("shift", function, node, ("(@ != ", ")"), {"true": "false", "false": "true"}[text])
            else:
                yield _place("shift", function, node, ("(", " + @)"), f"({text} + 1)")


def _conditions(body: Node) -> Iterator[Node]:
    """What decides a branch, and each part of it that && and || join; parts of a bool that is returned as well."""
    for node in _walk(body):
        if node.type in _BRANCHES and (condition := node.child_by_field_name(_BRANCHES[node.type])) is not None:
            yield _bare(condition)
        if node.type == "binary_expression" and (operator := _operator(node)) in ("&&", "||"):
            for side in ("left", "right"):
                part = node.child_by_field_name(side)
                if part is not None and _operator(part) != operator:
                    yield _bare(part)


def _bare(node: Node) -> Node:
    """Without the parentheses around it."""
    while node.type == "parenthesized_expression" and node.named_child_count == 1:
        inner = node.named_child(0)
        assert inner is not None
        node = inner
    return node


def _must_stay(node: Node, body: Node) -> bool:
    """Whether without this statement the function would end without its value, which the compiler refuses."""
    last = body.named_child(body.named_child_count - 1)
    of_value = node.type == "return_statement" and node.named_child_count > 0
    return of_value and last is not None and last.start_byte <= node.start_byte


def _is_constant(node: Node) -> bool:
    if node.type == "identifier":
        called = node.parent is not None and node.parent.type == "call_expression" and node == node.parent.child(0)
        if called or not _NAMED.fullmatch(_text(node)):
            return False
    elif node.type not in ("number_literal", "true", "false"):
        return False
    below = node
    for up in _above(node):
        field = _CONSTANT_FIELDS.get(up.type)
        if up.type in _CONSTANT or (field and below == up.child_by_field_name(field)):
            return False
        if up.type == "call_expression" and _text(up).startswith(_AT_COMPILE_TIME):
            return False
        if up.type == "declaration" and re.match(r"static\b", _text(up)):
            return False
        # The address of a constant, or a change of it, is none: what looks like one is a variable.
        if up.type in ("pointer_expression", "update_expression") and below == node:
            return False
        if up.type == "assignment_expression" and below == node == up.child_by_field_name("left"):
            return False
        below = up
    return True


def _above(node: Node) -> Iterator[Node]:
    up = node.parent
    while up is not None and up.type != "function_definition":
        yield up
        up = up.parent


def _place(kind: str, function: str, node: Node, around: tuple[str, str], wrong: str) -> Place:
    line = node.start_point.row + 1
    return Place(kind, function, line, node.start_byte, node.end_byte, _text(node), around, wrong)


def _find(node: Node, kind: str) -> Iterator[Node]:
    for child in node.named_children:
        if child.type == kind:
            yield child
        else:
            yield from _find(child, kind)


def _walk(node: Node) -> Iterator[Node]:
    yield node
    for child in node.named_children:
        yield from _walk(child)


def _name(function: Node) -> str:
    declarator = function.child_by_field_name("declarator")
    while declarator is not None and declarator.type != "identifier":
        inner = declarator.child_by_field_name("declarator")
        declarator = inner if inner is not None else next(_find(declarator, "identifier"), None)
    return _text(declarator) if declarator is not None else "function"


def _span(node: Node) -> tuple[int, int]:
    return node.start_point.row + 1, node.end_point.row + 1


def _operator(node: Node) -> str:
    operator = node.child_by_field_name("operator")
    return operator.type if operator is not None else ""


def _text(node: Node) -> str:
    return (node.text or b"").decode(errors="replace")
