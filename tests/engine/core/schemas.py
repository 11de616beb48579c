"""JSON schemas to write by, and what must be refused."""

from typing import Any

Schema = dict[str, Any]

HAND_WRITTEN: dict[str, Schema] = {
    # scalars
    "anything": {},
    "null": {"type": "null"},
    "boolean": {"type": "boolean"},
    "integer": {"type": "integer"},
    "number": {"type": "number"},
    "string": {"type": "string"},
    "nullable": {"type": ["string", "null"]},
    "several types": {"type": ["integer", "boolean", "null"]},
    "const string": {"const": 'say "hi"\\n\n\t'},
    "const object": {"const": {"b": [1, None, {"c": True}], "a": 1.5}},
    "const false": {"const": False},
    "enum of strings": {"enum": ["red", "green", "blue", "dark blue"]},
    "enum of everything": {"enum": [1, -2.5, "a", None, True, {"k": [1]}, [], {}]},
    "enum with type": {"type": "string", "enum": ["a", "b"]},
    "enum of one": {"enum": ["only"]},
    "enum beyond ASCII": {"enum": ["na\u00efve", "\u4f60\u597d", "\U0001f600", "a/b"]},
    # numbers
    "integer range": {"type": "integer", "minimum": 3, "maximum": 117},
    "negative range": {"type": "integer", "minimum": -20, "maximum": -11},
    "open range": {"type": "integer", "exclusiveMinimum": -3, "exclusiveMaximum": 3},
    "at least": {"type": "integer", "minimum": 1000},
    "at most": {"type": "integer", "maximum": 5},
    "decimal range": {"type": "number", "minimum": 0.5, "maximum": 1.25},
    "decimal open range": {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1},
    "number within whole bounds": {"type": "number", "minimum": -1, "maximum": 10},
    "multiples of seven": {"type": "integer", "multipleOf": 7},
    "multiples in a range": {"type": "integer", "minimum": 10, "maximum": 100, "multipleOf": 5},
    "one number": {"type": "integer", "minimum": 42, "maximum": 42},
    # strings
    "short string": {"type": "string", "maxLength": 5},
    "long enough string": {"type": "string", "minLength": 10, "maxLength": 30},
    "exact length": {"type": "string", "minLength": 3, "maxLength": 3},
    "empty string": {"type": "string", "maxLength": 0},
    "pattern": {"type": "string", "pattern": "^[A-Z]{2,4}-[0-9]{3}$"},
    "pattern anywhere": {"type": "string", "pattern": "[0-9]{2}"},
    "pattern at the start": {"type": "string", "pattern": "^ab"},
    "pattern at the end": {"type": "string", "pattern": "yz$"},
    "pattern of alternatives": {"type": "string", "pattern": "^(cat|dog|bird)s?$"},
    "pattern with a class": {"type": "string", "pattern": "^[^aeiou]{3,6}$"},
    "pattern with escapes": {"type": "string", "pattern": "^\\d{1,3}\\.\\d{2}$"},
    "pattern with quotes": {"type": "string", "pattern": '^"[a-z]+"$'},
    "pattern with backslash": {"type": "string", "pattern": "^[a-z]:\\\\[a-z]{1,4}$"},
    "costly pattern": {"type": "string", "pattern": "^(a+)+b$"},
    "pattern and length": {"type": "string", "pattern": "^[a-z]+$", "minLength": 3, "maxLength": 6},
    "date": {"type": "string", "format": "date"},
    "time": {"type": "string", "format": "time"},
    "date-time": {"type": "string", "format": "date-time"},
    "duration": {"type": "string", "format": "duration"},
    "email": {"type": "string", "format": "email"},
    "hostname": {"type": "string", "format": "hostname"},
    "ipv4": {"type": "string", "format": "ipv4"},
    "ipv6": {"type": "string", "format": "ipv6"},
    "uuid": {"type": "string", "format": "uuid"},
    "uri": {"type": "string", "format": "uri"},
    # arrays
    "any array": {"type": "array"},
    "integers": {"type": "array", "items": {"type": "integer"}},
    "two to four": {"type": "array", "items": {"type": "boolean"}, "minItems": 2, "maxItems": 4},
    "exactly three": {"type": "array", "items": {"enum": ["x", "y"]}, "minItems": 3, "maxItems": 3},
    "no items": {"type": "array", "maxItems": 0},
    "tuple": {
        "type": "array",
        "prefixItems": [{"type": "string", "maxLength": 4}, {"type": "integer"}],
        "items": False,
        "minItems": 2,
    },
    "tuple with rest": {
        "type": "array",
        "prefixItems": [{"const": "head"}],
        "items": {"type": "null"},
        "minItems": 1,
        "maxItems": 4,
    },
    "draft 7 tuple": {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "type": "array",
        "items": [{"type": "integer"}, {"type": "boolean"}],
        "additionalItems": False,
        "minItems": 2,
    },
    "array of arrays": {
        "type": "array",
        "items": {"type": "array", "items": {"type": "null"}, "maxItems": 3},
        "maxItems": 3,
    },
    # objects
    "any object": {"type": "object"},
    "empty object": {"type": "object", "additionalProperties": False},
    "person": {
        "type": "object",
        "properties": {"name": {"type": "string", "maxLength": 12}, "age": {"type": "integer"}},
        "required": ["name", "age"],
        "additionalProperties": False,
    },
    "optional properties": {
        "type": "object",
        "properties": {key: {"type": "boolean"} for key in "abcde"},
        "additionalProperties": False,
    },
    "middle is required": {
        "type": "object",
        "properties": {key: {"type": "null"} for key in "abc"},
        "required": ["b"],
        "additionalProperties": False,
    },
    "required but not described": {"type": "object", "required": ["id"]},
    "typed additional properties": {
        "type": "object",
        "properties": {"id": {"type": "integer"}},
        "additionalProperties": {"type": "boolean"},
    },
    "additional properties allowed": {
        "type": "object",
        "properties": {"id": {"type": "integer", "maximum": 9, "minimum": 0}},
        "required": ["id"],
    },
    "pattern properties": {
        "type": "object",
        "patternProperties": {"^n_[a-z]{1,3}$": {"type": "integer"}},
        "additionalProperties": False,
    },
    "keys beyond ASCII": {
        "type": "object",
        "properties": {'q"uo\\te': {"type": "null"}, "\u00e9t\u00e9": {"type": "null"}},
        "required": ['q"uo\\te', "\u00e9t\u00e9"],
        "additionalProperties": False,
    },
    "properties that are named like keywords": {
        "type": "object",
        "properties": {"not": {"type": "null"}, "uniqueItems": {"type": "boolean"}},
        "required": ["not", "uniqueItems"],
        "additionalProperties": False,
    },
    "deep": {
        "type": "object",
        "properties": {
            "a": {
                "type": "object",
                "properties": {
                    "b": {
                        "type": "object",
                        "properties": {"c": {"type": "array", "items": {"const": 1}}},
                        "required": ["c"],
                        "additionalProperties": False,
                    }
                },
                "required": ["b"],
                "additionalProperties": False,
            }
        },
        "required": ["a"],
        "additionalProperties": False,
    },
    # combinations
    "any of": {"anyOf": [{"type": "integer"}, {"type": "null"}, {"const": "x"}]},
    "any of objects": {
        "anyOf": [
            {
                "type": "object",
                "properties": {"kind": {"const": kind}, kind: {"type": "boolean"}},
                "required": ["kind", kind],
                "additionalProperties": False,
            }
            for kind in ("cat", "dog")
        ]
    },
    "one of apart": {"oneOf": [{"type": "integer"}, {"type": "boolean"}]},
    "one of by constant": {
        "oneOf": [
            {
                "type": "object",
                "properties": {"kind": {"const": kind}},
                "required": ["kind"],
                "additionalProperties": False,
            }
            for kind in ("a", "b")
        ]
    },
    "all of": {
        "allOf": [
            {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]},
            {"properties": {"b": {"type": "boolean"}}, "required": ["b"]},
        ]
    },
    "all of ranges": {"allOf": [{"type": "integer", "minimum": 3}, {"maximum": 8}]},
    "siblings of any of": {
        "type": "object",
        "properties": {"a": {"type": "integer"}},
        "required": ["a"],
        "anyOf": [{"properties": {"b": {"type": "null"}}, "required": ["b"]}, {}],
    },
    # references
    "reference": {
        "$defs": {"colour": {"enum": ["red", "blue"]}},
        "type": "array",
        "items": {"$ref": "#/$defs/colour"},
        "maxItems": 5,
    },
    "old definitions": {
        "definitions": {"n": {"type": "integer"}},
        "type": "object",
        "properties": {"n": {"$ref": "#/definitions/n"}},
        "required": ["n"],
        "additionalProperties": False,
    },
    "reference to a property": {
        "type": "object",
        "properties": {
            "a": {"type": "boolean"},
            "b": {"$ref": "#/properties/a"},
        },
        "required": ["a", "b"],
        "additionalProperties": False,
    },
    "linked list": {
        "$defs": {
            "node": {
                "type": "object",
                "properties": {
                    "value": {"type": "integer"},
                    "next": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]},
                },
                "required": ["value", "next"],
                "additionalProperties": False,
            }
        },
        "$ref": "#/$defs/node",
    },
    "tree": {
        "type": "object",
        "properties": {
            "leaf": {"type": "boolean"},
            "children": {"type": "array", "items": {"$ref": "#"}, "maxItems": 2},
        },
        "required": ["leaf", "children"],
        "additionalProperties": False,
    },
    "mutual recursion": {
        "$defs": {
            "even": {"type": "array", "items": {"$ref": "#/$defs/odd"}, "maxItems": 1},
            "odd": {"type": "array", "items": {"$ref": "#/$defs/even"}, "maxItems": 1},
        },
        "$ref": "#/$defs/even",
    },
    "as pydantic writes it": {
        "$defs": {
            "Item": {
                "properties": {
                    "name": {"title": "Name", "type": "string", "maxLength": 8},
                    "price": {"anyOf": [{"type": "number"}, {"type": "null"}], "title": "Price"},
                },
                "required": ["name", "price"],
                "title": "Item",
                "type": "object",
                "additionalProperties": False,
            }
        },
        "properties": {
            "items": {"items": {"$ref": "#/$defs/Item"}, "title": "Items", "type": "array"},
            "total": {"title": "Total", "type": "number", "description": "in euros"},
        },
        "required": ["items", "total"],
        "title": "Order",
        "type": "object",
        "additionalProperties": False,
    },
    "annotations": {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": "https://example.org/thing",
        "$comment": "nothing of this says what is valid",
        "title": "Thing",
        "description": "A thing",
        "default": {"not": "a schema"},
        "examples": [{"uniqueItems": True}],
        "readOnly": True,
        "deprecated": True,
        "type": "integer",
    },
    "unknown keyword": {"type": "null", "x-vendor": {"anything": ["goes"]}},
}

