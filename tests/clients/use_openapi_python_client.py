"""Works with the client that openapi-python-client generates."""

from __future__ import annotations

import json
import sys
import time

from made_by_openapi_python_client import AuthenticatedClient
from made_by_openapi_python_client.api.conversions import (
    cancel_conversion,
    create_conversion,
    get_conversion,
    list_conversions,
    watch_conversion,
)
from made_by_openapi_python_client.models import Conversion, ConversionPage, OneTarget, Problem

url, idle_url, token, target = sys.argv[1:]
client = AuthenticatedClient(url, token, timeout=120)
idle = AuthenticatedClient(idle_url, token, timeout=120)
body = OneTarget(source="data/run/7", target=target, cast=[["float", "bfloat16"]])
made = create_conversion.sync(client=client, body=body)
assert isinstance(made, Conversion)
events = watch_conversion.sync(made.id, client=client)
while not (found := get_conversion.sync(made.id, client=client)).done:
    time.sleep(0.1)
assert isinstance(found, Conversion)
page = list_conversions.sync(client=client)
assert isinstance(page, ConversionPage)
narrow = get_conversion.sync(made.id, client=client, fields="state,request.source")
waits = create_conversion.sync(client=idle, body=body)
missing = get_conversion.sync("none", client=client)
assert isinstance(missing, Problem)
asked = found.request.to_dict()
said = {
    "state": found.state.value,
    "asked": {name: asked[name] for name in ("source", "target", "cast")},
    "tensors": len(found.result[0].tensors),
    "listed": [
        one.request["target"] for one in page.conversions if one.request["target"] == target
    ],
    "narrowed": [narrow.state.value, narrow.id or None],
    "events": isinstance(events, str) and "event: end\n" in events,
    "cancelled": cancel_conversion.sync(waits.id, client=idle).state.value,
    "refused": missing.type_,
}
print(json.dumps(said))
