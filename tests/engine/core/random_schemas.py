"""Random JSON schemas of supported keywords."""

import random
from collections.abc import Callable
from typing import Any

from tests.engine.core.schemas import Schema

_WORDS = ("alpha", "beta", "gamma", "delta", "eps\u00efl", "zeta 7", "eta", 'th"eta', "iota")


def random_document(rng: random.Random) -> Schema:
    """Make a whole schema of supported keywords that something finite matches."""
    tree = {
        "type": "object",
        "properties": {
            "value": {"$ref": "#/$defs/leaf"},
            "parts": {"type": "array", "items": {"$ref": "#/$defs/tree"}, "maxItems": 2},
        },
        "required": ["value"],
        "additionalProperties": False,
    }
    linked = {
        "type": ["object", "null"],
        "properties": {"head": {"$ref": "#/$defs/leaf"}, "tail": {"$ref": "#/$defs/list"}},
        "required": ["head", "tail"],
        "additionalProperties": False,
    }
    definitions = {"leaf": random_schema(rng, 0), "list": linked, "tree": tree}
    return {**random_schema(rng, 3), "$defs": definitions}


def random_schema(rng: random.Random, depth: int) -> Schema:
    """Make a schema that may refer to the definitions of a document."""
    scalars: list[Callable[[random.Random], Schema]] = [_integer, _number, _string, _enum, _simple]
    if depth == 0:
        return rng.choice(scalars)(rng)
    nested = [_object, _array, _tuple, _any_of, _reference]
    if rng.random() < 0.25:
        return rng.choice(scalars)(rng)
    return rng.choice(nested)(rng, depth - 1)


def _simple(rng: random.Random) -> Schema:
    return {"type": rng.choice(["boolean", "null", ["boolean", "null"]])}


def _integer(rng: random.Random) -> Schema:
    low = rng.randint(-500, 500)
    schema: Schema = {"type": "integer"}
    if rng.random() < 0.7:
        schema[rng.choice(["minimum", "exclusiveMinimum"])] = low
    if rng.random() < 0.7:
        schema[rng.choice(["maximum", "exclusiveMaximum"])] = low + rng.randint(4, 3000)
    return schema


def _number(rng: random.Random) -> Schema:
    low = round(rng.uniform(-50, 50), 2)
    return {"type": "number", "minimum": low, "maximum": round(low + rng.uniform(0.5, 90), 1)}


def _string(rng: random.Random) -> Schema:
    kind = rng.randrange(3)
    if kind == 0:
        low = rng.randint(0, 6)
        return {"type": "string", "minLength": low, "maxLength": low + rng.randint(0, 20)}
    if kind == 1:
        low = rng.randint(1, 3)
        piece = rng.choice(["[a-f]", "\\d", "(x|yy)", "[A-Z][a-z]", "[^\\s]", "\\w"])
        return {"type": "string", "pattern": f"^{piece}{{{low},{low + rng.randint(0, 4)}}}$"}
    return {"type": "string", "format": rng.choice(["date", "time", "ipv4", "uuid", "email"])}


def _enum(rng: random.Random) -> Schema:
    values: list[Any] = [*_WORDS, 1, 2.5, None, True, [1, "a"], {"k": None}]
    if rng.random() < 0.3:
        return {"const": rng.choice(values)}
    return {"enum": rng.sample(values, rng.randint(1, 6))}


def _object(rng: random.Random, depth: int) -> Schema:
    names = rng.sample(_WORDS, rng.randint(0, 4))
    schema: Schema = {
        "type": "object",
        "properties": {name: random_schema(rng, depth) for name in names},
        "required": [name for name in names if rng.random() < 0.6],
    }
    kind = rng.randrange(4)
    if kind:
        schema["additionalProperties"] = False if kind < 3 else random_schema(rng, 0)
    return schema


def _array(rng: random.Random, depth: int) -> Schema:
    low = rng.randint(0, 2)
    schema: Schema = {"type": "array", "items": random_schema(rng, depth), "minItems": low}
    if rng.random() < 0.7:
        schema["maxItems"] = low + rng.randint(0, 3)
    return schema


def _tuple(rng: random.Random, depth: int) -> Schema:
    items = [random_schema(rng, depth) for _ in range(rng.randint(1, 3))]
    return {"type": "array", "prefixItems": items, "items": False, "minItems": len(items)}


def _any_of(rng: random.Random, depth: int) -> Schema:
    return {"anyOf": [random_schema(rng, depth) for _ in range(rng.randint(1, 3))]}


def _reference(rng: random.Random, depth: int) -> Schema:
    return {"$ref": f"#/$defs/{rng.choice(['leaf', 'list', 'tree'])}"}