UNSUPPORTED: dict[str, tuple[Schema, str]] = {
    "not": ({"not": {"type": "string"}}, "#/not"),
    "uniqueItems": ({"type": "array", "uniqueItems": True}, "#/uniqueItems"),
    "contains": ({"type": "array", "contains": {"const": 1}}, "#/contains"),
    "minContains": ({"type": "array", "minContains": 1}, "#/minContains"),
    "maxContains": ({"type": "array", "maxContains": 1}, "#/maxContains"),
    "dependencies": (
        {"$schema": "http://json-schema.org/draft-07/schema#", "dependencies": {"a": ["b"]}},
        "#/dependencies",
    ),
    "dependentRequired": ({"dependentRequired": {"a": ["b"]}}, "#/dependentRequired"),
    "dependentSchemas": ({"dependentSchemas": {"a": {}}}, "#/dependentSchemas"),
    "propertyNames": ({"propertyNames": {"pattern": "^a"}}, "#/propertyNames"),
    "if": ({"if": {"type": "string"}}, "#/if"),
    "then": ({"then": {}}, "#/then"),
    "else": ({"else": {}}, "#/else"),
    "unevaluatedItems": ({"unevaluatedItems": False}, "#/unevaluatedItems"),
    "unevaluatedProperties": ({"unevaluatedProperties": False}, "#/unevaluatedProperties"),
    "$dynamicRef": ({"$dynamicRef": "#x"}, "#/$dynamicRef"),
    "format": ({"type": "string", "format": "colour"}, "#/format"),
    "oneOf": ({"oneOf": [{"type": "integer"}, {"minimum": 3}]}, "#/oneOf"),
    "pattern": ({"type": "string", "pattern": "^(?=a)[a-z]+$"}, "#/pattern"),
    "patternProperties": ({"patternProperties": {"(a)\\1": {}}}, "#/patternProperties"),
    "$ref": ({"$ref": "https://example.org/schema.json"}, "#/$ref"),
}
"""Keyword: a schema with it, and the place that a refusal must name."""

