// Graphile Worker: `migrate`, or one process of workers.
import { Logger, run, runMigrations } from "graphile-worker";
import { connectionString, job, waitForStart, workersHere } from "./progress.mjs";

const logger = new Logger(() => (level, message) => {
  if (level === "error") console.error(message);
});

if (process.argv[2] === "migrate") {
  await runMigrations({ connectionString, logger });
  process.exit();
}

await waitForStart();
const worker = () =>
  run({
    connectionString,
    logger,
    noHandleSignals: workersHere > 1,
    taskList: { job: async (payload) => job(payload) },
    preset: {
      worker: {
        concurrentJobs: 100,
        localQueue: { size: 1000 },
        completeJobBatchDelay: 0,
        failJobBatchDelay: 0,
      },
    },
  });
const runners = await Promise.all(Array.from({ length: workersHere }, worker));
await Promise.all(runners.map((runner) => runner.promise));
process.exit();
