"""JSON schemas as GBNF grammars, through llama-cpp-python's own converter."""

from __future__ import annotations

import json
from typing import Any

from lcspec.errors import GrammarError
from lcspec.grammars import check_grammar, check_schema


def schema_to_gbnf(schema: str | dict[str, Any]) -> str:
    """The GBNF grammar of a JSON schema.

    Raises:
        GrammarError: not JSON, not a schema, a construct the converter does not know, or more than it can take.
    """
    from llama_cpp.llama_grammar import json_schema_to_gbnf

    if isinstance(schema, str):
        try:
            schema = json.loads(schema)
        except ValueError as error:
            raise GrammarError(f"the JSON schema is not JSON: {error}") from error
        except RecursionError:
            raise GrammarError("the JSON schema is nested too deeply") from None
    if not isinstance(schema, dict):
        raise GrammarError('the JSON schema must be an object such as {"type": "object", ...}')
    check_schema(schema)
    try:
        grammar = str(json_schema_to_gbnf(json.dumps(schema)))
    except Exception as error:  # the converter raises whatever it trips over
        raise GrammarError(f"the JSON schema cannot be turned into a grammar: {error}") from error
    return check_grammar(grammar, written=True)