NO_SCHEMAS: dict[str, tuple[Any, str]] = {
    "a property that is a string": ({"properties": {"foo": "bar"}}, "#/properties/foo"),
    "properties that are a string": ({"type": "object", "properties": "bar"}, "#/properties"),
    "items that are a number": ({"items": 5}, "#/items"),
    "a branch that is null": ({"anyOf": [{}, None]}, "#/anyOf/1"),
    "an unknown type": ({"properties": {"a": {"type": "str"}}}, "#/properties/a/type"),
    "a type that is a number": ({"type": 5}, "#/type"),
    "an enum that is a number": ({"enum": 5}, "#/enum"),
    "required that is a string": ({"required": "a"}, "#/required"),
    "a length that is a string": ({"type": "string", "minLength": "x"}, "#/minLength"),
    "a pattern that is open": ({"type": "string", "pattern": "("}, "#/pattern"),
    "a reference to nothing": ({"items": {"$ref": "#/$defs/nope"}}, "#/items/$ref"),
    "an empty range": ({"type": "integer", "minimum": 5, "maximum": 3}, "minimum (5)"),
    "an empty enum": ({"enum": []}, "empty"),
    "a loop of references": ({"$ref": "#"}, "nothing can match it"),
    "a conjunction with itself": ({"allOf": [{"$ref": "#"}]}, "nothing can match it"),
    "false": (False, "nothing can match it"),
    "a number": (5, "an object or a boolean"),
    "a list": ([], "an object or a boolean"),
}
"""What is none, and what a refusal must say."""
