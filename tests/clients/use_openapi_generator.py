"""Works with the Python client that OpenAPI Generator makes."""

from __future__ import annotations

import json
import sys
import time

from made_by_openapi_generator import ApiClient, Configuration, ConversionsApi
from made_by_openapi_generator.exceptions import NotFoundException
from made_by_openapi_generator.models import CreateConversionRequest, OneTarget

url, idle_url, token, target = sys.argv[1:]
api = ConversionsApi(ApiClient(Configuration(host=url, access_token=token)))
idle = ConversionsApi(ApiClient(Configuration(host=idle_url, access_token=token)))
body = CreateConversionRequest(
    OneTarget(source="data/run/7", target=target, cast=[["float", "bfloat16"]])
)
made = api.create_conversion(body)
events = api.watch_conversion(made.id)
while not (found := api.get_conversion(made.id)).done:
    time.sleep(0.1)
narrow = api.get_conversion(made.id, fields="state,request.source")
waits = idle.create_conversion(body)
listed = [one.request["target"] for one in api.list_conversions().conversions]
try:
    api.get_conversion("none")
except NotFoundException as error:
    refused = json.loads(error.body)["type"]
said = {
    "state": found.state,
    "asked": {name: found.request[name] for name in ("source", "target", "cast")},
    "tensors": len(found.result[0].actual_instance.tensors),
    "listed": [one for one in listed if one == target],
    "narrowed": [narrow.state, narrow.id],
    "events": "event: end\n" in events,
    "cancelled": idle.cancel_conversion(waits.id).state,
    "refused": refused,
}
print(json.dumps(said))
