// Works with the types that openapi-typescript makes, through openapi-fetch.
import createClient from "openapi-fetch";
import type { paths } from "./schema.js";

const [url, idleUrl, token, target] = process.argv.slice(2);
const headers = { Authorization: `Bearer ${token}` };
const client = createClient<paths>({ baseUrl: url, headers });
const idle = createClient<paths>({ baseUrl: idleUrl, headers });

const body = { source: "data/run/7", target, cast: [["float", "bfloat16"]] };
const made = (await client.POST("/v1/conversions", { body })).data!;
const path = { id: made.id! };
const events: string | undefined = (
  await client.GET("/v1/conversions/{id}/events", { params: { path }, parseAs: "text" })
).data;
let found = (await client.GET("/v1/conversions/{id}", { params: { path } })).data!;
while (!found.done) {
  await new Promise((wake) => setTimeout(wake, 100));
  found = (await client.GET("/v1/conversions/{id}", { params: { path } })).data!;
}
const page = (await client.GET("/v1/conversions")).data!;
const query = { fields: "state,request.source" };
const narrow = (await client.GET("/v1/conversions/{id}", { params: { path, query } })).data!;
const waits = (await idle.POST("/v1/conversions", { body })).data!;
const cancelled = await idle.POST("/v1/conversions/{id}:cancel", {
  params: { path: { id: waits.id! } },
});
const missing = await client.GET("/v1/conversions/{id}", { params: { path: { id: "none" } } });
const { request } = found;
console.log(
  JSON.stringify({
    state: found.state,
    asked: { source: request!.source, target: request!.target, cast: request!.cast },
    tensors: found.result![0].tensors!.length,
    listed: page.conversions!.map((one) => one.request!.target).filter((one) => one === target),
    narrowed: [narrow.state, narrow.id ?? null],
    events: events?.includes("event: end\n"),
    cancelled: cancelled.data!.state,
    refused: missing.error!.type,
  }),
);
