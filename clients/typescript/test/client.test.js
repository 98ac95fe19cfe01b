// Against a real server: tests/api/test_typescript.py starts it and passes its address and a key.
import assert from "node:assert/strict";
import { test } from "node:test";
import { Penstock, PenstockError } from "../index.js";

const { PENSTOCK_URL: url, PENSTOCK_KEY: key, OTHER_KEY: other, TASK: task, JOB: job } = process.env;
const client = new Penstock({ url, key });

/** A fetch that loses the first responses, after the server has acted. */
function losing(count) {
  const seen = [];
  const lossy = async (address, options) => {
    const response = await fetch(address, options);
    seen.push(options.headers["Idempotency-Key"]);
    if (seen.length <= count) throw new TypeError("the response was lost");
    return response;
  };
  return { lossy, seen };
}

test("starts, reads and lists jobs", async () => {
  const { id } = await client.request("POST /api/jobs/start", { body: { type: "many", params: { count: 2 } } });
  const found = await client.request("GET /api/jobs/{job_id}", { path: { job_id: id } });
  assert.equal(found.type, "many");
  assert.equal(found.progress.total, 2);
  const { items } = await client.request("GET /api/jobs", { query: { filter: "type:many", limit: 1 } });
  assert.deepEqual(items.map((each) => each.id), [id]);
  const changes = client.jobEvents(id);
  assert.equal((await changes.next()).value.status, "queued");
  await changes.return();
});

test("a request whose response is lost starts one job", async () => {
  const { lossy, seen } = losing(2);
  const shaky = new Penstock({ url, key, fetch: lossy });
  const before = (await client.request("GET /api/jobs", {})).items.length;
  await shaky.request("POST /api/jobs/start", { body: { type: "many", params: { count: 1 } } });
  assert.equal(seen.length, 3);
  assert.equal(new Set(seen).size, 1);
  assert.equal((await client.request("GET /api/jobs", {})).items.length, before + 1);
});

test("gives up after the allowed tries", async () => {
  const { lossy, seen } = losing(9);
  await assert.rejects(new Penstock({ url, key, fetch: lossy, retries: 1 }).request("GET /api/jobs", {}), /was lost/);
  assert.equal(seen.length, 2);
});

test("errors carry the API's code, and are not repeated", async () => {
  const unknown = { path: { job_id: "00000000-0000-0000-0000-000000000000" } };
  await assert.rejects(client.request("GET /api/jobs/{job_id}", unknown), (error) => {
    assert.ok(error instanceof PenstockError);
    assert.deepEqual([error.status, error.code], [404, "unknown_job"]);
    return true;
  });
  await assert.rejects(new Penstock({ url, key: "invented" }).request("GET /api/jobs", {}), { status: 401 });
});

test("another tenant's job does not exist", async () => {
  const stranger = new Penstock({ url, key: other });
  await assert.rejects(stranger.request("GET /api/jobs/{job_id}", { path: { job_id: job } }), { code: "unknown_job" });
  await assert.rejects(stranger.taskStream(job, Number(task)).next(), { status: 404 });
});

test("parts of a path cannot change it", async () => {
  await assert.rejects(client.request("GET /api/jobs/{job_id}", { path: { job_id: "../me" } }), { status: 404 });
  await assert.rejects(client.request("GET /api/jobs/{job_id}", { path: {} }), /path.job_id is missing/);
});

test("a stream that breaks goes on after the last chunk", async () => {
  let opened = 0;
  const breaking = async (address, options) => {
    const response = await fetch(address, options);
    if (!address.endsWith("/stream") || ++opened > 1) return response;
    const reader = response.body.getReader();
    let text = "";
    const decoder = new TextDecoder();
    // The connection breaks within the second event.
    while (!text.includes("event: chunk\n") || text.split("event: chunk\n").length < 3) {
      text += decoder.decode((await reader.read()).value, { stream: true });
    }
    await reader.cancel();
    const cut = text.lastIndexOf("event: chunk\n") + 5;
    return new Response(text.slice(0, cut), { headers: response.headers });
  };
  const shaky = new Penstock({ url, key, fetch: breaking });
  const numbers = [];
  for await (const chunk of shaky.taskStream(job, Number(task))) numbers.push([chunk.number, chunk.parts]);
  assert.equal(opened, 2);
  assert.deepEqual(numbers, [[1, ["one"]], [2, ["two", { n: 2 }]], [3, ["three"]]]);
});

test("an abort ends a stream and a pause", async () => {
  const signal = AbortSignal.timeout(200);
  const { lossy } = losing(1e9);
  await assert.rejects(new Penstock({ url, key, fetch: lossy, retries: 50 }).request("GET /api/jobs", { signal }), {
    name: "TimeoutError",
  });
});
