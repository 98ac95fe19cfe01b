// The shared file that bench/measure.py describes, as one Node.js process sees it.
import { openSync, readSync, writeSync } from "node:fs";

const HEADER = 5;
const [LOADED, STARTED] = [1n, 2n];
export const connectionString = process.env.BENCH_DSN;
export const workersHere = Number(process.env.BENCH_WORKERS ?? 1);

let file;
let firstStart = 0, lastEnd = 0, count = 0, told = 0, sampled = 0;
let latencies = [];
const microseconds = () => Number(process.hrtime.bigint() / 1000n);

const write = (index, ...values) => {
  writeSync(file, new BigInt64Array(values.map(BigInt)), 0, 8 * values.length, 8 * index);
};

// A system call for each job would cost what Python's shared memory does not: write what is new now and then.
const report = () => {
  if (count === told) return;
  if (latencies.length > 0) {
    write(HEADER + sampled, ...latencies);
    sampled += latencies.length;
    latencies = [];
  }
  told = count;
  write(1, firstStart, lastEnd, told, sampled);
};

// The handler.
export const job = ({ sent }) => {
  const now = microseconds();
  firstStart ||= now;
  if (sent) latencies.push(now - sent);
  lastEnd = microseconds();
  count += 1;
};

export const waitForStart = async () => {
  file = openSync(process.env.BENCH_PROGRESS, "r+");
  write(0, LOADED);
  const word = new BigInt64Array(1);
  while (word[0] !== STARTED) {
    await new Promise((resolve) => setTimeout(resolve, 1));
    readSync(file, word, 0, 8, 0);
  }
  setInterval(report, 2);
};
