// One Graphile Worker process, measured through the shared file that bench/measure.py describes.
import { openSync, readSync, writeSync } from "node:fs";
import { Logger, run, runMigrations } from "graphile-worker";

const HEADER = 4;
const [LOADED, STARTED] = [1n, 2n];
const connectionString = process.env.BENCH_DSN;
const silent = new Logger(() => (level, message) => {
  if (level === "error") console.error(message);
});

if (process.argv[2] === "migrate") {
  await runMigrations({ connectionString, logger: silent });
  process.exit();
}

const file = openSync(process.env.BENCH_PROGRESS, "r+");
const word = new BigInt64Array(1);
const write = (index, value) => {
  word[0] = BigInt(value);
  writeSync(file, word, 0, 8, index * 8);
};
const microseconds = () => Number(process.hrtime.bigint() / 1000n);

let firstStart = 0, lastEnd = 0, count = 0, written = 0;
const latencies = [];

// A system call for each job would cost what Python's shared memory does not: write what is new now and then.
const report = () => {
  if (count === written) return;
  while (latencies.length > 0) write(HEADER + written++, latencies.shift());
  written = count;
  write(1, firstStart);
  write(2, lastEnd);
  write(3, count);
};

const job = async ({ sent }) => {
  const now = microseconds();
  firstStart ||= now;
  if (sent) latencies.push(now - sent);
  lastEnd = microseconds();
  count += 1;
};

write(0, LOADED);
while (word[0] !== STARTED) {
  await new Promise((resolve) => setTimeout(resolve, 1));
  readSync(file, word, 0, 8, 0);
}
setInterval(report, 2);

const runner = await run({
  connectionString,
  logger: silent,
  taskList: { job },
  preset: {
    worker: {
      concurrentJobs: 100,
      localQueue: { size: 1000 },
      completeJobBatchDelay: 0,
      failJobBatchDelay: 0,
    },
  },
});
await runner.promise;
process.exit();
