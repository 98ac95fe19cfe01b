// Compiled, not run: the types of the client.
import { Penstock } from "../index.js";
const client = new Penstock({ url: "http://x" });
const { id } = await client.request("POST /api/jobs/start", { body: { type: "many", params: { count: 2 } } });
const job = await client.request("GET /api/jobs/{job_id}", { path: { job_id: id } });
const total: number = job.progress.total;
await client.request("GET /api/jobs");
for await (const chunk of client.taskStream(id, 1)) { const n: number = chunk.number; }
// @ts-expect-error the path is missing
await client.request("GET /api/jobs/{job_id}");
// @ts-expect-error unknown operation
await client.request("GET /api/nothing");
// @ts-expect-error wrong type
await client.request("GET /api/jobs", { query: { limit: "many" } });
