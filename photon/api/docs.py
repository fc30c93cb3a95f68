"""The OpenAPI document as one page of plain HTML, which needs no script and nothing from another host."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from html import escape
from typing import Any

_PAGE = """<!doctype html>
<html lang="en"><meta charset="utf-8"><title>{title}</title>
<style>
body {{ font: 15px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem }}
code {{ font-size: 14px }} td {{ vertical-align: top; padding: .15rem 1rem .15rem 0 }}
</style>
<h1>{title}</h1><p>{description}</p><p>For programs: <a href="openapi.json">openapi.json</a></p>
{routes}
</html>"""


def page(document: Mapping[str, Any]) -> str:
    """HTML of an OpenAPI document: each route with the fields of its body."""
    info = {key: escape(document["info"][key]) for key in ("title", "description")}
    routes = "".join(
        _route(method, path, operation, document["components"]["schemas"])
        for path, operations in document["paths"].items()
        for method, operation in operations.items()
    )
    return _PAGE.format(routes=routes, **info)


def _route(method: str, path: str, operation: Mapping[str, Any], schemas: Mapping[str, Any]) -> str:
    head = f"<h2><code>{method.upper()} {escape(path)}</code></h2>"
    text = f"<p>{escape(operation.get('description', ''))}</p>"
    body = operation.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema")
    rows = "".join(_rows(body, schemas)) if body else ""
    return f"{head}{text}<table>{rows}</table>"


def _rows(reference: Mapping[str, Any], schemas: Mapping[str, Any]) -> Iterator[str]:
    schema = schemas[_name(reference)]
    for field, facts in schema["properties"].items():
        need = "needed" if field in schema.get("required", ()) else "optional"
        cells = (field, _type(facts), need, facts.get("description", ""))
        yield "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in cells) + "</tr>"


def _type(facts: Mapping[str, Any]) -> str:
    """In words: string, array of number, ImageUrl."""
    if "anyOf" in facts:
        return " or ".join(_type(kind) for kind in facts["anyOf"] if kind.get("type") != "null")
    if "$ref" in facts:
        return _name(facts)
    return f"array of {_type(facts['items'])}" if "items" in facts else facts.get("type", "any")


def _name(reference: Mapping[str, Any]) -> str:
    return reference["$ref"].rpartition("/")[2]
